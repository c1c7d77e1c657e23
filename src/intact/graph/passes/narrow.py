"""Nodes of a float32 model in float16: the way back of `intact.graph.passes.widen`.

Nodes are named. Their float inputs and outputs become float16 wherever ONNX has such a form of
the operator; Casts stand where float32 begins and ends, one for each value. Inputs and outputs of
the model keep their type and their name.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from intact.graph.files.tensors import computed
from intact.graph.names import Names
from intact.graph.ops import is_constant
from intact.graph.traversal import graphs_of
from intact.ops.operators import Cast, is_a

LARGEST = 65504.0
"""The largest finite float16 (IEEE 754 binary16)."""

_HALF, _SINGLE = "tensor(float16)", "tensor(float)"


def float16_slots(node: ir.Node, opset: int) -> tuple[list[int], list[int]]:
    """Return the inputs and the outputs of a node that may be float16 instead of float32.

    Both are empty where ONNX has no float16 form of the operator, where a value is of no known
    type, and where the node computes with other types than float32.

    Args:
        node: A node of ONNX's own domain, or of another, which has none.
        opset: The version of ONNX's operators.
    """
    forms = _forms(node.op_type, opset) if node.domain == "" else None
    if forms is None:
        return [], []
    reads, gives = forms
    inputs: list[int] = []
    outputs: list[int] = []
    for slots, values, admitted in ((inputs, node.inputs, reads), (outputs, node.outputs, gives)):
        for slot, value in enumerate(values):
            # The last of several stands for all further ones: Concat, Max, Sum.
            if value is None or not value.name or not admitted[min(slot, len(admitted) - 1)]:
                continue
            if value.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
                return [], []
            slots.append(slot)
    return (inputs, outputs) if inputs and outputs else ([], [])


@functools.cache
def _forms(op_type: str, opset: int) -> tuple[list[bool], list[bool]] | None:
    """Tell which inputs and outputs of an operator may be float32 or float16; None if unknown."""
    try:
        schema = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    types = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}

    def admits(name: str) -> bool:
        allowed = types.get(name, [name])
        return _HALF in allowed and _SINGLE in allowed

    reads = [admits(each.type_str) for each in schema.inputs]
    gives = [admits(each.type_str) for each in schema.outputs]
    return (reads, gives) if any(reads) and any(gives) else None


def in_float16(array: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """Round to float16, ties to even; what is beyond its range becomes infinite."""
    with np.errstate(over="ignore"):
        return array.astype(np.float16)


def narrow(model: ir.Model, names: Collection[str]) -> None:
    """Let nodes compute in float16, in place; the others get float32 as before.

    Args:
        model: Its nodes are sorted.
        names: The nodes, which `float16_slots` knows.
    """
    _Narrower(model, names).narrow()


def round_floats(model: ir.Model, names: Collection[str], *, values: bool) -> None:
    """Let nodes read constants that float16 holds, in place, and compute in float32.

    Args:
        model: Its nodes are sorted.
        names: The nodes, which `float16_slots` knows.
        values: Round what they read and give too: each value, as where every kernel stores float16.
    """
    _Narrower(model, names).round(values=values)


class _Use(Protocol):
    """Where a value is read."""

    @property
    def node(self) -> ir.Node:
        """The reader."""

    @property
    def idx(self) -> int:
        """Its input."""


class _Narrower:
    """Changes the nodes of one model."""

    def __init__(self, model: ir.Model, names: Collection[str]) -> None:
        self._graph = model.graph
        opset = model.graph.opset_imports.get("", 1)
        chosen = [node for node in model.graph if node.name in names]
        self._slots = {node: float16_slots(node, opset) for node in chosen}
        graphs = graphs_of(model)
        self._names = Names(name for graph in graphs for name in _taken(graph))
        self._made: dict[ir.Value, ir.Value] = {}
        outputs = model.graph.outputs
        self._halves = {v.name for v in outputs if v.dtype is ir.DataType.FLOAT16}

    def narrow(self) -> None:
        """Change types, and put Casts where float32 begins and ends."""
        for node, (inputs, outputs) in self._slots.items():
            for slot in inputs:
                value = node.inputs[slot]
                if value is not None and not self._is_ours(value):
                    node.replace_input_with(slot, self._narrowed(value))
            for slot in outputs:
                self._widen_for_others(node.outputs[slot])
        self._drop_unused()

    def round(self, *, values: bool) -> None:
        """Round constants, and with ``values`` what the nodes read and give."""
        for node, (inputs, outputs) in self._slots.items():
            for slot in inputs:
                value = node.inputs[slot]
                if value is None or self._is_ours(value):
                    continue
                if is_constant(value):
                    node.replace_input_with(slot, self._rounded_constant(value))
                elif values:
                    node.replace_input_with(slot, self._rounded(value))
            for slot in outputs if values else ():
                self._round_output(node.outputs[slot])
        self._drop_unused()

    def _is_ours(self, value: ir.Value) -> bool:
        """Tell whether a node in float16 gives a value in float16."""
        node, slot = value.producer(), value.index()
        return node in self._slots and slot in self._slots[node][1]

    def _narrowed(self, value: ir.Value) -> ir.Value:
        if value not in self._made:
            producer = value.producer()
            source = None if producer is None else producer.inputs[0] if producer.inputs else None
            if is_constant(value):
                self._made[value] = self._constant(value, ir.DataType.FLOAT16)
            elif source is not None and _is_cast(producer) and source.dtype is ir.DataType.FLOAT16:
                self._made[value] = source  # an input that was float16 in the given model
            else:
                self._made[value] = self._cast(value, ir.DataType.FLOAT16)
        return self._made[value]

    def _widen_for_others(self, value: ir.Value) -> None:
        """Make a value float16, and cast it back for readers that take float32."""
        value.type = ir.TensorType(ir.DataType.FLOAT16)
        self._take_out_casts(value)
        # A Cast reads any type.
        others = [
            use
            for use in value.uses()
            if use.idx not in self._inputs_of(use.node) and not _is_cast(use.node)
        ]
        is_output = value.is_graph_output() and value.name not in self._halves
        if not others and not is_output:
            return
        wide = self._cast(value, ir.DataType.FLOAT)
        self._replace(value, wide, others, is_output=is_output)

    def _take_out_casts(self, value: ir.Value) -> None:
        """Take out Casts to float16, which change nothing any more."""
        for use in tuple(value.uses()):
            cast = use.node
            if not (_is_cast(cast) and Cast.of(cast).to == ir.DataType.FLOAT16):
                continue
            result = cast.outputs[0]
            if result.is_graph_output() and value.is_graph_output():
                continue  # each keeps its name
            name, is_output = result.name, result.is_graph_output()
            result.replace_all_uses_with(value, replace_graph_outputs=True)
            self._graph.remove(cast, safe=True)
            if is_output:
                value.name = name

    def _rounded(self, value: ir.Value) -> ir.Value:
        if value not in self._made:
            half = self._cast(value, ir.DataType.FLOAT16)
            self._made[value] = self._cast(half, ir.DataType.FLOAT)
        return self._made[value]

    def _round_output(self, value: ir.Value) -> None:
        others, is_output = list(value.uses()), value.is_graph_output()
        if others or is_output:
            self._replace(value, self._rounded(value), others, is_output=is_output)

    def _rounded_constant(self, value: ir.Value) -> ir.Value:
        if value not in self._made:
            self._made[value] = self._constant(value, ir.DataType.FLOAT)
        return self._made[value]

    def _inputs_of(self, node: ir.Node) -> list[int]:
        return self._slots[node][0] if node in self._slots else []

    def _replace(
        self, old: ir.Value, new: ir.Value, uses: Iterable[_Use], *, is_output: bool
    ) -> None:
        """Let readers and the model's outputs have another value; an output keeps its name."""
        for use in uses:
            use.node.replace_input_with(use.idx, new)
        if is_output:
            name = str(old.name)
            old.name = self._names.fresh(f"{name}_float16")
            new.name = name
            for position, output in enumerate(self._graph.outputs):
                if output is old:
                    self._graph.outputs[position] = new

    def _cast(self, value: ir.Value, to: ir.DataType) -> ir.Value:
        kind = "float16" if to == ir.DataType.FLOAT16 else "float32"
        name = self._names.fresh(f"{value.name}_{kind}")
        cast = ir.node(Cast.name, [value], {"to": int(to)}, num_outputs=1, name=name)
        result = cast.outputs[0]
        result.name, result.type, result.shape = name, ir.TensorType(to), value.shape
        producer = value.producer()
        if producer is None:
            self._graph.insert_before(self._graph[0], cast)
        else:
            self._graph.insert_after(producer, cast)
        return result

    def _constant(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Add a constant rounded to float16, stored in a type."""
        source = value.const_value
        if source is None:
            raise ValueError(f"{value.name!r} has no data")
        kind = np.float16 if dtype == ir.DataType.FLOAT16 else np.float32

        def rounded() -> ir.Tensor[Any]:
            return ir.Tensor(in_float16(source.numpy()).astype(kind))

        shape = ir.Shape(source.shape.numpy())
        tensor = computed(source, rounded, dtype)
        name = self._names.fresh(f"{value.name}_float16")
        tensor.name = name
        made = ir.Value(name=name, shape=shape, type=ir.TensorType(dtype), const_value=tensor)
        self._graph.register_initializer(made)
        return made

    def _drop_unused(self) -> None:
        """Drop constants that were read in float32 alone."""
        for name, value in list(self._graph.initializers.items()):
            if value in self._made and not (
                value.uses() or value.is_graph_output() or value.is_graph_input()
            ):
                del self._graph.initializers[name]


def _is_cast(node: ir.Node | None) -> bool:
    return is_a(node, Cast)


def _taken(graph: ir.Graph) -> list[str | None]:
    """List every name in a graph."""
    made = [value.name for node in graph for value in node.outputs]
    values = (*graph.inputs, *graph.initializers.values())
    return [*(node.name for node in graph), *made, *(value.name for value in values)]
