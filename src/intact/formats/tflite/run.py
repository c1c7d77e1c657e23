"""Runs a ``.tflite`` file in LiteRT, with its intermediate tensors on request."""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from typing import Any, BinaryIO, NamedTuple, TypeAlias, TypeVar

import numpy as np

from intact._extras import missing
from intact.data.batching import joined
from intact.errors import DataError, ExportError, MissingExtraError
from intact.program import Array

_STDERR = 2
"""Its descriptor: what is printed outside of Python goes there."""

Arrays: TypeAlias = dict[str, Array]
Key = TypeVar("Key", bound=str | int)
"""A tensor's name or number."""


class Kernels(enum.StrEnum):
    """Which of LiteRT's kernels run; the three give different bits."""

    REF = "ref"
    """The reference kernels."""
    OPTIMIZED = "optimized"
    """The built-in kernels for this processor."""
    XNNPACK = "xnnpack"
    """XNNPACK where it takes an operator, else the built-in ones: what LiteRT does unasked."""


_RESOLVERS = {
    Kernels.REF: "BUILTIN_REF",
    Kernels.OPTIMIZED: "BUILTIN_WITHOUT_DEFAULT_DELEGATES",
    Kernels.XNNPACK: "BUILTIN",
}


class Port(NamedTuple):
    """An input or output of a file.

    Attributes:
        tensor: Name of the tensor.
        shape: Lengths by axis; None where the file leaves one open.
        dtype: Type of its arrays.
        scale: What a code's step stands for; 0 for floats.
        zero_point: The code of 0.
    """

    tensor: str
    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]
    scale: float
    zero_point: int


