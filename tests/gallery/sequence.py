"""Signals, volumes and text: everything that is not an image."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx

from tests.gallery.layers import INT64, Layers

TOKENS, WIDTH, HEADS, VOCABULARY = 10, 32, 4, 50


def keyword_spotter() -> onnx.ModelProto:
    """One-dimensional residual convolutions over audio features."""
    b = Layers()
    x = b.relu(b.convolution(b.input("features", ("batch", 20, 40)), 20, 24, (5,), stride=2))
    for dilation in (1, 2):
        y = b.relu(b.convolution(x, 24, 24, (3,), group=24, dilation=dilation))
        y = b.relu(b.batch_norm(b.convolution(y, 24, 24, (1,)), 24))
        x = b.relu(b.node("Add", x, b.convolution(y, 24, 24, (3,), gain=0.7)))
    x = b.max_pool(x, 3, stride=2, rank=1)
    b.gemm(b.mean(x, [2], keepdims=0), 24, 12)
    return b.last_as("keywords", ("batch", 12))


def volume_net() -> onnx.ModelProto:
    """Three-dimensional convolutions over a scan, with pooling and a residual."""
    b = Layers()
    x = b.relu(b.convolution(b.input("scan", ("batch", 1, 8, 8, 8)), 1, 8, (3, 3, 3)))
    x = b.node("MaxPool", x, kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    y = b.relu(b.convolution(x, 8, 8, (3, 3, 3)))
    x = b.relu(b.node("Add", x, b.convolution(y, 8, 8, (1, 1, 1), gain=0.7)))
    x = b.node("AveragePool", x, kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    b.gemm(b.pooled(x), 8, 3)
    return b.last_as("logits", ("batch", 3))


def lstm_net() -> onnx.ModelProto:
    """Frames through a linear layer, a bidirectional LSTM and a linear layer."""
    return _recurrent("LSTM", gates=4)


def gru_net() -> onnx.ModelProto:
    """The same around a GRU."""
    return _recurrent("GRU", gates=3)


def _recurrent(op_type: str, *, gates: int) -> onnx.ModelProto:
    b = Layers()
    hidden, steps = 12, 8
    x = b.relu(b.linear(b.input("frames", ("batch", steps, 16)), 16, 24, gain=1.4))
    x = b.node("Transpose", x, perm=[1, 0, 2])
    weight = b.scaled_weight(2, gates * hidden, 24, fan_in=24)
    recurrence = b.scaled_weight(2, gates * hidden, hidden, fan_in=hidden)
    bias = b.scaled_weight(2, 2 * gates * hidden, fan_in=100)
    x = b.node(op_type, x, weight, recurrence, bias, hidden_size=hidden, direction="bidirectional")
    x = b.node("Reshape", b.node("Transpose", x, perm=[2, 0, 1, 3]), b.ints(0, 0, 2 * hidden))
    x = b.relu(b.linear(x, 2 * hidden, 24, gain=1.4))
    b.linear(x, 24, 6)
    return b.last_as("scores", ("batch", steps, 6))


def text_transformer() -> onnx.ModelProto:
    """Token ids and an attention mask; LayerNormalization as one operator."""
    return _text(one_operator=True)


def older_text_transformer() -> onnx.ModelProto:
    """The same with LayerNormalization written out."""
    return _text(one_operator=False)


def _text(*, one_operator: bool) -> onnx.ModelProto:
    b = Layers(17 if one_operator else 14)
    norm = b.layer_norm if one_operator else b.decomposed_layer_norm
    ids = b.input("input_ids", ("batch", TOKENS), INT64)
    mask = b.input("attention_mask", ("batch", TOKENS), INT64)
    words = b.constant(b.random.normal(size=(VOCABULARY, WIDTH)).astype(np.float32))
    positions = b.constant(b.random.normal(0, 0.3, (1, TOKENS, WIDTH)).astype(np.float32))
    x = norm(b.node("Add", b.node("Gather", words, ids), positions), WIDTH)
    visible = b.node("Cast", b.node("Unsqueeze", mask, b.ints(1, 2)), to=1)
    bias = b.node("Mul", b.node("Sub", b.scalar(1), visible), b.scalar(-1e9))
    for _ in range(2):
        y = b.attention(x, TOKENS, WIDTH, HEADS, bias)
        x = norm(b.node("Add", x, y), WIDTH)
        y = b.gelu(b.linear(x, WIDTH, 2 * WIDTH))
        x = norm(b.node("Add", x, b.linear(y, 2 * WIDTH, WIDTH)), WIDTH)
    first = b.node("Gather", x, b.constant(np.int64(0)), axis=1)
    pooled = b.node("Tanh", b.gemm(first, WIDTH, WIDTH))
    b.gemm(pooled, WIDTH, 3)
    return b.last_as("logits", ("batch", 3))


def sentences(count: int, seed: int) -> Mapping[str, npt.NDArray[np.int64]]:
    """Token ids without padding."""
    return _sentences(count, seed, padded=False)


def padded_sentences(count: int, seed: int) -> Mapping[str, npt.NDArray[np.int64]]:
    """Token ids of sentences of different lengths, the rest masked."""
    return _sentences(count, seed, padded=True)


def _sentences(count: int, seed: int, *, padded: bool) -> Mapping[str, npt.NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    ids = random.integers(1, VOCABULARY, (count, TOKENS))
    lengths = random.integers(4, TOKENS + 1, (count, 1)) if padded else np.full((count, 1), TOKENS)
    mask = (np.arange(TOKENS) < lengths).astype(np.int64)
    return {"input_ids": ids * mask, "attention_mask": mask}


def einsum_attention() -> onnx.ModelProto:
    """Attention written with Einsum, between linear layers."""
    b = Layers()
    x = b.input("tokens", ("batch", TOKENS, WIDTH))
    parts = []
    for _ in range(3):
        part = b.node("Reshape", b.linear(x, WIDTH, WIDTH), b.ints(0, TOKENS, HEADS, -1))
        parts.append(part)
    query, key, value = parts
    scores = b.node("Einsum", query, key, equation="bqhd,bkhd->bhqk")
    scores = b.node("Softmax", b.node("Mul", scores, b.scalar(HEADS**0.5 / WIDTH**0.5)), axis=-1)
    mixed = b.node("Einsum", scores, value, equation="bhqk,bkhd->bqhd")
    mixed = b.linear(b.node("Reshape", mixed, b.ints(0, TOKENS, WIDTH)), WIDTH, WIDTH)
    b.linear(b.relu(b.node("Add", x, mixed)), WIDTH, 6)
    return b.last_as("tags", ("batch", TOKENS, 6))


def similarity() -> onnx.ModelProto:
    """Two encoded sets compared by a MatMul of activations, as in matching and retrieval."""
    b = Layers()
    sides = []
    for name in ("left", "right"):
        x = b.relu(b.linear(b.input(name, ("batch", 6, 16)), 16, 32, gain=1.4))
        sides.append(b.linear(x, 32, 16))
    turned = b.node("Transpose", sides[1], perm=[0, 2, 1])
    scores = b.node("MatMul", sides[0], turned, out="scores")
    weights = b.node("Softmax", b.node("Mul", scores, b.scalar(0.25)), axis=-1)
    b.linear(b.node("MatMul", weights, sides[1]), 16, 8, out="aligned")
    b.output("scores", ["batch", 6, 6])
    b.output("aligned", ["batch", 6, 8])
    return b.build()


def two_towers() -> onnx.ModelProto:
    """An image and a vector of features meet; four outputs of ranks 2 to 4, one of them inner."""
    b = Layers()
    image = b.input("image", ("batch", 3, 12, 12))
    features = b.input("features", ("batch", 10))
    maps = b.relu(b.convolution(image, 3, 12, stride=2))
    b.convolution(maps, 12, 2, (1, 1), gain=1, out="heat")
    seen = b.relu(b.gemm(b.pooled(maps), 12, 16, gain=1.4))
    told = b.relu(b.gemm(features, 10, 16, gain=1.4))
    both = b.node("Concat", seen, told, axis=1, out="joint")
    b.gemm(both, 32, 5, out="logits")
    grid = b.node("Reshape", b.gemm(both, 32, 24), b.ints(-1, 4, 6), out="grid")
    b.output("heat", ["batch", 2, 6, 6])
    b.output("joint", ["batch", 32])
    b.output("logits", ["batch", 5])
    b.output(grid, ["batch", 4, 6])
    return b.build()
