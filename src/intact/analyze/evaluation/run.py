"""Runs the float and the quantized model over samples, and keeps what they are scored by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from intact.analyze.evaluation.text import TextScores
from intact.data.batching import Batch
from intact.data.feeding import Carried
from intact.data.metric import PairedOutputs
from intact.data.stream import Samples
from intact.engines.exact_sums import saturates_pairs
from intact.engines.executor import Arrays, Run, integer_run, simulated_run
from intact.engines.session import FloatModel
from intact.formats.base.format import Deployed, Runtime
from intact.formats.onnx_qdq.run import QdqRuntime
from intact.formats.registry import FORMATS, ONNX_QDQ
from intact.graph import Graph
from intact.graph.ops import is_constant, outputs_of_choices
from intact.limits import EVALUATED_AT_ONCE, EVALUATED_BYTES
from intact.numerics.error_sums import ErrorSums
from intact.numerics.metrics import Equality
from intact.plan.points import has_logarithmic_levels
from intact.results.result import Result
from intact.targets import target_names
from intact.targets.advice import quantize_for_saturating_pairs

Scores = npt.NDArray[np.float32]
_BYTES = 4
"""Bytes of a float."""

Watch: TypeAlias = Callable[[Batch, Arrays, Arrays, int], None]


def _quantized_run(result: Result, threads: int) -> tuple[str, Run]:
    """Choose what runs the quantized model: the file itself, else what computes the same."""
    name = next(iter(result.exports))
    if name == ONNX_QDQ:
        return _deployed_run(result, threads)
    if has_logarithmic_levels(result.plan):
        return _simulated_run(result, threads)
    return _run_in_runtime(result, name, threads) or _integer_run(result, threads)


def own_runtime(result: Result) -> Runtime | None:
    """Return what runs what is deployed, if it is here and computes as the target describes.

    On a processor that saturates pairs of products, for which the target has a variant, it does
    not; nor for a description of one's own, of hardware that this runtime is not.
    """
    name = next(iter(result.exports))
    runtime, target = FORMATS[name].runtime, result.plan.target
    if runtime is None or not runtime.is_timed or not runtime.can_run(result.exports[name]):
        return None
    # A file of the user describes other hardware, whatever it is called.
    is_own = target.name not in target_names()
    is_other = saturates_pairs() and bool(quantize_for_saturating_pairs(target))
    return None if is_own or is_other else runtime


def _run_in_runtime(result: Result, name: str, threads: int) -> tuple[str, Run] | None:
    """Open what was written in its own runtime, as applications run it."""
    runtime = own_runtime(result)
    if runtime is None:
        return None
    run = runtime.opened(Deployed(result.plan, result.exports[name], None, threads))
    return None if run is None else (runtime.name(), run)


def _simulated_run(result: Result, threads: int) -> tuple[str, Run]:
    """Simulate in float32, for levels that no integer arithmetic computes with."""
    return f"simulation for {result.plan.target.name}", simulated_run(result.plan, threads=threads)


def _deployed_run(result: Result, threads: int) -> tuple[str, Run]:
    """Open the written ONNX model in ONNX Runtime, computing as the target describes."""
    exact = not result.plan.target.saturates_pairs
    runtime = QdqRuntime(result.exported.model, threads=threads, exact=exact)
    return runtime.name, lambda feeds: runtime.run(feeds)[0]


def _integer_run(result: Result, threads: int) -> tuple[str, Run]:
    """Compute as the target does, for a runtime that is not here or does not show its integers."""
    run = integer_run(result.plan, threads=threads)
    return f"integer engine for {result.plan.target.name}", run


def evaluated_at_once(graph: Graph) -> int:
    """Return how many samples a pass runs at once: fewer where tensors are large.

    The number follows from the model alone, as the last bits of floats may depend on it.
    """
    results, largest = 0, 1
    for value in graph.values:
        lengths = [n for n in value.shape or () if isinstance(n, int)]
        size = _BYTES * math.prod(lengths)
        if not is_constant(value):
            largest = max(largest, size)
        results += size if value.is_graph_output() else 0
    return max(1, min(EVALUATED_AT_ONCE, EVALUATED_BYTES // max(largest, results)))


class Models:
    """The float and the quantized model, ready to run.

    Args:
        graph: The float model.
        result: What quantization gave.
        threads: Threads inside one operator; 0 lets the runtime choose.

    Attributes:
        graph: The float model.
        in_float: Runs it.
        quantized: Runs a batch by the quantized one; the outputs by name.
        runtime: What runs it.
    """

    def __init__(self, graph: Graph, result: Result, threads: int) -> None:
        self.graph = graph
        self.in_float = FloatModel(graph, threads=threads)
        self.runtime, self.quantized = _quantized_run(result, threads)


@dataclass
class Pass:
    """What a pass over the samples leaves of the outputs of both models, (float, quantized).

    Attributes:
        output: Name of the output that is scored.
        errors: Sums of errors by output.
        choices: How much is equal of those outputs that hold choices; empty before the first batch.
        outputs: All outputs of both models, if there is a metric.
        pairs: The scored output, batch by batch: scores, or the number of the class alone, ``[n,
            1]``. Empty once it has no classes: anything else may be as large as the samples.
        shape: Shape of the scored output in the last batch.
        samples: Number of samples.
        text: What is scored of a language model; None of others.
        sees_what_follows: Whether it is none that predicts: its scores depend on later tokens.
    """

    output: str
    errors: dict[str, ErrorSums]
    outputs: PairedOutputs | None
    choices: dict[str, Equality | None] = field(default_factory=dict)
    pairs: list[tuple[Scores, Scores]] = field(default_factory=list)
    shape: tuple[int, ...] = ()
    samples: int = 0
    text: TextScores | None = None
    sees_what_follows: bool = False
    _has_classes: bool = True

    @staticmethod
    def of(
        outputs: Sequence[str],
        *,
        kept: PairedOutputs | None = None,
        text: TextScores | None = None,
        choices: Iterable[str] = (),
    ) -> Pass:
        """Begin a pass over outputs of these names, the first of which is scored.

        Those of both models are added to ``kept``.
        """
        errors = {name: ErrorSums() for name in outputs}
        return Pass(outputs[0], errors, kept, dict.fromkeys(choices), text=text)

    def add(self, want: Arrays, have: Arrays, size: int, count: int) -> None:
        """Add what both models gave for a batch of ``size`` samples, ``count`` of them real."""
        self.samples += count
        first, second = (self._classes(arrays[self.output]) for arrays in (want, have))
        # All batches must agree: else it is no output of classes, but of one number per detection,
        # say.
        classes = self.shape[1:] if self.pairs else first.shape[1:]
        self._has_classes &= (
            first.shape == second.shape == (size, *classes)
            and len(classes) == 1
            and (classes[0] > 1 or self.output in self.choices)
        )
        self.shape = first.shape
        if self._has_classes:
            self.pairs.append((first[:count], second[:count]))
        else:
            self.pairs.clear()
        for name, sums in self.errors.items():
            first, second = (_real(arrays[name], size, count) for arrays in (want, have))
            sums.add(first, second)
            if name in self.choices:
                self._add_choices(name, Equality.of(first, second, len(first)))
        if self.outputs is not None:
            self.outputs.add(want, have, size, count)

    def _classes(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the scored output; numbers of classes as ``[n, 1]``, whatever axes they have."""
        is_number = self.output in self.choices and array.ndim > 0 and array.size == len(array)
        return array.reshape(-1, 1) if is_number else array

    def _add_choices(self, name: str, found: Equality | None) -> None:
        before = self.choices[name]
        self.choices[name] = before.joined(found) if before and found else found or before

    def join(self, more: Pass) -> None:
        """Add what another pass left of the samples behind these."""
        self.samples += more.samples
        classes = [each.pairs[0][0].shape[1:] for each in (self, more) if each.pairs]
        # Of one part without classes the whole has none, as in one pass.
        self._has_classes = len(classes) == 2 and classes[0] == classes[1]
        self.shape = more.shape
        self.pairs = [*self.pairs, *more.pairs] if self._has_classes else []
        for name, sums in self.errors.items():
            sums.join(more.errors[name])
        for name, found in more.choices.items():
            self._add_choices(name, found)
        if self.outputs is not None and more.outputs is not None:
            self.outputs.join(more.outputs)
        self.sees_what_follows |= more.sees_what_follows
        if self.text is not None and more.text is not None:
            self.text.take(more.text.rows())

    def scores(self) -> tuple[Scores, Scores] | None:
        """Return the scored output, ``[samples, classes]``; None if it has no scores of classes."""
        found = self.classes()
        return None if found is None or found[0].shape[1] == 1 else found

    def answers(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
        """Return the best classes, ``[samples]``; None where the output is none of classes."""
        found = self.classes()
        if found is None:
            return None
        first, second = (e.argmax(axis=1) if e.shape[1] > 1 else e[:, 0] for e in found)
        return first.astype(np.int64), second.astype(np.int64)

    def classes(self) -> tuple[Scores, Scores] | None:
        """Return ``pairs`` as one; None where the output is none of classes."""
        if not self.pairs:
            return None
        want, have = zip(*self.pairs, strict=True)
        return np.concatenate(want), np.concatenate(have)


def run_both(
    models: Models,
    samples: Samples,
    size: int,
    *,
    kept: PairedOutputs | None = None,
    text: TextScores | None = None,
    watch: Watch | None = None,
) -> tuple[Pass, Batch]:
    """Run both models over samples.

    Args:
        models: The models.
        samples: The samples.
        size: Samples of a batch.
        kept: Takes all outputs, for a metric.
        text: Scores a language model; None for others.
        watch: Called with each batch, the outputs of both models, and how many samples are real.

    Returns:
        What was seen, and the first batch.
    """
    seen = Pass.of(
        models.in_float.outputs,
        kept=kept,
        text=text,
        choices=outputs_of_choices(models.graph.outputs),
    )
    first: Batch = {}
    # The feeds have the float model's states.
    carried = Carried(samples.feeding.states, samples.specs)  # of the quantized model itself
    for feeds, count in samples.batches(size):
        found = models.quantized(carried.into(feeds))
        carried.keep(found)
        in_float = models.in_float.run(feeds)
        seen.add(in_float, found, size, count)
        if watch is not None:
            watch(feeds, in_float, found, count)
        if text is not None:
            # Of the first batch alone: it costs another run.
            if not first:
                run = models.in_float.run
                seen.sees_what_follows = text.sees_what_follows(run, feeds, in_float)
            text.add(feeds, in_float, found, count)
        first = first or feeds
    return seen, first


def _real(output: Scores, size: int, count: int) -> Scores:
    """Return an output's real samples; one that has no sample axis as a single row."""
    has_samples = output.ndim > 0 and output.shape[0] == size
    return output[:count] if has_samples else output.reshape(1, -1)
