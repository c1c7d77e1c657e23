"""Composite operators, quantized and run in real runtimes: written out where these have none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import intact
from tests.models import ModelBuilder

Samples = Mapping[str, npt.NDArray[Any]]
MICROSOFT = "com.microsoft"


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def decoder() -> onnx.ModelProto:
    """Rows through RMSNormalization, Einsum, RotaryEmbedding and grouped, causal Attention."""
    b = ModelBuilder(23)
    x = b.input("x", [1, 6, 16])
    angles = rng().uniform(-3, 3, (1, 6, 4))
    tables = [b.constant(f(angles).astype(np.float32)) for f in (np.cos, np.sin)]
    x = b.node("MatMul", x, b.weight(16, 16))
    y = b.node("RMSNormalization", x, b.weight(16), name="rms")
    parts: list[str] = []
    for heads in (4, 2, 2):
        part = b.node(
            "Einsum", y, b.weight(16, heads, 8), equation="bsd,dhk->bhsk", name=f"to_{len(parts)}"
        )
        rotated = b.node("RotaryEmbedding", part, *tables, name=f"rotary_{len(parts)}")
        parts.append(rotated if len(parts) < 2 else part)
    z = b.node("Attention", *parts, is_causal=1, softcap=20.0, name="attention")
    z = b.node("Einsum", z, b.weight(4, 8, 16), equation="bhsk,hkd->bsd", name="from")
    b.node("Add", x, z, out="y", name="residual")
    b.output("y", [1, 6, 16])
    return b.build()


def encoder() -> onnx.ModelProto:
    """Rows through ONNX Runtime's own attention and normalizations."""
    b = ModelBuilder(17)
    b.domains[MICROSOFT] = 1
    x = b.input("x", ["batch", 6, 16])
    parts = [b.node("MatMul", x, b.weight(16, 16)) for _ in range(3)]
    bias = b.constant(rng().normal(0, 0.1, 48).astype(np.float32))
    y = b.node("MultiHeadAttention", *parts, bias, domain=MICROSOFT, num_heads=2, name="heads")
    y = b.node("MatMul", y, b.weight(16, 16))
    gamma = b.constant(rng().uniform(0.5, 1.5, 16).astype(np.float32))
    y = b.node("SkipLayerNormalization", y, x, gamma, domain=MICROSOFT, name="skip")
    z = b.node("MatMul", y, b.weight(16, 16))
    z = b.node("SkipSimplifiedLayerNormalization", z, y, gamma, domain=MICROSOFT, name="simple")
    b.node("MatMul", z, b.weight(16, 8), out="y")
    b.output("y", ["batch", 6, 8])
    return b.build()


def images() -> onnx.ModelProto:
    """Images through normalizations of instances and groups, and vectors of unit length."""
    b = ModelBuilder(21)
    x = b.conv(b.input("x", ["batch", 3, 8, 8]), 3, 6)
    x = b.node("InstanceNormalization", x, b.weight(6), b.weight(6), name="instance")
    x = b.conv(b.node("Relu", x), 6, 6)
    x = b.node("GroupNormalization", x, b.weight(6), b.weight(6), num_groups=2, name="group")
    x = b.node("Flatten", b.node("GlobalAveragePool", b.node("Relu", x)))
    x = b.node("LpNormalization", b.node("Gemm", x, b.weight(6, 8)), name="unit")
    norm = b.node("ReduceL2", x, b.ints(1), name="norm")
    b.node("Concat", x, norm, axis=1, out="y")
    b.output("y", ["batch", 9])
    return b.build()


ROWS = {"x": rng().normal(0, 1, (16, 6, 16)).astype(np.float32)}
IMAGES = {"x": rng().normal(0, 1, (16, 3, 8, 8)).astype(np.float32)}
PACKAGES = {"tflite": "ai_edge_litert", "openvino": "openvino", "ncnn": "ncnn"}


@pytest.mark.parametrize(
    ("make", "samples", "target", "left"),
    [
        (decoder, ROWS, "tflite", set()),
        (decoder, ROWS, "ncnn", set()),
        (decoder, ROWS, "onnxruntime", {"RMSNormalization", "RotaryEmbedding", "Attention"}),
        (decoder, ROWS, "openvino", {"RMSNormalization", "RotaryEmbedding", "Attention"}),
        (encoder, ROWS, "tflite", set()),
        (images, IMAGES, "tflite", set()),
        (images, IMAGES, "ncnn", {"InstanceNormalization", "GroupNormalization"}),
    ],
)
def test_it_runs_as_planned(
    make: Callable[[], onnx.ModelProto],
    samples: Samples,
    target: str,
    left: set[str],
    tmp_path: Path,
) -> None:
    if target in PACKAGES:
        pytest.importorskip(PACKAGES[target])
    model = make()
    result = intact.quantize(model, samples, target=target, method="minmax")
    given = {node.op_type for node in model.graph.node}
    kinds = {node.op_type for node in result.plan.graph.nodes}
    composites = given - {
        "Add",
        "Concat",
        "Conv",
        "Flatten",
        "Gemm",
        "GlobalAveragePool",
        "MatMul",
        "Relu",
    }
    assert kinds & composites == left
    result.save(tmp_path / "result")
    found = intact.verify(tmp_path / "result")
    # What the runtime computes in float between may round to the next code.
    assert all(layer.mismatches <= layer.values / 2000 for layer in found.layers)
    assert all(each.sqnr_db > 40 for each in found.outputs)  # floats between differ by bits
    wanted = intact.execute(model, samples, executor="float").outputs["y"]
    deployed = intact.execute(result, samples).outputs["y"]
    assert 10 * np.log10(np.square(wanted).sum() / np.square(deployed - wanted).sum()) > 20


def test_inspect_says_what_became_of_each(tmp_path: Path) -> None:
    found = intact.inspect(images(), target="tflite")
    assert set(found.given_nodes) >= {"instance", "group", "unit", "norm"}
    reasons = [node.reason for node in found.nodes if node.reason.startswith("a part of")]
    assert {text.split(":")[0].rpartition(" ")[2] for text in reasons} == {
        *("GroupNormalization", "InstanceNormalization", "LpNormalization", "ReduceL2"),
    }
    products = [n for n in intact.inspect(decoder(), target="onnxruntime").nodes if n.weight_bits]
    assert len(products) == 5
