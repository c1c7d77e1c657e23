"""Which verification fits which format, in which runtime: one row each."""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from intact.data.batching import Batch
from intact.errors import CalibrationError, ExportError, PlanError, UsageError
from intact.flow.sources import plan_of_tmfile
from intact.formats.base.format import Exported, Io, WrittenFiles
from intact.formats.c.format import c_program
from intact.formats.ncnn.format import files_of
from intact.formats.ncnn.write import write_ncnn
from intact.formats.onnx_integer.format import ONNX_INTEGER_FILE
from intact.formats.onnx_integer.write import write_onnx_integer
from intact.formats.onnx_qdq.write import QdqModel
from intact.formats.openvino.write import OpenVinoModel
from intact.formats.registry import IO_KEY, FormatName
from intact.formats.tengine.format import MODEL_FILE as TENGINE_FILE
from intact.formats.tensorrt.write import TensorRtModel
from intact.formats.tflite.format import TFLITE_FILE
from intact.formats.tflite.read import TfliteModel
from intact.formats.tflite.run import Kernels
from intact.formats.tvm.format import tvm_files
from intact.formats.tvm.write import write_tvm
from intact.formats.verification import (
    Verification,
    verify_c,
    verify_micro,
    verify_ncnn,
    verify_onnx_integer,
    verify_openvino,
    verify_qdq,
    verify_read_tflite,
    verify_tengine,
    verify_tensorrt,
    verify_tflite,
    verify_tvm,
)
from intact.plan import QuantizedGraph
from intact.program.lower import lower_nodes
from intact.program.realize import integer_program
from intact.targets import Target

if TYPE_CHECKING:
    from intact.formats.c.write import CProgram


class Interpreter(enum.StrEnum):
    """What runs a ``.tflite``, as ``--kernels`` names it."""

    REF = "ref"
    OPTIMIZED = "optimized"
    XNNPACK = "xnnpack"
    MICRO = "micro"
    """TensorFlow Lite Micro instead of LiteRT."""


@dataclass(frozen=True)
class Deployed:
    """One deployed model and how it is to be run.

    Attributes:
        plan: What it should compute.
        exported: What was written.
        kernels: Which kernels of its runtime, if the caller said so.
        threads: Threads of the runtime; 0 takes all cores.
    """

    plan: QuantizedGraph
    exported: Exported
    kernels: str | None
    threads: int


_Kind = TypeVar("_Kind")
Feeds: TypeAlias = Iterator[Batch]
_Verify: TypeAlias = Callable[[Deployed, Feeds], Verification]


def verify_read(
    read: tuple[TfliteModel, bytes], feeds: Feeds, kernels: str | None, threads: int
) -> Verification:
    """Verify a ``.tflite`` that others made.

    Args:
        read: The file, as it was read, and its content.
        feeds: The inputs.
        kernels: Which kernels run it; None takes the target's.
        threads: Threads of the runtime; 0 takes one.
    """
    model, content = read
    kind = _interpreter(model.plan.target, kernels)
    if kind is Interpreter.MICRO:
        return _in_micro(model.plan, content, feeds)
    return verify_read_tflite(model, content, feeds, Kernels(kind.value), threads=max(threads, 1))


def _verify_qdq(model: Deployed, feeds: Feeds) -> Verification:
    return verify_qdq(model.plan, _held(model, QdqModel), feeds, threads=model.threads)


def _verify_openvino(model: Deployed, feeds: Feeds) -> Verification:
    return verify_openvino(model.plan, _held(model, OpenVinoModel), feeds, threads=model.threads)


def _verify_tflite(model: Deployed, feeds: Feeds) -> Verification:
    content = _files(model)[TFLITE_FILE]
    kind = _interpreter(model.plan.target, model.kernels)
    if kind is Interpreter.MICRO:
        return _in_micro(model.plan, content, feeds)
    kernels = Kernels(kind.value)
    return verify_tflite(model.plan, content, feeds, kernels, threads=max(model.threads, 1))


def _verify_c(model: Deployed, feeds: Feeds) -> Verification:
    return verify_c(model.plan, _own_program(model.plan, _files(model)), feeds)


def _verify_tensorrt(model: Deployed, feeds: Feeds) -> Verification:
    return verify_tensorrt(model.plan, _held(model, TensorRtModel), feeds, threads=model.threads)


