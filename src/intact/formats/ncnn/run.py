"""Runs a written model in ncnn, and compares it with the integer engine.

ncnn's int8 layers take floats and return floats. Of each layer two things are compared, both
computed by the engine from the runtime's own floats in front of the layer: the codes of its input,
as ncnn's ``Quantize`` layer makes them, and what the layer returns, bit for bit. For that ncnn
runs with the options under which a layer is its integers (`NcnnRuntime`, ``plain``); final outputs
and decisions are those of its default options, as users run it. What is between int8 layers is
float on both sides, and differs in last bits.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from intact._extras import require
from intact.data.batching import sample_count
from intact.engines.cpu import detect_cpu, instruction_sets
from intact.engines.integer.engine import IntegerEngine
from intact.errors import ExportError
from intact.formats.base.block_layers import BlockLayers
from intact.formats.base.comparison import LayerComparison, OutputComparer, comparisons
from intact.formats.base.format import Feeds
from intact.formats.base.processor import AsDescribed, plan_on_processor
from intact.formats.base.report import Verification, overflow_reports, sqnr_by_name
from intact.formats.ncnn.model import MAGIC, NcnnModel, WrittenProduct
from intact.plan import QuantizedGraph
from intact.program import Array, Program, Step, Tensor
from intact.program.lower import lower
from intact.program.operations import Bounds, Quantize

_Array: TypeAlias = npt.NDArray[Any]

_REDUCED = (
    "use_fp16_arithmetic",
    "use_fp16_packed",
    "use_fp16_storage",
    "use_bf16_packed",
    "use_bf16_storage",
)
_FASTER = ("use_packing_layout", "use_winograd_convolution")
"""Options that change how int8 layers compute (see the notes in the targets' files)."""


def ncnn_version() -> str:
    """Name the runtime and its version.

    Raises:
        MissingExtraError: It is not installed.
    """
    require("running ncnn", ("ncnn",), "ncnn")
    return f"ncnn {version('ncnn')}"


class NcnnRuntime:
    """A loaded model; one sample at a time.

    Args:
        param: The ``.param``.
        weights: The ``.bin``.
        threads: Threads inside one layer; 0 takes one. Where other programs hold cores too, small
            layers wait for their threads longer than they compute: ResNet-8 takes 4 times as long
            with two.
        plain: Without packing layouts and Winograd's algorithm, and in float32 throughout: every
            blob is what the integers of its layer give. Otherwise ncnn's own defaults hold.

    Raises:
        ExportError: ncnn refuses the model.
        MissingExtraError: ncnn is not installed.
    """

    def __init__(
        self, param: str, weights: bytes, *, threads: int = 0, plain: bool = False
    ) -> None:
        self.name = ncnn_version()
        import ncnn

        self._ncnn = ncnn
        self._net = ncnn.Net()
        self._net.opt.num_threads = max(threads, 1)
        self._net.opt.openmp_blocktime = 0  # idle threads do not hold the cores of others
        self._net.opt.use_vulkan_compute = False
        self._net.opt.lightmode = False  # else blobs go once they are read
        if plain:
            for name in (*_REDUCED, *_FASTER):
                setattr(self._net.opt, name, False)
        with tempfile.TemporaryDirectory() as folder:
            files = Path(folder) / "model.param", Path(folder) / "model.bin"
            files[0].write_text(param, encoding="ascii")
            files[1].write_bytes(weights)
            if self._net.load_param(str(files[0])) or self._net.load_model(str(files[1])):
                raise ExportError(
                    f"{self.name} refuses the written model",
                    remedy="keep the node whose layer it names on the terminal out of the model",
                )

    def run(self, feeds: Mapping[str, _Array], blobs: Iterable[str]) -> dict[str, _Array]:
        """Run one sample.

        Args:
            feeds: By blob, without a batch: int32 where the layer looks up, else float32.
            blobs: Which to read.

        Returns:
            float32 (int8 of a ``Quantize`` layer) by blob, without a batch.

        Raises:
            ExportError: ncnn fails on this input.
        """
        extractor = self._net.create_extractor()
        held = {}  # ncnn reads the arrays when a blob is asked for
        for blob, array in feeds.items():
            dtype = np.int32 if array.dtype.kind in "iu" else np.float32
            # Cloned, because a Mat only points into the array, which nothing else keeps.
            held[blob] = self._ncnn.Mat(np.ascontiguousarray(array, dtype)).clone()
            if extractor.input(blob, held[blob]):
                raise ExportError(f"{self.name} has no input {blob!r}")
        found = {}
        for blob in blobs:
            failed, mat = extractor.extract(blob)
            if failed:
                raise ExportError(f"{self.name} fails on this input, at blob {blob!r}")
            found[blob] = np.array(mat)
        return found


def run_ncnn(
    plan: QuantizedGraph, model: NcnnModel, feeds: Feeds, *, threads: int = 0
) -> dict[str, _Array]:
    """Run a written model in ncnn with its default options; the outputs by name.

    Args:
        plan: The plan.
        model: What was written from it.
        feeds: Inputs by name; ncnn runs their samples one by one.
        threads: Threads inside one layer; 0 takes one.

    Raises:
        ExportError: ncnn refuses the model, or fails on it.
    """
    return run_opened(plan, model, NcnnRuntime(model.param, model.weights, threads=threads), feeds)


def run_opened(
    plan: QuantizedGraph, model: NcnnModel, runtime: NcnnRuntime, feeds: Feeds
) -> dict[str, _Array]:
    """Run a written model that is loaded; as `run_ncnn`."""
    found = run_samples(runtime, model.fed(feeds), model.outputs.values())
    shapes = {str(value.name): value.shape for value in plan.graph.outputs}
    outputs = {}
    for name, blob in model.outputs.items():
        array = found[blob]
        lengths = [each if isinstance(each, int) else -1 for each in (shapes[name] or ())][1:]
        # NumPy works out one open length, not two.
        outputs[name] = array.reshape(len(array), *lengths) if lengths.count(-1) < 2 else array
    return outputs


def run_samples(
    runtime: NcnnRuntime, feeds: Mapping[str, _Array], blobs: Iterable[str]
) -> dict[str, _Array]:
    """Run the samples of a batch one by one; return their blobs, ``[N, ...]``."""
    wanted = tuple(blobs)
    count = len(next(iter(feeds.values())))
    runs = [runtime.run({blob: a[k] for blob, a in feeds.items()}, wanted) for k in range(count)]
    return {blob: np.stack([run[blob] for run in runs]) for blob in wanted}


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
    program = lower(plan_on_processor(plan, used))
    described = AsDescribed(plan, program, threads)
    layers = _Layers(program, model)
    beside = _Beside(layers, threads)
    blocks = BlockLayers(plan, ())
    shapes = {name: _value_shape(plan, name) for name in blocks.watched if name in model.blobs}
    watched = dict.fromkeys((*layers.blobs, *(model.blobs[name] for name in shapes)))
    as_used = NcnnRuntime(model.param, model.weights, threads=threads)
    # A second net, as options hold for a whole net and users run the defaults.
    plain = NcnnRuntime(model.param, model.weights, threads=threads, plain=True)
    outputs = OutputComparer()
    samples = 0
    for feeds in batches:
        given = model.fed(feeds)
        deployed = run_samples(as_used, given, model.outputs.values())
        seen = run_samples(plain, given, watched)
        computed = beside.add(feeds, seen)
        shown = {name: seen[model.blobs[name]].reshape(shape) for name, shape in shapes.items()}
        blocks.add({**feeds, **shown})
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
        float_layers=blocks.layers,
        overflows=overflow_reports(beside.engine),
        processor=described.finding(used),
    )


