"""Keeps measured times in a file of the user's cache folder.

Keys are hashes of all that a time depends on: the runtime and its version, the processor, threads,
operators and shapes. So times of another machine or version are never found, and need no care.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import msgspec

from intact._files import appearing, user_cache
from intact.placement.pieces import Line

_FILE = "timings.json"
_FORMAT = 1
_MOST_BYTES = 1 << 26
_MOST_ENTRIES = 1 << 16


class PieceTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of a piece in each precision, and the elements of what it writes."""

    in_float: float
    in_integers: float
    elements: int = 0


class KnownChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was found to be fastest for a plan.

    Attributes:
        kept_float: Names of the nodes to keep in float.
        milliseconds: Times of the float model, the plan with all integers, and the choice.
        predicted: Time of the choice, from the times of its pieces; 0 where it was not predicted.
    """

    kept_float: tuple[str, ...]
    milliseconds: tuple[float, float, float]
    predicted: float = 0.0


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    pieces: dict[str, PieceTime] = {}
    conversions: dict[str, tuple[Line, Line]] = {}
    choices: dict[str, KnownChoice] = {}


class TimingCache:
    """The file of measured times.

    Args:
        path: The file; None for that of the user.

    Attributes:
        path: The file.
        damage: Why what is there was ignored; empty where it was read, or is not there.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = default_path() if path is None else Path(path)
        self.damage = ""
        self._content = self._read()

    @property
    def pieces(self) -> dict[str, PieceTime]:
        """Times of pieces by key."""
        return self._content.pieces

    @property
    def conversions(self) -> dict[str, tuple[Line, Line]]:
        """Times of quantizing and dequantizing a tensor, by key."""
        return self._content.conversions

    @property
    def choices(self) -> dict[str, KnownChoice]:
        """Placements that were found to be fastest, by key."""
        return self._content.choices

    def save(self) -> str:
        """Write the file in one step; return why that failed, or nothing."""
        for table in (self.pieces, self.conversions, self.choices):
            # The oldest go: a dict keeps the order in which entries were added.
            for key in list(table)[: max(len(table) - _MOST_ENTRIES, 0)]:
                del table[key]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with appearing(self.path) as (file,):
                file.write(msgspec.json.encode(self._content))
        except OSError as error:
            return f"{self.path}: {error.strerror or error}"
        return ""

    def _read(self) -> _Content:
        try:
            if not self.path.exists():
                return _Content(_FORMAT)
            if not self.path.is_file():
                self.damage = "it is no file"
            # Before it is read: the file lies where other programs write.
            elif self.path.stat().st_size > _MOST_BYTES:
                self.damage = "it is too large"
            else:
                content = msgspec.json.decode(self.path.read_bytes(), type=_Content)
                if content.format == _FORMAT and _is_sound(content):
                    return content
                self.damage = "it holds numbers that are no times"
                if content.format != _FORMAT:
                    self.damage = "another version wrote it"
        except (OSError, msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            self.damage = str(error).splitlines()[0] if str(error) else type(error).__name__
        return _Content(_FORMAT)


def _is_sound(content: _Content) -> bool:
    lines = [line for pair in content.conversions.values() for line in pair]
    numbers = [
        *(each for time in content.pieces.values() for each in (time.in_float, time.in_integers)),
        *(time.elements for time in content.pieces.values()),
        *(each for line in lines for each in (line.fixed, line.each)),
        *(each for choice in content.choices.values() for each in choice.milliseconds),
        *(choice.predicted for choice in content.choices.values()),
    ]
    # JSON has 1e999, which is read as infinity: one such time would rule out every other placement.
    return all(math.isfinite(each) and each >= 0 for each in numbers)


def default_path() -> Path:
    """Return the file in the user's cache folder."""
    return user_cache() / _FILE


def key_of(*parts: object) -> str:
    """Return the hash of what a time depends on."""
    return hashlib.sha256(msgspec.json.encode([str(part) for part in parts])).hexdigest()
