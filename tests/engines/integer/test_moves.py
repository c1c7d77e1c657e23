"""Operations that move elements, against what NumPy and ONNX Runtime say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from intact.engines.integer import IntegerEngine
from intact.formats.tflite.write import program_to_tflite
from intact.program import Array, Encoding, Program, Shape, Step, Tensor
from intact.program.operations import (
    ArgReduce,
    Concat,
    DepthToSpace,
    Expand,
    Gather,
    Operation,
    Pad,
    Reduction,
    Reshape,
    Slice,
    SpaceToDepth,
    Split,
    Tile,
    TopK,
    Transpose,
)
from tests.engines.integer.hardware import (
    AFTER,
    DOUBLE,
    End,
    as_int8,
    computed,
    onnxruntime,
    random_codes,
    run_step,
)
from tests.engines.integer.one_op import REFERENCE, XNNPACK, litert, micro
from tests.program.one_step import int8, one_step, uint8

DATA = random_codes((2, 4, 6, 8), int8(1.0))
ENCODING = int8(0.5, 3)

MOVES: list[tuple[Operation, Callable[[Array], Array]]] = [
    (Reshape((-1, 48)), lambda x: x.reshape(-1, 48)),
    (Transpose((0, 3, 1, 2)), lambda x: x.transpose(0, 3, 1, 2)),
    (
        Slice((0, 1, None, -1), (2, -1, None, None), (1, 2, 1, -3)),
        lambda x: x[0:2, 1:-1:2, :, -1::-3],
    ),
    (Gather(2, np.asarray([[5, 0], [1, 1]])), lambda x: x[:, :, [[5, 0], [1, 1]]]),
    (Gather(1, np.asarray(3)), lambda x: x[:, 3]),
    (Tile((1, 2, 1, 3)), lambda x: np.tile(x, (1, 2, 1, 3))),
    (Expand((3, -1, 1, -1, 8)), lambda x: np.broadcast_to(x, (3, *x.shape))),
    (Pad(((0, 0), (1, 2), (0, 3), (0, 0))), lambda x: np.pad(x, ((0, 0), (1, 2), (0, 3), (0, 0)))),
]


@pytest.mark.parametrize(("operation", "wanted"), MOVES)
@pytest.mark.parametrize("encoding", [int8(0.5), None])
def test_elements_go_where_they_belong(
    operation: Operation, wanted: Callable[[Array], Array], encoding: Encoding | None
) -> None:
    array: Array = DATA if encoding is not None else DATA.astype(np.float32)
    kept = array.copy()
    program = one_step(operation, DOUBLE, [(array.shape, encoding)], [((), encoding)])
    feeds = {"in0": array}
    result = IntegerEngine(program).run(feeds).outputs["out0"]
    np.testing.assert_array_equal(result, wanted(array))
    assert result.dtype == array.dtype
    np.testing.assert_array_equal(array, kept)


@pytest.mark.parametrize("operation", [each for each, _ in MOVES if not isinstance(each, Reshape)])
def test_empty_batches_stay_empty(operation: Operation) -> None:
    result = run_step(operation, DOUBLE, [((None, 4, 6, 8), ENCODING)], ((), ENCODING), DATA[:0])
    assert result.size == 0


def test_expanding_broadcasts_both_ways() -> None:
    codes = as_int8([[1], [2]])
    ours = run_step(Expand((2, 1, 3)), DOUBLE, [((2, 1), ENCODING)], ((), ENCODING), codes)
    np.testing.assert_array_equal(ours, np.broadcast_to(codes, (2, 2, 3)))
    ours = run_step(Expand((1,)), DOUBLE, [((2, 1), ENCODING)], ((), ENCODING), codes)
    np.testing.assert_array_equal(ours, codes)


def test_depth_and_space_are_those_of_the_runtimes() -> None:
    deep = random_codes((2, 3, 5, 12), ENCODING)
    for operation, shape, wanted in (
        (DepthToSpace(2), deep.shape, (2, 6, 10, 3)),
        (SpaceToDepth(2), (2, 6, 10, 3), deep.shape),
    ):
        program = one_step(operation, DOUBLE, [(shape, ENCODING)], [(wanted, ENCODING)])
        codes = deep.reshape(shape)
        ours = computed(program, codes)
        model = program_to_tflite(program)
        np.testing.assert_array_equal(ours, litert(model, codes, kernels=REFERENCE))
        assert ours.shape == wanted


def test_pads_hold_the_zero_point() -> None:
    operation = Pad(((0, 0), (1, 2), (3, 0), (0, 0)))
    ends: list[End] = [(DATA.shape, ENCODING)]
    program = one_step(operation, DOUBLE, ends, [((2, 7, 9, 8), ENCODING)])
    ours = computed(program, DATA)
    assert set(ours[:, 0].reshape(-1).tolist()) == {3}
    model = program_to_tflite(program)
    for kernels in (REFERENCE, XNNPACK):
        np.testing.assert_array_equal(ours, litert(model, DATA, kernels=kernels))
    np.testing.assert_array_equal(ours, micro(model, DATA))


WIDE = Encoding(np.asarray(0.5, np.float32), np.asarray(0), -(1 << 15), (1 << 15) - 1)


@pytest.mark.parametrize("encoding", [ENCODING, WIDE])
@pytest.mark.parametrize(
    "value",
    [0.74, 0.75, -1.25, 1e9, -np.inf],  # nearer to a code, two ties, beyond the codes
)
def test_pads_with_a_number_hold_its_code(value: float, encoding: Encoding) -> None:
    operation = Pad(((0, 0), (1, 2), (3, 0), (0, 0)), value=value)
    ends: list[End] = [(DATA.shape, encoding)]
    program = one_step(operation, DOUBLE, ends, [((2, 7, 9, 8), encoding)])
    data = DATA.astype(encoding.dtype)
    ours = computed(program, data)
    steps = np.clip(value / 0.5, -1e6, 1e6)
    nearest = int(
        np.round(steps) if encoding is WIDE else np.trunc(steps + np.copysign(0.5, steps))
    )
    code = min(max(nearest + int(encoding.zero_point), encoding.quant_min), encoding.quant_max)
    assert set(ours[:, 0].reshape(-1).tolist()) == {code}
    model = program_to_tflite(program)
    for kernels in (REFERENCE, XNNPACK):
        np.testing.assert_array_equal(ours, litert(model, data, kernels=kernels))
    if encoding is ENCODING:
        np.testing.assert_array_equal(ours, micro(model, data))


def _with_places(operation: Operation, shape: Shape, results: list[Tensor]) -> Program:
    data = Tensor("in0", shape, ENCODING, value="in0")
    step = Step("step", operation, (data,), tuple(results), DOUBLE)
    return Program({"in0": data}, {each.name: each for each in results}, (step,))


# So long that the extremes are there several times.
MANY = random_codes((3, 520, 2), ENCODING, seed=9)


@pytest.mark.parametrize("kind", [Reduction.MAX, Reduction.MIN])
@pytest.mark.parametrize("codes", [MANY, as_int8([[[-3], [-3], [-128]]]), as_int8([[[5]]])])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_places_are_those_of_the_first_extreme(kind: Reduction, codes: Array, axis: int) -> None:
    shape = codes.shape[:axis] + codes.shape[axis + 1 :]
    place = Tensor("out0", shape, value="out0", plain=np.dtype(np.int64))
    program = _with_places(ArgReduce(kind, axis, keep_dims=False), codes.shape, [place])
    ours = computed(program, codes)
    extreme = codes.max(axis, keepdims=True) if kind == "max" else codes.min(axis, keepdims=True)
    np.testing.assert_array_equal(ours, (codes == extreme).argmax(axis))
    model = program_to_tflite(program)
    for kernels in (REFERENCE, XNNPACK):
        theirs = litert(model, codes, kernels=kernels)
        assert theirs.dtype == ours.dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("codes", "axis", "count"), [(MANY, 1, 520), (MANY, -1, 1), (MANY, 0, 3), (as_int8([7]), 0, 1)]
)
def test_the_largest_come_first_and_of_equal_ones_the_first(
    codes: Array, axis: int, count: int
) -> None:
    axis %= codes.ndim
    shape = (*codes.shape[:axis], count, *codes.shape[axis + 1 :])
    values = Tensor("values", shape, ENCODING, value="values")
    places = Tensor("places", shape, value="places", plain=np.dtype(np.int64))
    operation = TopK(axis, count)
    for outputs in ([values, places], [places, values]):  # which of them the runtime gives first
        program = _with_places(operation, codes.shape, [values, places])
        program = replace(program, outputs={each.name: each for each in outputs})
        ours = IntegerEngine(program).run({"in0": codes}).outputs
        taken = np.take_along_axis(codes, ours["places"], axis)
        np.testing.assert_array_equal(ours["values"], taken)
        np.testing.assert_array_equal(
            np.flip(np.sort(codes, axis), axis).take(range(count), axis), taken
        )
        model = program_to_tflite(program)
        for kernels in (REFERENCE, XNNPACK):
            theirs = litert(model, codes, kernels=kernels)
            np.testing.assert_array_equal(ours[outputs[0].name], theirs)


def test_a_pad_between_scales_pads_with_the_output_zero_point() -> None:
    ends: list[End] = [((2,), int8(0.5))]
    ours = run_step(Pad(((1, 1),)), AFTER, ends, ((4,), int8(1.0, 7)), as_int8([4, -4]))
    assert ours.tolist() == [7, 9, 5, 7]
    ours = run_step(Pad(((1, 1),), value=3.0), AFTER, ends, ((4,), int8(1.0, 7)), as_int8([4, -4]))
    assert ours.tolist() == [10, 9, 5, 10]


def test_concat_brings_each_operand_to_the_scale_of_the_output() -> None:
    codes = np.arange(256).astype(np.uint8).reshape(1, 256)
    encodings = [uint8(0.0371, 128), uint8(0.0113, 3), uint8(0.02, 77)]
    arrays = [codes, codes[:, :100], codes[:, ::-3]]
    output = uint8(0.02, 77)
    given = list(zip(arrays, encodings, strict=True))
    ends: list[End] = [(array.shape, encoding) for array, encoding in given]
    ours = run_step(Concat(1), AFTER, ends, ((1, 442), output), *arrays)
    theirs = onnxruntime("Concat", given, output, {"axis": 1})
    np.testing.assert_array_equal(ours, theirs)


def test_concat_takes_constants_in_their_slots() -> None:
    constant = as_int8([[7, 8]])
    ends: list[End] = [((1, 1), ENCODING), (constant, ENCODING), ((1, 1), ENCODING)]
    arrays = as_int8([[1]]), as_int8([[9]])
    ours = run_step(Concat(-1), DOUBLE, ends, ((1, 4), ENCODING), *arrays)
    assert ours.tolist() == [[1, 7, 8, 9]]


def test_split_gives_every_output_its_own_scale() -> None:
    outputs = [((2, 1), ENCODING), ((2, 0), ENCODING), ((2, 3), int8(1.0))]
    program = one_step(Split(1, (1, 0, 3)), AFTER, [((2, 4), ENCODING)], outputs)
    codes = as_int8([[3, 5, 7, 9], [1, 3, 4, 127]])
    parts = IntegerEngine(program).run({"in0": codes}).outputs
    assert parts["out0"].tolist() == [[3], [1]]
    assert parts["out1"].shape == (2, 0)
    assert parts["out2"].tolist() == [[1, 2, 3], [0, 0, 62]]
