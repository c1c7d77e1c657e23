"""Exports a ``torch.nn.Module`` to an ONNX model that tells where its weights were."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch
from torch import Tensor, nn

from intact.errors import DataError, ModelError
from intact.graph import Graph, Role, input_role, normalize
from intact.graph.batch_norm import recall
from intact.graph.origins import Indices, Origins, packed, set_origins
from intact.ops.operators import CastLike, Clip, Constant, Pad, Shape, Size, is_a, types_of

# Finds out which of a module's tensors the constants of its export are made of.
#
# An exporter may write ``linear.weight`` transposed, or three of them joined: what was trained in
# ONNX then has to find its way back.
#
# The exported model is normalized once more, with a number of its own for each element of the
# module's tensors: what comes out shows where each element went.

_ONE = 0x3F800000
"""The bits of the float32 1.0: those above it are larger numbers, up to 2.0**64 here."""
_MOST_BITS = 29
_SPARSE, _FEWEST_BITS = 6, 8
"""One of 2**6 numbers at most marks an element: a sum or product of marks is hardly ever a mark."""
_FACTOR = 0x9E3779B1
"""Odd, so that multiples are different modulo a power of two, and scattered."""
_NEUTRAL = types_of(Clip, Pad)
"""Operators whose constant operands nobody trains."""

_VALUES = {CastLike.name: 1, Shape.name: 0, Size.name: 0}
"""How many inputs decide the result with their values, for operators where that are not all."""


def origins(model: ir.Model, shapes: Mapping[str, tuple[int, ...]]) -> Origins:
    """Return the origins of a model's constants after normalization.

    Args:
        model: What torch has exported; not changed.
        shapes: Shapes of the float tensors in the module's state, by name.
    """
    found = Origins(dict(shapes))
    # Normalizing once more takes as long as the first time: most models do not need it.
    if _is_plain(model, found) or found.size >= 2 ** (_MOST_BITS - 1):
        return found
    marks = _Marks(found)
    try:
        graph = normalize(marks.mark(model))
    except Exception:  # of numbers that no model has: then nothing is known of its constants
        return found
    return marks.read(graph, _independent(model, found))


def _is_plain(model: ir.Model, found: Origins) -> bool:
    """Tell whether nodes read the module's tensors as they are, and no other float constants."""
    for node in model.graph:
        if node.op_type in _NEUTRAL or is_a(node, Constant):
            continue
        for slot, value in enumerate(node.inputs):
            if value is None:
                continue
            is_own = value.name in found.shapes
            if is_own and input_role(node, slot) in (None, Role.DATA):
                return False
            if not is_own and _is_float_constant(value):
                return False
    return True


def _is_float_constant(value: ir.Value) -> bool:
    tensor = ir.convenience.get_const_tensor(value)
    return tensor is not None and tensor.dtype.is_floating_point()


