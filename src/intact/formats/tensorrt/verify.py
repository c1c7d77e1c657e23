"""Checks a model for TensorRT without TensorRT: by its rules, and by running it elsewhere.

TensorRT runs on NVIDIA's GPUs only. What can be checked without one are the rules of its documents.
The model is ordinary ONNX, so ONNX Runtime shows what it computes: every operator in float as the
file has it, against the simulation, from end to end. ONNX Runtime's integer kernels are not
TensorRT's, and stay out of this.

Nothing here looks at how a model was made: a rule reads the written ONNX model and the tables
beside it, and names the places that break it. Sources: TensorRT developer guide, "Working with
Quantized Types" and "Explicit Quantization"; ``docs/operators.md`` of onnx-tensorrt; see also
`intact.formats.tensorrt.write`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.engines.limits import limits_of_simulation
from intact.errors import DataError
from intact.formats.base.format import Feeds
from intact.formats.base.report import Verification
from intact.formats.base.verification import OutputsOfSimulation, compare
from intact.formats.onnx_qdq.run import RUNTIME, QdqRuntime
from intact.formats.tensorrt.read import parse_cache, parse_ranges
from intact.formats.tensorrt.write import (
    BLOCK_SIZES,
    BLOCKS,
    CACHE_FILE,
    NEWEST,
    OLDEST,
    PER_CHANNEL,
    RANGES_FILE,
    TensorRtModel,
)
from intact.graph import Graph, constant_array, input_value, moves_values
from intact.graph.traversal import nodes_of
from intact.ops.operators import (
    CLAMPS,
    Add,
    BitShift,
    Cast,
    Clip,
    Conv,
    ConvInteger,
    ConvTranspose,
    DequantizeLinear,
    Det,
    DynamicQuantizeLinear,
    Gemm,
    MatMul,
    MatMulInteger,
    MaxUnpool,
    Multinomial,
    QLinearConv,
    QLinearMatMul,
    QuantizeLinear,
    Unique,
    is_a,
    types_of,
)
from intact.plan import QuantizedGraph
from intact.plan.float16 import in_onnx_runtime
from intact.plan.given_scales import ScaleTable

QUANTIZE, DEQUANTIZE = QuantizeLinear.name, DequantizeLinear.name

_SCALE, _ZERO_POINT = 1, 2


def scale_of(quantizer: ir.Node) -> npt.NDArray[Any] | None:
    """Return the scale of a Quantize or Dequantize; None where it is no constant."""
    return constant_array(input_value(quantizer, _SCALE))


def zero_point_of(quantizer: ir.Node) -> npt.NDArray[Any] | None:
    """Return the zero point of a Quantize or Dequantize; None where it is no constant."""
    return constant_array(input_value(quantizer, _ZERO_POINT))


def axis_of(quantizer: ir.Node) -> int:
    """Return the axis of scales by channel."""
    return quantizer.attributes.get_int("axis", 1)


def block_size_of(node: ir.Node) -> int:
    """Return how many neighbours of a Dequantize have a scale together; 0 without blocks."""
    return node.attributes.get_int("block_size", 0) if node.op_type == DEQUANTIZE else 0


def dequantizer_of(value: ir.Value | None) -> ir.Node | None:
    """Return the Dequantize that a value comes from, perhaps moved on the way."""
    maker = None if value is None else value.producer()
    # TensorRT moves a Reshape or Transpose through a pair, so that a layer behind one still reads
    # quantized data.
    while maker is not None and maker.op_type != DEQUANTIZE and moves_values(maker):
        source = input_value(maker, 0)
        maker = None if source is None else source.producer()
    return maker if maker is not None and maker.op_type == DEQUANTIZE else None


def quantizer_of(dequantizer: ir.Node) -> ir.Node | None:
    """Return the Quantize that a Dequantize reads."""
    source = input_value(dequantizer, 0)
    maker = None if source is None else source.producer()
    return maker if maker is not None and maker.op_type == QUANTIZE else None


def constant_behind(quantizer: ir.Node) -> npt.NDArray[Any] | None:
    """Return the constant that a Quantize or Dequantize is about; None for activations."""
    first = quantizer
    if quantizer.op_type == DEQUANTIZE:
        first = quantizer_of(quantizer) or quantizer
    return constant_array(input_value(first, 0))


def tensor_name(quantizer: ir.Node, known: Collection[str]) -> str:
    """Name, in the float model, the activation that a Quantize reads.

    Where that is an output of the model, the Dequantize has its name; where a range is narrower
    than its type, a Clip stands before the Quantize; behind what computes in float16, a Cast does.

    Args:
        quantizer: The Quantize.
        known: The names of the float model's tensors.
    """
    value = input_value(quantizer, 0)
    maker = None if value is None else value.producer()
    before = []
    while is_a(maker, Cast, Clip):
        source = input_value(maker, 0)
        before.append(source)
        maker = None if source is None else source.producer()
    outputs = (use.node.outputs[0] for use in quantizer.outputs[0].uses())
    candidates = [str(each.name) for each in (value, *outputs, *before) if each is not None]
    return next((name for name in candidates if name in known), candidates[0] if candidates else "")


@dataclass(frozen=True)
class WrittenModel:
    """The files of one model.

    Attributes:
        model: The ONNX model with Quantize and Dequantize nodes.
        tables: The calibration cache and the ranges, by file name.
        graph: The float model, which the tables are about.
        floats: Names of the nodes that the plan keeps in float.
    """

    model: ir.Model
    tables: Mapping[str, bytes]
    graph: Graph
    floats: frozenset[str] = frozenset()

    def quantizers(self) -> Iterator[ir.Node]:
        """Yield the Quantize and Dequantize nodes, but for those of weights in blocks."""
        kinds = QUANTIZE, DEQUANTIZE
        for node in self.model.graph:
            if node.op_type in kinds and not block_size_of(node):
                yield node

    def weights_in_blocks(self) -> Iterator[ir.Node]:
        """Yield the Dequantize nodes of weights in blocks, which are stored as integers."""
        yield from (node for node in self.model.graph if block_size_of(node))

    def known(self) -> frozenset[str]:
        """Return the names of the float model's tensors."""
        return frozenset(str(value.name) for value in self.graph.values)

    def scales_by_tensor(self) -> dict[str, set[bytes]]:
        """Return the bits of the scales of each activation, by its name in the float model.

        Names with a line break are left out: no table has them.
        """
        known, found = self.known(), dict[str, set[bytes]]()
        kept = {str(node.name) for node in self.model.graph}
        for node in self.quantizers():
            scale = scale_of(node)
            # By bits, because the cache holds bits.
            if node.op_type == QUANTIZE and scale is not None and constant_behind(node) is None:
                name = self._behind_left_out(tensor_name(node, known), known, kept)
                found.setdefault(name, set()).add(scale.tobytes())
        return {name: scales for name, scales in found.items() if not {"\n", "\r"} & set(name)}

    def _behind_left_out(self, name: str, known: Container[str], kept: Container[str]) -> str:
        """Return the tensor that stands in a tensor's place in the float model.

        Args:
            name: The tensor.
            known: Names of the float model's tensors.
            kept: Names of the nodes that were written.

        A writer leaves a Relu or Clip out where the quantizer behind it clips as far.
        """
        while name in known:
            readers = self.graph.consumers(self.graph.value(name))
            if len(readers) != 1 or readers[0][0].op_type not in CLAMPS:
                break
            (reader, _) = readers[0]
            if str(reader.name) in kept:
                break
            name = str(reader.outputs[0].name)
        return name


