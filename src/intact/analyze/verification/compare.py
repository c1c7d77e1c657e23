"""Compares a deployed model with its plan, in the runtime that fits its format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from intact.analyze.verification.subject import (
    Subject,
    batch_size_of,
    batches_of,
    choose_format,
)
from intact.data.progress import begin
from intact.data.sources import load_arrays
from intact.data.stream import Samples
from intact.engines.cpu import detect_cpu
from intact.errors import DataError, UsageError
from intact.formats.base.format import Deployed
from intact.formats.base.observed import verify_observed
from intact.formats.base.report import Verification
from intact.formats.registry import FORMATS
from intact.graph.aliases import by_own_name
from intact.plan import QuantizedGraph
from intact.program.lower import lower

if TYPE_CHECKING:
    from intact.calibrate.shards import SampleMap


def compare(
    subject: Subject,
    samples: Samples,
    *,
    kernels: str | None = None,
    deployed: str | None = None,
    threads: int = 0,
    place: str = "",
    cluster: SampleMap | None = None,
) -> Verification:
    """Compare what was deployed, in the runtime that fits its format, with its plan.

    Args:
        subject: What is verified.
        samples: The inputs, with labels if there are any.
        kernels: Which kernels run a ``.tflite``; None takes the target's.
        deployed: Which format, if there are several; None takes the first that can be run.
        threads: Threads of the runtime; 0 takes all cores.
        place: Text behind the name of each phase.
        cluster: Whose workers compare, each with so many threads; None does it here.

    Raises:
        ClusterError: The cluster cannot be reached, has other versions, or loses its workers; or
            these are not alike.
        UsageError: There is no such format or kernel, or the format has no kernels to choose.
        IntactError: The runtime refuses the model, or is not installed.
    """
    size = batch_size_of(samples, subject.plan.graph)
    if subject.result is None and deployed is not None:
        raise UsageError("--format is for a result, this is one file", remedy="leave it out")
    name, run = choose_format(subject.exports, deployed)
    if kernels is not None and not takes_kernels(name):
        raise UsageError(f"--kernels is for a .tflite, this is {name}", remedy="leave it out")
    if cluster is None:
        begin(samples.progress, f"loading in the runtime{place}")
        model = Deployed(subject.plan, subject.exports[name], kernels, threads)
        found = run(model, batches_of(samples, size, place))
    else:
        from intact.analyze.verification.shards import VerificationJob, compare_on

        begin(samples.progress, f"comparing on the cluster{place}")
        job = VerificationJob(subject, name, kernels, size)
        found = compare_on(cluster, job, samples, threads=threads)
    if subject.result is not None:
        found.format = name
    # After the comparison, which reads the samples.
    if samples.takes_feeds:  # formats see batches, whose lengths say nothing here
        found.samples = samples.shapes.total()
    found.count(subject.plan)
    found.score(samples.labels())
    return found


def not_compared(target: str, reason: str, deployed: str = "") -> Verification:
    """Return the entry of what could not be run."""
    return Verification(
        target=target,
        runtime="",
        cpu=detect_cpu(),
        samples=0,
        layers=[],
        format=deployed,
        refused=reason,
    )


def takes_kernels(name: str) -> bool:
    """Tell whether a format is run by kernels that one can choose."""
    runtime = FORMATS[name].runtime
    return runtime is not None and bool(runtime.kernels)


def compare_observed(
    plan: QuantizedGraph,
    samples: Samples,
    observed: str | Path | Mapping[str, npt.ArrayLike],
    *,
    threads: int = 0,
) -> Verification:
    """Compare tensors that were recorded on a device with the plan.

    Raises:
        DataError: The file cannot be read, or does not fit the plan.
    """
    name = str(observed) if isinstance(observed, str | Path) else "recorded"
    if isinstance(observed, str | Path):
        dump = load_arrays(Path(observed), "--observed")
        if not isinstance(dump, Mapping):
            raise DataError(
                f"{observed}: one array without a name", remedy="give an .npz, keyed by tensor name"
            )
    else:
        dump = {key: np.asarray(array) for key, array in observed.items()}
    dump = by_own_name(name, plan.graph.aliases, dump)
    batches = list(batches_of(samples, batch_size_of(samples, plan.graph)))
    if samples.takes_feeds and len(batches) > 1:
        raise DataError(
            f"{name}: recorded tensors are of one run, and there are {len(batches)} samples of one "
            "run each",
            remedy="record one, and give --samples 1",
        )
    feeds = batches[0]
    # A device has recorded all samples in one array for each tensor.
    if len(batches) > 1:
        feeds = {key: np.concatenate([batch[key] for batch in batches]) for key in feeds}
    beside = _only_in_the_file(plan, dump)
    arrays: dict[str, npt.NDArray[Any]] = {
        key: np.asarray(array) for key, array in dump.items() if key not in beside
    }
    found = verify_observed(plan, feeds, arrays, threads=threads, device=name)
    found.not_compared |= dict.fromkeys(beside, "only the file has it, the plan does not")
    found.count(plan)
    return found


def _only_in_the_file(plan: QuantizedGraph, names: Iterable[str]) -> tuple[str, ...]:
    """Name the tensors that writing a format adds, such as those of explicit pads.

    Who records every tensor of the file has them too.
    """
    program = lower(plan)
    known = {tensor.name for tensor in program.tensors()}
    known |= {tensor.value for tensor in program.tensors() if tensor.value}
    known |= {str(value.name) for node in plan.graph.nodes for value in node.outputs}
    # Only where there is something to explain: each writer has to be asked for its names.
    unknown = [name for name in names if name not in known]
    if not unknown:
        return ()
    written_as = [FORMATS[name].writer for name in plan.provenance.formats if name in FORMATS]
    inside = {name for writer in written_as for name in writer.tensor_names(plan)}
    return tuple(name for name in unknown if name in inside)
