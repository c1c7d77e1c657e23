"""An ONNX model with FakeQuantize as a plan that keeps what it says: scales, ranges and integers.

NNCF and MQBench export such models too. Written again, the plan gives the same quantizers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from intact.config import (
    Granularity,
    PerChannel,
    PerTensor,
    QuantState,
    TensorQuantConfig,
    make_policy,
)
from intact.errors import ConfigError, DataError, ModelError
from intact.formats.base.clamps import Clamps
from intact.formats.base.read_points import GraphEdits, ReadPoint, plan_of
from intact.formats.openvino.fake_quantize import DOMAIN, MOST_BITS, OP_TYPE
from intact.graph import constant_array, input_value, is_constant, load_model
from intact.graph.passes import library
from intact.graph.passes.names import make_names_unique
from intact.graph.passes.no_ops import remove_no_ops
from intact.graph.passes.replace import add_constant
from intact.numerics.affine import dequantize, quantize
from intact.numerics.affine_params import QuantParams
from intact.numerics.conversion import Ends, params_of_ends
from intact.plan import Codes, QuantizedGraph, TensorEnd
from intact.targets import Target, full_range

READ = "read"

"""Stands as ``observer`` of a config that was read, in the place of a method's name."""

_SMALLEST = float(np.finfo(np.float32).tiny)

"""Scale that a plan can hold."""

_OFF = 0.01

"""How far, in steps, 0 may lie from a level. Ends in float32 are off by 1e-4 at 16 bits."""


@dataclass(frozen=True, eq=False)
class Parameters:
    """How codes and numbers of one tensor belong together.

    Attributes:
        params: Scale and zero point, ``[]`` or ``[channels]``.
        quant_min: Smallest code.
        quant_max: Largest code.
        axis: The channel axis counted from 0; None for one scale.
    """

    params: QuantParams
    quant_min: int
    quant_max: int
    axis: int | None

    @property
    def dtype(self) -> np.dtype[np.integer]:
        """The smallest NumPy type that holds the codes."""
        return np.result_type(
            np.min_scalar_type(self.quant_min), np.min_scalar_type(self.quant_max)
        )

    def equals(self, other: Parameters) -> bool:
        """Check whether equal codes mean equal numbers."""
        mine, theirs = ((each.quant_min, each.quant_max, each.axis) for each in (self, other))
        (scale, zero_point), (other_scale, other_zero_point) = self.params, other.params
        return (
            mine == theirs
            and np.array_equal(scale, other_scale)
            and np.array_equal(zero_point, other_zero_point)
        )

    def config(self, state: QuantState = QuantState.ACTIVATED) -> TensorQuantConfig:
        """Return a new config that says the same; calibration leaves its scale alone."""
        granularity: Granularity = PerTensor() if self.axis is None else PerChannel(self.axis)
        return TensorQuantConfig(
            policy=make_policy(granularity, symmetric=not self.params.zero_point.any()),
            bits=(self.quant_max - self.quant_min).bit_length(),
            quant_min=self.quant_min,
            quant_max=self.quant_max,
            granularity=granularity,
            scale=self.params.scale,
            offset=self.params.zero_point,
            observer=READ,
            detail={"fixed": True},
            state=state,
        )

    def narrowed(self, codes: Codes) -> Parameters:
        """Return the parameters of a constant with the range of the narrowest width for its codes.

        Fewer than 8 bits are stored as 256 levels, of which half or more are not used.
        """
        if self.quant_max - self.quant_min != 255 or not codes.any():
            return self
        signed = self.quant_min < 0
        least = min(int(codes.min()), int(self.params.zero_point.min()))
        most = max(int(codes.max()), int(self.params.zero_point.max()))
        for bits in range(2, 8):
            low, high = full_range(bits, signed=signed, narrow=False)
            if low <= least and most <= high:
                return replace(self, quant_min=low, quant_max=high)
        return self


def is_fake_quantize(node: ir.Node) -> bool:
    """Check whether a node is OpenVINO's quantizer."""
    return node.op_type == OP_TYPE and node.domain == DOMAIN


def read_parameters(node: ir.Node) -> Parameters:
    """Return the parameters of a FakeQuantize.

    Raises:
        ModelError: They are not fixed in the model, or are none that a plan can hold; the node is
            named.
    """
    if len(node.inputs) != 5 or len(node.outputs) != 1 or node.inputs[0] is None:
        raise unreadable(node, f"it has {len(node.inputs)} inputs and {len(node.outputs)} outputs")
    levels = _levels(node)
    low, high, out_low, out_high = (_ends(node, slot) for slot in range(1, 5))
    if not (np.array_equal(low, out_low) and np.array_equal(high, out_high)):
        raise unreadable(node, "its output range is not its input range")
    low, high, axis = _by_channel(node, low, high)
    if not ((low < high) & (low <= 0) & (high >= 0)).all():
        raise unreadable(node, "a range of it is empty or does not hold 0")
    if ((high.astype(np.float64) - low) / (levels - 1) < _SMALLEST).any():
        raise unreadable(node, "its levels are nearer than normal float32 numbers")
    quant_min, params = _codes(low, high, levels)
    if _off(low, params, quant_min) > _OFF:
        raise unreadable(node, "0 lies between two of its levels")
    return Parameters(params, quant_min, quant_min + levels - 1, axis)


