"""From a result, or a file that others made, to the verification that fits it."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from intact.calibrate.synthetic import evenly_drawn_samples
from intact.errors import DataError, ExportError, PlanError, UsageError
from intact.exporting import FORMATS, FORMATS_KEY, IO_KEY, TFLITE_FILE, FormatName, c_program
from intact.formats.exported import Exported, WrittenFiles
from intact.formats.onnx_qdq.write import QdqModel
from intact.formats.tflite.read import TfliteModel, read_tflite_model
from intact.formats.tflite.reading.decode import open_tflite
from intact.formats.tflite.runtime import Kernels
from intact.formats.tflite.write import Io
from intact.plan import QuantizedGraph
from intact.program.lower import lower
from intact.result import Result
from intact.samples.batching import Batch
from intact.samples.preprocess import Preprocess
from intact.samples.sources import load_arrays
from intact.samples.stream import Samples
from intact.targets import Target
from intact.verification import (
    Verification,
    verify_c,
    verify_micro,
    verify_observed,
    verify_qdq,
    verify_read_tflite,
    verify_tflite,
)

if TYPE_CHECKING:
    from intact.formats.c.write import CProgram

_BATCH = 16
"""Samples at once: every activation of a batch is held, several times."""


class Interpreter(enum.StrEnum):
    """What runs a ``.tflite``, as ``--kernels`` names it."""

    REF = "ref"
    OPTIMIZED = "optimized"
    XNNPACK = "xnnpack"
    MICRO = "micro"
    """TensorFlow Lite Micro instead of LiteRT."""


@dataclass(frozen=True)
class Subject:
    """What is verified.

    Attributes:
        plan: What it should compute.
        exports: What was deployed, by format; none for a file of others.
        read: A file of others, as it was read, with its content.
        preprocess: What was done to the samples of the calibration.
        result: Where it came from, if it is a result.
    """

    plan: QuantizedGraph
    exports: Mapping[FormatName, Exported] = field(default_factory=dict)
    read: tuple[TfliteModel, bytes] | None = None
    preprocess: Preprocess = field(default_factory=Preprocess)
    result: Result | None = None

    @staticmethod
    def of_result(result: Result) -> Subject:
        """Take a result."""
        return Subject(result.plan, result.exports, None, result.preprocess, result)

    @staticmethod
    def of_tflite(path: Path, target: Target) -> Subject:
        """Take a ``.tflite`` that others made.

        Raises:
            ModelError: It cannot be read.
        """
        model = read_tflite_model(path, target)
        return Subject(model.plan, read=(model, path.read_bytes()))

    @property
    def unread(self) -> frozenset[str]:
        """The array that only calibration reads, which the same data holds again."""
        mask = self.plan.provenance.get("mask")
        return frozenset() if mask is None else frozenset({mask})

    def draw_samples(self, count: int) -> Samples:
        """Draw inputs as calibration saw them, or else evenly from the ranges of the plan."""
        if self.result is not None:
            return self.result.draw_samples(count)
        return evenly_drawn_samples(self.plan, count)


def compare(
    subject: Subject,
    samples: Samples,
    *,
    kernels: str | None = None,
    deployed: str | None = None,
    threads: int = 0,
) -> Verification:
    """Compare what was deployed, in the runtime that fits its format, with its plan.

    Args:
        subject: What is verified.
        samples: The inputs.
        kernels: Which kernels run a ``.tflite``; None takes the target's.
        deployed: Which format, if there are several; None takes the first.
        threads: Threads of the runtime; 0 takes all cores.

    Raises:
        UsageError: There is no such format or kernel, or the format has no kernels to choose.
        IntactError: The runtime refuses the model, or is not installed.
    """
    feeds = _feeds(samples)
    if subject.read is not None:
        _refuse_format(deployed)
        model, content = subject.read
        kind = _interpreter(subject.plan.target, kernels)
        if kind is Interpreter.MICRO:
            return _in_micro(model.plan, content, feeds)
        return verify_read_tflite(
            model, content, feeds, Kernels(kind.value), threads=max(threads, 1)
        )
    name = _chosen(subject.exports, deployed)
    exported = subject.exports[name]
    if isinstance(exported, WrittenFiles) and name is FormatName.TFLITE:
        content = exported.files[TFLITE_FILE]
        kind = _interpreter(subject.plan.target, kernels)
        if kind is Interpreter.MICRO:
            return _in_micro(subject.plan, content, feeds)
        return verify_tflite(
            subject.plan, content, feeds, Kernels(kind.value), threads=max(threads, 1)
        )
    if kernels is not None:
        raise UsageError(f"--kernels is for a .tflite, this is {name}", remedy="leave it out")
    if isinstance(exported, QdqModel):
        return verify_qdq(subject.plan, exported, feeds, threads=threads)
    if not isinstance(exported, WrittenFiles) or name is not FormatName.C:
        raise UsageError(
            f"{name} holds scales and no program, so there is nothing to run",
            remedy="write another format too, with `intact export`",
        )
    return verify_c(subject.plan, _own_program(subject.plan, exported), feeds)


def _own_program(plan: QuantizedGraph, exported: WrittenFiles) -> CProgram:
    """Return the C program of a plan, if that is what was deployed.

    It is compiled and run here, and a folder may come from anyone.

    Raises:
        PlanError: A file holds something else.
    """
    program = c_program(plan)
    for name, text in program.files.items():
        if exported.files[name] != text.encode():
            raise PlanError(
                f"{name} is not what this plan gives: changed by hand, or by another version",
                remedy="quantize again, or record the device's tensors and give --observed",
            )
    return program


def _in_micro(plan: QuantizedGraph, content: bytes, feeds: Iterator[Batch]) -> Verification:
    """Verify in TensorFlow Lite Micro, which is given codes and errs in many types."""
    if plan.provenance.get(IO_KEY) == Io.FLOAT:
        raise ExportError(
            "TensorFlow Lite Micro is compared on codes, the file takes floats (--io float)",
            remedy="take --kernels ref, or write it with --io int8",
        )
    try:
        return verify_micro(plan, content, feeds)
    except (ValueError, LookupError, struct.error) as error:
        raise ExportError(
            f"TensorFlow Lite Micro refuses the file: {error}",
            remedy="give the file that was written from this plan, or take --kernels ref",
        ) from error


def compare_observed(
    plan: QuantizedGraph,
    samples: Samples,
    observed: str | Path | Mapping[str, npt.ArrayLike],
    *,
    threads: int = 0,
) -> Verification:
    """Compare tensors that were recorded on a device with the plan.

    Raises:
        DataError: The file cannot be read, or does not fit the plan.
    """
    name = str(observed) if isinstance(observed, str | Path) else "recorded"
    if isinstance(observed, str | Path):
        dump = load_arrays(Path(observed))
        if not isinstance(dump, Mapping):
            raise DataError(
                f"{observed}: one array without a name", remedy="give an .npz, keyed by tensor name"
            )
    else:
        dump = {key: np.asarray(array) for key, array in observed.items()}
    batches = list(_feeds(samples))
    feeds = {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}
    beside = _only_in_the_file(plan, dump)
    arrays: dict[str, npt.NDArray[Any]] = {
        key: np.asarray(array) for key, array in dump.items() if key not in beside
    }
    found = verify_observed(plan, feeds, arrays, threads=threads, device=name)
    found.not_compared |= dict.fromkeys(beside, "only the .tflite has it, the plan does not")
    return found


def _only_in_the_file(plan: QuantizedGraph, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of tensors that writing a ``.tflite`` adds, such as those of explicit pads.

    Who records every tensor of the file has them too.
    """
    program = lower(plan)
    known = {tensor.name for tensor in program.tensors()}
    known |= {tensor.value for tensor in program.tensors() if tensor.value}
    known |= {str(value.name) for node in plan.graph.nodes for value in node.outputs}
    unknown = [name for name in names if name not in known]
    formats = plan.provenance.get(FORMATS_KEY, "").split(",")
    if not unknown or FormatName.TFLITE not in formats:
        return ()
    written = FORMATS[FormatName.TFLITE].write(plan, Io.INT8)
    content = written.files[TFLITE_FILE] if isinstance(written, WrittenFiles) else b""
    inside = {tensor.name for tensor in open_tflite(content).tensors if tensor.data is None}
    return tuple(name for name in unknown if name in inside)


def _chosen(exports: Mapping[FormatName, Exported], deployed: str | None) -> FormatName:
    if deployed is None:
        return next(iter(exports))
    if deployed not in exports:
        raise UsageError(
            f"--format {deployed!r}: the result has {', '.join(exports)}", remedy="choose of these"
        )
    return FormatName(deployed)


def _refuse_format(deployed: str | None) -> None:
    if deployed is not None:
        raise UsageError("--format is for a result, this is one file", remedy="leave it out")


def _interpreter(target: Target, kernels: str | None) -> Interpreter:
    """Return the kernels that are asked for, or that compute as the target does."""
    name = kernels or target.kernels or Interpreter.REF.value
    if name not in set(Interpreter):
        raise UsageError(f"--kernels {name!r}", remedy=f"choose {', '.join(Interpreter)}")
    return Interpreter(name)


def _feeds(samples: Samples) -> Iterator[Batch]:
    size = samples.batch_size(_BATCH)
    whole = samples.fixed_batch is not None  # such a model cannot run fewer
    for batch, count in samples.batches(size):
        yield batch if whole else {name: array[:count] for name, array in batch.items()}
