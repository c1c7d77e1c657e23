"""Caches of decoders that hold codes, in ONNX Runtime: GroupQueryAttention, and Concat."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest

import intact
from benchmarks.text_nets import DecoderSizes, decoder, random_weights
from intact import demo
from intact.formats.onnx_qdq.cache_codes import CachePort, cache_ports
from intact.plan.caches import cache_points
from intact.results.result import Result
from tests.command_lines import refused
from tests.texts import saved

pytestmark = pytest.mark.filterwarnings("ignore::intact.IntactWarning")  # of times

SIZES = DecoderSizes(
    vocabulary=50, hidden=64, layers=2, heads=4, key_heads=2, inner=24, longest=4096
)
IDS = np.random.default_rng(0).integers(4, 50, (8, 12))
Feeds = dict[str, npt.NDArray[Any]]
Quantize = Callable[..., Result]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same decoder with its attention as one operator, and written out."""
    found = {}
    for form in ("builder", "exported"):
        folder = tmp_path_factory.mktemp(form)
        found[form] = saved(decoder(SIZES, random_weights(SIZES), form), folder)
    return found


@pytest.fixture(scope="module")
def quantized(models: dict[str, Path]) -> Quantize:
    made: dict[tuple[Any, ...], Result] = {}

    def quantize(form: str, bits: int, scales: str) -> Result:
        key = form, bits, scales
        if key not in made:
            made[key] = intact.quantize(
                models[form],
                IDS,
                context=12,
                cache_bits=bits,
                cache_scales=scales,
                activations="float",
                preset="fast",
            )
        return made[key]

    return quantize


KINDS = [
    ("builder", 8, "channel"),
    ("builder", 4, "tensor"),
    ("exported", 8, "channel"),
]


@pytest.mark.parametrize(("form", "bits", "scales"), KINDS)
def test_the_runtime_keeps_the_codes_of_the_plan(
    quantized: Quantize, form: str, bits: int, scales: str, tmp_path: Path
) -> None:
    result = quantized(form, bits, scales)
    result.save(tmp_path / "out")
    found = intact.verify(tmp_path / "out", IDS, context=12, samples=3)
    codes = [each for each in found.layers if "cache of" in each.operation]
    assert len(codes) == 4
    assert all(each.values == 3 * 12 * 2 * 16 and each.mismatches == 0 for each in codes)
    attentions = [each for each in found.float_layers if "Attention" in each.operation]
    assert len(attentions) == (2 if form == "builder" else 0)
    assert not any(each.differs for each in attentions)
    widths = [point.config.bits for point in cache_points(Result.load(tmp_path / "out").plan)]
    assert widths == [bits] * 4


@pytest.mark.parametrize(("form", "bits", "scales"), KINDS)
def test_codes_of_earlier_runs_are_read_again(
    quantized: Quantize, form: str, bits: int, scales: str
) -> None:
    """A text at once, and its last tokens behind the caches of the first, are the same."""
    model = quantized(form, bits, scales).exported.model
    session = ort.InferenceSession(_bytes(quantized(form, bits, scales)))
    ports = cache_ports(model)
    kind, size = ("int8", 16) if bits == 8 else ("uint8", 8)
    inputs = {each.name: each for each in session.get_inputs()}
    assert {inputs[name].type for name in ports if name in inputs} == {f"tensor({kind})"}
    empty = {n: np.zeros((1, 2, 0, size), kind) for n in ports if n in inputs}
    whole = _run(session, IDS[:1], 0, empty)
    first = _run(session, IDS[:1, :9], 0, empty)
    behind = {name: first[name.replace("past_key_values", "present")] for name in empty}
    second = _run(session, IDS[:1, 9:], 9, behind)
    for name in (each for each in ports if each not in inputs):
        at_once, in_turn = (ports[name].to_floats(each[name]) for each in (whole, second))
        # A number between two codes may get the other one: sums are taken in another order.
        apart = np.abs(at_once - in_turn) / ports[name].scale
        assert (apart > 0.5).mean() < 0.02
        assert apart.max() < 1.5
    np.testing.assert_allclose(second["logits"], whole["logits"][:, 9:], atol=0.05)


