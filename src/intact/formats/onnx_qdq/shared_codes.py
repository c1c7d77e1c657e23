"""Stores a table once where it is looked up and multiplied with too.

Language models often compute their logits with the table of their embeddings (tied weights). A
plan has two constants of it where the product reads it transposed. Where both have the same codes,
or both are floats, a Transpose of the table's stands in the place of the second: the runtime
computes that once, when it loads the model, and takes the same kernel as for a constant.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from intact.formats.base.storage import LOOKED_UP_IN_FLOAT, OTHER_SCALES, stored_twice
from intact.formats.onnx_qdq.reader.parameters import is_dequantize
from intact.graph import is_constant, weight_slot
from intact.graph.edit import Editor
from intact.graph.tied_tables import are_equal, tied_tables
from intact.ops.operators import Cast, Transpose, is_a
from intact.plan import Note, QuantizedGraph, TensorEnd

_TURNED = {"perm": [1, 0]}


def share_codes(
    editor: Editor, plan: QuantizedGraph, stored: Mapping[TensorEnd, str]
) -> list[Note]:
    """Store a table once where a layer multiplies with the same codes, or the same floats.

    Args:
        editor: The model that is written.
        plan: Its plan.
        stored: For each weight that a float node has as integers, the constant that holds them.

    Returns:
        Where a table is stored twice nevertheless, and why.
    """
    notes = []
    for lookup, layer, is_turned in tied_tables(plan.graph):
        # A table that is looked up in floats has no codes to share.
        name = stored.get(TensorEnd.input(str(lookup.name), 0))
        table = None if name is None else editor.value(name)
        reader = _reader_of_codes(editor, layer)
        codes = None if reader is None else reader.inputs[0]
        # Later, those of float16 are narrowed each by itself.
        if reader is None and is_turned and plan.float16 is None:
            _share_floats(editor, lookup, layer)
        if reader is None or codes is None or not is_constant(codes) or codes is table:
            continue  # computed in float, or shared already
        if (
            table is not None
            and is_dequantize(reader)
            and are_equal(table, codes, is_turned=is_turned)
        ):
            if is_turned:
                table = _turned(editor, table, codes)
            # What is no longer read is left out when the model is finished.
            reader.replace_input_with(0, table)
        else:
            why = LOOKED_UP_IN_FLOAT if table is None else OTHER_SCALES
            notes.append(stored_twice(lookup, layer, why))
    return notes


def _share_floats(editor: Editor, lookup: ir.Node, layer: ir.Node) -> None:
    """Let a layer multiply with the table that is looked up, where the file has both as floats."""
    slot = weight_slot(layer) or 0
    table, weight = (
        editor.nodes_by_name[str(node.name)].inputs[at] for node, at in ((lookup, 0), (layer, slot))
    )
    names = [str(value.name) for value in (lookup.inputs[0], layer.inputs[slot]) if value]
    if table is None or weight is None or [str(table.name), str(weight.name)] != names:
        return  # another constant is read in its place
    editor.nodes_by_name[str(layer.name)].replace_input_with(slot, _turned(editor, table, weight))


def _turned(editor: Editor, table: ir.Value, weight: ir.Value) -> ir.Value:
    kind = weight.dtype or ir.DataType.FLOAT
    return editor.node(Transpose, [table], f"{weight.name}_turned", _TURNED, kind, weight.shape)


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
    return maker if is_a(maker, Cast) else reader
