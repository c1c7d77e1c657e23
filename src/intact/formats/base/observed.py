"""Compares tensors that were recorded on a device with the integer engine (``--observed``).

`verify_observed`, at the end, takes what a device was fed and what it gave for some tensors, by
name: ``{"conv1_out": int8 [100, 8, 8, 16], "logits": float32 [100, 10]}``. In three steps it

1. finds the tensor of the lowered program that each name stands for (`find_recorded`);
2. brings each array to codes in the program's layout (`align_record`): NCHW or NHWC are tried, and
   floats become the nearest codes;
3. runs the integer engine beside it, batch by batch, and counts the codes that differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intact.data.batching import sample_count
from intact.engines.cpu import detect_cpu
from intact.errors import DataError, nearest
from intact.formats.base.comparison import activations, differences, stored_feeds
from intact.formats.base.format import Feeds
from intact.formats.base.report import Verification, overflow_reports
from intact.formats.base.verification import EngineBeside
from intact.limits import RUN_AT_ONCE
from intact.plan import QuantizedGraph
from intact.program import Array, Program, Shape, Tensor
from intact.program.forms import moved_last
from intact.program.lower import lower
from intact.program.passes.reordering import inverse

_FAR = 2.0**40
"""Steps beyond any code, for NaN and values far out of range."""


class RecordedNames(NamedTuple):
    """What recorded names stand for.

    Attributes:
        tensors: By recorded name.
        not_compared: Names of tensors of the model that no step computes, with the reason.
    """

    tensors: dict[str, Tensor]
    not_compared: dict[str, str]


class Record(NamedTuple):
    """A recorded tensor, brought to the form in which the program holds it.

    Attributes:
        codes: All samples, as the program stores the tensor; int64, or floats where the program
            holds floats.
        layout: How the axes were taken to lie.
    """

    codes: Array
    layout: str


def find_recorded(
    plan: QuantizedGraph, program: Program, dump: Mapping[str, npt.NDArray[Any]]
) -> RecordedNames:
    """Return the tensors that names of the model's tensors, or of the program's, stand for.

    A value of the model that the program holds as floats and as integers is what was recorded.

    Raises:
        DataError: A name that is in neither, with the nearest that is; that of a constant; or two
            names of one tensor.
    """
    forms = _forms(program)
    inside = {str(value.name) for node in plan.graph.nodes for value in node.outputs if value.name}
    constants = {t.value or t.name for t in program.tensors() if t.is_constant}
    found = RecordedNames({}, {})
    for name, array in dump.items():
        if name in forms:
            # A value may be held as floats and as codes: integers can only have been recorded of
            # the second.
            is_codes = np.asarray(array).dtype.kind in "iu"
            alike = [
                tensor for tensor in forms[name] if tensor.encoding is not None or not is_codes
            ]
            found.tensors[name] = (alike or forms[name])[0]
        elif name in inside:
            found.not_compared[name] = "it exists only inside of a fused operation"
        elif name in constants:
            raise DataError(
                f"recorded tensor {name!r} is a constant of the model",
                remedy="leave it out: what is computed is compared",
            )
        else:
            raise DataError(
                f"recorded tensor {name!r} is not in the plan",
                remedy=nearest(name, {*forms, *inside}),
            )
    # The later one would take the place of the first, unseen.
    _refuse_duplicates(found.tensors)
    return found


def _forms(program: Program) -> dict[str, list[Tensor]]:
    """Return the tensors that a name can mean: that of this name, then those of this value."""
    made = [*program.inputs.values(), *activations(program)]
    forms: dict[str, list[Tensor]] = {tensor.name: [tensor] for tensor in made}
    for tensor in made:
        if tensor.value and tensor.value != tensor.name:
            forms.setdefault(tensor.value, []).append(tensor)
    return forms


def _refuse_duplicates(tensors: Mapping[str, Tensor]) -> None:
    first: dict[str, str] = {}
    for name, tensor in tensors.items():
        other = first.setdefault(tensor.name, name)
        if other != name:
            raise DataError(
                f"recorded tensors {other!r} and {name!r} are one tensor of the plan",
                remedy="keep one of them",
            )


def align_record(
    name: str, array: npt.NDArray[Any], tensor: Tensor, expected: Array, count: int
) -> Record:
    """Return a recorded array as codes of a tensor, in the layout that agrees best.

    Args:
        name: What it was recorded as.
        array: Integers are codes; floats are numbers, each of which counts as the nearest code.
            A batch of one may lack its axis.
        tensor: What it is in the program.
        expected: What the engine gives there for the first samples, to choose between layouts.
        count: Samples that were recorded.

    Raises:
        DataError: The array fits no layout, or holds neither integers nor floats.
    """
    if array.dtype.kind not in "biuf":
        raise DataError(f"recorded tensor {name!r} is {array.dtype}", remedy="record numbers")
    # Only an open batch may have more samples than the engine computed for choosing a layout.
    open_batch = bool(tensor.shape) and tensor.shape[0] is None
    shape = (count, *expected.shape[1:]) if open_batch else expected.shape
    views = _layouts(array, tensor, shape)
    if not views:
        raise DataError(
            f"recorded tensor {name!r} has shape {list(array.shape)}, the plan's {list(shape)}",
            remedy="record all samples, with axes as in the model or with channels last",
        )
    codes = {layout: _codes(view, tensor) for layout, view in views.items()}
    first = len(expected) if expected.ndim else None

    def differing_codes(layout: str) -> int:
        part = codes[layout][:first] if expected.ndim else codes[layout]
        return differences(part, expected)[0]

    best = min(codes, key=differing_codes)  # the first of equals: as the program stores it
    others = " and ".join(layout for layout in codes if layout != best)
    return Record(codes[best], f"{best}; {others} fits too" if others else best)


def _layouts(array: Array, tensor: Tensor, shape: Shape) -> dict[str, Array]:
    """Return the array as the program stores it, by each layout that it can have been in.

    Empty where it fits none. The first is the program's own layout, if that fits.
    """
    rank = len(shape)
    # Devices run one sample, and many tools leave its axis out.
    if array.ndim + 1 == rank and shape[0] == 1:
        array = array[None]
    if array.ndim != rank:
        return {}
    as_it_is = tuple(range(rank))
    orders = {"as in the model": as_it_is, "channels last": moved_last(rank) if rank > 2 else ()}
    stored = tensor.permutation or as_it_is
    found: dict[str, Array] = {}
    # The program's own order comes first, and wins where both agree equally well.
    for layout in sorted(orders, key=lambda layout: orders[layout] != stored):
        if len(orders[layout]) != rank:
            continue
        view = tensor.as_stored(array.transpose(inverse(orders[layout])))
        # Where all axes but one have the length 1, both orders are one view, and there is no doubt.
        same = any(view.strides == other.strides for other in found.values())
        if view.shape == shape and not same:
            found[layout] = view
    return found


def _codes(array: Array, tensor: Tensor) -> Array:
    """Return integers as they are, and numbers as the nearest codes, beyond the range too."""
    encoding = tensor.encoding
    if encoding is None or array.dtype.kind != "f":
        return np.asarray(array, order="C")
    # In float64, and beyond the range: a value that lies outside shows as a difference of its size.
    scale, zero = (
        each
        if encoding.axis is None
        else each.reshape([-1 if k == encoding.axis else 1 for k in range(array.ndim)])
        for each in (encoding.scale.astype(np.float64), encoding.zero_point)
    )
    steps = np.rint(array.astype(np.float64) / scale)
    return np.asarray(np.clip(np.nan_to_num(steps, nan=_FAR), -_FAR, _FAR).astype(np.int64) + zero)


def verify_observed(
    plan: QuantizedGraph,
    feeds: Feeds,
    dump: Mapping[str, npt.NDArray[Any]],
    *,
    threads: int = 0,
    device: str = "recorded",
) -> Verification:
    """Compare tensors that were recorded on a device with the integers that the plan says.

    ``layers`` are teacher-forced with what was recorded: a layer of which the inputs were recorded
    too is compared alone, another together with what lies before it.

    Args:
        plan: The plan that the device runs.
        feeds: What the device was fed, by input name: all samples.
        dump: Recorded arrays by the name of a tensor of the model, or of the lowered program.
            Integers are codes; floats are the numbers that codes stand for, and count as the
            nearest. Axes lie as in the model or with the channels last, told apart by the shape;
            where both fit, as they agree best. A batch of one may lack its axis.
        threads: Threads of float islands; 0 lets their runtime choose.
        device: What to call the device in the report.

    Raises:
        DataError: There is nothing to compare, a name is no tensor of the plan (the nearest is
            offered) or that of a constant, or an array fits no layout of its tensor.
    """
    program = lower(plan)
    found = find_recorded(plan, program, dump)
    if not found.tensors:
        raise DataError("no recorded tensor can be compared", remedy="record the outputs of layers")
    beside = EngineBeside(program, found.tensors.values(), threads=threads)
    given = stored_feeds(program, feeds)
    count = sample_count(given)
    parts = list(_parts(program, given))
    # What is one part is never cut: inputs of fixed size may have no axis of samples.
    first = _cut(given, parts[0]) if len(parts) > 1 else given
    expected = beside.engine.run(first, [t.name for t in found.tensors.values()]).tensors
    records = {
        tensor.name: align_record(
            name, np.asarray(dump[name]), tensor, expected[tensor.name], count
        )
        for name, tensor in found.tensors.items()
    }
    for part in parts:
        batch = _cut(given, part) if len(parts) > 1 else given
        seen = {
            name: record.codes[part] if len(parts) > 1 else record.codes
            for name, record in records.items()
        }
        beside.add(batch, seen)
    for layer in (*beside.layers, *beside.end_to_end):
        layer.layout = records[layer.tensor].layout
    return Verification(
        target=plan.target.name,
        runtime=device,
        cpu=detect_cpu(),
        samples=count,
        layers=beside.layers,
        end_to_end=beside.end_to_end,
        in_float=dict(program.in_float),
        not_compared=found.not_compared,
        overflows=overflow_reports(beside.engine),
    )


def _cut(feeds: Mapping[str, Array], part: slice) -> dict[str, Array]:
    return {name: array[part] for name, array in feeds.items()}


def _parts(program: Program, feeds: Mapping[str, Array]) -> Iterator[slice]:
    """Cut the samples into batches; those of a model of fixed size are one."""
    count = sample_count(feeds)
    fixed = any(tensor.shape[:1] != (None,) for tensor in program.inputs.values())
    size = count if fixed else RUN_AT_ONCE
    for start in range(0, max(count, 1), max(size, 1)):
        yield slice(start, start + size)
