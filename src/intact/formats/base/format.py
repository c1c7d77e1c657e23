"""What a format is: how plans are written in it, read back, run and verified."""

from __future__ import annotations

import enum
import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import msgspec
import numpy.typing as npt

from intact.errors import MissingExtraError, PlanError
from intact.plan import Note, Overrides, QuantizedGraph
from intact.targets import Target

if TYPE_CHECKING:
    import onnx_ir as ir

    from intact.formats.base.report import Verification
    from intact.graph import Graph
    from intact.plan.given_scales import ScaleTable


Feeds: TypeAlias = dict[str, npt.NDArray[Any]]
_Kind = TypeVar("_Kind")


class Exported(Protocol):
    """A deployed model, in memory."""

    @property
    def notes(self) -> Sequence[Note]:
        """What a user should know about this export."""

    def save(self, folder: Path) -> None:
        """Write its files into a folder that exists."""

    def nbytes(self) -> int:
        """Return the bytes that are deployed."""


class WrittenFiles(msgspec.Struct, frozen=True):
    """A deployed model whose files are held whole.

    Attributes:
        files: Content by file name.
        deployed: Bytes that reach the device, where that is not what the files take.
        notes: What a user should know about this export.
        missing: Which file was not written and why; the notes say it too.
    """

    files: Mapping[str, bytes]
    deployed: int | None = None
    notes: Sequence[Note] = ()
    missing: Sequence[str] = ()

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


class Expressible(msgspec.Struct, frozen=True):
    """What a plan may ask of a format: for searches, which then propose nothing else.

    Attributes:
        weight_bits: Widths of weights, where a format holds fewer codes than any integers.
        activation_bits: Widths of activations.
        integer_bits: Widths that its runtime computes with integers, of those.
        floats: Whether operators may stay float.
        stored_bits: Widths that its files give to a constant; a code takes the least that holds it.
        logarithmic: Whether levels may be spaced logarithmically.
        open_sizes: Whether tensors may have sizes that are not known, besides the batch.
        mixes: Whether activations of several widths may meet.
        half_ends: Whether inputs and outputs may be float16.
        several_scales: Whether a tensor may have scales of their own for some of its readers.
    """

    weight_bits: frozenset[int] = frozenset(range(2, 17))
    activation_bits: frozenset[int] = frozenset(range(2, 17))
    integer_bits: frozenset[int] = frozenset(range(2, 17))
    floats: bool = True
    stored_bits: frozenset[int] = frozenset({4, 8, 16, 32})
    logarithmic: bool = False
    open_sizes: bool = True
    mixes: bool = True
    half_ends: bool = True
    several_scales: bool = True

    def __and__(self, other: Expressible) -> Expressible:
        """Combine two formats: what both express."""
        return Expressible(
            self.weight_bits & other.weight_bits,
            self.activation_bits & other.activation_bits,
            self.integer_bits & other.integer_bits,
            self.floats and other.floats,
            self.stored_bits & other.stored_bits,
            self.logarithmic and other.logarithmic,
            self.open_sizes and other.open_sizes,
            self.mixes and other.mixes,
            self.half_ends and other.half_ends,
            self.several_scales and other.several_scales,
        )

    @property
    def packs(self) -> bool:
        """Whether codes of 4 bits are stored two a byte."""
        return 4 in self.stored_bits

    def stored(self, bits: int) -> int:
        """Return the bits that a constant's code of some width takes in a file."""
        return min(width for width in self.stored_bits if width >= bits)


EIGHT_BITS = frozenset({8})

WHOLE_BYTES = frozenset({8, 16, 32})

UP_TO_EIGHT_BITS = frozenset(range(2, 9))

INTEGERS_ALONE = Expressible(
    UP_TO_EIGHT_BITS,
    UP_TO_EIGHT_BITS,
    floats=False,
    stored_bits=WHOLE_BYTES,
    open_sizes=False,
    half_ends=False,
)

"""Of formats for machines without floats."""


