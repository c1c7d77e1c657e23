"""Declares what a format is: how it writes plans, reads them back, runs and verifies them."""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import msgspec
import numpy.typing as npt

from intact._extras import is_installed
from intact.errors import ExportError, ModelError, PlanError
from intact.formats.base.expressible import Expressible
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
    """The type of a written file's inputs and outputs, where its format leaves a choice."""

    INT8 = "int8"
    """Codes, as interpreters without float take them."""
    FLOAT = "float"
    """Numbers; conversions stand at the ends, and accelerators run what is between."""


class Deployed(msgspec.Struct, frozen=True):
    """A deployed model and how to run it.

    Attributes:
        plan: What it should compute.
        exported: What was written.
        kernels: Kernels of its runtime, of ``Runtime.kernels``; None for the target's.
        threads: Threads of the runtime; 0 for all cores.
    """

    plan: QuantizedGraph
    exported: Exported
    kernels: str | None = None
    threads: int = 0

    def held(self, kind: type[_Kind]) -> _Kind:
        """Return the exported model, which must be of this class.

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


def execution_at_load(exported: Exported) -> Executed | None:
    """Return what a runtime made of it when it was loaded; None if that was not asked then."""
    # What formats of other packages export need not have such a field.
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


class Writer(Protocol):
    """Writes plans in a format, and finds again what it wrote.

    Methods import their modules when they are called, so that a description is cheap to load.

    Attributes:
        files: Names of the files in a result's folder; the first is the one that is deployed.
        optional: Those that are not always written.
        packages: Modules of other packages that writing imports.
        extra: The extra that installs them.
        has_io: Whether the ends can hold codes or numbers, as the user chooses.
        has_layout: Whether images may be taken and given with their channels last, or not.
        expressible: What plans may ask of it; whether it has each operator, it says when it writes.
        foresees: Whether `refuse` tells what writing would refuse; of others only writing tells.
        shares_turned: Whether integers of a table and of its transpose are stored once in its
            files, as equal ones are; None where that is not known, or writing says it.
    """

    files: tuple[str, ...]
    optional: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    extra: str = ""
    has_io: bool = False
    has_layout: bool = False
    expressible: Expressible = Expressible()
    foresees: bool = False
    shares_turned: bool | None = None

    @abstractmethod
    def write(self, plan: QuantizedGraph, io: Io) -> Exported:
        """Write a calibrated plan; an `ExportError` lists all that the format cannot express."""

    @abstractmethod
    def read(self, folder: Path, plan: QuantizedGraph) -> Exported:
        """Read back what was written; a `PlanError` says what is missing or another plan's."""

    def refuse(self, _plan: QuantizedGraph, _io: Io) -> None:
        """Refuse a plan that cannot be written whatever its scales are, by nodes and shapes alone.

        Args:
            _plan: With scales that mean nothing.
            _io: What its ends are to hold.

        Raises:
            ExportError: All that the format cannot express.
        """
        return

    def tensor_names(self, plan: QuantizedGraph) -> frozenset[str]:
        """Return the tensors between the operators of what it writes, where these have names."""
        return frozenset()

    @property
    def required(self) -> tuple[str, ...]:
        """The files that are always there."""
        return tuple(name for name in self.files if name not in self.optional)


class Reader(Protocol):
    """Opens what others made in a format: model files, quantized ONNX, tables of scales.

    Attributes:
        target: Hardware of its models, unless the user names another.
        suffixes: Endings of file names, in lower case; such a file is opened whatever it holds.
        opens_deployed: Whether it opens a model file as what is deployed too, to be verified.
    """

    target: str = ""
    suffixes: tuple[str, ...] = ()
    opens_deployed: bool = False

    def recognizes(self, path: Path, head: bytes) -> bool:
        """Whether a file is a model of this format, by its path and its first 8 bytes."""
        return False

    def open(self, path: Path) -> FloatSource | QuantizedSource:
        """Open a model file."""
        raise ModelError(f"{path}: no model of a format that is read")

    def open_deployed(self, path: Path, target: Target) -> tuple[QuantizedGraph, Exported]:
        """Open a model file as what is deployed, with its plan for a target."""
        raise ModelError(f"{path}: no model file that can be verified")

    def open_onnx(self, model: ir.Model) -> QuantizedSource | None:
        """Open an ONNX model that others quantized; None for one that is not of its kind.

        Asked only where some operator is named like a quantizer.
        """
        return None

    def scales(self) -> tuple[ScaleReader, ...]:
        """Return the readers of its tables of scales."""
        return ()


