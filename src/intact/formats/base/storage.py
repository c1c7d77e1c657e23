"""What a file gives to each code of a constant, where that is more than the plan asks for."""

from __future__ import annotations

from collections.abc import Mapping

from intact.formats.base.format import Format
from intact.plan import Note, NoteKind, QuantizedGraph, quantization_points
from intact.plan.widths import scheme_at
from intact.targets import DType


def storage_notes(plan: QuantizedGraph, formats: Mapping[str, Format]) -> tuple[Note, ...]:
    """Say which widths a file does not become smaller by, once for each of them.

    The target's own widths surprise nobody. A format without a program stores no codes.

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
            stored = each.expressible.stored(bits)
            if each.verify is not None and stored > bits:
                constants = found.setdefault((name, bits, stored), {})
                constants.setdefault(str(point.value.name), point.end.node)
    return tuple(
        Note(
            NoteKind.EXPORT,
            next(iter(constants.values())),
            f"{bits}-bit codes take {stored} bits each in a file of format {name} "
            f"({len(constants)} constant(s)): it is no smaller than {_like(stored)}",
        )
        for (name, bits, stored), constants in found.items()
    )


def _like(stored: int) -> str:
    return "in float32" if stored == DType.INT32.bits else f"with {stored} bits"