def unreadable(node: ir.Node, reason: str, remedy: str = "quantize the float model") -> ModelError:
    """Return the error that names a node which cannot be read."""
    return ModelError(f"node {node.name!r} ({node.op_type}): {reason}", remedy=remedy)


def _codes(low: Ends, high: Ends, levels: int) -> tuple[int, QuantParams]:
    """Return the smallest code, scale and zero point: signed codes if 0 is in their middle."""
    half = -(levels // 2)
    signed = params_of_ends(low, high, half, half + levels - 1)
    if not signed.zero_point.any():
        return half, signed
    return 0, params_of_ends(low, high, 0, levels - 1)


def _off(low: Ends, params: QuantParams, quant_min: int) -> float:
    """Return by how many steps the ends say another zero point."""
    exact = quant_min - low.astype(np.float64) / params.scale
    return float(np.abs(exact - params.zero_point).max())


def _levels(node: ir.Node) -> int:
    attribute = node.attributes.get("levels")
    if attribute is None or attribute.type is not ir.AttributeType.INT or attribute.is_ref():
        raise unreadable(node, "its attribute levels is no integer")
    levels = attribute.as_int()
    if not 3 <= levels <= 1 << MOST_BITS:
        raise unreadable(node, f"it has {levels} levels", f"3 to {1 << MOST_BITS} are read")
    return levels


def _ends(node: ir.Node, slot: int) -> npt.NDArray[np.float32]:
    array = constant_array(input_value(node, slot))
    if array is None:
        raise unreadable(node, "its range is computed by the model")
    if array.dtype != np.float32 or array.size == 0 or not np.isfinite(array).all():
        raise unreadable(node, "its range is not finite float32")
    return array


def _by_channel(node: ir.Node, low: Ends, high: Ends) -> tuple[Ends, Ends, int | None]:
    """Return the ends as ``[]`` or ``[channels]``, with the axis."""
    try:
        low, high = np.broadcast_arrays(low, high)
    except ValueError as error:
        raise unreadable(node, "its ends have different shapes") from error
    long = [axis for axis, length in enumerate(low.shape) if length != 1]
    if not long:
        return low.reshape(()), high.reshape(()), None
    value = node.inputs[0]
    shape = None if value is None else value.shape
    rank = low.ndim if shape is None else len(shape)
    axis = long[0] + rank - low.ndim
    if len(long) > 1 or low.ndim > rank:
        raise unreadable(node, f"its ends have shape {list(low.shape)}")
    length = low.shape[long[0]]
    if shape is not None and shape[axis] != length and not shape.is_unknown_dim(axis):
        raise unreadable(node, f"it has {length} scales along axis {axis} of shape {shape}")
    return low.reshape(-1), high.reshape(-1), axis


@dataclass
class _Group:
    """The quantizers that do the same to one value."""

    parameters: Parameters
    nodes: list[ir.Node] = field(default_factory=list)


def strip_fake_quantize(model: ir.Model) -> list[ReadPoint]:
    """Take every FakeQuantize out of the main graph, in place.

    A constant behind one becomes the numbers that its codes stand for. Where a plan has no end for
    a quantizer (a tensor quantized twice in a row, or for a graph output only) an Identity makes
    one.

    Returns:
        The points, in the order of their values.

    Raises:
        ModelError: A node cannot be read; it is named.
    """
    return _Stripper(model.graph).run()


class _Stripper:
    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._edits = GraphEdits(graph)
        self._clamps = Clamps(self._edits)
        self._points: list[ReadPoint] = []
        self._read: dict[ir.Node, Parameters] = {}

    def run(self) -> list[ReadPoint]:
        nodes = tuple(self._graph)
        for node in nodes:
            if is_fake_quantize(node):
                self._read[node] = read_parameters(node)
        for node in nodes:
            if node in self._read:
                self._part(node)
        values = [*self._graph.inputs, *self._graph.initializers.values()]
        values += [value for node in tuple(self._graph) for value in node.outputs]
        for value in values:
            self._strip_value(value)
        return self._points

    def _part(self, node: ir.Node) -> None:
        """Put an Identity between two quantizers in a row."""
        value = node.inputs[0]
        before = None if value is None else value.producer()
        if value is not None and before is not None and before in self._read:
            node.replace_input_with(0, self._edits.identity(value, node))

    def _strip_value(self, value: ir.Value) -> None:
        groups: list[_Group] = []
        for node, slot in value.uses():
            if slot != 0 or node not in self._read:
                continue
            parameters = self._read[node]
            group = next((each for each in groups if each.parameters.equals(parameters)), None)
            if group is None:
                group = _Group(parameters)
                groups.append(group)
            group.nodes.append(node)
        for group in groups:
            if is_constant(value):
                self._strip_constant(value, group)
            else:
                self._strip_activation(value, group)

    def _strip_constant(self, value: ir.Value, group: _Group) -> None:
        """Put the numbers on the grid in the place of a quantized constant."""
        tensor, parameters = value.const_value, group.parameters
        if tensor is None:
            return
        try:
            codes = quantize(
                tensor.numpy(),
                *parameters.params,
                parameters.quant_min,
                parameters.quant_max,
                axis=parameters.axis,
            )
        except (ConfigError, DataError) as error:
            raise unreadable(group.nodes[0], str(error)) from error
        numbers = dequantize(codes, *parameters.params, axis=parameters.axis)
        name = self._edits.names.fresh(str(value.name).removesuffix("_on_grid"))
        constant = add_constant(self._graph, numbers, name)
        readers = self._hand_over(group, constant)
        self._note(parameters.narrowed(codes), readers, codes.astype(parameters.dtype))

    def _strip_activation(self, value: ir.Value, group: _Group) -> None:
        """Let the readers of a quantized value read the value itself."""
        outputs = [node.outputs[0] for node in group.nodes]
        alone = not value.is_graph_output() and len(value.uses()) == len(group.nodes)
        hidden = any(
            output.is_graph_output()
            or any(use.node.graph is not self._graph for use in output.uses())
            for output in outputs
        )
        clamped = self._clamps.restore(value, group.parameters, group.nodes[0])
        if clamped is not None:
            value = clamped
        elif value.producer() is None or not alone:
            if not hidden:
                self._note(group.parameters, self._hand_over(group, value))
                return
            value = self._edits.identity(value, group.nodes[0])
        self._hand_over(group, value)
        node = value.producer()
        if node is not None:
            end = TensorEnd.output(str(node.name), value.index() or 0)
            self._points.append(ReadPoint(group.parameters, (end,)))

    def _hand_over(self, group: _Group, value: ir.Value) -> list[tuple[ir.Node, int]]:
        """Take a group out, let a value stand for its results; return who reads them."""
        readers = []
        for node in group.nodes:
            result = node.outputs[0]
            readers += self._edits.readers(result)
            if result.is_graph_output():
                if is_constant(value) or value.is_graph_output():
                    self._edits.copy(result, value)
                else:
                    self._edits.take_place(result, value)
            result.replace_all_uses_with(value)
            self._graph.remove(node, safe=True)
        return readers

    def _note(
        self,
        parameters: Parameters,
        readers: list[tuple[ir.Node, int]],
        codes: Codes | None = None,
    ) -> None:
        if readers:
            ends = tuple(TensorEnd.input(str(node.name), slot) for node, slot in readers)
            self._points.append(ReadPoint(parameters, ends, codes))


def read_fake_quantize(
    source: str | Path | onnx.ModelProto | ir.Model, target: Target
) -> QuantizedGraph:
    """Read a model that is quantized with FakeQuantize.

    The float model of the plan is the source without its quantizers; constants behind one are the
    numbers that their codes stand for. A range that starts at 0 is read as unsigned codes, one
    around 0 as signed ones, any other as unsigned codes with a zero point; weights have the
    narrowest width that holds their codes, since 7 bits are stored as 8.

    Args:
        source: A path, or a loaded model; that is never changed.
        target: The hardware that the plan is for; what the model says stays, wherever it differs.

    Returns:
        A calibrated plan, as ``formats.onnx_qdq.read.read_qdq`` gives it.

    Raises:
        ModelError: The model cannot be read, has no FakeQuantize, or has one that a plan cannot
            hold; the node is named.
    """
    model = load_model(source)
    library.sort_nodes(model)
    make_names_unique(model)
    library.lift_constants(model)
    remove_no_ops(model)
    library.remove_unused(model)
    _refuse_in_bodies(model)
    library.infer_shapes(model)
    if not is_fake_quantized(model):
        raise ModelError("the model has no FakeQuantize", remedy="quantize it, with samples")
    points = strip_fake_quantize(model)
    return plan_of(model, target, points)


def is_fake_quantized(model: ir.Model) -> bool:
    """Check whether a model has quantizers in OpenVINO's form."""
    return any(is_fake_quantize(node) for node in model.graph.all_nodes())


def _refuse_in_bodies(model: ir.Model) -> None:
    for node in model.graph.all_nodes():
        if is_fake_quantize(node) and node.graph is not model.graph:
            raise unreadable(node, "it stands in the body of another node")