def table_names(written: WrittenModel) -> Iterator[str]:
    """Yield the names in the tables that the float model does not have."""
    known = written.known()
    for file, table in _tables(written):
        if isinstance(table, str):
            yield table
            continue
        yield from (f"{file}: {name!r}" for name in table.scales if name not in known)


def table_scales(written: WrittenModel) -> Iterator[str]:
    """Yield the tensors of which tables and model have different scales."""
    in_model = written.scales_by_tensor()
    for file, table in _tables(written):
        if isinstance(table, str):
            continue
        for name, given in table.scales.items():
            if in_model.get(name, set()) != {given.scale.tobytes()}:
                yield f"{file}: {name!r}"
        # Of several scales for one tensor no table has any.
        single = (name for name, scales in in_model.items() if len(scales) == 1)
        yield from (f"{file}: lacks {name!r}" for name in single if name not in table)


def _tables(written: WrittenModel) -> Iterator[tuple[str, ScaleTable | str]]:
    """Yield both tables by file name; in the place of one that cannot be read, the reason.

    A model without quantized activations has none: an empty table is no table.
    """
    if not written.scales_by_tensor():
        return
    for file, parse in ((CACHE_FILE, parse_cache), (RANGES_FILE, parse_ranges)):
        try:
            yield file, parse(written.tables[file], file)
        except DataError as error:
            yield file, str(error)


