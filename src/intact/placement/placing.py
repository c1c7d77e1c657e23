"""Finds what is faster in float, and returns the job that keeps it so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from intact.calibrate.assign import assign
from intact.calibrate.choice import Choice
from intact.data.batching import Batch, sample_count
from intact.engines.simulate import Simulator
from intact.errors import UsageError
from intact.formats.base.format import Exported, Format
from intact.formats.registry import FORMATS, export
from intact.limits import MOST_DB
from intact.placement.cache import TimingCache
from intact.placement.choice import Fastest, FastestSearch
from intact.plan import Note, NoteKind, QuantizedGraph
from intact.results.first_run import draw_sample
from intact.results.job import Scaled

if TYPE_CHECKING:
    from intact.plan.given_scales import ScaleTable
    from intact.recipe.groups import SpeedOptions
    from intact.results.job import Job


_GROUPS = 64
"""Groups of quantizers whose noise is measured."""


def find_fastest(
    job: Job,
    scaled: Scaled,
    sample: Batch | None,
    given: ScaleTable | None,
    options: SpeedOptions,
    threads: int,
    seconds: float,
) -> tuple[Job, Fastest]:
    """Find what is faster in float, and return the job that keeps it so.

    Args:
        job: The job as it would be without.
        scaled: Its plan with scales.
        sample: A batch; None to draw one.
        given: Scales that need no samples.
        options: What was asked for.
        threads: Threads of the runtime; 0 takes all cores.
        seconds: To spend.

    Raises:
        UsageError: A bound is asked for and there is nothing to measure it on.
    """
    feeds = draw_sample(scaled.plan, scaled.statistics) if sample is None else sample
    choice = scaled.choice
    if options.min_sqnr is not None and choice is None:
        raise UsageError("--min-sqnr needs samples", remedy="give some with --data")
    method = job.methods[0] if choice is None else choice.method

    def planner(names: Sequence[str]) -> QuantizedGraph:
        return assign(job.keeping(names), scaled.statistics, method, given)

    # The first format that is timed: the user named the most important one first.
    name = next((each for each in job.deployment.formats if _can_be_timed(FORMATS[each])), None)

    def write(plan: QuantizedGraph) -> Exported:
        written = export(plan, [str(name)], job.deployment.io)
        return next(iter(written.values()))

    def decibels(plan: QuantizedGraph) -> float:
        if choice is None:
            return MOST_DB
        return min(choice.changed(plan).errors.decibels.values(), default=MOST_DB)

    def noise() -> dict[str, float]:
        return {} if choice is None else _noise_of_nodes(choice)

    search = FastestSearch(
        scaled.plan,
        planner,
        write,
        None if name is None else FORMATS[name].runtime,
        feeds or {},
        options.fastest_batch if sample is not None else sample_count(feeds or {}),
        threads,
        seconds,
        TimingCache(options.timings),
        str(job.deployment.io),
        options.min_sqnr,
        decibels,
        noise,
    )
    found = search.find()
    return _keep_in_float(job, found), found


def _noise_of_nodes(choice: Choice) -> dict[str, float]:
    """Return the noise power of each node's quantizers, alone, in the output that loses most."""
    from intact.analyze.diagnose.noise import ActivationNoise, measure_groups  # with much else

    decibels = choice.errors.decibels
    if not decibels:
        return {}
    output = min(decibels, key=lambda name: decibels[name])
    simulator = Simulator(choice.plan, threads=1, switched=True)
    alone = ActivationNoise(simulator, choice.runs.first(1), output)
    # A run for each group and not for each quantizer: large nets have thousands.
    groups = measure_groups(list(simulator.points.values()), alone.powers, groups=_GROUPS)
    found: dict[str, float] = {}
    for group in groups:
        for point in group.points:
            writer = point.value.producer()
            nodes = [writer] if writer is not None else [node for node, _ in point.readers]
            for node in nodes:
                # What was measured together is divided equally: more is not known of it.
                share = group.power / len(group.points) / len(nodes)
                found[str(node.name)] = found.get(str(node.name), 0.0) + share
    return found


def _can_be_timed(row: Format) -> bool:
    return row.runtime is not None and row.runtime.is_timed and row.runtime.is_installed()


def _keep_in_float(job: Job, found: Fastest) -> Job:
    """Return the job that keeps these nodes in float in all its plans."""
    if not found.kept_float:
        return job
    where = found.runtime or "the target's cost table"
    note = Note(
        NoteKind.SPEED,
        found.kept_float[0],
        f"{len(found.kept_float)} node(s) stay float to be faster ({where})",
        remedy="leave out --fastest to have them in integers",
    )
    return job.in_float(found.kept_float, note)
