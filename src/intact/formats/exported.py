"""What a format wrote of a plan, as a result keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from intact.plan import Note


class Exported(Protocol):
    """A deployed model, in memory."""

    @property
    def notes(self) -> Sequence[Note]:
        """What a user should know about this export."""

    def save(self, folder: Path) -> None:
        """Write its files into a folder that exists."""

    def nbytes(self) -> int:
        """Return the bytes that are deployed."""


@dataclass(frozen=True)
class WrittenFiles:
    """A deployed model whose files are held whole.

    Attributes:
        files: Content by file name.
        deployed: Bytes that reach the device, where that is not what the files take.
        notes: What a user should know about this export.
    """

    files: Mapping[str, bytes]
    deployed: int | None = None
    notes: Sequence[Note] = ()

    def save(self, folder: Path) -> None:
        """Write the files into a folder that exists."""
        for name, content in self.files.items():
            (folder / name).write_bytes(content)

    def nbytes(self) -> int:
        """Return the bytes that are deployed."""
        if self.deployed is not None:
            return self.deployed
        return sum(len(content) for content in self.files.values())
