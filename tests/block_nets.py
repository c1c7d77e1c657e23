"""Small models with weights to be stored in blocks: a dense net, a decoder with a tied table."""

from __future__ import annotations

import numpy as np
import onnx

from tests.models import ModelBuilder

WIDTH, WORDS = 64, 50


def dense_net(opset: int = 17) -> onnx.ModelProto:
    """Three layers: a ragged last block and a block of zeros, no bias, a turned weight."""
    b = ModelBuilder(opset)
    x = b.input("x", ["batch", 100])
    first = b.random.normal(0, 0.1, (100, WIDTH)).astype(np.float32)
    first[:32, 3] = 0
    b.node("MatMul", x, b.constant(first), out="a", name="first")
    b.node("Add", "a", b.weight(WIDTH), out="b")
    b.node("Relu", "b", out="c", name="relu")
    b.node("MatMul", "c", b.weight(WIDTH, 48), out="d", name="second")
    b.node("Tanh", "d", out="e", name="tanh")
    b.node("Gemm", "e", b.weight(10, 48), b.weight(10), out="y", name="third", transB=1)
    b.output("y")
    return b.build()


def decoder(opset: int = 17, *, beside: float = 0.0) -> onnx.ModelProto:
    """Look words up, one layer for each position, and multiply with the same table.

    Where ``beside`` is given, an input ``x`` times that is in the place of the layer.
    """
    b = ModelBuilder(opset)
    table = b.constant(b.random.normal(0, 1, (WORDS, WIDTH)).astype(np.float32), "table")
    ids = b.input("ids", ["batch", "length"], onnx.TensorProto.INT64)
    b.node("Gather", table, ids, out="words", name="words")
    if not beside:
        b.node("MatMul", "words", b.weight(WIDTH, WIDTH), out="hidden", name="layer")
    else:
        factor = b.constant(np.array(beside, np.float32), "factor")
        b.node("Mul", b.input("x", ["batch", "length", WIDTH]), factor, out="hidden", name="layer")
    b.node("Add", "words", "hidden", out="sum", name="residual")
    b.node("Transpose", table, out="turned", name="turn", perm=[1, 0])
    b.node("MatMul", "sum", "turned", out="scores", name="head")
    b.output("scores")
    return b.build()
