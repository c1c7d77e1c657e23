"""Tensors recorded on a device against the integer engine, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import DataError, nearest
from intact.plan import QuantizedGraph
from intact.program import Array, Program, Tensor
from intact.program.lower import lower
from intact.program.lowering.forms import moved_last
from intact.run.cpu import detect_cpu
from intact.run.integer.engine import IntegerEngine
from intact.run.session import Feeds
from intact.verification.comparison import LayerComparison, activations, comparisons
from intact.verification.feeding import in_codes, in_numbers, stored_feeds
from intact.verification.report import Verification, overflow_reports

_BATCH = 16
"""Samples run at once: every activation of a batch is held, several times."""

_NEAR = 0.5
"""Steps that a recorded real number may be off a code that it counts as."""


def verify_observed(
    plan: QuantizedGraph,
    feeds: Feeds,
    dump: Mapping[str, npt.NDArray[Any]],
    *,
    threads: int = 0,
    device: str = "recorded",
) -> Verification:
    """Compare tensors that were recorded on a device with the integers that the plan says.

    ``layers`` are teacher-forced with what was recorded: a layer whose inputs were recorded too is
    compared alone, another together with what lies before it.

    Args:
        plan: The plan that the device runs.
        feeds: What the device was fed, by input name, all samples.
        dump: Recorded arrays by the name of a tensor of the model, or of the lowered program:
            integers are codes, floats are the numbers that codes stand for (compared in steps; they
            count as the code within half a step). Axes lie as in the model or with the channels
            last, told apart by shape; where both fit, as they agree best. A batch of one may lack
            its axis.
        threads: Threads of float islands; 0 lets their runtime choose.
        device: What to call the device in the report.

    Raises:
        DataError: A name that is no tensor of the plan (the nearest is offered), or that of a
            constant; or an array that fits no layout of its tensor.
    """
    program = lower(plan)
    engine = IntegerEngine(program, threads=threads)
    found, unheld = _named(plan, program, dump)
    records = [_Record(name, tensor, np.asarray(dump[name])) for name, tensor in found.items()]
    tensors = {record.tensor.name: record.tensor for record in records}
    layers = comparisons(program, [record.tensor for record in records])
    end_to_end = comparisons(program, [record.tensor for record in records])
    count = len(next(iter(feeds.values())))
    _choose_layouts(records, engine, program, feeds, count)
    for part in _parts(count):
        given = stored_feeds(program, {name: array[part] for name, array in feeds.items()})
        deployed = {r.tensor.name: r.stored(part, count) for r in records}
        forced = {name: _forced(array, tensors[name]) for name, array in deployed.items()}
        own = engine.run(given, tensors)
        taught = engine.run(given, tensors, forced)
        for name, array in deployed.items():
            _compare(end_to_end[name], array, own.tensors[name], tensors[name])
            _compare(layers[name], array, taught.tensors[name], tensors[name])
    for record in records:
        layers[record.tensor.name].layout = end_to_end[record.tensor.name].layout = record.layout
    return Verification(
        target=plan.target.name,
        runtime=device,
        cpu=detect_cpu(),
        samples=count,
        layers=list(layers.values()),
        end_to_end=list(end_to_end.values()),
        in_float=dict(program.in_float),
        not_compared=unheld,
        overflows=overflow_reports(engine),
    )


@dataclass
class _Record:
    """One recorded tensor, and how its axes lie."""

    name: str
    tensor: Tensor
    array: Array
    layout: str = ""
    order: tuple[int, ...] | None = None

    def candidates(self, expected: tuple[int, ...]) -> dict[str, tuple[int, ...] | None]:
        """Return the orders of axes that fit a tensor of this shape, stored: what brings it there.

        The layout of the program comes first.
        """
        found: dict[str, tuple[int, ...] | None] = {}
        rank, shape = len(expected), self._full(expected).shape
        if shape == expected:
            found["as the program stores it"] = None
        permutation = self.tensor.permutation or tuple(range(rank))
        last = moved_last(rank) if rank > 2 else tuple(range(rank))
        for layout, order in (("as in the model", tuple(range(rank))), ("channels last", last)):
            # The record's axis k is the model's axis order[k]; the stored one's, permutation[k].
            to_stored = tuple(order.index(axis) for axis in permutation)
            moved = tuple(shape[axis] for axis in to_stored) if len(shape) == rank else ()
            if moved == expected and to_stored != tuple(range(rank)):
                found.setdefault(layout, to_stored)
        return found

    def _full(self, expected: tuple[int, ...]) -> Array:
        """Return the whole array, with the axis of a batch of one."""
        if self.array.ndim + 1 == len(expected) and expected[0] == 1:
            return self.array[None]
        return self.array

    def in_order(self, expected: tuple[int, ...], order: tuple[int, ...] | None) -> Array:
        """Return the whole array as the tensor is stored."""
        whole = self._full(expected)
        return whole if order is None else whole.transpose(order)

    def stored(self, part: slice, count: int) -> Array:
        """Return some samples as the tensor is stored."""
        expected = (1, *self.array.shape) if self._lacks_batch else self.array.shape
        whole = self.in_order(expected, self.order)
        return np.ascontiguousarray(whole[part]) if whole.shape[:1] == (count,) else whole

    @property
    def _lacks_batch(self) -> bool:
        return self.array.ndim + 1 == len(self.tensor.shape)


def _named(
    plan: QuantizedGraph, program: Program, dump: Mapping[str, npt.NDArray[Any]]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensor that each name stands for, and the names of what no step hands out."""
    made = [*program.inputs.values(), *activations(program)]
    by_name: dict[str, Tensor] = {tensor.name: tensor for tensor in made}
    for tensor in made:
        if tensor.value:
            by_name.setdefault(tensor.value, tensor)
    constants = {tensor.value or tensor.name for tensor in program.tensors() if tensor.is_constant}
    inside = {str(value.name) for node in plan.graph.nodes for value in node.outputs if value.name}
    found: dict[str, Tensor] = {}
    unheld: dict[str, str] = {}
    for name in dump:
        if name in by_name:
            found[name] = by_name[name]
        elif name in inside:
            unheld[name] = "it exists only inside of a fused operation"
        elif name in constants:
            raise DataError(
                f"recorded tensor {name!r} is a constant of the model",
                remedy="leave it out: verify compares what is computed",
            )
        else:
            raise DataError(
                f"recorded tensor {name!r} is not in the plan",
                remedy=nearest(name, {*by_name, *inside}),
            )
    twice = {tensor.name for tensor in found.values()}
    if len(twice) < len(found):
        names = [name for name, t in found.items() if sum(t is o for o in found.values()) > 1]
        raise DataError(
            f"recorded tensors {', '.join(map(repr, names[:3]))} are one tensor of the plan",
            remedy="keep one of them",
        )
    return found, unheld


