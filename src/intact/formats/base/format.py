"""What a format is: its files, how a plan is written as them, how they are read back."""

from __future__ import annotations

import enum
import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from intact.errors import MissingExtraError, PlanError
from intact.plan import Note, QuantizedGraph


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


class Io(enum.StrEnum):
    """What the ends of a written file hold, where its format leaves a choice."""

    INT8 = "int8"
    """Codes, as interpreters without float take them."""
    FLOAT = "float"
    """Numbers; conversions stand at the ends, and accelerators run what is between."""


@dataclass(frozen=True)
class Expressible:
    """What a plan may ask of a format: for searches, which then propose nothing else.

    Attributes:
        weight_bits: Widths of weights, where a format holds fewer codes than any integers.
        activation_bits: Widths of activations.
        floats: Whether operators may stay float.
        packs: Whether codes of 4 bits are stored two a byte.
    """

    weight_bits: frozenset[int] = frozenset(range(2, 17))
    activation_bits: frozenset[int] = frozenset(range(2, 17))
    floats: bool = True
    packs: bool = True

    def __and__(self, other: Expressible) -> Expressible:
        """Return what both formats express."""
        return Expressible(
            self.weight_bits & other.weight_bits,
            self.activation_bits & other.activation_bits,
            self.floats and other.floats,
            self.packs and other.packs,
        )


EIGHT_BITS = frozenset({8})

UP_TO_EIGHT_BITS = frozenset(range(2, 9))

INTEGERS_ALONE = Expressible(UP_TO_EIGHT_BITS, UP_TO_EIGHT_BITS, floats=False, packs=False)

"""Of formats for machines without floats."""


@dataclass(frozen=True)
class Format:
    """A format that plans are deployed in; each folder of ``formats/`` that has one names it.

    Attributes:
        files: What it leaves in a result's folder; the first is what one deploys.
        write: Makes it of a calibrated plan.
        read: Reads it back from the folder of a result.
        packages: What writing takes, by the module that is imported.
        extra: Which extra brings them.
        optional: Which of the files are not always there.
        has_io: Whether its ends can hold codes or numbers, as the caller likes.
        expressible: What plans may ask of it; whether it has each operator, it says when it writes.
    """

    files: tuple[str, ...]
    write: Callable[[QuantizedGraph, Io], Exported]
    read: Callable[[Path, QuantizedGraph], Exported]
    packages: tuple[str, ...] = ()
    extra: str = ""
    optional: tuple[str, ...] = ()
    has_io: bool = False
    expressible: Expressible = Expressible()

    @property
    def required(self) -> tuple[str, ...]:
        """The files that are always there."""
        return tuple(name for name in self.files if name not in self.optional)


def require_packages(what: str, packages: Iterable[str], extra: str) -> None:
    """Refuse what cannot be done for want of a package.

    Raises:
        MissingExtraError: One is not installed; with the line that installs it.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(
                f"{what} needs {package}, which is not installed",
                remedy=f"pip install 'intact[{extra}]'",
            )


def require_files(folder: Path, names: Iterable[str]) -> None:
    """Refuse a result's folder in which a file is missing.

    Raises:
        PlanError: With the file's name.
    """
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise PlanError(
            f"{folder}: no {missing[0]} in it",
            remedy="give a folder that intact wrote, with all its files",
        )


def read_files(
    folder: Path, names: Iterable[str], optional: Iterable[str] = ()
) -> dict[str, bytes]:
    """Return the content of files of a result's folder by name.

    Raises:
        PlanError: One is missing that is not optional.
    """
    names = tuple(names)
    require_files(folder, names)
    present = (*names, *(name for name in optional if (folder / name).is_file()))
    return {name: (folder / name).read_bytes() for name in present}