class Deployed(msgspec.Struct, frozen=True):
    """A deployed model and how to run it.

    Attributes:
        plan: What it should compute.
        exported: What was written.
        kernels: Kernels of its runtime, of ``Format.kernels``; None for the target's.
        threads: Threads of the runtime; 0 for all cores.
    """

    plan: QuantizedGraph
    exported: Exported
    kernels: str | None = None
    threads: int = 0

    def held(self, kind: type[_Kind]) -> _Kind:
        """The exported model, which must be of this class.

        Raises:
            PlanError: It is of another.
        """
        if isinstance(self.exported, kind):
            return self.exported
        raise PlanError("the deployed model is not there", remedy="quantize again")

    @property
    def files(self) -> Mapping[str, bytes]:
        """Content by file name, of a format whose files are held whole."""
        return self.held(WrittenFiles).files

    @property
    def has_float_ends(self) -> bool:
        """Whether the written files take and give floats."""
        return self.plan.provenance.io == Io.FLOAT

    def require_unchanged(self, expected: Mapping[str, bytes]) -> None:
        """Refuse files that are not those of the plan, before they are compiled or run.

        Raises:
            PlanError: A file holds something else.
        """
        for name, content in expected.items():
            if self.files.get(name) != content:
                raise PlanError(
                    f"{name} is not what this plan gives: changed by hand, or by another version",
                    remedy="quantize again, or record the device's tensors and give --observed",
                )


class Kernel(msgspec.Struct, frozen=True):
    """One kernel of a runtime, as its profile shows it.

    Attributes:
        name: The node that the runtime names it after.
        op_type: The operator that the runtime made.
        seconds: What it takes.
        computes: What nodes and tensors that it may compute are called in the plan, the likeliest
            first: without what writer and runtime add to names.
        reads_elements: Elements of the largest tensor that it reads.
        writes_elements: Elements of the largest tensor that it writes.
    """

    name: str
    op_type: str
    seconds: float
    computes: tuple[str, ...] = ()
    reads_elements: int = 0
    writes_elements: int = 0


class FloatSource(msgspec.Struct, frozen=True):
    """A float model.

    Attributes:
        target: Hardware that it is for, unless the user names another.
        model: As `intact.graph.load_model` returns it; it is nobody else's.
    """

    target: str
    model: ir.Model


class QuantizedSource(msgspec.Struct, frozen=True):
    """A model that others quantized.

    Attributes:
        target: Hardware that it is for, unless the user names another.
        plan: Reads it for a target.
        with_widths: Reads it likewise, with the widths that a user gives to quantizers that do not
            say their range; None where all say it.
    """

    target: str
    plan: Callable[[Target], QuantizedGraph]
    with_widths: Callable[[Target, Overrides], QuantizedGraph] | None = None


class ModelReader(msgspec.Struct, frozen=True):
    """How a format opens model files that others made.

    Attributes:
        recognizes: Whether a file is of this format, by its path and its first 8 bytes.
        open: Opens it.
        target: Hardware of its models, unless the user names another.
        suffixes: Endings of file names, in lower case; such a file is opened whatever it holds.
        deployed: Opens it as what is deployed, with its plan for a target, so that it can be
            verified; None where that cannot be done.
    """

    recognizes: Callable[[Path, bytes], bool]
    open: Callable[[Path], FloatSource | QuantizedSource]
    target: str
    suffixes: tuple[str, ...] = ()
    deployed: Callable[[Path, Target], tuple[QuantizedGraph, Exported]] | None = None


CHANGED = "the runtime rounds otherwise than planned, by kernels or scales of its own"
"""Said of `Executed.changed`."""


IN_FLOAT = "the runtime computes it in float, which was planned for integers"
"""Said of layers in `Executed.in_float`."""


class Executed(msgspec.Struct, frozen=True):
    """What a runtime makes of what was written, where that is not what the plan says.

    Attributes:
        in_float: Nodes planned for integers that it computes in float, with their operators.
        in_integers: Nodes planned in float that it computes with codes, with their operators.
        changed: Those of the latter that round otherwise than the floats do, and quantizers to
            which it gave scales that the plan does not have.
    """

    in_float: Mapping[str, str] = {}
    in_integers: Mapping[str, str] = {}
    changed: tuple[str, ...] = ()


def noted(exported: Exported) -> Executed | None:
    """Return what a runtime made of it when it was loaded; None if that was not asked then."""
    found = getattr(exported, "executed", None)
    return found if isinstance(found, Executed) else None


class ScaleReader(msgspec.Struct, frozen=True):
    """How a format reads a table of scales.

    Attributes:
        recognizes: Whether a file's content is such a table.
        parse: Reads it, for error messages under a name; the model is None where none is known.
        is_guess: It accepts whatever resembles a table, and is asked after all others.
    """

    recognizes: Callable[[bytes], bool]
    parse: Callable[[bytes, str, Graph | None], ScaleTable]
    is_guess: bool = False


