"""Weights in blocks in LiteRT: int4 in dense layers and tables, rows quantized while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest

import intact
from intact.calibrate.scales.ranges import stored_scales
from intact.errors import ExportError, UsageError
from intact.formats.base.format import WrittenFiles
from intact.formats.tflite.run import Kernels
from intact.formats.tflite.verify import verify_tflite
from intact.formats.tflite.write import write_tflite
from intact.plan.inspection import inspect_plan
from intact.program.deployed import deployed_program
from intact.results.result import Result
from intact.targets import ScaleType, in_blocks, load_target
from tests.models import ModelBuilder

pytest.importorskip("ai_edge_litert")

WORDS, WIDTH = 50, 256


def _net() -> onnx.ModelProto:
    """A decoder with a tied table, and a layer with a bias whose sums no block parts."""
    b = ModelBuilder()
    table = b.constant(b.random.normal(0, 1, (WORDS, WIDTH)).astype(np.float32), "table")
    ids = b.input("ids", ["batch", 5], onnx.TensorProto.INT64)
    b.node("Gather", table, ids, out="words", name="words")
    b.node("MatMul", "words", b.weight(WIDTH, WIDTH), out="hidden", name="layer")
    b.node("Relu", "hidden", out="positive", name="relu")  # its rows have the zero point -128
    b.node("Transpose", table, out="turned", name="turn", perm=[1, 0])
    b.node("MatMul", "positive", "turned", out="scores", name="head")
    flat = b.node("Reshape", "scores", b.ints(-1, WORDS), name="flat")
    b.node("Gemm", flat, b.weight(7, WORDS), b.weight(7), transB=1, out="y", name="ragged")
    b.output("y")
    return b.build()


IDS = {"ids": np.random.default_rng(0).integers(0, WORDS, (3, 5))}


def _quantized(size: int = 32, **options: Any) -> Result:
    return intact.quantize(_net(), target="tflite-xnnpack", block=size, **options)


def _content(result: Result) -> bytes:
    written = result.exports["tflite"]
    assert isinstance(written, WrittenFiles)
    (content,) = written.files.values()
    return content


@pytest.mark.parametrize(("size", "bits"), [(32, 4), (64, 3), (128, 4), (256, 2)])
def test_each_layer_computes_what_the_plan_says(size: int, bits: int) -> None:
    result = _quantized(size, weight_bits=bits)
    found = verify_tflite(result.plan, _content(result), [IDS], Kernels.XNNPACK)
    stored = [each for each in found.layers if each.operation.endswith("blocks")]
    assert len(stored) == 2 * 3  # the table, and two layers
    assert not any(each.mismatches for each in found.layers)
    assert [each.end for each in found.float_layers] == ["hidden", "scores"]
    assert not any(each.differs for each in found.float_layers)
    assert found.outputs_sqnr_db["y"] > 110


def test_a_table_is_in_the_file_once_and_as_half_bytes() -> None:
    codes = (WORDS + WIDTH) * WIDTH // 2
    scales, ragged = (2 * WORDS + WIDTH) * WIDTH // 32 * 2, 7 * WORDS * 4
    assert len(_content(_quantized())) < codes + scales + ragged + 4000


def test_a_changed_code_is_found() -> None:
    result = _quantized()
    content = bytearray(_content(result))
    weight = next(
        step.inputs[3]
        for step in deployed_program(result.plan).steps
        if step.name == "layer" and len(step.inputs) > 3
    )
    assert weight is not None
    assert weight.data is not None
    pairs = weight.data.reshape(-1, 2)[:64] & 0xF
    packed = (pairs[:, 0] | pairs[:, 1] << 4).astype(np.uint8).tobytes()
    assert content.count(packed) == 1
    content[content.index(packed)] ^= 1
    found = verify_tflite(result.plan, bytes(content), [IDS], Kernels.XNNPACK)
    assert [each.mismatches for each in found.layers if each.end == "layer.input[1]"] == [1, 0]


def test_scales_are_those_of_bfloat16_and_float16_alike() -> None:
    wide = np.float32(10) ** np.linspace(-12, 4, 400, dtype=np.float32)
    held = stored_scales(wide, ScaleType.BFLOAT16)
    np.testing.assert_array_equal(held, held.astype(np.float16))
    assert not (held.view(np.uint32) & 0xFFFF).any()
    assert (held > 0).all()
    normal = wide > 2.0**-14
    np.testing.assert_allclose(held[normal], wide[normal], rtol=2.0**-8)


def test_what_kernels_lack_stays_float() -> None:
    plan = _quantized().plan
    assert "no multiple of a block of 32" in plan.decisions["ragged"].reason
    assert plan.decisions["words"].reason.startswith("weights only: ")
    assert plan.decisions["layer"].quantized
    rows = {row.node: (row.block, row.weight_bits) for row in inspect_plan(plan).nodes}
    assert (rows["layer"], rows["words"], rows["ragged"]) == ((32, 4), (32, 4), (None, None))


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("tflite", {}, "give --target tflite-xnnpack"),
        ("tflite-xnnpack", {"block": 16}, "has blocks of 32, 64, 128 or 256"),
        ("tflite-xnnpack", {"weight_bits": 8}, "stores codes of 4 bits"),
        ("tflite-xnnpack", {"zero_points": True}, "have none"),
        ("tflite-xnnpack", {"activations": "float"}, "quantizes them beside blocks, unasked"),
    ],
)
def test_what_is_refused_is_said(target: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        intact.quantize(_net(), **{"target": target, "block": 32, **options})
    assert message in refused.value.with_flags


def test_kernels_that_compute_something_else_are_refused() -> None:
    plan = _quantized().plan
    target = msgspec.structs.replace(plan.target, kernels="ref")
    with pytest.raises(ExportError, match="reference kernels"):
        write_tflite(deployed_program(plan, float_operations=True), target=target)


def test_scales_beyond_float16_are_refused() -> None:
    net = _net()
    for each in net.graph.initializer:
        if list(each.dims) == [WIDTH, WIDTH]:
            large = onnx.numpy_helper.to_array(each) * np.float32(1e7)
            each.CopyFrom(onnx.numpy_helper.from_array(large, each.name))
    with pytest.raises(ExportError, match=r"layer.*no positive float16"):
        intact.quantize(net, target="tflite-xnnpack", block=32)


def test_narrow_codes_are_said_to_take_four_bits() -> None:
    notes = [str(note.message) for note in _quantized(bits={"layer": 3}).plan.notes]
    assert any("3-bit codes take 4 bits each" in note for note in notes)


def test_blocks_of_a_target_without_floats_need_no_flag(tmp_path: Path) -> None:
    asked = in_blocks(load_target("tflite-xnnpack"), 64, dynamic=True)
    assert asked == in_blocks(load_target("tflite-xnnpack"), 64)
    assert asked.activation.dynamic
    assert asked.activation.block is None
    result = _quantized(64)
    result.save(tmp_path)
    assert intact.load_result(tmp_path).plan.target == result.plan.target
