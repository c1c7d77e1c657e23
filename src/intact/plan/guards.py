"""Tells of nodes that a condition kept from failing, and that now run whatever it says."""

from __future__ import annotations

from intact._text import first_names
from intact.graph.metadata import GUARD_KEY
from intact.graph.ops import may_fail
from intact.plan.quantized_graph import Note, NoteKind, QuantizedGraph

_REMEDY = "limit its whole numbers in the model, or fix what decides with --input-value"


def guard_notes(plan: QuantizedGraph) -> tuple[Note, ...]:
    """Make a note for each If or Loop of which all is computed, where parts of it may fail."""
    guarded: dict[str, list[str]] = {}
    for node in plan.graph.nodes:
        if GUARD_KEY in node.metadata_props and may_fail(node):
            guarded.setdefault(node.metadata_props[GUARD_KEY], []).append(str(node.name))
    return tuple(
        Note(NoteKind.EXPORT, names[0], _SAID.format(_also(names), guard), _REMEDY)
        for guard, names in guarded.items()
    )


_SAID = "it{} runs also where {!r} would not run it, and fails where places or divisors do not fit"


def _also(names: list[str]) -> str:
    return f" and {first_names(names[1:])}" if names[1:] else ""
