"""Runs a model in OpenVINO's CPU plugin, shows its tensors, and tells their precision."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from intact._extras import require
from intact.errors import DataError, ExportError
from intact.formats.openvino.intermediate import XML_FILE
from intact.formats.openvino.write import ONNX_FILE, OpenVinoModel

_Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

_SUFFIX = "_original"
"""What OpenVINO appends to the name of a quantizer whose results are read as floats too."""

_ATTACHED = "/"
"""What OpenVINO appends behind the name of a node that it takes apart starts so."""

_NO_WORK = frozenset({"Const", "Input", "Output", "Reorder"})
_MOVING = frozenset({"Concatenation", "Reshape", "Split", "StridedSlice", "Transpose"})
"""What computes nothing; one of them may bear the name of the quantizer behind it."""

_INTEGERS = frozenset({"i8", "u8"})
_FLOAT_KERNELS = ("_f32", "_bf16", "_f16")
_LONGEST_REASON = 300


@dataclass(frozen=True)
class ExecutedNode:
    """One node of a compiled model.

    Attributes:
        layers: Names of the nodes that it computes, as the model file has them, and of the tensors
            that outputs are named after.
        kind: What OpenVINO calls it, for instance ``Convolution``.
        precision: Type of what it reads: ``u8``, ``i8``, ``f32`` ...
        kernel: Which kernel runs, for instance ``brgconv_avx512_amx_I8``.
    """

    layers: frozenset[str]
    kind: str
    precision: str
    kernel: str

    @property
    def in_integers(self) -> bool:
        """Whether it computes with 8-bit codes: not where it reads them into a kernel of floats."""
        return self.precision in _INTEGERS and not self.kernel.endswith(_FLOAT_KERNELS)


class OpenVinoRuntime:
    """A model compiled for this machine's CPU, in float32 where it is not in integers.

    Args:
        path: ``.onnx`` or ``.xml``.
        observe: Names of tensors to return besides the outputs. Returning a tensor that a
            convolution adds to its sums undoes that fusion: `executed` tells.
        threads: Threads of the plugin; 0 takes all cores.

    Attributes:
        executed: What runs.
        outputs: Names of the model's outputs, in order.

    Raises:
        MissingExtraError: The package openvino is not installed.
        ExportError: OpenVINO refuses the model.
        DataError: The model has no tensor of an observed name.
    """

    def __init__(self, path: Path, observe: Sequence[str] = (), *, threads: int = 0) -> None:
        require("running OpenVINO", ("openvino",), "openvino")
        import openvino  # type: ignore[import-untyped,unused-ignore]

        core = openvino.Core()
        # By default new processors compute what is left in float in bf16.
        settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32"}
        if threads:
            settings["INFERENCE_NUM_THREADS"] = threads
        try:
            model = core.read_model(path)
            # Before compiling, which renames and joins nodes.
            known = {operation.get_friendly_name() for operation in model.get_ops()}
            self.outputs = tuple(output.get_any_name() for output in model.outputs)
            self._observed = tuple(observe)
            self._add_outputs(model)
            self._model = core.compile_model(model, "CPU", settings)
        except RuntimeError as error:
            raise ExportError(f"OpenVINO refuses the model: {_reason(error)}") from error
        self._places = [self._place(name) for name in (*self.outputs, *self._observed)]
        self.executed = _executed(self._model.get_runtime_model(), known)

    def run(self, feeds: Mapping[str, npt.NDArray[Any]]) -> tuple[_Arrays, _Arrays]:
        """Run one batch; return the outputs and the observed tensors by name.

        Raises:
            ExportError: OpenVINO fails on these inputs.
        """
        try:
            results = self._model(dict(feeds))
        except (RuntimeError, KeyError) as error:
            raise ExportError(f"OpenVINO fails on this input: {_reason(error)}") from error
        # Copied: the next run writes into the same memory.
        arrays = [np.array(results[place]) for place in self._places]
        count = len(self.outputs)
        outputs = dict(zip(self.outputs, arrays[:count], strict=True))
        return outputs, dict(zip(self._observed, arrays[count:], strict=True))

    def _add_outputs(self, model: Any) -> None:
        present = {name for output in model.outputs for name in output.get_names()}
        tensors = {
            name
            for operation in model.get_ops()
            for output in operation.outputs()
            for name in output.get_names()
        }
        missing = [name for name in self._observed if name not in tensors]
        if missing:
            raise DataError(
                f"OpenVINO's model has no tensor {missing[0]!r}",
                remedy="verify a model with the plan that it was written from",
            )
        wanted = [name for name in self._observed if name not in present]
        if wanted:
            model.add_outputs(wanted)

    def _place(self, name: str) -> int:
        for place, output in enumerate(self._model.outputs):
            if name in output.get_names():
                return place
        raise DataError(
            f"OpenVINO's compiled model has no output {name!r}", remedy="quantize again"
        )


def load_openvino(exported: OpenVinoModel, *, threads: int = 0) -> OpenVinoRuntime:
    """Compile a written model; OpenVINO's own files, where there are any.

    Raises:
        ExportError: OpenVINO refuses the model.
    """
    with tempfile.TemporaryDirectory() as folder:
        exported.save(Path(folder))
        path = Path(folder) / (XML_FILE if exported.ir_files else ONNX_FILE)
        return OpenVinoRuntime(path, threads=threads)


def openvino_version() -> str:
    """Return the version of the package that is installed, as it calls itself.

    Raises:
        MissingExtraError: There is none.
    """
    require("running OpenVINO", ("openvino",), "openvino")
    from importlib import metadata

    return metadata.version("openvino")


def differences(before: Sequence[ExecutedNode], after: Sequence[ExecutedNode]) -> frozenset[str]:
    """Return the layers of nodes of one compiled model that another computes otherwise.

    Nodes that only hand tensors out, which the other may have besides, make no difference, and
    nor do those that only move values.
    """
    same = set(after)
    changed = [node for node in before if node not in same and node.kind not in _MOVING]
    return frozenset(layer for node in changed for layer in node.layers)


def _executed(model: Any, known: set[str]) -> tuple[ExecutedNode, ...]:
    """Read what a compiled model says of itself."""
    nodes = []
    for operation in model.get_ordered_ops():
        info = {key: value.astype(str) for key, value in operation.get_rt_info().items()}
        kind = info.get("layerType", "")
        if kind in _NO_WORK:
            continue
        names = (_plain(name, known) for name in info.get("originalLayersNames", "").split(","))
        layers = frozenset(name for name in names if name in known)
        precision, kernel = info.get("runtimePrecision", ""), info.get("primitiveType", "")
        nodes.append(ExecutedNode(layers, kind, precision, kernel))
    return tuple(nodes)


def _plain(name: str, known: set[str]) -> str:
    """Return the name that a node had in the file."""
    # As it is first: a name of the file may hold what OpenVINO appends.
    for cut in (name, name.removesuffix(_SUFFIX), name.rsplit(_ATTACHED, 1)[0]):
        if cut in known:
            return cut
    return name.removesuffix(_SUFFIX)


def _reason(error: Exception) -> str:
    """Return the last sentence of OpenVINO's many lines, which says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1][:_LONGEST_REASON]