class Format(msgspec.Struct, frozen=True):
    """A format that plans are deployed in: everything that the rest of the package knows of it.

    Functions import their modules when they are called, so that a description is cheap to load.

    Attributes:
        files: Names of the files in a result's folder; the first is the one that is deployed.
        write: Writes a calibrated plan.
        read: Reads it back from the folder of a result.
        packages: Modules of other packages that writing imports.
        extra: The extra that installs them.
        optional: Files that are not always written.
        has_io: Whether the ends can hold codes or numbers, as the user chooses.
        has_layout: Whether images may be taken and given with their channels last, or not.
        expressible: What plans may ask of it; whether it has each operator, it says when it writes.
        shares_turned: Whether integers of a table and of its transpose are stored once in its
            files, as equal ones are; None where that is not known, or writing says it.
        verify: Runs it and compares each layer with the plan; None where there is no program.
        run: Runs what was written on one batch in its runtime, with the runtime's own options:
            the outputs by name, as numbers with axes as in the model. Whatever is quantized is run
            so before it is called done. None where there is no runtime, or where starting it takes
            longer than all else.
        load: Lets its runtime load what was written, where no inputs are known to run it on.
        runner: Loads what was written as applications do, and returns what runs a batch: for
            timing. None where a run's time would say nothing of the hardware.
        runs_numbers: Whether a runner gives what ``run`` gives, though with the application's
            options.
        runs_float: Whether its runtime runs the float model too, so that times of both compare.
        kernels_of: Profiles its runtime on a batch, in a number of runs.
        runtime_name: The runtime with its version.
        runtime: Modules that running imports, besides those of intact's own dependencies.
        executed: Asks the runtime what it makes of what was written; None where it does not tell,
            or has no choice. What was loaded before is not loaded again.
        run_up_to: Deployed bytes beyond which it is not run at once: it takes too long; None for no
            bound.
        kernels: Kinds of kernels that a user may choose for running it.
        scales: Readers of its tables of scales.
        models: The reader of its model files that others made.
        open_onnx: Opens an ONNX model that others quantized; None for one that is not of its kind.
            Asked only where some operator is named like a quantizer.
        tensor_names: Names of the tensors between the operators of what was written.
        refuse: Raises `ExportError` where a plan cannot be written whatever its scales are: it
            looks at nodes and shapes alone. None where only writing tells.
    """

    files: tuple[str, ...]
    write: Callable[[QuantizedGraph, Io], Exported]
    read: Callable[[Path, QuantizedGraph], Exported]
    packages: tuple[str, ...] = ()
    extra: str = ""
    optional: tuple[str, ...] = ()
    has_io: bool = False
    has_layout: bool = False
    expressible: Expressible = Expressible()
    shares_turned: bool | None = None
    verify: Callable[[Deployed, Iterable[Feeds]], Verification] | None = None
    run: Callable[[Deployed, Feeds], Feeds] | None = None
    load: Callable[[Deployed], object] | None = None
    runner: Callable[[Deployed], Callable[[Feeds], Any]] | None = None
    runs_numbers: bool = False
    runs_float: bool = False
    kernels_of: Callable[[Deployed, Feeds, int], list[Kernel]] | None = None
    runtime_name: Callable[[], str] | None = None
    executed: Callable[[Deployed], Executed] | None = None
    runtime: tuple[str, ...] = ()
    run_up_to: int | None = None
    kernels: tuple[str, ...] = ()
    scales: Callable[[], tuple[ScaleReader, ...]] | None = None
    models: Callable[[], ModelReader] | None = None
    open_onnx: Callable[[ir.Model], QuantizedSource | None] | None = None
    tensor_names: Callable[[Exported], frozenset[str]] | None = None
    refuse: Callable[[QuantizedGraph], None] | None = None

    def can_run(self, exported: Exported) -> bool:
        """Whether its runtime is there, and quick enough for what was written."""
        if self.run is None or not all(map(is_installed, self.runtime)):
            return False
        return self.run_up_to is None or exported.nbytes() <= self.run_up_to

    @property
    def required(self) -> tuple[str, ...]:
        """The files that are always there."""
        return tuple(name for name in self.files if name not in self.optional)


def is_installed(package: str) -> bool:
    """Whether a package of others can be imported."""
    return importlib.util.find_spec(package) is not None


def require_packages(what: str, packages: Iterable[str], extra: str) -> None:
    """Refuse what cannot be done for want of a package.

    Raises:
        MissingExtraError: One is not installed; with the line that installs it.
    """
    for package in packages:
        if not is_installed(package):
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
