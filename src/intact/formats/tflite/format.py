"""Describes the format ``tflite``: full-integer files."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from intact._extras import is_installed
from intact._text import first_names
from intact.errors import ExportError, ModelError, PlanError, UsageError
from intact.formats.base.expressible import EIGHT_BITS, UP_TO_EIGHT_BITS, WHOLE_BYTES, Expressible
from intact.formats.base.format import (
    ANY_SIZE,
    Deployed,
    Exported,
    Feeds,
    Format,
    Io,
    QuantizedSource,
    Reader,
    Runtime,
    Writer,
    WrittenFiles,
    read_files,
)
from intact.formats.base.maker import made_by
from intact.formats.tflite.reader.decode import open_tflite
from intact.formats.tflite.write import refuse_structure, write_tflite
from intact.plan import Note, NoteKind, QuantizedGraph, build_float
from intact.program import Program
from intact.program.deployed import deployed_program
from intact.program.operations import DynamicQuantize, Lookup
from intact.program.passes.whole_inputs import with_int32, with_views
from intact.targets import Target

if TYPE_CHECKING:
    from intact.formats.base.report import Verification
    from intact.formats.tflite.read import TfliteModel
    from intact.formats.tflite.run import Arrays, Kernels, TfliteRuntime
    from intact.graph import Graph

TFLITE_FILE = "model.int8.tflite"


def _program(plan: QuantizedGraph) -> Program:
    program = deployed_program(plan, float_operations=True)
    if plan.target.kernels == Interpreter.MICRO:
        return with_int32(program)  # it has no kernels of int64
    return with_views(program, (Lookup,))


def _float_ends(program: Program) -> Iterator[Note]:
    ends = sorted(program.float_ends)
    if any(isinstance(step.operation, DynamicQuantize) for step in program.steps):
        return  # floats are between all layers
    if ends:
        are = f"{', '.join(map(repr, ends[:3]))}{', ...' if len(ends) > 3 else ''}"
        message = (
            f"{are}: floats also where --io is int8, as integers would lose more and gain nothing"
        )
        yield Note(NoteKind.EXPORT, "", message)


def _narrow_ends(program: Program) -> Iterator[Note]:
    ends = {**program.inputs, **program.outputs}
    wide = [name for name, each in ends.items() if each.encoding is None and each.dtype == "f8"]
    if wide:
        are = ", ".join(map(repr, wide))
        yield Note(NoteKind.EXPORT, "", f"{are}: float32 in the file, TFLite computes no float64")


def _beside(plan: QuantizedGraph) -> Iterator[Note]:
    """Say what the compiler of an accelerator leaves to the processor."""
    compiler = plan.target.compiler
    if compiler is None:
        return
    left = [
        f"{node.name} ({node.op_type})"
        for node in plan.graph.nodes
        if not plan.is_quantized(node) or node.op_type in compiler.unmapped
    ]
    if left:
        message = (
            f"{len(left)} node(s) run on the processor beside {compiler.accelerator}, which has no "
            f"floats and not all operators: {first_names(left)}"
        )
        yield Note(NoteKind.EXPORT, "", message)


def _compiled(target: Target, content: bytes) -> str:
    """Say what the target's compiler makes of a file; "" where there is none."""
    if target.compiler is None:
        return ""
    from intact.formats.tflite.vela import compiled

    found = compiled(content, target.compiler.accelerator)
    if found is None:
        return "Vela is not installed, so the file was not compiled: pip install ethos-u-vela"
    return str(found)


class Interpreter(enum.StrEnum):
    """A program that runs a ``.tflite``, as ``--kernels`` names it."""

    REF = "ref"
    OPTIMIZED = "optimized"
    XNNPACK = "xnnpack"
    MICRO = "micro"
    """TensorFlow Lite Micro instead of LiteRT."""


class ReadTflite(WrittenFiles, frozen=True):
    """A file that others made.

    Attributes:
        model: The file as it was read.
    """

    model: TfliteModel | None = None


def _in_micro(deployed: Deployed) -> bool:
    """Whether TensorFlow Lite Micro runs it: LiteRT does where that is not installed."""
    # Micro is fed codes only, so that float ends go to LiteRT.
    is_micro = _interpreter(deployed) is Interpreter.MICRO
    return is_micro and not deployed.has_float_ends and is_installed("tflite_micro")


