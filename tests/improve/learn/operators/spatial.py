"""Cases of convolutions, pools and Resize."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from tests.improve.learn.operators.case import (
    Array,
    Case,
    Steer,
    floats,
    make_case,
    steer,
)


def convolutions() -> Iterator[Case]:
    c = make_case
    yield c("Conv", floats(2, 3, 7), floats(4, 3, 3), floats(4), pads=[2, 0])
    yield c("Conv", floats(2, 4, 7, 6), floats(6, 2, 3, 2), group=2, strides=[2, 1])
    yield c("Conv", floats(2, 4, 7, 6), floats(4, 1, 3, 3), floats(4), group=4, pads=[1] * 4)
    yield c("Conv", floats(1, 2, 8, 9), floats(3, 2, 3, 3), dilations=[2, 3], pads=[1, 2, 3, 0])
    yield c("Conv", floats(2, 2, 4, 5, 4), floats(3, 2, 2, 3, 2), floats(3), pads=[1] * 6)
    for mode, size in product(("SAME_UPPER", "SAME_LOWER", "VALID"), (7, 8)):
        yield c("Conv", floats(2, 2, size, 6), floats(3, 2, 4, 3), auto_pad=mode, strides=[2, 3])
    t = "ConvTranspose"
    yield c(t, floats(2, 3, 5), floats(3, 2, 3), floats(2), strides=[2], pads=[1, 0])
    yield c(t, floats(2, 4, 4, 5), floats(4, 3, 3, 2), group=2, strides=[2, 3], dilations=[2, 1])
    yield c(
        t,
        floats(2, 3, 4, 4),
        floats(3, 2, 3, 3),
        floats(2),
        strides=[2, 2],
        pads=[1] * 4,
        output_padding=[1, 1],
    )
    yield c(t, floats(1, 2, 3, 3, 2), floats(2, 2, 2, 3, 2), floats(2), strides=[1, 2, 2])
    yield c(t, floats(1, 2, 4, 4), floats(2, 2, 3, 3), floats(2), strides=[2, 2], pads=[0, 0, 1, 2])
    yield c(t, floats(1, 2, 4, 4), floats(2, 2, 3, 3), strides=[3, 3], output_shape=[10, 12])
    yield c(
        t,
        floats(1, 2, 4, 4),
        floats(2, 2, 3, 3),
        floats(2),
        strides=[2, 2],
        output_shape=[8, 9],
        auto_pad="SAME_UPPER",
    )
    for mode in ("SAME_UPPER", "SAME_LOWER"):
        yield c(t, floats(2, 2, 4, 3), floats(2, 3, 4, 3), floats(3), strides=[2, 2], auto_pad=mode)
    yield c(
        t, floats(2, 2, 4), floats(2, 2, 3), floats(2), strides=[2], pads=[2, 2], output_padding=[1]
    )


def pools() -> Iterator[Case]:
    c, x = make_case, floats(2, 3, 8, 7)
    for op, up in product(("MaxPool", "AveragePool", "LpPool"), (0, 1)):
        yield c(op, x, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], ceil_mode=up)
        yield c(op, x, kernel_shape=[3, 3], strides=[3, 2], ceil_mode=up)
        yield c(op, floats(2, 3, 9), kernel_shape=[3], strides=[2], pads=[0, 1], ceil_mode=up)
        yield c(op, floats(1, 2, 5, 4, 6), kernel_shape=[2, 3, 2], strides=[2, 1, 3], ceil_mode=up)
    for mode in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        yield c("MaxPool", x, kernel_shape=[4, 3], strides=[2, 2], auto_pad=mode)
        yield c("AveragePool", x, kernel_shape=[4, 3], strides=[2, 2], auto_pad=mode)
    for up, opset in product((0, 1), (18, 19, 22)):
        yield c(
            "AveragePool",
            x,
            kernel_shape=[3, 3],
            pads=[1, 1, 0, 1],
            count_include_pad=1,
            strides=[2, 3],
            ceil_mode=up,
            opset=opset,
        )
    yield c("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1)
    yield c("AveragePool", x, kernel_shape=[3, 2], dilations=[2, 3], pads=[2, 1, 0, 1], opset=19)
    yield c(
        "AveragePool",
        x,
        kernel_shape=[3, 2],
        dilations=[2, 3],
        pads=[2, 1, 0, 1],
        opset=19,
        count_include_pad=1,
    )
    yield c("MaxPool", x, kernel_shape=[3, 2], dilations=[2, 3], pads=[2, 1, 0, 1])
    yield c("MaxPool", x, kernel_shape=[1, 1], strides=[2, 2])
    yield c("MaxPool", x, kernel_shape=[2, 2], outputs=2)
    yield c("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 0, 1], outputs=2, dilations=[2, 1])
    yield c("MaxPool", x, kernel_shape=[2, 3], pads=[1, 1, 0, 2], outputs=2, storage_order=1)
    yield c(
        "MaxPool",
        np.arange(30, dtype=np.uint8).reshape(1, 1, 5, 6),
        kernel_shape=[2, 2],
        pads=[1] * 4,
    )
    yield c("LpPool", x, kernel_shape=[3, 3], p=3, strides=[2, 2])
    yield c("LpPool", x, kernel_shape=[2, 2], p=1, dilations=[2, 2])
    for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
        yield c(op, floats(2, 3, 5))
        yield c(op, floats(2, 3, 5, 4))
    yield c("GlobalLpPool", floats(2, 3, 5, 4), p=3)
    places = np.array([[[[5, 7], [13, 15]]]])
    yield c(
        "MaxUnpool", floats(1, 1, 2, 2), places, kernel_shape=[2, 2], strides=[2, 2], rows=False
    )
    yield c(
        "MaxUnpool",
        floats(1, 1, 2, 2),
        places,
        steer(1, 1, 5, 5),
        kernel_shape=[2, 2],
        strides=[2, 2],
        rows=False,
    )


_TRANSFORMS = (
    "asymmetric half_pixel pytorch_half_pixel align_corners tf_half_pixel_for_nn "
    "half_pixel_symmetric"
)


def resizes() -> Iterator[Case]:
    def resize(
        x: Array,
        factors: Sequence[float] | None,
        sizes: Sequence[int] | None = None,
        region: Steer | None = None,
        **attributes: Any,
    ) -> Case:
        one = None if factors is None else steer(*factors, kind=np.float32)
        two = None if sizes is None else steer(*sizes)
        return make_case("Resize", x, region, one, *([] if two is None else [two]), **attributes)

    x = floats(2, 3, 4, 5)
    ways: tuple[tuple[Sequence[float] | None, Sequence[int] | None], ...] = (
        ((1, 1, 2, 3), None), ((1, 1, 0.6, 0.8), None), (None, (2, 3, 7, 3)), (None, (2, 3, 1, 1)),
        ((1, 1, 2.5, 1), None),
    )  # fmt: skip
    for transform, (factors, sizes) in product(_TRANSFORMS.split(), ways):
        how: dict[str, Any] = {"coordinate_transformation_mode": transform, "rows": sizes is None}
        opset = 19 if transform == "half_pixel_symmetric" else 18
        for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
            yield resize(x, factors, sizes, nearest_mode=rounding, opset=opset, **how)
        if transform == "tf_half_pixel_for_nn":
            continue
        yield resize(x, factors, sizes, mode="linear", opset=opset, **how)
        yield resize(x, factors, sizes, mode="cubic", opset=opset, **how)
        yield resize(
            x,
            factors,
            sizes,
            mode="cubic",
            exclude_outside=1,
            cubic_coeff_a=-0.5,
            opset=opset,
            **how,
        )
    for factors, sizes in ways:
        region = steer(0, 0, 0.2, -0.1, 1, 1, 0.7, 1.3, kind=np.float32)
        how = {"coordinate_transformation_mode": "tf_crop_and_resize", "rows": False}
        for mode in ("nearest", "linear", "cubic"):
            yield resize(x, factors, sizes, region, mode=mode, extrapolation_value=9.0, **how)
    yield resize(x, (2.0, 3.0), axes=[2, 3], mode="linear")
    yield resize(x, (3.0, 2.0), axes=[3, 2], mode="linear")
    for policy in ("not_larger", "not_smaller"):
        yield resize(x, None, (7, 8), axes=[2, 3], keep_aspect_ratio_policy=policy)
        yield resize(x, None, (3, 3), axes=[2, 3], keep_aspect_ratio_policy=policy, mode="linear")
    for mode in ("linear", "cubic"):
        yield resize(x, (1, 1, 0.6, 0.5), mode=mode, antialias=1)
        yield resize(x, None, (2, 3, 3, 2), mode=mode, antialias=1, rows=False)
        yield resize(x, (1, 1, 2.0, 0.7), mode=mode, antialias=1, exclude_outside=1)
    yield resize(floats(2, 3, 5), (1, 1, 1.7), mode="linear")
    yield resize(floats(1, 2, 3, 4, 3), (1, 1, 2, 0.5, 2), mode="linear")
    yield resize(floats(6, 5), (2, 0.6), mode="linear", rows=False)
    grid = floats(2, 3, 4, 2, low=-1.3, high=1.3)
    for mode, padding, aligned in product(
        ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (0, 1)
    ):
        yield make_case(
            "GridSample",
            x,
            grid,
            mode=mode,
            padding_mode=padding,
            align_corners=aligned,
            rows=False,
            opset=16,
        )
    yield make_case("GridSample", x, grid, mode="linear", opset=20, rows=False)