_PRODUCTS = types_of(Conv, ConvTranspose, Gemm, MatMul)

_NOT_READ = frozenset(
    {
        BitShift.name,
        ConvInteger.name,
        Det.name,
        DynamicQuantizeLinear.name,
        MatMulInteger.name,
        MaxUnpool.name,
        Multinomial.name,
        QLinearConv.name,
        QLinearMatMul.name,
        "StringNormalizer",
        "TfIdfVectorizer",
        Unique.name,
    }
)
"""Operators that onnx-tensorrt's table has as unsupported, in every release."""


def check_tensorrt(written: WrittenModel) -> dict[str, list[str]]:
    """Return each rule with the places that break it; nothing is executed."""
    return {text: list(find(written)) for text, find in RULES.items()}


# ---- quantizers --------------------------------------------------------------------------------


def _zero_points(written: WrittenModel) -> Iterator[str]:
    for node in written.quantizers():
        zero = zero_point_of(node)
        if zero is None or zero.dtype != np.int8 or zero.any():
            yield _place(node)


def _scales(written: WrittenModel) -> Iterator[str]:
    for node in written.quantizers():
        scale, zero = scale_of(node), zero_point_of(node)
        same_shape = scale is None or zero is None or zero.shape == scale.shape
        if not (_is_sound(scale) and same_shape):
            yield _place(node)


def _is_sound(scale: npt.NDArray[Any] | None) -> bool:
    if scale is None or scale.dtype != np.float32 or not scale.size:
        return False
    return bool((np.isfinite(scale) & (scale > 0)).all())


def _pairs(written: WrittenModel) -> Iterator[str]:
    for node in written.quantizers():
        if node.op_type == DEQUANTIZE:
            maker = quantizer_of(node)
            paired = maker is not None and _is_pair(maker, node)
        else:
            readers = [use.node for use in node.outputs[0].uses()]
            seen = bool(readers) and not node.outputs[0].is_graph_output()
            # A Quantize that nothing reads, or that leaves the model, has no Dequantize to make a
            # layer of.
            paired = seen and all(_is_pair(node, reader) for reader in readers)
        if not paired:
            yield _place(node)


def _is_pair(quantizer: ir.Node, other: ir.Node) -> bool:
    first, second = scale_of(quantizer), scale_of(other)
    if other.op_type != DEQUANTIZE or first is None or second is None:
        return False
    return axis_of(quantizer) == axis_of(other) and np.array_equal(first, second)


def _activations_per_tensor(written: WrittenModel) -> Iterator[str]:
    for node in written.quantizers():
        scale = scale_of(node)
        if scale is not None and scale.ndim and constant_behind(node) is None:
            yield _place(node)