def test_keys_far_behind_calibration_are_not_clipped(
    models: dict[str, Path], quantized: Quantize
) -> None:
    """Calibration saw 12 places; the same words stand at place 3000 and behind it."""
    result = quantized("builder", 8, "channel")
    exact = ort.InferenceSession(models["builder"])
    session, ports = ort.InferenceSession(_bytes(result)), cache_ports(result.exported.model)
    names = [each.name for each in session.get_inputs() if each.name in ports]
    past = 3000
    for row in IDS:
        zeros = {name: np.zeros((1, 2, past, 16), np.float32) for name in names}
        codes = {name: np.zeros((1, 2, past, 16), np.int8) for name in names}
        wanted = _run(exact, row[None, :1], past, zeros)["present.0.key"][:, :, past:]
        found = _run(session, row[None, :1], past, codes)["present.0.key"][:, :, past:]
        port = ports["present.0.key"]
        error = np.abs(port.to_floats(found) - wanted)
        assert (error <= 0.5001 * port.scale).all()


def test_a_result_says_what_its_caches_take(quantized: Quantize, tmp_path: Path) -> None:
    result = quantized("builder", 4, "tensor")
    notes = [note.message for note in result.plan.notes]
    assert any(note.startswith("4 caches hold codes of 4 bits: 64 bytes a token instead of 512")
               for note in notes)  # fmt: skip
    result.save(tmp_path / "out")
    rows = [row for row in intact.inspect(tmp_path / "out").nodes if row.cache_bits]
    assert [row.cache_bits for row in rows] == [4, 4]
    assert rows[0].reason.startswith("caches only: ONNX Runtime keeps keys and values as codes")


def test_inputs_are_drawn_for_a_decoder_whose_caches_were_empty(
    quantized: Quantize, tmp_path: Path
) -> None:
    """Of an empty input nothing was seen: it was refused as one without a finite value."""
    quantized("builder", 8, "channel").save(tmp_path / "out")
    found = intact.verify(tmp_path / "out", samples=2)
    codes = [each for each in found.layers if "cache of" in each.operation]
    assert [each.values for each in codes] == [2 * 12 * 2 * 16] * 4
    assert not any(each.mismatches for each in codes)


@pytest.mark.parametrize("bits", [4, 8])
def test_between_two_codes_the_runtime_multiplies_by_the_reciprocal(bits: int) -> None:
    """At such numbers a quotient is rounded to the other code."""
    rng = np.random.default_rng(bits)
    scale = rng.uniform(0.01, 3, 16).astype(np.float32)
    highest = 2 ** (bits - 1) - 1
    halves = rng.integers(-highest, highest, (1, 4000, 16)) + 0.5
    values = np.nextafter((halves * scale).astype(np.float32), np.float32(rng.choice([-9e9, 9e9])))
    model, kind = _keeping_net(scale, bits), np.uint8 if bits == 4 else np.int8
    empty = np.zeros((1, 1, 0, 16 * bits // 8), kind)
    feeds = {"x": values, "last": np.array([3999], np.int32), "past_k": empty, "past_v": empty}
    session = ort.InferenceSession(model.SerializeToString())
    (kept,) = session.run(["now_k"], feeds)
    port = CachePort(scale.reshape(1, 1, 1, 16), bits)
    found = np.rint(port.to_floats(kept)[:, 0] / scale)
    by_reciprocal = np.clip(np.rint(values * (np.float32(1) / scale)), -highest - 1, highest)
    np.testing.assert_array_equal(found, by_reciprocal)
    quotients = np.clip(np.rint(values / scale), -highest - 1, highest)
    assert (quotients != by_reciprocal).any()


def _keeping_net(scale: npt.NDArray[np.float32], bits: int) -> onnx.ModelProto:
    """One GroupQueryAttention with a head of 16, whose caches hold codes."""
    model = _attention_net(size=16)
    graph, node = model.graph, model.graph.node[0]
    for value in (*list(graph.input)[2:], *list(graph.output)[1:]):
        tensor = value.type.tensor_type
        tensor.elem_type = onnx.TensorProto.UINT8 if bits == 4 else onnx.TensorProto.INT8
        tensor.shape.dim[3].dim_value = 16 * bits // 8
    graph.initializer.append(onnx.numpy_helper.from_array(scale.reshape(1, 1, 1, 16), "scale"))
    graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array(4000, np.int32), "total"))
    node.input.extend([""] * 5 + ["scale", "scale"])
    for name in ("k_quant_type", "v_quant_type"):
        node.attribute.append(onnx.helper.make_attribute(name, "PER_CHANNEL"))
    node.attribute.append(onnx.helper.make_attribute("kv_cache_bit_width", bits))
    return model


