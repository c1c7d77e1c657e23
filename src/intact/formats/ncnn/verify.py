"""A written ncnn model in ncnn against the integer engine.

ncnn's int8 layers take floats and return floats. Of each layer two things are compared, both
computed by the engine from the runtime's own floats in front of the layer: the codes of its input,
as ncnn's ``Quantize`` layer makes them, and what the layer returns, bit for bit. For that ncnn
runs with the options under which a layer is its integers (`NcnnRuntime`, ``plain``); final outputs
and decisions are those of its default options, as users run it. What is between int8 layers is
float on both sides, and differs in last bits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from intact.data.batching import sample_count
from intact.engines.cpu import detect_cpu, instruction_sets
from intact.engines.integer.engine import IntegerEngine
from intact.engines.session import Feeds
from intact.formats.base.comparison import LayerComparison, OutputComparer, comparisons
from intact.formats.base.processor import AsDescribed, on_processor
from intact.formats.base.report import Verification, overflow_reports, sqnr_by_name
from intact.formats.ncnn.model import NcnnModel, WrittenProduct
from intact.formats.ncnn.run import NcnnRuntime, run_samples
from intact.plan import QuantizedGraph
from intact.program import Array, Program, Step, Tensor
from intact.program.lower import lower
from intact.program.operations import Bounds, Quantize


def verify_ncnn(
    plan: QuantizedGraph, model: NcnnModel, batches: Iterable[Feeds], *, threads: int = 0
) -> Verification:
    """Compare a written model in ncnn with what its plan says.

    Args:
        plan: The plan.
        model: What was written from it.
        batches: Inputs by name; ncnn runs their samples one by one.
        threads: Threads inside one layer; 0 takes one in ncnn, all cores in the engine.

    Raises:
        ExportError: ncnn refuses the model, or fails on it.
        DataError: The model gives other shapes than the plan.
        MissingExtraError: ncnn is not installed.
    """
    used = next(iter(instruction_sets()), None)
    program = lower(on_processor(plan, used))
    described = AsDescribed(plan, program, threads)
    layers = _Layers(program, model)
    beside = _Beside(layers, threads)
    as_used = NcnnRuntime(model.param, model.weights, threads=threads)
    plain = NcnnRuntime(model.param, model.weights, threads=threads, plain=True)
    outputs = OutputComparer()
    samples = 0
    for feeds in batches:
        given = model.fed(feeds)
        deployed = run_samples(as_used, given, model.outputs.values())
        computed = beside.add(feeds, run_samples(plain, given, layers.blobs))
        for name, expected in computed.items():
            outputs.add(name, _shaped(deployed[model.outputs[name]], expected.shape), expected)
        shown = {name: deployed[model.outputs[name]] for name in computed}
        described.add(feeds, {n: _shaped(a, computed[n].shape) for n, a in shown.items()})
        samples += sample_count(feeds)
    return Verification(
        target=plan.target.name,
        runtime=f"{as_used.name}, default options",
        cpu=detect_cpu(),
        samples=samples,
        layers=list(beside.layers.values()),
        end_to_end=list(beside.end_to_end.values()),
        outputs=outputs.found(),
        outputs_sqnr_db=sqnr_by_name(outputs.found()),
        classes=outputs.classes(),
        in_float=dict(program.in_float),
        overflows=overflow_reports(beside.engine),
        processor=described.finding(used),
    )


@dataclass(frozen=True)
class _Codes:
    """The input of int8 layers: a `Quantize` step and the blob that ncnn quantizes."""

    source: Tensor
    result: Tensor
    blob: str

    @property
    def reciprocal(self) -> np.float32:
        """What ncnn multiplies by."""
        encoding = self.result.encoding
        scale = np.float32(1) if encoding is None else np.float32(encoding.scale.reshape(()))
        return np.float32(np.float32(1) / scale)


class _Layers:
    """What a program and a written model have in common.

    Attributes:
        program: The program.
        codes: The quantized inputs.
        products: Results of int8 layers, each with what stands in the file.
        blobs: All blobs that are looked at.
    """

    def __init__(self, program: Program, model: NcnnModel) -> None:
        self.program = program
        self.codes = [
            _Codes(source, step.outputs[0], model.blobs[source.value])
            for step in program.steps
            if isinstance(step.operation, Quantize)
            and (source := step.inputs[0]) is not None
            and source.value in model.blobs
        ]
        self.products = [
            (step.outputs[0], written)
            for step in program.steps
            if (written := _written(step, model.products)) is not None and written.is_int8
        ]
        blobs = [each.blob for each in self.codes] + [each.blob for _, each in self.products]
        self.blobs = tuple(dict.fromkeys(blobs))

    def tensors(self) -> list[Tensor]:
        """Return what is compared, in the order of the steps."""
        compared = {each.result.name: each.result for each in self.codes}
        compared |= {tensor.name: tensor for tensor, _ in self.products}
        made = (tensor for step in self.program.steps for tensor in step.outputs)
        return [tensor for tensor in made if tensor.name in compared]


class _Beside:
    """The integer engine beside ncnn, fed with its floats."""

    def __init__(self, layers: _Layers, threads: int) -> None:
        tensors = layers.tensors()
        self._layers = layers
        self._names = [tensor.name for tensor in tensors]
        self.engine = IntegerEngine(layers.program, threads=threads)
        self.layers = comparisons(layers.program, tensors)
        self.end_to_end = comparisons(layers.program, tensors)
        self._threads = threads

    @cached_property
    def _quantizers(self) -> NcnnRuntime:
        """Made when asked for: ncnn refuses a net of no layers, which a float model's would be."""
        return _quantizers(self._layers.codes, self._threads)

    def add(self, feeds: Feeds, blobs: Mapping[str, Array]) -> dict[str, Array]:
        """Compare one batch; return the engine's outputs, end to end.

        Args:
            feeds: The model's inputs.
            blobs: ncnn's floats, ``[N, ...]``.
        """
        sources = {each.source.name: each for each in self._layers.codes}
        inputs = {tensor.name for tensor in self._layers.program.inputs.values()}
        forced = {
            name: _stored(blobs[each.blob], each.source)
            for name, each in sources.items()
            if name not in inputs
        }
        taught = self.engine.run(feeds, self._names, forced).tensors
        own = self.engine.run(feeds, self._names)
        for name, array in self._deployed(blobs):
            _compare(self.layers[name], array, taught[name], self._bounds(name))
            _compare(self.end_to_end[name], array, own.tensors[name], self._bounds(name))
        return own.outputs

    def _deployed(self, blobs: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
        """Yield what ncnn computed of each compared tensor, as the program stores it."""
        for number, each in enumerate(self._layers.codes):
            blob = blobs[each.blob]
            codes = run_samples(self._quantizers, {f"in{number}": blob}, [f"out{number}"])
            yield each.result.name, _stored(codes[f"out{number}"], each.result)
        for tensor, written in self._layers.products:
            yield tensor.name, _stored(blobs[written.blob], tensor)

    def _bounds(self, name: str) -> Bounds:
        found = (w.bounds for tensor, w in self._layers.products if tensor.name == name)
        return next(found, Bounds())


def _written(step: Step, products: Mapping[str, WrittenProduct]) -> WrittenProduct | None:
    """Return what stands in the file of the product that a step computes with codes."""
    data, result = step.inputs[0] if step.inputs else None, step.outputs[0]
    if len(step.nodes) != 1 or data is None or data.encoding is None or result.encoding is not None:
        return None
    return products.get(step.nodes[0])


def _quantizers(codes: list[_Codes], threads: int) -> NcnnRuntime:
    """Return ncnn's own layers that turn floats into codes, as int8 layers use them inside."""
    lines = []
    data = b""
    for number, each in enumerate(codes):
        lines.append(f"Input in{number} 0 1 in{number}")
        lines.append(f"Quantize quantize{number} 1 1 in{number} out{number} 0=1")
        data += struct.pack("<f", each.reciprocal)
    head = ["7767517", f"{len(lines)} {len(lines)}"]
    return NcnnRuntime("\n".join([*head, *lines, ""]), data, threads=threads, plain=True)


def _stored(array: Array, tensor: Tensor) -> Array:
    """Return what ncnn gave for a tensor as the program stores that."""
    lengths = tensor.shape
    if tensor.permutation is not None:
        lengths = tuple(lengths[k] for k in np.argsort(tensor.permutation))
    if array.ndim != len(lengths):
        known = [-1 if size is None else size for size in lengths[1:]]
        array = array.reshape(len(array), *known)
    return np.ascontiguousarray(tensor.as_stored(array), tensor.dtype)


def _shaped(array: Array, shape: tuple[int, ...]) -> Array:
    """Return an output of ncnn, which may have lost axes of length 1, in the model's shape."""
    return array.reshape(shape) if array.size == int(np.prod(shape)) else array


def _compare(found: LayerComparison, deployed: Array, expected: Array, bounds: Bounds) -> None:
    if bounds != Bounds():
        expected = np.clip(expected, np.float32(bounds.low), np.float32(bounds.high))
    found.add(deployed, expected)