class _Marks:
    """Numbers for the elements of a module's tensors: float32, whose bits tell the element."""

    def __init__(self, found: Origins) -> None:
        self._origins = found
        self._starts = found.starts
        self._mask = 2 ** min(_MOST_BITS, found.size.bit_length() + _SPARSE + _FEWEST_BITS) - 1
        self._inverse = np.uint64(pow(_FACTOR, -1, self._mask + 1))

    def mark(self, model: ir.Model) -> ir.Model:
        """Copy a model with marks in the place of the module's tensors."""
        copy = model.clone()
        for name, value in copy.graph.initializers.items():
            shape = self._origins.shapes.get(name)
            if shape is None or value.dtype is not ir.DataType.FLOAT:
                continue
            start = self._starts[name]
            elements = np.arange(start, start + math.prod(shape), dtype=np.uint64)
            scattered = elements * np.uint64(_FACTOR) + np.uint64(_FACTOR)  # the first is not 1.0
            bits = (scattered & np.uint64(self._mask)) + np.uint64(_ONE)
            marks = bits.astype(np.uint32).view(np.float32).reshape(shape)
            value.const_value = ir.Tensor(marks, name=name)
        return copy

    def elements(self, array: npt.NDArray[np.float32]) -> Indices | None:
        """Return the elements that an array's numbers mark; None where one marks none."""
        bits = np.ascontiguousarray(array).view(np.uint32).reshape(-1).astype(np.uint64)
        offsets = bits - np.uint64(_ONE)  # of smaller numbers one that wraps, beyond the mask
        elements = (offsets * self._inverse - np.uint64(1)) & np.uint64(self._mask)
        if (offsets > self._mask).any() or (elements >= self._origins.size).any():
            return None
        found = elements.astype(np.int64)
        return found if self._are_different(found) else None

    def read(self, graph: Graph, independent: frozenset[str]) -> Origins:
        """Return the origins of the constants of a marked model that was normalized."""
        layouts: dict[str, str] = {}
        changed: set[str] = set()
        fixed: set[str] = set()
        for value in graph.model.graph.initializers.values():
            name, array = str(value.name), graph.constant(value)
            if array is None or array.dtype != np.float32 or array.size < 1:
                continue
            if name in independent:
                fixed.add(name)
                continue
            elements, own = self.elements(array), self._origins.shapes.get(name)
            if own is None:
                layouts |= {} if elements is None else {name: packed(elements)}
            elif elements is None or not self._are_own(elements, name):
                changed |= {name} if _is_changed(graph, value) else set()
        return Origins(self._origins.shapes, layouts, frozenset(changed), frozenset(fixed))

    def _are_different(self, elements: Indices) -> bool:
        """Tell whether no element comes twice: numbers that mark none by chance are often equal."""
        seen = np.zeros(self._origins.size, bool)
        seen[elements] = True
        return int(np.count_nonzero(seen)) == len(elements)

    def _are_own(self, elements: Indices, name: str) -> bool:
        start = self._starts[name]
        return np.array_equal(elements, np.arange(start, start + len(elements)))


def _is_changed(graph: Graph, value: ir.Value) -> bool:
    """Tell whether something else than a BatchNormalization was folded into a constant.

    That one is remembered with the node, and is taken out again.
    """
    norms = [recall(node) for node, _ in graph.consumers(value)]
    return any(norm is None or not norm.names for norm in norms)


def _independent(model: ir.Model, found: Origins) -> frozenset[str]:
    """Return the values of an exported model that no tensor of the module's state decides.

    A node whose result is decided only by the shape or the type of an operand does not count.
    """
    dependent: set[ir.Value | None] = {
        value for name, value in model.graph.initializers.items() if name in found.shapes
    }
    names = {name for name in model.graph.initializers if name not in found.shapes}
    for node in model.graph:
        has_body = any(
            each.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
            for each in node.attributes.values()
        )
        read = node.inputs[: _VALUES.get(node.op_type)]
        if has_body or not dependent.isdisjoint(read):
            # A body may read anything of the graph, so its node counts as dependent.
            dependent.update(node.outputs)
        else:
            names.update(str(value.name) for value in node.outputs)
    return frozenset(names)


_LONGEST_REASON = 300


def export_module(module: nn.Module, example: Mapping[str, Tensor] | Sequence[Tensor]) -> ir.Model:
    """Export a module as ``torch.onnx.export`` does, with any number of samples.

    Args:
        module: In any mode, on any device; it is exported as it evaluates, and not changed.
        example: A batch of its inputs, in order or by the names of the arguments of ``forward``.
            Samples lie along axis 0 of each tensor that has axes.

    Raises:
        DataError: The module does not compute with the example.
        ModelError: torch cannot export it: its ``forward`` branches on values, say.
    """
    wide = {n: _two(t) for n, t in example.items()} if isinstance(example, Mapping) else {}
    listed = () if isinstance(example, Mapping) else tuple(_two(each) for each in example)
    free = "batch"  # DYNAMIC would name the axis by a symbol of its own, such as s31
    dynamic: Any = {name: _free(t, free) for name, t in wide.items()}
    if listed:
        dynamic = tuple(_free(tensor, free) for tensor in listed)
    with _in_evaluation(_in_float32(module)) as evaluated, _quiet():
        try:
            program = torch.onnx.export(
                evaluated,
                listed,
                kwargs=wide or None,
                dynamo=True,
                dynamic_shapes=dynamic,
                optimize=False,  # it would fold BatchNormalizations and forget them
                verbose=False,
            )
        except Exception as error:  # torch raises its own classes, and whatever forward raises
            _refuse_example(evaluated, listed, wide)
            raise ModelError(
                f"torch cannot export {type(module).__name__}: {_reason(error)}",
                remedy="rewrite what it names (a branch on values with torch.where, say), or give "
                "an ONNX model",
            ) from error
    if program is None:
        raise ModelError(f"torch exports nothing of {type(module).__name__}")
    model: ir.Model = program.model
    set_origins(model, origins(model, _shapes(module)))
    return model