def _kernels(deployed: Deployed) -> Kernels:
    from intact.formats.tflite.run import Kernels

    kind = _interpreter(deployed)
    # The reference kernels are the nearest to those of TensorFlow Lite Micro.
    return Kernels.REF if kind is Interpreter.MICRO else Kernels(kind.value)


def _as_applications(deployed: Deployed) -> TfliteRuntime:
    """Load a file with the kernels that applications get; those of reference are for comparing."""
    from intact.formats.tflite.run import Kernels, TfliteRuntime

    (content,) = deployed.files.values()
    kernels = _kernels(deployed)
    # Times of reference kernels say nothing: no application runs them.
    fast = Kernels.XNNPACK if kernels is Kernels.REF else kernels
    return TfliteRuntime(content, kernels=fast, threads=max(deployed.threads, 1))


def _interpreter(deployed: Deployed) -> Interpreter:
    """Return the kernels that are asked for, or that compute as the target does."""
    name = deployed.kernels or deployed.plan.target.kernels or Interpreter.REF.value
    if name not in set(Interpreter):
        raise UsageError(f"--kernels {name!r}", remedy=f"choose {', '.join(Interpreter)}")
    return Interpreter(name)


class _Writer(Writer):
    """Writes a plan as a full-integer file."""

    files = (TFLITE_FILE,)
    packages = ("ai_edge_litert", "flatbuffers")
    extra = "tflite"
    has_io = True
    has_layout = True
    expressible = Expressible(
        UP_TO_EIGHT_BITS,
        EIGHT_BITS | {16},
        stored_bits=WHOLE_BYTES,
        dynamic=True,
        blocks=True,
        open_sizes=False,
        mixes=False,
        half_ends=False,
    )
    shares_turned = True
    foresees = True

    def write(self, plan: QuantizedGraph, io: Io) -> WrittenFiles:
        program = _program(plan)
        files = {TFLITE_FILE: write_tflite(program, io=io, target=plan.target, made=made_by(plan))}
        notes = [
            *_beside(plan),
            *_narrow_ends(program),
            *(() if io is Io.FLOAT else _float_ends(program)),
        ]
        return WrittenFiles(files, notes=notes)

    def refuse(self, plan: QuantizedGraph, io: Io) -> None:
        refuse_structure(_program(plan), io, plan.target)

    def read(self, folder: Path, plan: QuantizedGraph) -> Exported:
        """Read the deployed file; it must be whole: interpreters trust what it says of itself."""
        exported = WrittenFiles(read_files(folder, (TFLITE_FILE,)))
        path = folder / TFLITE_FILE
        try:
            # Decoded by our own reader first, which checks every offset.
            signature = open_tflite(exported.files[TFLITE_FILE]).signature
        except ModelError as error:
            raise PlanError(f"{path}: {error}", remedy="or quantize again") from error
        graph = plan.graph
        for kind, found, values in (
            ("inputs", signature.inputs, graph.inputs),
            ("outputs", signature.outputs, graph.outputs),
        ):
            wanted = sorted(str(value.name) for value in values)
            if sorted(found) != wanted:
                said = f"its {kind} are {sorted(found)}, not {wanted}"
                raise PlanError(
                    f"{path}: not the model of this plan, {said}", remedy="quantize again"
                )
        return exported

    def tensor_names(self, plan: QuantizedGraph) -> frozenset[str]:
        # Of a file that is written for it: fusing and clamps decide which tensors there are.
        tensors = open_tflite(self.write(plan, Io.INT8).files[TFLITE_FILE]).tensors
        return frozenset(tensor.name for tensor in tensors if tensor.data is None)


class _Reader(Reader):
    """Reads files that others made."""

    target = "tflite"
    opens_deployed = True

    def recognizes(self, _path: Path, head: bytes) -> bool:
        return head[4:] == b"TFL3"

    def open(self, path: Path) -> QuantizedSource:
        from intact.formats.tflite.read import read_tflite

        return QuantizedSource("tflite", partial(read_tflite, path))

    def open_deployed(self, path: Path, target: Target) -> tuple[QuantizedGraph, Exported]:
        from intact.formats.tflite.read import read_tflite_model

        model = read_tflite_model(path, target)
        return model.plan, ReadTflite({path.name: path.read_bytes()}, model=model)