def _value_shape(plan: QuantizedGraph, name: str) -> tuple[int, ...]:
    """Return the shape of a value, whose samples have known lengths; -1 for their number."""
    value = next(
        value
        for node in plan.graph.nodes
        for value in (*node.inputs, *node.outputs)
        if value is not None and value.name == name
    )
    return (-1, *(length for length in (value.shape or ())[1:] if isinstance(length, int)))


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
        # Floats between the layers differ in last bits, so that end to end is never the same run.
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
    head = [MAGIC, f"{len(lines)} {len(lines)}"]
    return NcnnRuntime("\n".join([*head, *lines, ""]), data, threads=threads, plain=True)


def _stored(array: Array, tensor: Tensor) -> Array:
    """Return what ncnn gave for a tensor as the program stores that."""
    lengths = tensor.shape
    if tensor.permutation is not None:
        lengths = tuple(lengths[k] for k in np.argsort(tensor.permutation))
    # ncnn drops axes that are 1 long, and has the sample in front of values without it.
    if array.ndim != len(lengths) or lengths[0] not in (None, 1, len(array)):
        known = [-1 if size is None else size for size in lengths[1:]]
        count = len(array) if lengths[0] in (None, 1) else lengths[0]
        array = array.reshape(count, *known)
    return np.ascontiguousarray(tensor.as_stored(array), tensor.dtype)


def _shaped(array: Array, shape: tuple[int, ...]) -> Array:
    """Return an output of ncnn, which may have lost axes of length 1, in the model's shape."""
    return array.reshape(shape) if array.size == int(np.prod(shape)) else array


def _compare(found: LayerComparison, deployed: Array, expected: Array, bounds: Bounds) -> None:
    if bounds != Bounds():
        # The engine clamps in a step of its own, behind the tensor that is compared.
        expected = np.clip(expected, np.float32(bounds.low), np.float32(bounds.high))
    found.add(deployed, expected)
