"""Tensors inside of a kernel are left out, so that those around it can be compared."""

from __future__ import annotations

import onnx_ir as ir

from intact.formats.openvino.run import ExecutedNode
from intact.formats.openvino.verify import _between
from tests.models import ModelBuilder


def kernel(*layers: str, kind: str = "Eltwise") -> ExecutedNode:
    return ExecutedNode(frozenset(layers), kind, "i8", "jit_avx512_i8")


def test_what_lies_between_the_layers_of_a_kernel_that_falls_apart_is_inside_of_it() -> None:
    b = ModelBuilder()
    x = b.input("x", ["n", 4])
    before = b.node("Relu", x, name="before", out="in_front")
    y = b.node("Mul", before, b.scalar(2.0), name="product", out="product_out")
    for name in ("first", "second"):
        y = b.node("Add", y, b.scalar(1.0), name=name, out=f"{name}_out")
    y = b.node("Add", y, b.scalar(1.0), name="rounded", out="rounded_out")
    b.output(b.node("Relu", y, name="behind", out="end"))
    b.output(b.node("Neg", before, name="beside", out="beside_out"))
    graph = ir.serde.deserialize_model(b.build()).graph
    whole = [kernel("before"), kernel("product", "rounded"), kernel("behind")]
    apart = [kernel("before"), kernel("product"), kernel("rounded"), kernel("behind")]
    assert _between(graph, whole, whole) == set()
    inside = {"product_out", "first_out", "second_out", "rounded_out"}
    assert _between(graph, whole, apart) == inside
