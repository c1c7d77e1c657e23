"""One copy of the codes of a table that is looked up and multiplied with.

Language models often compute their logits with the table of their embeddings (tied weights). A
plan has two constants of it where the product reads it transposed. Where both have the same codes,
a Transpose of the table's stands in the place of the second: the runtime computes that once, when
it loads the model, and takes the same integer kernel as for a constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from intact.formats.base.stored_weights import is_looked_up
from intact.formats.onnx_qdq.reader.parameters import is_dequantize
from intact.graph import Graph, is_constant, weight_slot
from intact.graph.edit import Editor
from intact.plan import Note, NoteKind, QuantizedGraph, TensorEnd

_TURNED = {"perm": [1, 0]}


def share_codes(
    editor: Editor, plan: QuantizedGraph, stored: Mapping[TensorEnd, str]
) -> list[Note]:
    """Store the codes of a table once where a layer multiplies with the same numbers.

    Args:
        editor: The model that is written.
        plan: Its plan.
        stored: For each weight that a float node has as integers, the constant that holds them.

    Returns:
        Where a table is stored twice nevertheless, and why.
    """
    notes = []
    for lookup, layer, is_turned in _tied(plan.graph):
        name = stored.get(TensorEnd.input(str(lookup.name), 0))
        table = None if name is None else editor.value(name)
        reader = _reader_of_codes(editor, layer)
        codes = None if reader is None else reader.inputs[0]
        if reader is None or codes is None or not is_constant(codes) or codes is table:
            continue  # computed in float, or shared already
        if table is not None and is_dequantize(reader) and _are_equal(table, codes, is_turned):
            if is_turned:
                name, kind = f"{codes.name}_turned", codes.dtype or ir.DataType.INT8
                table = editor.node("Transpose", [table], name, _TURNED, kind, codes.shape)
            reader.replace_input_with(0, table)
        else:
            notes.append(_note(lookup, layer, is_float=table is None))
    return notes


def _tied(graph: Graph) -> Iterator[tuple[ir.Node, ir.Node, bool]]:
    """Yield lookups, layers whose weight is their table, and whether that is transposed there."""
    lookups = [
        node for node in graph.nodes if is_looked_up(node, 0) and is_constant(node.inputs[0])
    ]
    if not lookups:
        return
    for layer in graph.nodes:
        slot = weight_slot(layer)
        weight = None if slot is None else layer.inputs[slot]
        for lookup in lookups:
            table = lookup.inputs[0]
            if weight is None or table is None or not is_constant(weight):
                continue
            if weight is table:
                yield lookup, layer, False
            elif _are_equal(table, weight, is_turned=True):
                yield lookup, layer, True


def _are_equal(first: ir.Value, second: ir.Value, is_turned: bool) -> bool:
    """Tell whether two constants hold the same numbers, one of them transposed if `is_turned`."""
    one, other = first.const_value, second.const_value
    if one is None or other is None or one.dtype is not other.dtype:
        return False
    shapes = tuple(one.shape.numpy()), tuple(other.shape.numpy())
    if is_turned:
        is_matrix = len(shapes[0]) == 2
        return is_matrix and shapes[0] == shapes[1][::-1] and _is_same(one.numpy(), other.numpy().T)
    return shapes[0] == shapes[1] and _is_same(one.numpy(), other.numpy())


def _is_same(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.array_equal(one[:1], other[:1]) and np.array_equal(one, other))


def _reader_of_codes(editor: Editor, layer: ir.Node) -> ir.Node | None:
    """Return what reads the codes of a layer's weight: DequantizeLinear, or a Cast of packed ones.

    Packed codes are not transposed: not every runtime moves 4 bits.
    """
    slot, twin = weight_slot(layer), editor.nodes_by_name[str(layer.name)]
    value = None if slot is None else twin.inputs[slot]
    reader = None if value is None else value.producer()
    if reader is None or not is_dequantize(reader):
        return None
    maker = None if reader.inputs[0] is None else reader.inputs[0].producer()
    return maker if maker is not None and maker.op_type == "Cast" else reader


def _note(lookup: ir.Node, layer: ir.Node, *, is_float: bool) -> Note:
    table = lookup.inputs[0]
    why = "in float" if is_float else "with other scales or widths"
    message = (
        f"table {str(None if table is None else table.name)!r} is stored twice: node "
        f"{str(lookup.name)!r} looks it up {why}, {str(layer.name)!r} multiplies with its integers"
    )
    return Note(NoteKind.EXPORT, str(layer.name), message)
