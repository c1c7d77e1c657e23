"""Stores the codes of a table once where it is looked up and multiplied with too.

Language models often compute their logits with the table of their embeddings (tied weights). A
plan has two constants of it where the product reads it transposed. Where both have the same codes,
a Transpose of the table's stands in the place of the second: the runtime computes that once, when
it loads the model, and takes the same integer kernel as for a constant.
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
    """Store the codes of a table once where a layer multiplies with the same numbers.

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
        if reader is None or codes is None or not is_constant(codes) or codes is table:
            continue  # computed in float, or shared already
        if (
            table is not None
            and is_dequantize(reader)
            and are_equal(table, codes, is_turned=is_turned)
        ):
            if is_turned:
                name, kind = f"{codes.name}_turned", codes.dtype or ir.DataType.INT8
                table = editor.node(Transpose, [table], name, _TURNED, kind, codes.shape)
            # What is no longer read is left out when the model is finished.
            reader.replace_input_with(0, table)
        else:
            why = LOOKED_UP_IN_FLOAT if table is None else OTHER_SCALES
            notes.append(stored_twice(lookup, layer, why))
    return notes


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