class _Runtime(Runtime):
    """Runs a file in LiteRT, or in TensorFlow Lite Micro."""

    packages = ("ai_edge_litert",)
    run_up_to = ANY_SIZE
    kernels = tuple(Interpreter)
    is_timed = True
    runs_float = True

    def verify(self, deployed: Deployed, batches: Iterable[Feeds]) -> Verification:
        from intact.formats.tflite.micro import verify_micro
        from intact.formats.tflite.run import Kernels
        from intact.formats.tflite.verify import stateless, verify_read_tflite, verify_tflite

        (content,) = deployed.files.values()
        kind, threads = _interpreter(deployed), max(deployed.threads, 1)
        if kind is Interpreter.MICRO:
            if deployed.has_float_ends:
                raise ExportError(
                    "TensorFlow Lite Micro is compared on codes, this takes floats (--io float)",
                    remedy="take --kernels ref, or write it with --io int8",
                )
            found = verify_micro(deployed.plan, content, batches)
            found.compiled = _compiled(deployed.plan.target, content)
            return found
        kernels, exported = Kernels(kind.value), deployed.exported
        if isinstance(exported, ReadTflite) and exported.model is not None:
            content = stateless(content, exported.model.file)
            return verify_read_tflite(exported.model, content, batches, kernels, threads=threads)
        return verify_tflite(deployed.plan, content, batches, kernels, threads=threads)

    def run(self, deployed: Deployed, feeds: Feeds) -> Feeds:
        (content,) = deployed.files.values()
        if _in_micro(deployed):
            from intact.formats.tflite.micro import run_micro

            return run_micro(deployed.plan, content, feeds)
        from intact.formats.tflite.deployed import run_tflite

        threads = max(deployed.threads, 1)
        return run_tflite(deployed.plan, content, feeds, _kernels(deployed), threads=threads)

    def load(self, deployed: Deployed) -> object:
        (content,) = deployed.files.values()
        if _in_micro(deployed):
            from intact.formats.tflite.micro import open_micro

            return open_micro(content)
        from intact.formats.tflite.run import TfliteRuntime

        threads = max(deployed.threads, 1)
        return TfliteRuntime(content, kernels=_kernels(deployed), threads=threads)

    def opened(self, deployed: Deployed) -> Callable[[Feeds], Feeds] | None:
        from intact.formats.tflite.deployed import open_tflite

        is_written = not isinstance(deployed.exported, ReadTflite)
        # A foreign file has no program of ours to name its tensors by, and Micro is for comparing
        # only.
        if not is_written or _interpreter(deployed) is Interpreter.MICRO:
            return None
        return open_tflite(deployed.plan, _as_applications(deployed))

    def runner(self, deployed: Deployed) -> Callable[[Feeds], object]:
        """Load it with the kernels that applications get; those of reference are for comparing."""
        from intact.formats.base.comparison import stored_feeds
        from intact.formats.tflite.deployed import written_file

        if _interpreter(deployed) is Interpreter.MICRO:
            raise ExportError("TensorFlow Lite Micro here tells nothing of a device's time")
        runtime = _as_applications(deployed)
        lowered, program, file = written_file(deployed.plan, runtime)
        given: Feeds = {}
        stored: Arrays = {}

        def run(feeds: Feeds) -> object:
            # Codes are made once of what is run again and again: applications have them.
            if given.keys() != feeds.keys() or any(given[n] is not a for n, a in feeds.items()):
                given.clear()
                given.update(feeds)
                stored.update(stored_feeds(program, feeds, lowered.inputs))
            return file.run(stored)

        return run

    def float_runner(self, graph: Graph, deployed: Deployed) -> Callable[[Feeds], object]:
        if _interpreter(deployed) is Interpreter.MICRO or deployed.plan.target.compiler is not None:
            raise ExportError("times of this processor tell nothing of a device's")
        plan = build_float(graph, deployed.plan.target)
        written = TFLITE.writer.write(plan, Io.FLOAT)
        return self.runner(Deployed(plan, written, deployed.kernels, deployed.threads))

    def name(self) -> str:
        from intact.formats.tflite.run import litert_version

        return litert_version()


TFLITE = Format(_Writer(), _Reader(), _Runtime())
