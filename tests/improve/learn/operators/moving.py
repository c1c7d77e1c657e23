"""Cases of moves, indices, shapes and recurrent operators."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from onnx import numpy_helper

from tests.improve.learn.operators.case import (
    Array,
    Case,
    Steer,
    floats,
    make_case,
    scalar,
    steer,
    whole,
)


def moves() -> Iterator[Case]:
    c, x = make_case, floats(2, 3, 4)
    for shape in ((0, -1), (-1, 6), (0, 0, 2, 2), (0, 4, 3), (-1,)):
        yield c("Reshape", x, steer(*shape))
    yield c("Reshape", floats(0, 3, 4), steer(3, 0), allowzero=1, rows=False)
    yield c("Reshape", floats(1), Steer(np.zeros(0, np.int64)), rows=False)
    yield c("Transpose", x, rows=False)
    yield c("Transpose", x, perm=[1, 0, 2], rows=False)
    yield c("Transpose", x, perm=[0, 2, 1])
    for axis in (0, 1, 2, 3, -1):
        yield c("Flatten", x, axis=axis, rows=axis != 0)
    thin = floats(1, 3, 1, 4)
    yield c("Squeeze", thin, rows=False)
    yield c("Squeeze", thin, steer(0, -2), rows=False)
    yield c("Squeeze", thin, axes=[2], opset=11)
    yield c("Unsqueeze", x, steer(0, -1))
    yield c("Unsqueeze", x, steer(4, 1))
    yield c("Unsqueeze", x, axes=[1, 3], opset=11)
    yield c("Concat", x, floats(2, 3, 1), floats(2, 3, 0), axis=-1, rows=False)
    yield c("Concat", x, axis=0)
    yield c("Split", x, steer(1, 3), axis=2, outputs=2)
    yield c("Split", x, axis=2, split=[3, 1], opset=11, outputs=2)
    yield c("Split", x, axis=-1, opset=13, outputs=2)
    yield c("Split", floats(2, 7), axis=1, outputs=3, num_outputs=3)
    yield c("Split", x, steer(2), outputs=1, rows=False)
    low, high = -(2**63), 2**63 - 1
    for start, end, axis, step in (
        (1, 3, 2, 1),
        (-2, high, -1, 1),
        (0, -1, 1, 2),
        (-1, low, 2, -1),
        (3, 0, 2, -2),
        (10, -10, 1, -1),
        (2, 2, 1, 1),
        (1, 0, 1, 1),
    ):
        yield c("Slice", x, *(steer(each) for each in (start, end, axis, step)))
    yield c("Slice", x, steer(0, 1), steer(1, 3), rows=False)
    yield c("Slice", x, steer(0, 1), steer(1, 3), steer(2, 1))
    yield c("Slice", x, steer(-1, 3), steer(low, 0), steer(1, 2), steer(-1, -2))
    inner = [0, 1, 2, 0, 2, 1]
    for mode in ("constant", "reflect", "edge", "wrap"):
        opset = 19 if mode == "wrap" else 18
        yield c("Pad", floats(2, 4, 5), steer(*inner), mode=mode, opset=opset)
        yield c("Pad", floats(2, 4, 5), steer(1, 2), None, steer(-1), mode=mode, opset=opset)
        yield c("Pad", floats(2, 4, 5), steer(2, -1), None, steer(-1), mode=mode, opset=opset)
        yield c("Pad", floats(2, 4, 5), steer(-2, -1), None, steer(1), mode=mode, opset=opset)
    yield c("Pad", floats(2, 4, 5), steer(*inner), scalar(1.5))
    yield c("Pad", floats(2, 4, 5), steer(0, -1, 2, 0, -2, -1), scalar(1.5))
    yield c("Pad", whole([1, 2], [3, 4]), steer(0, 1, 0, 1), scalar(7, np.int64))
    yield c("Tile", x, steer(1, 2, 3))
    yield c("Tile", x, steer(2, 1, 0), rows=False)
    yield c("Expand", floats(3, 1), steer(2, 1, 4), rows=False)
    yield c("Expand", floats(2, 3, 1), steer(1, 4))
    for mode in ("DCR", "CRD"):
        yield c("DepthToSpace", floats(2, 8, 2, 3), blocksize=2, mode=mode)
    yield c("SpaceToDepth", floats(2, 3, 4, 6), blocksize=2)
    for upper, k in product((0, 1), (-1, 0, 2)):
        yield c("Trilu", floats(2, 3, 4), scalar(k, np.int64), upper=upper)
    yield c("Trilu", floats(3, 4), rows=False)
    yield c("CenterCropPad", floats(2, 5, 4), steer(3, 7), axes=[1, 2])
    yield c("CenterCropPad", floats(2, 5, 4), steer(4, 3), axes=[-1, -2])


def indices() -> Iterator[Case]:
    c, x = make_case, floats(3, 4, 5)
    for axis in (0, 1, -1):
        yield c("Gather", x, whole([0, -1], [2, 1]), axis=axis, rows=axis != 0)
        yield c("GatherElements", x, whole([[0, -1], [2, 1]]), axis=axis, rows=False)
    yield c("Gather", x, Steer(np.array(-1)), axis=1)
    yield c("Gather", x, whole(1, 0, kind=np.int32), axis=2)
    yield c("GatherND", x, whole([0, 1], [-1, 2]), rows=False)
    yield c("GatherND", x, whole([0, 1, 2], [-1, 2, 3]), rows=False)
    yield c("GatherND", x, whole([1], [-1], [2]), batch_dims=1, rows=False)
    yield c("GatherND", x, whole([[1, 2]], [[-1, 0]], [[0, 3]]), batch_dims=1, rows=False)
    for how in ("none", "add", "mul", "max", "min"):
        places = whole([0, -1, 2])
        more: dict[str, Any] = {} if how == "none" else {"reduction": how}
        yield c("ScatterElements", floats(3, 4), places, floats(1, 3), axis=1, rows=False, **more)
        yield c("ScatterND", x, whole([0], [-1]), floats(2, 4, 5), rows=False, **more)
        yield c("ScatterND", x, whole([[0, 1], [-1, 2]]), floats(1, 2, 5), rows=False, **more)
    yield c(
        "ScatterElements",
        floats(3, 4),
        whole([0, 0]),
        floats(1, 2),
        reduction="add",
        axis=1,
        rows=False,
    )
    for axis in (-1, 0, 1):
        yield c("OneHot", whole([0, -1], [3, 5]), scalar(4, np.int64), floats(2), axis=axis)
    yield c("NonZero", np.array([[1, 0], [2, 3]], np.float32))
    yield c("Compress", x, np.array([True, False, True]), axis=1)
    yield c("Compress", x, np.array([False, True, True]), rows=False)
    yield c("ReverseSequence", floats(4, 3, 2), whole(4, 1, 2), rows=False)
    yield c("ReverseSequence", floats(3, 4), whole(4, 1, 2), time_axis=1, batch_axis=0, rows=False)


def shapes() -> Iterator[Case]:
    c, x = make_case, floats(2, 3, 4)
    yield c("Shape", x)
    yield c("Shape", x, start=1)
    yield c("Shape", x, start=-2, end=-1)
    yield c("Size", x)
    yield c("ConstantOfShape", steer(2, 3), rows=False)
    for value in (np.array([7], np.int64), np.array([1.5], np.float32)):
        tensor = numpy_helper.from_array(value)
        yield c("ConstantOfShape", steer(2, 0, 3), value=tensor, rows=False)
    for start, end, step in ((1, 7, 2), (5, -1, -2), (3, 1, 1)):
        arguments = (start, end, step)
        yield c("Range", *(scalar(each, np.int64) for each in arguments), rows=False)
        yield c("Range", *(scalar(each + 0.25) for each in arguments), rows=False)
    yield c("EyeLike", floats(3, 4))
    yield c("EyeLike", floats(3, 4), k=1, dtype=6)
    yield c("EyeLike", floats(4, 3), k=-2)
    for to in (1, 6, 7, 9, 11):
        yield c("Cast", np.array([-1.7, 0, 2.5], np.float32), to=to)
    yield c("Cast", whole(3, 0), to=1)
    yield c("CastLike", whole(3, 0), floats(1), rows=False)


def recurrent() -> Iterator[Case]:
    steps, batch, width, hidden = 4, 3, 2, 3
    for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):

        def make(
            directions: int,
            *more: Array | None,
            op: str = op,
            gates: int = gates,
            first: Array | None = None,
            **attributes: Any,
        ) -> Case:
            x = floats(steps, batch, width) if first is None else first
            w, r = (
                floats(directions, gates * hidden, width),
                floats(directions, gates * hidden, hidden),
            )
            return make_case(
                op,
                x,
                w,
                r,
                *more,
                hidden_size=hidden,
                rows=False,
                outputs=3 if op == "LSTM" else 2,
                **attributes,
            )

        ways = (("forward", 1), ("reverse", 1), ("bidirectional", 2))
        for direction, count_ in ways:
            bias = floats(count_, 2 * gates * hidden)
            start = floats(count_, batch, hidden)
            memory = [floats(count_, batch, hidden)] if op == "LSTM" else []
            lengths = whole(4, 2, 3, kind=np.int32)
            yield make(count_, direction=direction)
            yield make(count_, bias, None, start, *memory, direction=direction)
            yield make(count_, bias, lengths, start, *memory, direction=direction)
        yield make(1, floats(1, 2 * gates * hidden), clip=0.5)
    gates, hidden = 3, 3
    gru = floats(steps, batch, width), floats(1, 9, width), floats(1, 9, hidden), floats(1, 18)
    yield make_case("GRU", *gru, hidden_size=hidden, linear_before_reset=1, outputs=2, rows=False)
    yield make_case(
        "GRU",
        *gru,
        hidden_size=hidden,
        activations=["HardSigmoid", "LeakyRelu"],
        activation_alpha=[0.3, 0.2],
        activation_beta=[0.4],
        outputs=2,
        rows=False,
    )
    for pair in (["HardSigmoid", "Elu"], ["softplus", "Softsign"], ["Elu", "Relu"]):
        yield make_case("GRU", *gru, hidden_size=hidden, activations=pair, outputs=2, rows=False)
    lstm = floats(steps, batch, width), floats(1, 12, width), floats(1, 12, hidden), floats(1, 24)
    none = (None, None, None)
    yield make_case("LSTM", *lstm, *none, floats(1, 9), hidden_size=hidden, outputs=3, rows=False)
    yield make_case("LSTM", *lstm, hidden_size=hidden, input_forget=1, outputs=3, rows=False)
