"""Reads model files of others: what all such readers do alike.

A binary file is decoded within what its size explains. Its operators become nodes of a float graph,
whose batch is left open if nothing mixes samples; what cannot be read is listed, all of it; and the
shapes of the file must be those that its operators compute.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import onnx_ir as ir
from onnx_ir.passes import common

from intact.errors import ModelError, Unsupported
from intact.graph.files.quiet import quiet
from intact.graph.traversal import bodies

BATCH = "batch"
"""Name of the open first dimension."""
IR_VERSION = 9
MOST_ELEMENTS = 1 << 31
"""Elements that one tensor may have."""
_SHARED = 4
"""How often every byte may be decoded: writers share texts and small lists."""
_SLACK = 1 << 16
_SHOWN = 400
"""Characters of a reason in a message."""
_MOST_NAMES, _MOST_REASONS = 8, 100
"""Operators that are named for a reason, and reasons: each of a hostile file may have its own."""

Built = TypeVar("Built")
Shape = tuple[int, ...]


class FixesBatch(Exception):  # noqa: N818 - an answer
    """An operator mixes the samples of a batch, so that the file's batch has to be kept."""


class HasBatch(Protocol):
    """A graph under construction."""

    @property
    def batch(self) -> bool:
        """Whether the first dimension of every activation is open."""


def with_open_batch(build: Callable[[bool], Built]) -> Built:
    """Build a graph with its batch open, or with that of the file if something mixes samples."""
    try:
        return build(True)
    except FixesBatch:
        # Begun anew, because the shapes so far have the open batch.
        return build(False)


def refuse_mixed_batch(builder: HasBatch, is_mixed: bool) -> None:
    """Note whether an operator mixes the samples of a batch.

    Raises:
        FixesBatch: It does, and the batch was to be left open.
    """
    if builder.batch and is_mixed:
        raise FixesBatch


def slot(inputs: Sequence[int], number: int) -> int:
    """Return the tensor that an operator reads at a slot.

    Raises:
        Unsupported: There is none.
    """
    # Negative indices stand for absent inputs, and Python would count them from the end.
    if number >= len(inputs) or inputs[number] < 0:
        raise Unsupported(f"its input {number} is absent")
    return inputs[number]


def axis_in(axis: int, rank: int) -> int:
    """Return an axis counted from the start.

    Raises:
        Unsupported: There is no such axis.
    """
    if not -rank <= axis < rank:
        raise Unsupported(f"it has no axis {axis} of {rank}")
    return axis % rank


def require_elements(shape: Shape) -> None:
    """Refuse a tensor without elements, or with too many."""
    # Before anything of that shape is made: a few bytes of a hostile file can ask for terabytes.
    if any(length < 1 for length in shape) or math.prod(shape) > MOST_ELEMENTS:
        raise Unsupported(f"its output has the shape {list(shape)}")


def list_unsupported(unsupported: Iterable[tuple[str, str, str]]) -> str:
    """List what cannot be read: kind of an operator, its name or number, and the reason.

    >>> list_unsupported(
    ...     [("Softmax", "a", "no axis"), ("Softmax", "b", "no axis"), ("LSTM", "c", "unknown")]
    ... )
    'Softmax (a, b): no axis; LSTM (c): unknown'
    """
    # By kind and reason: a model has the same fault at a hundred operators.
    groups: dict[tuple[str, str], list[str]] = {}
    for kind, name, reason in unsupported:
        groups.setdefault((kind, reason), []).append(name)
    shown = [
        f"{kind} ({', '.join(names[:_MOST_NAMES])}"
        f"{', ...' if len(names) > _MOST_NAMES else ''}): {clip_text(reason)}"
        for (kind, reason), names in itertools.islice(groups.items(), _MOST_REASONS)
    ]
    if len(groups) > _MOST_REASONS:
        shown.append(f"and {len(groups) - _MOST_REASONS} more reasons")
    return "; ".join(shown)


def settle_shapes(
    model: ir.Model, shapes: Mapping[ir.Value, Shape], source: str, *, batch: bool
) -> None:
    """Give values the shapes that the file gives them, with which ONNX must agree.

    Args:
        model: Its values are changed.
        shapes: What the file says of them.
        source: How messages call the file.
        batch: Whether the first dimension is open.

    Raises:
        ModelError: The file contradicts itself.
    """
    try:
        with quiet():
            # Without the strict mode ONNX passes over shapes that contradict each other.
            common.ShapeInferencePass(check_type=True, strict_mode=True)(model)
    except Exception as error:  # onnx raises its own kinds
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"{source}: its shapes do not fit: {reason}") from error
    alone = _of_constants(model.graph)
    for value, lengths in shapes.items():
        # Inputs and constants have their shapes from the file, and what nothing reads has no graph
        # any more.
        if value.producer() is None or value.graph is None:
            continue
        is_open = batch and value not in alone
        wanted: list[int | str] = [BATCH, *lengths[1:]] if is_open else [*lengths]
        found = value.shape
        known = [each if isinstance(each, int) else None for each in found or ()]
        if found is not None and (
            len(known) != len(wanted)
            or any(k is not None and k != w for k, w in zip(known, wanted, strict=True))
        ):
            raise ModelError(
                f"{source}: tensor {clip_text(repr(value.name))} of shape {ir.Shape(wanted)}"
                f" is computed as {found}",
                remedy="the file contradicts itself: convert the model again",
            )
        # Also where inference knows no more: the file's lengths are known, and agree with what is.
        value.shape = ir.Shape(wanted)


def _of_constants(graph: ir.Graph) -> set[ir.Value]:
    """Return what constants alone give, which has no batch."""
    found = set(graph.initializers.values()) - set(graph.inputs)
    for node in graph:
        if all(value is None or value in found for value in node.inputs) and not any(bodies(node)):
            found.update(node.outputs)
    return found


def clip_text(text: str) -> str:
    """Return text of a file as messages show it: its names and lists may be megabytes.

    >>> clip_text("short"), len(clip_text("x" * 1000))
    ('short', 400)
    """
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]} ..."


class BinaryFile:
    """A file and how much of it may still be decoded.

    Args:
        data: The whole file.
        source: How messages call it.
    """

    def __init__(self, data: bytes, source: str) -> None:
        self.data = memoryview(data)
        self.source = source
        self._left = _SHARED * len(data) + _SLACK

    def damaged(self, reason: str) -> ModelError:
        """Return the error for a file that is not what it should be."""
        return ModelError(
            f"{self.source}: {clip_text(reason)}", remedy="the file is damaged: get it again"
        )

    def charge(self, size: int) -> None:
        """Count bytes that are decoded.

        Raises:
            ModelError: They are more than the file can hold.
        """
        self._left -= size
        if self._left < 0:
            raise self.damaged("its parts share their contents too often")