def _refuse_example(
    module: nn.Module, listed: Sequence[Tensor], named: Mapping[str, Tensor]
) -> None:
    """Refuse an example that the module itself refuses: then the export is not to blame."""
    try:
        with torch.no_grad():
            module(*listed, **named)
    except Exception as error:  # whatever forward raises
        given = ", ".join(str(list(each.shape)) for each in (*listed, *named.values()))
        raise DataError(
            f"{type(module).__name__} refuses a batch of shape {given}, the first of the data: "
            f"{_reason(error)}",
            remedy="give samples as the module takes them: channels first, samples along axis 0, "
            "inputs in the order of its arguments",
        ) from error


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the float tensors that `load_state_dict` takes."""
    state = {k: v for k, v in module.state_dict().items() if isinstance(v, Tensor)}
    return {name: tuple(t.shape) for name, t in state.items() if t.is_floating_point()}


def argument_names(module: nn.Module) -> list[str]:
    """Return the arguments of ``forward`` that have no default, or else the first."""
    parameters = inspect.signature(module.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [each for each in parameters if each.kind in kinds]
    needed = [each.name for each in named if each.default is inspect.Parameter.empty]
    return needed or [each.name for each in named[:1]]


def optional_names(module: nn.Module) -> list[str]:
    """Return the arguments of ``forward`` that have a default."""
    parameters = inspect.signature(module.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    empty = inspect.Parameter.empty
    return [each.name for each in parameters if each.kind in kinds and each.default is not empty]


def runs(module: nn.Module, example: Mapping[str, Tensor]) -> bool:
    """Tell whether a module computes with two samples of a batch."""
    inputs = {name: tensor.detach().cpu()[:2] for name, tensor in example.items() if tensor.ndim}
    inputs = {name: inputs.get(name, tensor) for name, tensor in example.items()}
    with _in_evaluation(_in_float32(module)) as evaluated, _quiet(), torch.no_grad():
        try:
            evaluated(**inputs)
        except Exception:  # whatever forward raises
            return False
    return True


def _in_float32(module: nn.Module) -> nn.Module:
    """Return a module whose weights are float32, which is what targets have."""
    # A copy only where it is needed: a module may be large.
    if any(each.dtype is not torch.float32 for each in module.parameters()):
        return copy.deepcopy(module).float()
    return module


def _two(tensor: Tensor) -> Tensor:
    """Return two samples or more: torch takes an axis of one for fixed."""
    tensor = tensor.detach().cpu()
    if tensor.ndim and len(tensor) == 1:
        return torch.cat([tensor, tensor])
    return tensor


def _free(tensor: Tensor, free: Any) -> dict[int, Any] | None:
    return {0: free} if tensor.ndim else None


def _reason(error: BaseException) -> str:
    """Return the innermost reason in one line: the outer ones give general advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    place = next((line for line in lines if line.startswith("File ")), "")
    text = f"{lines[0] if lines else type(error).__name__} {place}".strip()
    return text[:_LONGEST_REASON].rstrip(".")


@contextlib.contextmanager
def _in_evaluation(module: nn.Module) -> Iterator[nn.Module]:
    """Put a module and its parts into evaluation mode within, on the CPU."""
    modes = {each: each.training for each in module.modules()}
    tensors = (*module.parameters(), *module.buffers())
    device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    try:
        module.eval()
        if device.type != "cpu":
            # The exporter's example and the weights have to be on one device.
            module.cpu()
        yield module
    finally:
        if device.type != "cpu":
            module.to(device)
        # Each part on its own: parts of one module may be in different modes.
        for each, mode in modes.items():
            each.training = mode


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what torch prints and logs of an export to itself; errors are raised."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
