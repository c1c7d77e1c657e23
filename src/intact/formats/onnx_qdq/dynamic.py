"""Writes dense layers whose activations are quantized while running, as ONNX has them.

``DynamicQuantizeLinear -> MatMulInteger -> Cast -> Mul (-> Add)``, with one DynamicQuantizeLinear
for all readers of a value. ONNX Runtime makes one kernel of them, or one for each layer where
the codes have several readers: ``float(sum) * (x scale * weight scale) + bias``, bit for bit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.config import PerTensor
from intact.errors import ExportError
from intact.formats.onnx_qdq.reader.parameters import container_for
from intact.graph import bias_slot, input_value
from intact.graph.edit import Editor
from intact.ops.operators import Add, Cast, DynamicQuantizeLinear, Gemm, MatMulInteger, Mul, is_a
from intact.plan import QuantizedGraph, QuantPoint, TensorEnd
from intact.plan.dynamic import DynamicPoint, dynamic_points, is_layer
from intact.program import Program, Tensor
from intact.program.operations import DynamicFullyConnected, DynamicQuantize
from intact.program.unsupported import UnsupportedNodes


@dataclass(frozen=True)
class DynamicCodes:
    """Names of the values of a written model that show what a layer computes.

    Attributes:
        source: The floats that are quantized.
        codes: Their codes.
        scale: Their scale.
        zero_point: Their zero point.
        result: The layer's floats.
    """

    source: str
    codes: str
    scale: str
    zero_point: str
    result: str


@dataclass(frozen=True)
class RunningTensors:
    """The tensors of a program around layers of dynamic activations, as a written model shows them.

    Attributes:
        computed: Codes, scales, zero points and results: the runtime computes them bit for bit.
        given: Floats that are quantized, which others make.
        shown: Names of the model's values by names of these tensors.
    """

    computed: tuple[Tensor, ...]
    given: tuple[Tensor, ...]
    shown: dict[str, str]


def running_tensors(
    program: Program, outputs: Collection[str], written: Mapping[TensorEnd, DynamicCodes]
) -> RunningTensors:
    """Find the tensors that a written model shows.

    Args:
        program: What the model computes.
        outputs: Names of the model's inputs and outputs, which are seen anyway.
        written: What shows each layer's integers.
    """
    by_node = {end.node: names for end, names in written.items()}
    computed: dict[str, tuple[Tensor, str]] = {}
    given: dict[str, tuple[Tensor, str]] = {}
    for step in program.steps:
        names = written.get(step.outputs[0].end) if step.outputs[0].end is not None else None
        if isinstance(step.operation, DynamicQuantize) and names is not None:
            shown = names.codes, names.scale, names.zero_point
            computed |= {t.name: (t, n) for t, n in zip(step.outputs, shown, strict=True)}
            given |= {t.name: (t, names.source) for t in step.activations}
        elif isinstance(step.operation, DynamicFullyConnected) and step.nodes[0] in by_node:
            computed[step.outputs[0].name] = step.outputs[0], by_node[step.nodes[0]].result
    # An output of the model is seen anyway, and a name may stand among the outputs once.
    computed = {key: each for key, each in computed.items() if each[1] not in outputs}
    given = {
        key: each for key, each in given.items() if key not in computed and each[1] not in outputs
    }
    return RunningTensors(
        tuple(tensor for tensor, _ in computed.values()),
        tuple(tensor for tensor, _ in given.values()),
        {key: name for key, (_, name) in (computed | given).items()},
    )


def showing(model: ir.Model, names: Collection[str]) -> ir.Model:
    """Return a model with more of its values as outputs; the same object for none."""
    if not names:
        # The same object: what is at hand serialized is loaded as it is.
        return model
    editor = Editor(model)
    editor.model.graph.outputs.extend(editor.value(name) for name in dict.fromkeys(names))
    return editor.finish()


def refuse_other_grids(plan: QuantizedGraph) -> None:
    """Refuse what DynamicQuantizeLinear does not compute.

    Raises:
        ExportError: Codes are not those of uint8 with one scale a tensor; all of them are listed.
    """
    unsupported = UnsupportedNodes("QDQ cannot express", "keep these nodes float")
    for point in points_of_tensors(plan):
        grid = point.grid
        # DynamicQuantizeLinear has no options: it gives uint8 with one scale and a zero point,
        # always.
        is_whole = (grid.quant_min, grid.quant_max, grid.symmetric) == (0, 255, False)
        if not is_whole or grid.granularity != PerTensor():
            for end in point.ends:
                unsupported.add(str(end), "it is quantized while running, not as uint8 per tensor")
    unsupported.raise_any()


def points_of_tensors(plan: QuantizedGraph) -> Iterator[DynamicPoint]:
    """Yield what is quantized while running, but for layers whose own operator does so."""
    return (point for point in dynamic_points(plan) if point.grid.block is None)


class DynamicLayers:
    """Adds the operators of the layers of one model.

    Args:
        editor: The model.
        plan: What is written.

    Raises:
        ExportError: See `refuse_other_grids`.

    Attributes:
        written: What shows each layer's integers, by the end that is quantized.
    """

    def __init__(self, editor: Editor, plan: QuantizedGraph) -> None:
        refuse_other_grids(plan)
        self._editor, self._plan = editor, plan
        self._weights: dict[tuple[str, int, bool], ir.Value] = {}
        self._points: dict[str, QuantPoint] = {}
        self.written: dict[TensorEnd, DynamicCodes] = {}

    def take(
        self, point: QuantPoint, readers: Sequence[tuple[ir.Node, int]]
    ) -> list[tuple[ir.Node, int]]:
        """Remember a weight for the layers among its readers; return the other readers."""
        # The weight is written when its layer is: MatMulInteger reads the codes themselves, without
        # a DequantizeLinear.
        layers = [node for node, slot in readers if is_layer(self._plan, node, slot)]
        self._points |= {str(node.name): point for node in layers}
        return [each for each in readers if each[0] not in layers]

    def add(self) -> None:
        """Add the operators in the place of the layers."""
        for point in points_of_tensors(self._plan):
            self._point(point)

    def _point(self, point: DynamicPoint) -> None:
        editor = self._editor
        source = editor.value(str(point.value.name))
        name = f"{source.name}_quantized"
        codes, scale, zero_point = (
            ir.Value(
                name=editor.names.fresh(f"{name}{part}"), type=ir.TensorType(kind), shape=shape
            )
            for part, kind, shape in (
                ("", ir.DataType.UINT8, source.shape),
                ("_scale", ir.DataType.FLOAT, ir.Shape(())),
                ("_zero_point", ir.DataType.UINT8, ir.Shape(())),
            )
        )
        # One for all readers: the runtime looks for the extremes of a value once.
        outputs = codes, scale, zero_point
        editor.add(DynamicQuantizeLinear, [source], outputs, name=str(codes.name))
        for (node, _), end in zip(point.readers, point.ends, strict=True):
            result = self._layer(node, outputs)
            self.written[end] = DynamicCodes(
                str(source.name), str(codes.name), str(scale.name), str(zero_point.name), result
            )

    def _layer(self, node: ir.Node, data: tuple[ir.Value, ir.Value, ir.Value]) -> str:
        """Put the operators in the place of a layer; return the name of its result."""
        editor, point, name = self._editor, self._points[str(node.name)], str(node.name)
        params = point.config.params
        if params is None:
            raise ExportError(f"{point.end} has no scale")
        codes, scale, zero_point = data
        # Names derive from the result's: it stays that of the last operator.
        twin = editor.nodes_by_name[name]
        shape, base = twin.outputs[0].shape, str(twin.outputs[0].name)
        factors = [codes, self._codes(node, point), zero_point]
        if params.zero_point.any():
            kind = container_for(point.config, is_constant=True)
            zeros = params.zero_point.astype(np.int8 if kind is None else kind.in_bytes.numpy)
            factors.append(editor.initializer(f"{base}_weight_zero_point", zeros))
        weight_scale = editor.initializer(f"{base}_weight_scale", np.asarray(params.scale))
        # The scales are multiplied first, and the sums by their product: the order in which the
        # runtime's fused kernel rounds.
        both = editor.node(Mul, [scale, weight_scale], f"{base}_scale")
        sums = editor.node(MatMulInteger, factors, f"{base}_sums", None, ir.DataType.INT32, shape)
        integer = sums.producer()
        floats = {"to": int(ir.DataType.FLOAT)}
        counted = editor.node(Cast, [sums], f"{base}_counted", floats, shape=shape)
        result = editor.node(Mul, [counted, both], f"{base}_scaled", shape=shape)
        slot = bias_slot(node)
        if slot is not None and input_value(node, slot) is not None:
            result = editor.node(Add, [result, twin.inputs[slot]], f"{base}_biased", shape=shape)
        editor.put_in_place(twin, result)
        if integer is not None:
            integer.name = name  # by which is found what the runtime makes of the layer
        return base

    def _codes(self, node: ir.Node, point: QuantPoint) -> ir.Value:
        """Return the codes of a weight as ``[K, N]``; layers that read one alike share it."""
        turned = is_a(node, Gemm) and bool(Gemm.of(node).transB)
        # By the dominator too: one constant may be quantized in two ways for two readers.
        key = str(point.value.name), id(point.config.dominator), turned
        if key not in self._weights:
            container = container_for(point.config, is_constant=True)
            if container is None:
                raise ExportError(f"{point.end}: ONNX has no type for its range")
            array = point.constant_codes().astype(container.in_bytes.numpy)
            # MatMulInteger has no transB; turned here once, it is a plain constant.
            matrix = np.ascontiguousarray(array.T) if turned else array
            name = f"{point.value.name}_quantized"
            self._weights[key] = self._editor.initializer(name, matrix)
        return self._weights[key]