def test_packed_codes_come_back() -> None:
    codes = np.arange(-8, 8, dtype=np.float32).reshape(1, 1, 2, 8)
    port = CachePort(np.full((1, 1, 1, 8), 0.5, np.float32), 4)
    stored = port.to_codes(codes * 0.5)
    assert stored.dtype == np.uint8
    assert stored[0, 0, 0].tolist() == [0x10, 0x32, 0x54, 0x76]  # even channels in the low half
    np.testing.assert_array_equal(port.to_floats(stored), codes * 0.5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--target", "tflite", "--cache-bits", "8"],
            "target tflite keeps caches as floats; leave",
        ),
        (["--cache-bits", "5"], "target onnxruntime keeps caches in 4 or 8 bits; give 4 or 8"),
        (["--cache-scales", "tensor"], "is for caches of codes; give --cache-bits too"),
        (["--cache-bits", "4"], "joins codes of 8 bits only; give --cache-bits 8, or leave it out"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    models: dict[str, Path], capfd: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert said in refused(capfd, "inspect", str(models["exported"]), *options)


def _odd_heads() -> onnx.ModelProto:
    """A decoder without rotation, whose heads have three numbers."""
    return _attention_net(size=3)


def _other_caches() -> onnx.ModelProto:
    """A decoder whose caches have other heads than its keys."""
    return _attention_net(size=4, kept=2)


def _attention_net(size: int, kept: int = 1) -> onnx.ModelProto:
    helper, kinds = onnx.helper, onnx.TensorProto
    caches = [
        helper.make_tensor_value_info(name, kinds.FLOAT, [1, kept, open_, size])
        for name, open_ in (("past_k", "p"), ("past_v", "p"), ("now_k", "t"), ("now_v", "t"))
    ]
    x = helper.make_tensor_value_info("x", kinds.FLOAT, [1, "n", size])
    last = helper.make_tensor_value_info("last", kinds.INT32, [1])
    y = helper.make_tensor_value_info("y", kinds.FLOAT, [1, "n", size])
    node = helper.make_node(
        "GroupQueryAttention",
        ["x", "x", "x", "past_k", "past_v", "last", "total"],
        ["y", "now_k", "now_v"],
        name="attention",
        domain="com.microsoft",
        num_heads=1,
        kv_num_heads=1,
    )
    total = onnx.numpy_helper.from_array(np.array(4, np.int32), "total")
    graph = helper.make_graph(
        [node], "net", [x, last, *caches[:2]], [y, *caches[2:]], initializer=[total]
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize(
    ("make", "bits", "said"),
    [
        (_odd_heads, "4", "a head has 3 numbers, and a byte two codes of 4 bits; give"),
        (_other_caches, "8", "its caches are no inputs and outputs [batch, heads, places, size]"),
        (lambda: onnx.load(demo.model_path()), "8", "the model has no cache"),
    ],
)
def test_models_without_such_caches_are_refused(
    make: Callable[[], onnx.ModelProto],
    bits: str,
    said: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    onnx.save(make(), tmp_path / "model.onnx")
    assert said in refused(capfd, "inspect", str(tmp_path / "model.onnx"), "--cache-bits", bits)


def test_caches_in_float_stay_so_beside_others(models: dict[str, Path]) -> None:
    found = intact.inspect(
        models["builder"], cache_bits=8, keep_float=["/model/layers.0/attn/GroupQueryAttention"]
    )
    bits = [row.cache_bits for row in found.nodes if row.op_type == "GroupQueryAttention"]
    assert bits == [None, 8]


def _run(session: ort.InferenceSession, ids: Any, past: int, caches: Feeds) -> Feeds:
    count = ids.shape[1]
    known = {
        "input_ids": np.asarray(ids, np.int64),
        "attention_mask": np.ones((1, past + count), np.int64),
        "position_ids": np.arange(past, past + count)[None],
        **caches,
    }
    feeds = {each.name: known[each.name] for each in session.get_inputs()}
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def _bytes(result: Result) -> bytes:
    message = result.exported.message
    assert message is not None
    return message
