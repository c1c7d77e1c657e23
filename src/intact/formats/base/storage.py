"""What a file gives to the codes of constants, where that is more than the plan asks for.

Language models often compute their logits with the table of their embeddings (tied weights). A plan
has two constants of it where the product reads it transposed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from intact.formats.base.format import Format
from intact.formats.base.stored_weights import is_looked_up
from intact.graph import Graph, is_constant, weight_slot
from intact.plan import Note, NoteKind, QuantizedGraph, QuantPoint, quantization_points
from intact.plan.widths import scheme_at
from intact.targets import DType

LOOKED_UP_IN_FLOAT = "in float"
OTHER_SCALES = "with other scales or widths"
_OTHER_ORDER = "with its axes in the other order"


def storage_notes(plan: QuantizedGraph, formats: Mapping[str, Format]) -> tuple[Note, ...]:
    """Say which widths a file does not become smaller by, and which tables are in it twice.

    Once for each of them. The target's own widths surprise nobody. A format without a program
    stores no codes.

    Args:
        plan: What is written.
        formats: In which formats, by name.
    """
    found: dict[tuple[str, int, int], dict[str, str]] = {}
    for point in quantization_points(plan):
        bits = point.config.bits
        if not point.is_constant or bits > DType.INT16.bits:
            continue
        scheme = scheme_at(plan, point.end, point.config)
        if scheme is None or scheme.bits == bits:
            continue
        for name, each in formats.items():
            stored = each.writer.expressible.stored(bits)
            if each.runtime is not None and stored > bits:
                constants = found.setdefault((name, bits, stored), {})
                constants.setdefault(str(point.value.name), point.end.node)
    widths = tuple(
        Note(
            NoteKind.EXPORT,
            next(iter(constants.values())),
            f"{bits}-bit codes take {stored} bits each in a file of format {name} "
            f"({len(constants)} constant(s)): it is no smaller than {_like(stored)}",
        )
        for (name, bits, stored), constants in found.items()
    )
    return (*widths, *_tables_stored_twice(plan, formats))


def _tables_stored_twice(plan: QuantizedGraph, formats: Mapping[str, Format]) -> Iterator[Note]:
    """Yield a note for each table of which a file has the integers of a layer besides."""
    shared = [each.writer.shares_turned for each in formats.values()]
    told = [each for each in shared if each is not None]
    pairs = list(tied_tables(plan.graph)) if told else []
    if not pairs:
        return
    points = {
        (str(node.name), slot): point
        for point in quantization_points(plan)
        if point.is_constant
        for node, slot in point.readers
    }
    for lookup, layer, is_turned in pairs:
        own = points.get((str(layer.name), weight_slot(layer) or 0))
        table = points.get((str(lookup.name), 0))
        if own is None:
            continue  # computed in float
        why = LOOKED_UP_IN_FLOAT if table is None else OTHER_SCALES
        if table is not None and _have_equal_codes(table, own, is_turned=is_turned):
            why = _OTHER_ORDER if is_turned and not all(told) else ""
        if why:
            yield stored_twice(lookup, layer, why)


def _have_equal_codes(table: QuantPoint, weight: QuantPoint, *, is_turned: bool) -> bool:
    if table.config.bits != weight.config.bits:
        return False
    one, other = table.constant_codes(), weight.constant_codes()
    return _is_same(one, other.T if is_turned else other)


def tied_tables(graph: Graph) -> Iterator[tuple[ir.Node, ir.Node, bool]]:
    """Yield lookups, layers whose weight is their table, and whether that is transposed there."""
    lookups: dict[tuple[int, ...], dict[ir.Value, ir.Node]] = {}
    for node in graph.nodes:
        table = node.inputs[0] if is_looked_up(node, 0) else None
        if table is not None and table.const_value is not None and is_constant(table):
            lookups.setdefault(_shape(table), {}).setdefault(table, node)
    for layer in graph.nodes if lookups else ():
        slot = weight_slot(layer)
        weight = None if slot is None else layer.inputs[slot]
        if weight is None or weight.const_value is None:
            continue
        if weight in lookups.get(_shape(weight), {}):
            yield lookups[_shape(weight)][weight], layer, False
            continue
        for table, lookup in lookups.get(_shape(weight)[::-1], {}).items():
            if are_equal(table, weight, is_turned=True):
                yield lookup, layer, True


def _shape(value: ir.Value) -> tuple[int, ...]:
    return () if value.const_value is None else tuple(value.const_value.shape.numpy())


def are_equal(first: ir.Value, second: ir.Value, *, is_turned: bool) -> bool:
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


def stored_twice(lookup: ir.Node, layer: ir.Node, why: str) -> Note:
    """Say of a table that a layer's integers of it are stored besides.

    Args:
        lookup: What looks it up.
        layer: What multiplies with it.
        why: Completes what is said of the lookup.
    """
    table = lookup.inputs[0]
    message = (
        f"table {str(None if table is None else table.name)!r} is stored twice: node "
        f"{str(lookup.name)!r} looks it up {why}, {str(layer.name)!r} multiplies with its integers"
    )
    return Note(NoteKind.EXPORT, str(layer.name), message)


def _like(stored: int) -> str:
    return "in float32" if stored == DType.INT32.bits else f"with {stored} bits"