def _weights_per_channel(written: WrittenModel) -> Iterator[str]:
    for node in written.model.graph:
        for slot in (0, 1) if node.op_type in _PRODUCTS else ():
            pair = dequantizer_of(input_value(node, slot))
            scale = None if pair is None or block_size_of(pair) else scale_of(pair)
            weight = None if pair is None else constant_behind(pair)
            if pair is None or scale is None or weight is None or not scale.ndim:
                continue
            axis = axis_of(pair)
            # As a slice: an axis that the weight lacks gives an empty shape, and no error.
            fits = weight.shape[axis : axis + 1] == scale.shape
            if not fits or axis != _channel_axis(node, slot, weight.ndim):
                yield f"{_place(node)} along axis {axis}"


def _in_blocks(written: WrittenModel) -> Iterator[str]:
    for node in written.weights_in_blocks():
        scale, zero, codes = scale_of(node), zero_point_of(node), input_value(node, 0)
        array, size = constant_array(codes), block_size_of(node)
        if array is None or codes is None or codes.dtype is not ir.DataType.INT4:
            yield f"{_place(node)}: no constant of int4"
        elif not _is_sound(scale) or (zero is not None and zero.any()):
            yield f"{_place(node)}: its scales and zero points"
        elif size not in BLOCK_SIZES or array.ndim != 2 or array.shape[axis_of(node)] % size:
            yield f"{_place(node)}: blocks of {size}"
        elif any(
            not _sums_along(use.node, use.idx, axis_of(node)) for use in node.outputs[0].uses()
        ):
            yield f"{_place(node)}: it does not lie beside a product that sums along its blocks"


def _sums_along(product: ir.Node, slot: int, axis: int) -> bool:
    is_turned = is_a(product, Gemm) and product.attributes.get_int("transB", 0) != 0
    return is_a(product, Gemm, MatMul) and slot == 1 and axis == int(is_turned)


def _channel_axis(product: ir.Node, slot: int, rank: int) -> int | None:
    """Return the axis of a product's constant factor that has the output channels."""
    match product.op_type:
        case Conv.name:
            return 0
        case Gemm.name:
            transposed = product.attributes.get_int("transA" if slot == 0 else "transB", 0) != 0
            return int(transposed) if slot == 0 else int(not transposed)
        case MatMul.name:
            return rank - 2 if slot == 0 else rank - 1
    return None


# ---- layers ------------------------------------------------------------------------------------


def _all_inputs(written: WrittenModel) -> Iterator[str]:
    """Look at integer products; one in float may read codes that another layer reads too."""
    for node in written.model.graph:
        if node.op_type in _PRODUCTS and str(node.name) not in written.floats:
            quantized = [_is_quantized(value) for value in node.inputs[:2]]
            # All or none: with one quantized factor TensorRT computes the layer in float.
            if any(quantized) and not all(quantized):
                yield _place(node)


def _float_biases(written: WrittenModel) -> Iterator[str]:
    for node in written.model.graph:
        if node.op_type in _PRODUCTS and _is_quantized(input_value(node, 2)):
            yield _place(node)


def _residuals(written: WrittenModel) -> Iterator[str]:
    """Look at each sum that is quantized next, of which an int8 product is a float operand."""
    for node in written.model.graph:
        if not is_a(node, Add) or not _is_quantized_next(node):
            continue
        products = [value for value in node.inputs if _is_integer_product(value)]
        others = [value for value in node.inputs if not _is_integer_product(value)]
        # TensorRT adds inside of one convolution, if what is added is quantized; two of them are
        # not fused.
        if len(products) > 1 or (products and not all(_is_addend(value) for value in others)):
            yield _place(node)


def _is_addend(value: ir.Value | None) -> bool:
    return _is_quantized(value) or (value is not None and value.const_value is not None)


def _is_integer_product(value: ir.Value | None) -> bool:
    maker = None if value is None else value.producer()
    return is_a(maker, Conv) and _is_quantized(maker.inputs[0])


