"""What was deployed against its plan, in the runtime that fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.calibrate.synthetic import evenly_drawn_samples
from intact.data.batching import Batch
from intact.data.preprocess import Preprocess
from intact.data.progress import begin
from intact.data.sources import load_arrays
from intact.data.stream import Samples
from intact.engines.cpu import detect_cpu
from intact.errors import DataError, UsageError
from intact.flow.result import Result
from intact.formats.base.format import Deployed, Exported
from intact.formats.base.observed import verify_observed
from intact.formats.base.report import Verification
from intact.formats.registry import FORMATS, model_reader, runnable, runtime_of
from intact.graph import Graph
from intact.graph.aliases import by_own_name
from intact.plan import QuantizedGraph
from intact.program.lower import lower
from intact.targets import Target

if TYPE_CHECKING:
    from intact.calibrate.shards import SampleMap

_Verify: TypeAlias = Callable[[Deployed, Iterable[Batch]], Verification]

_BATCH = 16
"""Samples at once, at most."""
_VALUES = 1 << 25
"""Activations of a batch, at most: all are held at once, in 20 to 30 bytes each (measured)."""


@dataclass(frozen=True)
class Subject:
    """What is verified.

    Attributes:
        plan: What it should compute.
        exports: What was deployed, by format.
        preprocess: What was done to the samples of the calibration.
        result: Where it came from; None for a file of others.
        file: That file; None for a result.
    """

    plan: QuantizedGraph
    exports: Mapping[str, Exported]
    preprocess: Preprocess = field(default_factory=Preprocess)
    result: Result | None = None
    file: Path | None = None

    @staticmethod
    def of_result(result: Result) -> Subject:
        """Take a result."""
        return Subject(result.plan, result.exports, result.preprocess, result)

    @staticmethod
    def of_file(path: Path, target: Target) -> Subject:
        """Take a quantized model file that others made.

        Raises:
            ModelError: It cannot be read.
            UsageError: It is of a format of which only results are verified.
        """
        found = model_reader(path)
        if found is not None and found[1].opens_deployed:
            plan, exported = found[1].open_deployed(path, target)
            return Subject(plan, {found[0]: exported}, file=path)
        raise UsageError(f"{path}: no model file that can be verified", remedy="give a result")

    @property
    def unread(self) -> frozenset[str]:
        """The array that only calibration reads, which the same data holds again."""
        mask = self.plan.provenance.mask
        return frozenset({mask} if mask else ())

    def draw_samples(self, count: int) -> Samples:
        """Draw inputs as calibration saw them, or else evenly from the ranges of the plan."""
        if self.result is not None:
            return self.result.draw_samples(count)
        return evenly_drawn_samples(self.plan, count)


def batch_size_of(samples: Samples, graph: Graph) -> int:
    """Return how many samples are compared at once: as many as memory is meant for."""
    return samples.batch_size(max(1, min(_BATCH, _VALUES // max(1, values_of(graph)))))


def batches_of(samples: Samples, size: int, place: str = "") -> Iterator[Batch]:
    """Yield samples as the verifications take them, so many at once."""
    whole = samples.fixed_batch is not None  # such a model cannot run fewer
    begin(samples.progress, f"reading samples{place}")
    for number, (batch, count) in enumerate(samples.batches(size)):
        if not number:
            begin(samples.progress, f"comparing{place}")
        yield batch if whole else {name: array[:count] for name, array in batch.items()}
    begin(samples.progress, f"summing up{place}")


def values_of(graph: Graph) -> int:
    """Estimate how many activations one sample has.

    Those of which the model does not tell the shape are taken to be as large as the largest.
    """
    sizes = [_length(value) for node in graph.nodes for value in node.outputs]
    known = [size for size in sizes if size is not None]
    return sum(known) + (len(sizes) - len(known)) * max(known, default=0)


def _length(value: ir.Value) -> int | None:
    """The elements of a value in one sample; None if they are not known."""
    lengths = () if value.shape is None else tuple(value.shape)[1:]
    known = [each for each in lengths if isinstance(each, int)]
    return None if value.shape is None or len(known) < len(lengths) else math.prod(known)


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
        place: Stands behind the name of each phase.
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
    name, run = chosen_format(subject.exports, deployed)
    if kernels is not None and not takes_kernels(name):
        raise UsageError(f"--kernels is for a .tflite, this is {name}", remedy="leave it out")
    if cluster is None:
        begin(samples.progress, f"loading in the runtime{place}")
        model = Deployed(subject.plan, subject.exports[name], kernels, threads)
        found = run(model, batches_of(samples, size, place))
    else:
        from intact.flow.sharded_verification import VerificationJob, compare_on

        begin(samples.progress, f"comparing on the cluster{place}")
        job = VerificationJob(subject, name, kernels, size)
        found = compare_on(cluster, job, samples, threads=threads)
    if subject.result is not None:
        found.format = name
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
    """Whether a format is run by kernels that one can choose."""
    runtime = FORMATS[name].runtime
    return runtime is not None and bool(runtime.kernels)


def chosen_format(exports: Mapping[str, Exported], deployed: str | None) -> tuple[str, _Verify]:
    """Return a format by its name, or the first that can be run, and what verifies it.

    Raises:
        UsageError: There is none of that name, or nothing to run in it.
    """
    by_case = {name.lower(): name for name in exports}
    if deployed is None:
        deployed = next(iter((*runnable(exports), *exports)))
    if deployed.lower() not in by_case:
        raise UsageError(
            f"--format {deployed!r}: the result has {', '.join(exports)}", remedy="choose of these"
        )
    name = by_case[deployed.lower()]
    return name, runtime_of(name).verify


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
    """The names of tensors that writing a format adds, such as those of explicit pads.

    Who records every tensor of the file has them too.
    """
    program = lower(plan)
    known = {tensor.name for tensor in program.tensors()}
    known |= {tensor.value for tensor in program.tensors() if tensor.value}
    known |= {str(value.name) for node in plan.graph.nodes for value in node.outputs}
    unknown = [name for name in names if name not in known]
    if not unknown:
        return ()
    written_as = [FORMATS[name].writer for name in plan.provenance.formats if name in FORMATS]
    inside = {name for writer in written_as for name in writer.tensor_names(plan)}
    return tuple(name for name in unknown if name in inside)
