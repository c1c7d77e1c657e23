"""Collects what cannot be expressed, so that one error reports all of it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from intact.errors import ExportError, Unsupported, fits

if TYPE_CHECKING:  # formats that write no steps use this too, and do not load the operations
    from intact.program.program import Program, Step

_QUOTED = re.compile("'[^']*'")
_EACH = "mend each as it says"
_NAMED = 3
"""Places with the same reason that are named, where all would make a message too long."""


class UnsupportedNodes:
    """Collects reasons by node, tensor or end; those with the same reason are reported together.

    >>> found = UnsupportedNodes("C cannot hold", "keep them float")
    >>> for name in ("a", "b"):
    ...     found.add(repr(name), Unsupported("it has no kernel"))
    >>> found.error()
    ExportError("C cannot hold 'a', 'b': it has no kernel; keep them float")

    Args:
        message: Start of the error.
        remedy: What helps where a reason has no remedy of its own; a function is asked when there
            is something to report.
        program: What the steps of `add_step` belong to.
        reasons: Why nodes compute in float, beside what the program knows.
    """

    def __init__(
        self,
        message: str,
        remedy: str | Callable[[], str] = "",
        *,
        program: Program | None = None,
        reasons: Mapping[str, str] | None = None,
    ) -> None:
        self._message, self._remedy = message, remedy
        self._in_float = {**(reasons or {}), **(program.in_float if program else {})}
        steps = program.steps if program else ()
        self._has_floats = any(_is_float(step) for step in steps)
        self._places: dict[tuple[str, str], dict[str, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._places)

    def add(self, place: str, reason: Unsupported | str) -> None:
        """Add why a place (a quoted name, a tensor end) cannot be expressed."""
        key = (reason, "") if isinstance(reason, str) else (reason.reason, reason.remedy)
        # A dict for its order: the error names places as the model has them, each once.
        self._places.setdefault(key, {})[place] = None

    def add_step(self, step: Step, reason: Unsupported) -> None:
        """Add why a step cannot be expressed.

        For nodes in float, the plan's own reason is reported; conversions and moves beside them
        follow from them and are not.
        """
        if _is_float(step):
            for node in step.nodes or (step.name,):
                why = self._in_float.get(node)
                text = f"{reason.reason}: {why}" if why else reason.reason
                self.add(repr(node), Unsupported(text, reason.remedy))
        elif not (self._has_floats and _touches_floats(step)):
            self.add(repr(step.name), reason)

    @contextlib.contextmanager
    def collect(self, place: str) -> Iterator[None]:
        """Add what the body of the ``with`` raises as `Unsupported`, under this place."""
        try:
            yield
        except Unsupported as reason:
            self.add(place, reason)

    def raise_any(self) -> None:
        """Raise `error` if anything was added.

        Raises:
            ExportError: Something was.
        """
        if self:
            raise self.error()

    def error(self) -> ExportError:
        """Make the error that reports everything."""
        general = self._remedy if isinstance(self._remedy, str) else self._remedy()
        remedies = {remedy or general for _, remedy in self._places}
        common = remedies.pop() if len(remedies) == 1 else ""
        # A remedy that is common to all is said once, at the end.
        said = {key: _reason_and_remedy(*key, common) for key in self._places}
        remedy = common or general or _EACH
        texts = [f"{', '.join(places)}: {said[key]}" for key, places in self._places.items()]
        listed = _lines_by_reason({said[key]: list(places) for key, places in self._places.items()})
        whole = f"{self._message} {'; '.join(texts)}"
        if not fits(whole, remedy):
            whole = f"{self._message} {'; '.join(listed)}"
        return ExportError(whole, remedy=remedy, listed=listed)


def _lines_by_reason(places: Mapping[str, list[str]]) -> list[str]:
    """Write a line for each reason; those that differ in the names that they quote are one."""
    groups: dict[str, tuple[str, dict[str, None]]] = {}
    for reason, those in places.items():
        _, named = groups.setdefault(_QUOTED.sub("''", reason), (reason, {}))
        named |= dict.fromkeys(those)
    return [f"{_first(list(named))}: {reason}" for reason, named in groups.values()]


def _first(places: list[str]) -> str:
    """Name the first of many places, and how many there are."""
    if len(places) <= _NAMED:
        return ", ".join(places)
    return f"{len(places)} places ({', '.join(places[:_NAMED])}, ...)"


def _reason_and_remedy(reason: str, remedy: str, common: str) -> str:
    return f"{reason} ({remedy})" if remedy and remedy != common else reason


def _touches_floats(step: Step) -> bool:
    tensors = [*step.outputs, *(tensor for tensor in step.inputs if tensor is not None)]
    return any(tensor.encoding is None for tensor in tensors)


def _is_float(step: Step) -> bool:
    from intact.program.operations import FloatNodes

    return isinstance(step.operation, FloatNodes)