def _choose_layouts(
    records: list[_Record], engine: IntegerEngine, program: Program, feeds: Feeds, count: int
) -> None:
    """Decide on the first samples how the axes of each record lie.

    Raises:
        DataError: An array fits no layout.
    """
    first = next(_parts(count))
    given = stored_feeds(program, {name: array[first] for name, array in feeds.items()})
    own = engine.run(given, [record.tensor.name for record in records])
    for record in records:
        array = own.tensors[record.tensor.name]
        grows = len(array) == min(count, _BATCH) if array.ndim else False
        expected = (count, *array.shape[1:]) if grows else array.shape
        found = record.candidates(expected)
        if not found:
            raise DataError(
                f"recorded tensor {record.name!r} has shape {list(record.array.shape)}, "
                f"the plan's has {list(expected)}",
                remedy="record what the same samples give, with axes as in the model or "
                "channels last",
            )

        def off(order: tuple[int, ...] | None) -> int:
            whole = record.in_order(expected, order)  # noqa: B023 - called before the next record
            comparison = LayerComparison("")
            part = whole[first] if grows else whole  # noqa: B023
            _compare(comparison, part, array, record.tensor)  # noqa: B023
            return comparison.mismatches

        best = min(found, key=lambda layout: off(found[layout]))
        record.order = found[best]
        others = [layout for layout in found if layout != best]
        record.layout = f"{best} ({', '.join(others)} fits too)" if others else best


def _parts(count: int) -> Iterator[slice]:
    for start in range(0, count, _BATCH):
        yield slice(start, start + _BATCH)


def _forced(array: Array, tensor: Tensor) -> Array:
    """Return a record as what the program holds there."""
    encoding = tensor.encoding
    if encoding is None:
        return array.astype(np.float32)
    if array.dtype.kind == "f":
        return in_codes(np.nan_to_num(array), encoding, encoding.axis)
    return np.clip(array, encoding.quant_min, encoding.quant_max).astype(encoding.dtype)


def _compare(comparison: LayerComparison, deployed: Array, expected: Array, tensor: Tensor) -> None:
    """Compare codes with codes, and numbers with what codes stand for, in steps."""
    if tensor.encoding is None or deployed.dtype.kind != "f":
        comparison.add(deployed, expected)
        return
    apart = np.abs(deployed.astype(np.float64) - in_numbers(expected, tensor))
    axis, scale = tensor.encoding.axis, tensor.encoding.scale.astype(np.float64)
    if axis is not None:
        scale = scale.reshape([-1 if k == axis else 1 for k in range(expected.ndim)])
    steps = np.where(np.isnan(apart), np.inf, apart / scale)
    comparison.values += steps.size
    comparison.mismatches += int(np.count_nonzero(steps > _NEAR))
    comparison.largest = max(comparison.largest, float(steps.max(initial=0.0)))