def litert_version() -> str:
    """Return the runtime's name and version, for reports.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return f"LiteRT {metadata.version('ai-edge-litert')}"
    except metadata.PackageNotFoundError as error:
        raise _missing() from error


@contextlib.contextmanager
def _without_notice(kernels: Kernels) -> Iterator[None]:
    """Keep XNNPACK from announcing itself on stderr, for which it has no switch."""
    if kernels is not Kernels.XNNPACK:
        yield
        return
    with open(os.devnull, "wb") as nowhere, stderr_into(nowhere):  # noqa: PTH123  a descriptor
        yield


@contextlib.contextmanager
def stderr_into(file: BinaryIO) -> Iterator[None]:
    """Write what compiled code says on stderr into a file instead."""
    try:
        kept = os.dup(_STDERR)
    except OSError:  # there is no stderr
        yield
        return
    # The descriptor, not `sys.stderr`: compiled code knows nothing of Python's object.
    os.dup2(file.fileno(), _STDERR)
    try:
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)


class TfliteRuntime:
    """A file made ready to run.

    Args:
        content: The file's bytes.
        kernels: Which kernels run.
        threads: Threads inside one operator.

    Attributes:
        inputs: By the names of the signature, or of the tensors where there is none.
        outputs: The outputs by names of the same kind.

    Raises:
        MissingExtraError: ai-edge-litert is not installed.
        ExportError: LiteRT rejects the file.
    """

    def __init__(self, content: bytes, *, kernels: Kernels = Kernels.REF, threads: int = 1) -> None:
        self._content, self._kernels, self._threads = content, kernels, threads
        self._interpreter = self._opened()
        self._input_places = self._places("inputs", self._interpreter.get_input_details())
        self._output_places = self._places("outputs", self._interpreter.get_output_details())
        self.inputs = {name: self._port(place) for name, place in self._input_places.items()}
        self.outputs = {name: self._port(place) for name, place in self._output_places.items()}

    def run(
        self, feeds: Mapping[str, Array], observe: Iterable[Key] = ()
    ) -> tuple[Arrays, dict[Key, Array]]:
        """Run one batch, of any size if the file leaves the batch open.

        Args:
            feeds: By input name or the name of its tensor, in the types of ``inputs``.
            observe: Tensors between operators to return too: by name, or by number where names
                are missing or not unique.

        Returns:
            The outputs by name, and the observed tensors as they were asked for.

        Raises:
            DataError: Feeds that are not what the file takes.
            ExportError: LiteRT fails, there is no such tensor, or fusion hides it.
        """
        names = tuple(observe)
        if names and self._kernels is Kernels.XNNPACK:
            raise ExportError(
                "XNNPACK does not show what lies between operators",
                remedy="observe with the ref kernels, or run the operators one at a time",
            )
        arrays = self._checked(self._by_signature(feeds))
        shapes = {name: array.shape for name, array in arrays.items()}
        # Resizing plans all memory anew, which equal shapes need not wait for.
        if all(self._current_shape(name) == shape for name, shape in shapes.items()):
            return self._invoked(arrays, names)
        try:
            self._resize(shapes)
            return self._invoked(arrays, names)
        except ExportError:
            # Operators with their output's shape as an input (TRANSPOSE_CONV) cannot be resized.
            self._interpreter = self._opened()
            return self._one_by_one(arrays, names)

    def tensor_names(self) -> tuple[str, ...]:
        """Return the names that ``observe`` takes."""
        return tuple(each["name"] for each in self._interpreter.get_tensor_details())

    def _opened(self) -> Any:
        try:
            from ai_edge_litert.interpreter import Interpreter, OpResolverType
        except ImportError as error:
            raise _missing() from error
        try:
            with _without_notice(self._kernels):
                interpreter = Interpreter(
                    model_content=self._content,
                    num_threads=self._threads,
                    experimental_op_resolver_type=OpResolverType[_RESOLVERS[self._kernels]],
                    # Otherwise the memory of a tensor between operators is used again by later
                    # ones.
                    experimental_preserve_all_tensors=self._kernels is not Kernels.XNNPACK,
                )
                interpreter.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            raise ExportError(
                f"{litert_version()} rejects the file: {_in_one_line(error)}",
                remedy="keep the node that it names float",
            ) from error
        return interpreter

    def _places(self, side: str, details: list[dict[str, Any]]) -> dict[str, int]:
        # The public `get_signature_list` tells names, and not which tensors they are.
        signatures = self._interpreter._get_full_signature_list()
        for signature in signatures.values():  # of the only subgraph that runs
            found = {str(name): int(place) for name, place in signature[side].items()}
            if set(found.values()) == {int(each["index"]) for each in details}:
                return found
        return {str(each["name"]): int(each["index"]) for each in details}

    def _detail(self, place: int) -> dict[str, Any]:
        details = self._interpreter.get_input_details() + self._interpreter.get_output_details()
        found: dict[str, Any] = next(each for each in details if each["index"] == place)
        return found

    def _port(self, place: int) -> Port:
        detail = self._detail(place)
        signature = detail.get("shape_signature", detail["shape"])
        shape = tuple(None if length < 0 else int(length) for length in signature)
        scale, zero_point = detail["quantization"]
        return Port(
            str(detail["name"]), shape, np.dtype(detail["dtype"]), float(scale), int(zero_point)
        )

    def _current_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._detail(self._input_places[name])["shape"].tolist())

    def _by_signature(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        # Programs name tensors, users what the signature calls them.
        tensors = {port.tensor: name for name, port in self.inputs.items()}
        return {
            name if name in self.inputs else tensors.get(name, name): each
            for name, each in feeds.items()
        }

    def _checked(self, feeds: Mapping[str, Array]) -> Arrays:
        if set(feeds) != set(self.inputs):
            raise DataError(
                f"arrays for {', '.join(feeds) or 'nothing'}; the file takes "
                f"{', '.join(self.inputs)}",
                remedy="name the arrays like its inputs",
            )
        for name, port in self.inputs.items():
            array = feeds[name]
            fits = len(array.shape) == len(port.shape) and all(
                wanted in (None, length)
                for wanted, length in zip(port.shape, array.shape, strict=True)
            )
            # A batch of a file that has none open is run one by one.
            stacked = array.shape[1:] == port.shape[1:] and len(array.shape) > 0
            if array.dtype != port.dtype or not (fits or stacked):
                raise DataError(
                    f"input {name!r}: {array.dtype} {list(array.shape)}, the file takes "
                    f"{port.dtype} {['batch' if n is None else n for n in port.shape]}",
                    remedy="give arrays of that type and shape",
                )
        # The type again: LiteRT does not know NumPy's long long, which equals int64 here.
        return {
            name: np.asarray(feeds[name], p.dtype, order="C") for name, p in self.inputs.items()
        }

    def _resize(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        try:
            for name, shape in shapes.items():
                self._interpreter.resize_tensor_input(self._input_places[name], list(shape))
            self._interpreter.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            raise ExportError(f"{litert_version()}: {_in_one_line(error)}") from error

    def _invoked(self, arrays: Arrays, observe: tuple[Key, ...]) -> tuple[Arrays, dict[Key, Array]]:
        interpreter = self._interpreter
        try:
            for name, array in arrays.items():
                interpreter.set_tensor(self._input_places[name], array)
            interpreter.invoke()
        except (RuntimeError, ValueError) as error:
            raise ExportError(f"{litert_version()} fails: {_in_one_line(error)}") from error
        outputs = {n: interpreter.get_tensor(place) for n, place in self._output_places.items()}
        if not observe:
            return outputs, {}
        places: dict[str | int, int] = {}
        for each in interpreter.get_tensor_details():
            # By number as well, since names of a file need not be unique.
            places |= {each["index"]: each["index"], each["name"]: each["index"]}
        unknown = [key for key in observe if key not in places]
        if unknown:
            raise ExportError(f"the file has no tensor {', '.join(map(repr, unknown[:5]))}")
        return outputs, {key: interpreter.get_tensor(places[key]) for key in observe}

    def _one_by_one(
        self, arrays: Arrays, observe: tuple[Key, ...]
    ) -> tuple[Arrays, dict[Key, Array]]:
        counts = {len(array) // max(self._current_shape(n)[0], 1) for n, array in arrays.items()}
        sizes = {name: self._current_shape(name)[0] for name in arrays}
        if len(counts) != 1 or any(len(arrays[n]) % sizes[n] for n in arrays) or 0 in counts:
            raise ExportError(
                f"{litert_version()} takes no batch of {[len(array) for array in arrays.values()]}",
                remedy="give a multiple of the file's batch",
            )
        found = []
        for position in range(counts.pop()):
            part = {
                name: array[position * sizes[name] : (position + 1) * sizes[name]]
                for name, array in arrays.items()
            }
            found.append(self._invoked(part, observe))
        return joined([outputs for outputs, _ in found]), joined([seen for _, seen in found])


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _missing() -> MissingExtraError:
    return missing("running TFLite files", ["ai-edge-litert"], "tflite")