ANY_SIZE = 1 << 62
"""Bytes of what is run at once, however large it is."""


class Runtime(Protocol):
    """Runs what was written: to verify it, before a result is called done, and to time it.

    Attributes:
        packages: Modules that running imports, besides those of intact's own dependencies.
        run_up_to: Deployed bytes up to which it is run at once, as whatever is quantized is before
            it is called done; 0 where starting it takes longer than all else, or it only verifies.
        kernels: Kinds of kernels that a user may choose.
        is_timed: Whether a run's time says something of the hardware: it has a `runner`.
        is_profiled: Whether it tells what each kernel takes: it has a `profile`.
        runs_numbers: Whether a runner gives what `run` gives, though with the application's
            options.
        runs_float: Whether it runs the float model too, so that times of both compare: it has a
            `float_runner`.
    """

    packages: tuple[str, ...] = ()
    run_up_to: int = 0
    kernels: tuple[str, ...] = ()
    is_timed: bool = False
    is_profiled: bool = False
    runs_numbers: bool = False
    runs_float: bool = False

    def name(self) -> str:
        """Return the runtime with its version."""
        return ""

    @abstractmethod
    def verify(self, deployed: Deployed, batches: Iterable[Feeds]) -> Verification:
        """Run it and compare each layer with the plan."""

    def run(self, deployed: Deployed, feeds: Feeds) -> Feeds:
        """Run one batch, with the runtime's own options.

        Returns:
            The outputs by name, as numbers with axes as in the model.

        Raises:
            ExportError: The runtime refuses what was written.
        """
        raise ExportError("there is nothing here that runs it")

    def opened(self, deployed: Deployed) -> Callable[[Feeds], Feeds] | None:
        """Load what was written once, and return what runs batches of it, as applications do.

        The outputs are numbers, as of `run`. None where each run would load it anew.
        """
        return None

    def load(self, deployed: Deployed) -> object:
        """Let the runtime load what was written, where no inputs are known to run it on."""
        raise ExportError("there is nothing here that loads it")

    def runner(self, deployed: Deployed) -> Callable[[Feeds], Any]:
        """Load what was written as applications do, and return what runs a batch: for timing."""
        raise ExportError("its time here says nothing of the hardware")

    def float_runner(self, graph: Graph, deployed: Deployed) -> Callable[[Feeds], Any]:
        """Load a float model as applications do, and return what runs a batch: for timing.

        Args:
            graph: The float model.
            deployed: What it is timed beside: it is written for the same target.

        Raises:
            IntactError: It runs no float models, or refuses this one.
        """
        raise ExportError("it runs no float models")

    def profile(self, deployed: Deployed, feeds: Feeds, runs: int) -> list[Kernel]:
        """Return what its kernels take on a batch, in a number of runs."""
        raise ExportError("its runtime does not tell what kernels take")

    def executed(self, deployed: Deployed) -> Executed | None:
        """Ask the runtime what it makes of what was written.

        What was loaded before is not loaded again. None where it does not tell, or has no choice.
        """
        return None

    def can_run(self, exported: Exported) -> bool:
        """Whether it is there, and quick enough for what was written."""
        # The size first: looking for packages goes to the disk.
        return exported.nbytes() <= self.run_up_to and self.is_installed()

    def is_installed(self) -> bool:
        """Whether all its packages can be imported."""
        return all(map(is_installed, self.packages))


class Format(msgspec.Struct, frozen=True):
    """A format that plans are deployed in: everything that the rest of the package knows of it.

    Attributes:
        writer: Writes plans.
        reader: Opens what others made; None where nothing of it is read.
        runtime: Runs what was written; None where it holds scales and no program.
    """

    writer: Writer
    reader: Reader | None = None
    runtime: Runtime | None = None


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
    # The names are walked twice, and an iterator may be given.
    names = tuple(names)
    require_files(folder, names)
    present = (*names, *(name for name in optional if (folder / name).is_file()))
    return {name: (folder / name).read_bytes() for name in present}