def _verify_tengine(model: Deployed, feeds: Feeds) -> Verification:
    files = _files(model)
    content = files.get(TENGINE_FILE)
    try:
        found = None if content is None else plan_of_tmfile(content, model.plan.target)
    except CalibrationError as error:
        raise ExportError(
            f"{TENGINE_FILE} cannot be read back for target {model.plan.target.name} ({error})",
            remedy="quantize for target tengine: its files can be verified",
        ) from error
    outcome = verify_tengine(model.plan, files, found, feeds, threads=model.threads)
    if found is None:
        outcome.refused = f"there is no {TENGINE_FILE}, only the tables were checked"
    return outcome


def _verify_ncnn(model: Deployed, feeds: Feeds) -> Verification:
    written = write_ncnn(lower_nodes(model.plan))
    _refuse_changed(_files(model), files_of(written))
    return verify_ncnn(model.plan, written, feeds, threads=model.threads)


def _verify_onnx_integer(model: Deployed, feeds: Feeds) -> Verification:
    floats = _has_float_ends(model.plan)
    content = write_onnx_integer(integer_program(model.plan, float_ends=floats))
    _refuse_changed(_files(model), {ONNX_INTEGER_FILE: content})
    return verify_onnx_integer(model.plan, content, feeds, float_ends=floats, threads=model.threads)


def _verify_tvm(model: Deployed, feeds: Feeds) -> Verification:
    floats = _has_float_ends(model.plan)
    module = write_tvm(integer_program(model.plan, float_ends=floats))
    _refuse_changed(_files(model), tvm_files(module))
    return verify_tvm(model.plan, module, feeds, float_ends=floats, threads=model.threads)


def _has_float_ends(plan: QuantizedGraph) -> bool:
    return plan.provenance.get(IO_KEY) == Io.FLOAT


VERIFICATIONS: dict[FormatName, _Verify] = {
    FormatName.ONNX_QDQ: _verify_qdq,
    FormatName.TFLITE: _verify_tflite,
    FormatName.C: _verify_c,
    FormatName.NCNN: _verify_ncnn,
    FormatName.OPENVINO: _verify_openvino,
    FormatName.TENSORRT: _verify_tensorrt,
    FormatName.TENGINE: _verify_tengine,
    FormatName.ONNX_INTEGER: _verify_onnx_integer,
    FormatName.TVM: _verify_tvm,
}
"""By format; those that only hold scales have none."""

WITH_KERNELS = frozenset({FormatName.TFLITE})
"""Those whose runtime has several kinds of kernels."""


def _held(model: Deployed, kind: type[_Kind]) -> _Kind:
    """Return what was written, which its format holds in an object of a kind."""
    if isinstance(model.exported, kind):
        return model.exported
    raise PlanError("the deployed model is not there", remedy="quantize again")


def _files(model: Deployed) -> Mapping[str, bytes]:
    """Return the content of a model whose files are held whole."""
    return _held(model, WrittenFiles).files


def _own_program(plan: QuantizedGraph, files: Mapping[str, bytes]) -> CProgram:
    """Return the C program of a plan, if that is what was deployed.

    It is compiled and run here, and a folder may come from anyone.

    Raises:
        PlanError: A file holds something else.
    """
    program = c_program(plan)
    _refuse_changed(files, {name: text.encode() for name, text in program.files.items()})
    return program


def _refuse_changed(files: Mapping[str, bytes], expected: Mapping[str, bytes]) -> None:
    """Refuse files that are not those of the plan, before they are compiled or run.

    Raises:
        PlanError: A file holds something else.
    """
    for name, content in expected.items():
        if files.get(name) != content:
            raise PlanError(
                f"{name} is not what this plan gives: changed by hand, or by another version",
                remedy="quantize again, or record the device's tensors and give --observed",
            )


def _in_micro(plan: QuantizedGraph, content: bytes, feeds: Feeds) -> Verification:
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


def _interpreter(target: Target, kernels: str | None) -> Interpreter:
    """Return the kernels that are asked for, or that compute as the target does."""
    name = kernels or target.kernels or Interpreter.REF.value
    if name not in set(Interpreter):
        raise UsageError(f"--kernels {name!r}", remedy=f"choose {', '.join(Interpreter)}")
    return Interpreter(name)
