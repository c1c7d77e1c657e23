"""Random networks of everything that normalization rewrites: results and names stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from intact.graph import normalize
from tests.graph.test_normalize import assert_same_results
from tests.models import OPSETS, ModelBuilder

Step = Callable[[ModelBuilder, str], str]


def _pad(b: ModelBuilder, x: str) -> str:
    return b.node("Pad", x, b.ints(0, 0, 1, 0, 0, 0, 0, 1), b.scalar(0))


def _shrink(b: ModelBuilder, x: str) -> str:
    return b.node("Slice", x, b.ints(0, 0), b.ints(6, 6), b.ints(2, 3))


def _there_and_back(b: ModelBuilder, x: str) -> str:
    return b.node("Transpose", b.node("Transpose", x, perm=[0, 2, 3, 1]), perm=[0, 3, 1, 2])


def _turn(b: ModelBuilder, x: str) -> str:
    return b.node("Transpose", x, perm=[0, 1, 3, 2])


def _odd_add(b: ModelBuilder, x: str) -> str:
    return b.node("Add", x, b.constant(np.full((1, 4, 1, 1), 1e-12, dtype=np.float32)))


def _same_conv(b: ModelBuilder, x: str) -> str:
    return b.node("Conv", x, b.weight(4, 4, 2, 2), auto_pad="SAME_LOWER")


def _squeeze_excite(b: ModelBuilder, x: str) -> str:
    return b.node("Mul", x, b.node("Sigmoid", b.mean(x, [3, 2], keepdims=1)))


def _scaled(op_type: str, *shape: int) -> Step:
    return lambda b, x: b.node(op_type, x, b.constant(b.random.uniform(0.5, 2, shape).astype("f4")))


def _transposed(group: int) -> Step:
    pads = [1] * 4
    return lambda b, x: b.node(
        "ConvTranspose", x, b.weight(4, 4 // group, 3, 3), group=group, pads=pads
    )


def _filled(b: ModelBuilder, x: str) -> str:
    sizes = b.node("Concat", b.ints(4), b.ints(4, 1, 1), axis=0)
    value = numpy_helper.from_array(np.array([0.25], np.float32))
    return b.node("Conv", x, b.node("ConstantOfShape", sizes, value=value))


def _captured(b: ModelBuilder, x: str) -> str:
    """An If whose branches read a value of the graph around it."""
    total = b.node("ReduceMax", x, keepdims=0)
    out = f"if_{total}"
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, [x], [f"{op}_{out}"], name=f"{op}_{out}")],
            name,
            [],
            [helper.make_tensor_value_info(f"{op}_{out}", TensorProto.FLOAT, None)],
        )
        for name, op in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    return b.node("If", b.node("Greater", total, b.scalar(0.1)), out=out, **branches)


STEPS: list[Step] = [
    lambda b, x: b.conv(x, 4, 4),
    lambda b, x: b.conv(x, 4, 4, group=4, bias=False),
    lambda b, x: b.batch_norm(x, 4),
    lambda b, x: b.node("Relu", x),
    lambda b, x: b.clip(x, -1, 1),
    lambda b, x: b.node("Identity", x),
    lambda b, x: b.node("Dropout", x),
    lambda b, x: b.node("Mul", x, b.scalar(1)),
    _pad,
    _shrink,
    _there_and_back,
    _turn,
    _odd_add,
    _same_conv,
    _squeeze_excite,
    _scaled("Mul", 4, 1, 1),
    _scaled("Add", 1, 4, 1, 1),
    _scaled("Sub", 1),
    _transposed(1),
    _transposed(2),
    _transposed(4),
    lambda b, x: b.conv(x, 4, 4, group=2),
    lambda b, x: b.node("Sum", x, x),
    lambda b, x: b.node("Sum", b.scalar(0), x),
    lambda b, x: b.node("Sub", b.scalar(1), x),
    _filled,
    _captured,
]


def _gemm(*bias: int, **attributes: Any) -> Step:
    return lambda b, x: b.node("Gemm", x, b.weight(4, 4), b.weight(*bias), **attributes)


def _plus(*shape: int) -> Step:
    return lambda b, x: b.node("Add", b.constant(b.random.normal(size=shape).astype("f4")), x)


DENSE_STEPS: list[Step] = [
    lambda b, x: b.node("MatMul", x, b.weight(4, 4)),
    lambda b, x: b.node("MatMul", x, x),  # four samples of four numbers
    lambda b, x: b.node("MatMul", b.weight(4, 4), x),
    lambda b, x: b.node("Gemm", x, b.weight(4, 4), transB=1, alpha=0.5),
    lambda b, x: b.node("Gemm", b.weight(4, 4), x, b.weight(4, 1), alpha=0.5, beta=2.0),
    lambda b, x: b.node("Gemm", x, b.weight(4, 4), x, beta=0.5),
    _gemm(4, beta=0.5),
    _gemm(1, 4, alpha=2.0),
    _gemm(4, 1),
    _gemm(1, 1, beta=3.0),
    _gemm(4, 4, transA=1),
    *(_plus(*shape) for shape in ((), (1,), (4,), (1, 4), (4, 1), (4, 4))),
    *(_scaled(op_type, 4) for op_type in ("Mul", "Sub", "Sum", "Add")),
    lambda b, x: b.batch_norm(x, 4),
    lambda b, x: b.node("Relu", x),
    lambda b, x: b.node("Transpose", x, perm=[1, 0]),
]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_networks(data: st.DataObject) -> None:
    check(data, STEPS, "image", ["batch", 4, 7, 7])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_dense_networks(data: st.DataObject) -> None:
    check(data, DENSE_STEPS, "vector", [4, 4])


def check(data: st.DataObject, steps: list[Step], name: str, shape: list[int | str]) -> None:
    """Build a network of random steps: normalized it gives the same, and nothing is left to do."""
    builder = ModelBuilder(data.draw(st.sampled_from(OPSETS)), seed=data.draw(st.integers(0, 9)))
    tensors = [builder.input(name, shape)]
    for step in data.draw(st.lists(st.sampled_from(steps), min_size=1, max_size=10)):
        source = data.draw(st.sampled_from(tensors[-3:]))
        tensors.append(step(builder, source))
    outputs = data.draw(st.sets(st.sampled_from(tensors[1:]), max_size=2)) | {tensors[-1]}
    for output in sorted(outputs):
        builder.output(output)
    model = builder.build()
    graph = normalize(model)
    assert {value.name for value in graph.outputs} == outputs
    assert_same_results(model, graph)
    assert normalize(graph.model).hash == graph.hash
