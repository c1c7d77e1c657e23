"""Checks that the normalized graph computes what the given model does, on one sample.

Normalization folds, rewrites and converts opsets, with libraries of others: what it makes is not
believed before both models gave the same. Usually that is one run of the given model, whose
outputs agree to float rounding (a BatchNormalization folded into a convolution rounds otherwise).

Where they do not, rounding may still be the reason: TopK, ArgMax, NonMaxSuppression and the like
decide by comparing, and where two candidates tie, the last bit chooses; other models subtract
large numbers that are nearly equal. Neither a tolerance nor a list of operators tells this from an
error. So the given model is run again with weights that are rounded otherwise: a difference that
this makes too is one of rounding, and is only noted. Any other is an error, with the first tensor
that differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from intact.calibrate.synthetic import any_sample
from intact.data.batching import Batch
from intact.engines.session import Optimization, make_session, run_session
from intact.errors import ModelError
from intact.graph import Graph
from intact.graph.files.claims import forget_claims
from intact.graph.files.load import read_model
from intact.graph.files.save import STREAM_FROM
from intact.graph.files.tensors import change_tensors, weight_bytes
from intact.graph.passes.random_ops import random_values
from intact.graph.passes.widen import METADATA_KEY
from intact.plan import Note, NoteKind

Arrays = Mapping[str, npt.NDArray[Any]]

_PERTURBED_RUNS = 4
"""How often the given model is run with weights rounded otherwise."""

_ROOM = 4.0
"""The graph may differ by so many times the largest difference of those runs: they are few."""


class _Rounding(NamedTuple):
    """How large differences are that float rounding makes.

    Attributes:
        difference: What is taken for rounding unasked, relative to the largest value of an output.
            Measured: ResNets and MobileNets 1e-6, recognizers of 360 nodes 2e-5.
        weights: Relative size of a few last bits, by which weights are changed.
    """

    difference: float
    weights: float


_ROUNDINGS = {
    "BFLOAT16": _Rounding(0.2, 2.0**-8),
    "FLOAT16": _Rounding(0.03, 2.0**-11),
    "": _Rounding(1e-4, 2.0**-20),
}
"""By the narrowest type that the given model computes in: the graph computes in float32."""


class OriginalComparison(NamedTuple):
    """What `Original.compare` gives where the graph computes what the given model does.

    Attributes:
        outputs: The outputs of the graph, by name; None where it was not run.
        notes: What could not be compared.
    """

    outputs: Arrays | None = None
    notes: tuple[Note, ...] = ()


class Original(msgspec.Struct, frozen=True):
    """A model as it was given.

    Attributes:
        source: A file, or a model in memory.
        threads: Threads of the runtime; 0 takes all cores.
    """

    source: str | Path | onnx.ModelProto | ir.Model
    threads: int = 0

    def compare(self, graph: Graph, sample: Batch | None) -> OriginalComparison:
        """Run both on one sample, and compare.

        Args:
            graph: What is made of the model.
            sample: Inputs by name; drawn from their types and shapes if None.

        Raises:
            ModelError: The graph computes something else.
        """
        if sample is None:
            try:
                sample = any_sample(graph)
            except ModelError as error:
                return OriginalComparison(None, (_note(str(error)),))
            return OriginalComparison(None, self.compare(graph, sample).notes)
        sample = {**graph.fixed_inputs, **sample}
        with ThreadPoolExecutor(1) as pool:
            # Both at once: the session of the second is built while the first runs.
            running = pool.submit(_run, graph.model, sample, self.threads)
            if (
                weight_bytes(graph.model) > STREAM_FROM
            ):  # one after the other: each maps the weights
                wait([running])
            try:
                expected = self._run(graph, sample)
            except ModelError as error:
                return OriginalComparison(None, (_note(f"{error.with_flags}"),))
            try:
                found = running.result()
            except ModelError as error:
                raise ModelError(
                    f"the given model runs on a sample, and what is made of it does not: {error}",
                    remedy=_REMEDY,
                ) from error
        if set(expected) != set(found):
            return OriginalComparison(found, (_note("it has other outputs"),))
        rounding, chance = _rounding(graph), random_values(graph.model)
        sure = [name for name in expected if name not in chance]
        notes = _by_chance({name: chance[name] for name in expected if name in chance})
        differing = [n for n in sure if difference(expected[n], found[n]) > rounding.difference]
        if differing:
            from intact.graph.key_basis import outputs_in_bases  # which few graphs have

            # Those are others by intent; what attention makes of them is not.
            intended = outputs_in_bases(graph)
            differing = [name for name in differing if name not in intended]
        if differing:
            notes += _explain(read_model(self.source), graph, sample, differing)
        return OriginalComparison(found, notes)

    def _run(self, graph: Graph, sample: Batch) -> Arrays:
        """Run the given model.

        Raises:
            ModelError: The runtime refuses it, or fails on the sample.
        """
        if isinstance(self.source, str | Path) and weight_bytes(graph.model) <= STREAM_FROM:
            return _run(Path(self.source), sample, self.threads)
        return _run(read_model(self.source), sample, self.threads)


_REMEDY = "export the model again with another opset, and report this, with the model"


def _note(reason: str) -> Note:
    return Note(
        NoteKind.REWRITE, "", f"what is quantized was not compared with the given model: {reason}"
    )


def _rounding(graph: Graph) -> _Rounding:
    """Return the row of `_ROUNDINGS` for the types that normalizing widened to float32."""
    widened = graph.model.metadata_props.get(METADATA_KEY, "").split(",")
    return next(row for name, row in _ROUNDINGS.items() if name in widened or not name)


def _run(model: Path | ir.Model, sample: Batch, threads: int) -> Arrays:
    """Run a model as it is: not optimized, because one run is over before that pays."""
    session = make_session(model, threads=threads, optimization=Optimization.NONE)
    names = [each.name for each in session.get_outputs()]
    given = [each.name for each in session.get_inputs()]
    missing = [name for name in given if name not in sample]
    if missing:
        raise ModelError(f"it has an input {missing[0]!r}, which samples do not")
    feeds = {name: sample[name] for name in given}
    for each in session.get_inputs():
        if each.type == "tensor(float16)":  # which some formats have as float32
            feeds[each.name] = np.asarray(feeds[each.name]).astype(np.float16, copy=False)
    return dict(zip(names, run_session(session, feeds, names), strict=True))


def difference(expected: object, found: object) -> float:
    """Return the largest difference of two arrays, relative to the largest number expected.

    Infinite where shapes, the places of NaN and infinity, or whole numbers are not the same.

    >>> difference(np.array([1.0, -4.0]), np.array([1.0, -3.0]))
    0.25
    """
    if not isinstance(expected, np.ndarray) or not isinstance(found, np.ndarray):
        return 0.0  # sequences of tensors: each comes from one that is compared
    if expected.shape != found.shape:
        return np.inf
    if expected.dtype.kind != "f" or found.dtype.kind != "f":
        return 0.0 if np.array_equal(expected, found) else np.inf
    finite = np.isfinite(expected)
    if not np.array_equal(expected[~finite], found[~finite], equal_nan=True):
        return np.inf
    one, other = expected[finite].astype(np.float64), found[finite].astype(np.float64)
    largest = float(np.abs(one - other).max(initial=0))
    if largest == 0:
        return 0.0
    return largest / float(np.abs(one).max()) if one.any() else np.inf


def _explain(
    given: ir.Model, graph: Graph, sample: Batch, outputs: Iterable[str]
) -> tuple[Note, ...]:
    """Explain outputs that differ by rounding or by chance (RandomNormal), in notes.

    Raises:
        ModelError: Something that they do not explain; with the first tensor.
    """
    forget_claims(given)
    chance = random_values(given)
    rest = [name for name in outputs if name not in chance]
    notes = _by_chance({name: chance[name] for name in outputs if name in chance})
    if rest:
        unexplained, largest = _beyond_rounding(given, graph, sample, chance)
        if not unexplained.isdisjoint(rest):
            raise _differs(given, unexplained, largest)
        notes += tuple(
            Note(
                NoteKind.REWRITE,
                "",
                f"output {name!r} depends on float rounding: rounding the weights otherwise "
                "changes it as much as normalizing the model did",
            )
            for name in rest
        )
    return notes


def _by_chance(outputs: Mapping[str, str]) -> tuple[Note, ...]:
    return tuple(
        _note(f"output {name!r} depends on chance, at {node}") for name, node in outputs.items()
    )


def _beyond_rounding(
    given: ir.Model, graph: Graph, sample: Batch, chance: Mapping[str, str]
) -> tuple[set[str], dict[str, float]]:
    """Return the tensors that differ by more than rounding explains, and sizes of differences.

    The sizes, by tensor, are also of those that rounding explains.
    """
    rounding = _rounding(graph)
    made = {str(v.name) for n in graph.nodes for v in n.outputs if v.name}
    # Tensors that both models have by name, in the order of the given one: the first that differs
    # is nearest to the cause.
    values = [v for n in given.graph for v in n.outputs if v.name in made and v.name not in chance]
    expected = _run(_with_outputs(given, [str(v.name) for v in values]), sample, 0)
    names = [name for name in expected if name in made]
    found = _run(_with_outputs(graph.model, names), sample, 0)
    largest = {
        name: size
        for name in names
        if name not in chance
        and (size := difference(expected[name], found[name])) > rounding.difference
    }
    spread = dict.fromkeys(largest, 0.0)
    shown = _with_outputs(given, list(largest))
    for seed in range(_PERTURBED_RUNS):
        other = _run(_change_last_bits(shown, rounding.weights, seed), sample, 0)
        for name in largest:
            spread[name] = max(spread[name], difference(expected[name], other[name]))
    # What other roundings of the weights change as much is rounding, however large it is.
    return {name for name, size in largest.items() if size > _ROOM * spread[name]}, largest


def _differs(given: ir.Model, unexplained: set[str], largest: Mapping[str, float]) -> ModelError:
    """Name the first tensor that differs."""
    values = ((node, str(value.name)) for node in given.graph for value in node.outputs)
    node, name = next((node, name) for node, name in values if name in unexplained)
    size = largest[name]
    by = f"by {size:.2g} of its largest value" if np.isfinite(size) else "in its shape or values"
    return ModelError(
        f"what is quantized computes something else than the given model, on one sample: tensor "
        f"{name!r} of node {node.name or ''!r} ({node.op_type}) is the first that differs, {by}",
        remedy=_REMEDY,
    )


def _with_outputs(model: ir.Model, names: Iterable[str]) -> ir.Model:
    """Copy a model, with tensors as outputs."""
    copy = model.clone()
    present = {value.name for value in copy.graph.outputs}
    values = {value.name: value for node in copy.graph for value in node.outputs}
    copy.graph.outputs.extend(values[name] for name in names if name not in present)
    return copy


def _change_last_bits(model: ir.Model, size: float, seed: int) -> ir.Model:
    """Copy a model, with the last bits of its weights changed.

    Tensors of fewer than two axes stay: they may be the factors of a Resize, or a small number
    that only keeps a divisor from 0.
    """
    generator = np.random.default_rng(seed)

    def changed(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if not tensor.dtype.is_floating_point() or len(tensor.shape) < 2:
            return tensor
        array = tensor.numpy()
        factors = 1 + size * generator.uniform(-1, 1, array.shape)
        return ir.Tensor((array * factors).astype(array.dtype), name=tensor.name)

    copy = model.clone()
    change_tensors(copy, changed)
    return copy