def _is_quantized_next(node: ir.Node) -> bool:
    readers = [use.node for use in node.outputs[0].uses()]
    if len(readers) == 1 and readers[0].op_type in CLAMPS:
        # A Relu behind the sum is fused with it.
        readers = [use.node for use in readers[0].outputs[0].uses()]
    return bool(readers) and all(reader.op_type == QUANTIZE for reader in readers)


# ---- the model ---------------------------------------------------------------------------------


def _operators(written: WrittenModel) -> Iterator[str]:
    for node in nodes_of(written.model.graph):
        own = node.op_identifier() in written.model.functions
        # Of other domains the parser knows plugins only; it reads functions of the model itself.
        if node.op_type in _NOT_READ if node.domain in ("", "ai.onnx") else not own:
            yield f"{_place(node)} ({node.op_type})"


def _opset(written: WrittenModel) -> Iterator[str]:
    opset = written.model.opset_imports.get("", 0)
    scales = (scale_of(node) for node in written.quantizers())
    per_channel = any(scale is not None and scale.ndim for scale in scales)
    oldest = PER_CHANNEL if per_channel else OLDEST
    oldest = BLOCKS if any(written.weights_in_blocks()) else oldest
    if not oldest <= opset <= NEWEST:
        yield f"opset {opset}"


# ---- the table of rules ------------------------------------------------------------------------


def _is_quantized(value: ir.Value | None) -> bool:
    """Check whether a value comes from a Dequantize, perhaps moved on the way."""
    return dequantizer_of(value) is not None


def _place(node: ir.Node) -> str:
    return str(node.name or node.op_type)


RULES: Mapping[str, Callable[[WrittenModel], Iterator[str]]] = {
    "every zero point is there, int8 and 0": _zero_points,
    "every scale is a positive finite float32, with a zero point of its shape": _scales,
    "quantizers stand in pairs of one scale, so weights are floats too": _pairs,
    "activations have one scale": _activations_per_tensor,
    "scales of weights run along the output channels; of a ConvTranspose there is one": (
        _weights_per_channel
    ),
    "weights in blocks are int4 with positive scales, 64 or 128 along the sums of a product": (
        _in_blocks
    ),
    "integer products read all their factors quantized": _all_inputs,
    "biases are floats": _float_biases,
    "a sum behind an int8 convolution reads the other operand quantized": _residuals,
    "operators are those that TensorRT's ONNX parser reads": _operators,
    "the opset is one that TensorRT's ONNX parser reads": _opset,
    "the tables name tensors of the float model": table_names,
    "the tables have the scales of the model": table_scales,
}
"""In the order of the report."""


_NO_RUNTIME = "rules only (no TensorRT here)"
_OUTPUTS_OF = (
    f"there is no TensorRT to compare with; the outputs are those of {RUNTIME} on the CPU, each "
    "operator in float, against the simulation"
)


def verify_tensorrt(
    plan: QuantizedGraph, exported: TensorRtModel, batches: Iterable[Feeds], *, threads: int = 0
) -> Verification:
    """Check the files of a plan against TensorRT's rules, and run the model in ONNX Runtime.

    Args:
        plan: The plan.
        exported: What was written from it, or read back.
        batches: Inputs by name.
        threads: Threads inside one operator; 0 lets the runtime choose.

    Raises:
        ExportError: ONNX Runtime refuses the model, or fails on it.
        DataError: The model gives other shapes than the plan.
    """
    floats = frozenset(name for name, each in plan.decisions.items() if not each.quantized)
    rules = check_tensorrt(WrittenModel(exported.model, exported.tables, plan.graph, floats))
    runtime = QdqRuntime(exported.model, threads=threads, fuse=False)
    # What runs here is ONNX Runtime, float16 included.
    reference = OutputsOfSimulation(in_onnx_runtime(plan), threads=threads)
    found = compare(plan, _NO_RUNTIME, runtime.run, reference, batches)
    found.rules = rules
    found.no_engine = _OUTPUTS_OF
    found.not_simulated = limits_of_simulation(plan)
    return found
