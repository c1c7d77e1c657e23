"""Keys of caches in a basis of their own: the model computes the same, and few bits lose less."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

import intact
from benchmarks.text_nets import DecoderSizes, decoder, random_weights
from intact.analyze.diagnose.runtime import faster
from intact.errors import PlanError, UsageError
from intact.formats.onnx_qdq.write import write_qdq
from intact.graph import normalize
from intact.graph.key_basis import (
    Basis,
    Steps,
    change_bases,
    outputs_in_bases,
    steps_of,
    takes_offset,
    turns_of,
)
from intact.graph.metadata import STEPS_KEY
from intact.graph.ops import input_value
from intact.graph.passes.expand_places import rotate_apart
from intact.plan.caches import cache_points
from intact.plan.plan_file import load_plan, plan_to_json, save_plan
from intact.results.result import Result
from tests.block_nets import dense_net
from tests.improve.refine.test_rounding_blocks import mixed
from tests.texts import saved

pytestmark = pytest.mark.filterwarnings("ignore::intact.IntactWarning")  # of times

SIZES = DecoderSizes(
    vocabulary=50, hidden=64, layers=2, heads=4, key_heads=2, inner=24, longest=4096
)
IDS = np.random.default_rng(0).integers(4, 50, (8, 24))
NODE = "/model/layers.{}/attn/GroupQueryAttention"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder with large key channels that small queries read, and some that hardly count."""
    weights = dict(random_weights(SIZES))
    for name, array in weights.items():
        if name.endswith((".k", ".q")):
            factor = (0.6 ** (np.arange(array.shape[1]) % 8)).astype(np.float32)
            factor[3::16] = 20.0 if name.endswith(".k") else 0.2
            weights[name] = array * factor
    return saved(decoder(SIZES, weights, "builder"), tmp_path_factory.mktemp("rotated"))


def _quantized(model: Path, **options: Any) -> Result:
    given: dict[str, Any] = {"cache_bits": 4, "activations": "float", **options}
    return intact.quantize(model, IDS, context=24, **given)


@pytest.fixture(scope="module")
def rotated(model: Path) -> Result:
    return _quantized(model)


def _run(model: ir.Model | Path, ids: Any, past: int, caches: dict[str, Any]) -> Any:
    source = str(model) if isinstance(model, Path) else ir.to_proto(model).SerializeToString()
    session = ort.InferenceSession(source)
    known = {
        "input_ids": np.asarray(ids, np.int64),
        "attention_mask": np.ones((1, past + ids.shape[1]), np.int64),
        **caches,
    }
    for each in session.get_inputs():
        known.setdefault(each.name, np.zeros((1, 2, 0, 16), np.float32))
    names = [each.name for each in session.get_outputs()]
    feeds = {each.name: known[each.name] for each in session.get_inputs()}
    return dict(zip(names, session.run(names, feeds), strict=True))


def test_few_bits_lose_less_and_the_preset_does_it_by_itself(model: Path, rotated: Result) -> None:
    record = rotated.plan.provenance.improvements[0]
    assert record.name == "rotate"
    assert record.kept
    assert record.after > record.before + 3
    assert [gain.node for gain in record.gains] == [NODE.format(0), NODE.format(1)]
    assert all(gain.kept and gain.after > gain.before + 3 for gain in record.gains)
    assert not _quantized(model, preset="fast").plan.provenance.improvements


def test_what_the_model_gives_stays_in_one_run_and_in_two(model: Path, rotated: Result) -> None:
    changed = rotated.plan.graph.model
    wanted = _run(model, IDS[:1], 0, {})["logits"]
    np.testing.assert_allclose(_run(changed, IDS[:1], 0, {})["logits"], wanted, atol=2e-4)
    first = _run(changed, IDS[:1, :9], 0, {})
    kept = {n.replace("present", "past_key_values"): a for n, a in first.items() if "present" in n}
    second = _run(changed, IDS[:1, 9:], 9, kept)["logits"]
    np.testing.assert_allclose(second, wanted[:, 9:], atol=2e-4)
    assert outputs_in_bases(rotated.plan.graph) == set(first) - {"logits"}


def test_the_runtime_keeps_the_codes_of_the_plan(rotated: Result, tmp_path: Path) -> None:
    rotated.save(tmp_path / "out")
    found = intact.verify(tmp_path / "out", IDS, context=24, samples=3)
    codes = [each for each in found.layers if "cache of" in each.operation]
    assert len(codes) == 4
    assert [each.mismatches for each in codes] == [0] * 4
    assert not [each for each in found.float_layers if each.differs]
    # Another processor may give a number between two codes the other one.
    assert min(found.outputs_sqnr_db.values()) > 20


def test_ranges_hold_at_places_that_no_sample_has(rotated: Result) -> None:
    """Calibration saw 24 places; the same words stand at place 3,000 and behind it."""
    past = 3000
    caches = {
        f"past_key_values.{layer}.{kind}": np.zeros((1, 2, past, 16), np.float32)
        for layer in range(2)
        for kind in ("key", "value")
    }
    found = _run(rotated.plan.graph.model, IDS[:1], past, caches)
    for point in cache_points(rotated.plan):
        if point.cache.new != 1:
            continue
        params, (_, highest) = point.config.params, point.config.grid.code_ends
        assert params is not None
        kept = found[point.cache.ports[1]][0, :, past:].transpose(1, 0, 2).reshape(-1, 32)
        ranges = np.broadcast_to(highest, 32)
        codes = np.abs(kept / params.scale)[:, ranges > 0]
        ranges = ranges[ranges > 0]
        assert (codes > ranges + 1.5).mean() < 0.01
        assert (codes / ranges).max() > 0.5  # and they are no wider than they need be


def test_keys_are_turned_as_the_tables_say(rotated: Result) -> None:
    """At place 0 nothing is turned, and tables have other angles elsewhere."""
    node = next(n for n in rotated.plan.graph.nodes if n.op_type == "RotaryEmbedding")
    turns = turns_of(node.outputs[0], 16)
    assert turns is not None
    cosines, sines = turns.at([0])
    np.testing.assert_array_equal(cosines, np.ones((1, 16)))
    np.testing.assert_array_equal(sines, np.zeros((1, 16)))
    # n times the golden ratio, less its whole part, of 4,096 places
    place = int(7 * ((5**0.5 - 1) / 2) % 1 * 4096)
    cosines, sines = turns.at([7])
    angles = np.arctan2(sines[0], cosines[0])
    fastest = (place + np.pi) % (2 * np.pi) - np.pi
    assert angles[0] == pytest.approx(fastest, abs=1e-3)
    key = np.arange(32, dtype=np.float32).reshape(1, 1, 2, 16)
    first, second = key[..., :8], key[..., 8:]
    wanted = np.concatenate(
        [
            first * cosines[0, :8] - second * sines[0, :8],
            second * cosines[0, :8] + first * sines[0, :8],
        ],
        axis=-1,
    )
    np.testing.assert_allclose(turns.turned(key, [7]), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "value"), [("softcap", 10.0), ("smooth_softmax", 1)], ids=["capped", "smooth"]
)
def test_no_offset_where_attention_would_see_it(
    rotated: Result, name: str, value: float | int
) -> None:
    graph = rotated.plan.graph.clone()
    node = next(n for n in graph.nodes if n.op_type == "GroupQueryAttention")
    assert takes_offset(node)
    node.attributes[name] = (
        ir.AttrFloat32(name, value) if isinstance(value, float) else ir.AttrInt64(name, value)
    )
    assert not takes_offset(node)


def test_layers_around_may_be_in_blocks(model: Path) -> None:
    result = _quantized(model, block=32, weight_bits=4, improve=["rotate{check=0}"])
    parts = [
        node for node in result.plan.graph.nodes if str(node.name).startswith(NODE.format(0) + "_")
    ]
    products = [node for node in parts if node.op_type == "MatMul"]
    assert len(products) == 2
    decisions = result.plan.decisions
    assert all(
        decisions[str(node.name)].reason.startswith("it gives keys and queries the basis")
        for node in products
    )


def test_given_caches_leave_it_out(model: Path) -> None:
    """What is in them is in the basis of the given model."""
    feeds = {"input_ids": IDS[:, 8:], "attention_mask": np.ones((8, 24), np.int64)}
    kept = np.random.default_rng(2).normal(size=(8, 2, 8, 16)).astype(np.float32)
    names = [f"past_key_values.{k}.{kind}" for k in range(2) for kind in ("key", "value")]
    data = {**feeds, **dict.fromkeys(names, kept)}
    result = intact.quantize(
        model, data, cache_bits=4, activations="float", improve=["rotate{check=0}"]
    )
    assert not outputs_in_bases(result.plan.graph)


def test_any_basis_computes_the_same() -> None:
    """Also of other values, whose offset is added behind; how they are kept is for the plan."""
    source = decoder(SIZES, random_weights(SIZES), "builder")
    graph = rotate_apart(normalize(source.clone()))
    rng = np.random.default_rng(3)
    node = next(each for each in graph.nodes if each.op_type == "GroupQueryAttention")
    turns = turns_of(input_value(node, 1), 16)
    assert turns is not None
    matrix = np.linalg.qr(rng.normal(size=(2, 16, 16)))[0] * np.linspace(0.5, 2, 16)
    steps = Steps(4, (0, 3), (0.5,) * 32)
    basis = Basis(rng.normal(size=(2, 16)), matrix, rng.normal(size=(2, 16)), steps)
    changed = change_bases(graph, {str(node.name): basis}).model
    wanted = _run(source, IDS[:1], 0, {})["logits"]
    np.testing.assert_allclose(_run(changed, IDS[:1], 0, {})["logits"], wanted, atol=1e-3)


def test_channels_that_count_most_have_two_codes(rotated: Result, tmp_path: Path) -> None:
    """In the places of those that count least; what is stored has as many bits as before."""
    keys = [point for point in cache_points(rotated.plan) if point.cache.new == 1]
    for point in keys:
        steps = steps_of(point.cache.node)
        assert steps is not None
        assert any(steps.twice)
        codes = np.array(point.config.grid.channel_codes).reshape(2, 16, 2)
        for head, count in zip(codes, steps.twice, strict=True):
            assert (head[:count] == (-128, 112)).all()
            assert (head[count : 16 - count] == (-8, 7)).all()
            assert (head[16 - count :] == 0).all()
        assert point.bytes_per_token[0] == 16
    text = plan_to_json(rotated.plan)
    save_plan(rotated.plan, tmp_path / "plan.json")
    again = load_plan(tmp_path / "plan.json", rotated.plan.graph)
    assert plan_to_json(again) == text
    assert {end: each.grid for end, each in again.configs.items()} == {
        end: each.grid for end, each in rotated.plan.configs.items()
    }


def test_the_first_token_of_every_text_is_kept_without_an_error(model: Path) -> None:
    """It is the same in all, as where texts begin with a token of their own."""
    ids = IDS.copy()
    ids[:, 0] = 1
    result = intact.quantize(
        model, ids, context=24, cache_bits=4, activations="float", improve=["rotate{check=0}"]
    )
    found = _run(result.plan.graph.model, ids[:1], 0, {})
    for point in cache_points(result.plan):
        kept = found[point.cache.ports[1]][0].transpose(1, 0, 2).reshape(24, 32)
        lost = np.abs(point.config.fake_quantize(kept[None])[0] - kept)
        is_kept = np.broadcast_to(point.config.grid.code_ends[1], 32) > 0
        steps = np.broadcast_to(np.asarray(point.config.scale), 32)
        errors = (lost / steps)[:, is_kept]
        inside = np.abs(kept / steps)[0, is_kept] < 8  # a range may be narrower than that
        assert errors[0, inside].max() < 0.01
        assert np.median(errors[1:]) > 0.1


@pytest.mark.parametrize("bits", [4, 8])
def test_one_scale_for_all_of_a_cache(model: Path, tmp_path: Path, bits: int) -> None:
    """Of keys that are rotated there are several: the runtime takes one kind for both."""
    result = _quantized(model, cache_bits=bits, cache_scales="tensor", improve=["rotate{check=0}"])
    result.save(tmp_path / "out")
    found = intact.verify(tmp_path / "out", IDS, context=24, samples=3)
    assert not any(each.mismatches for each in found.layers)


def test_a_rotated_model_is_for_the_width_that_it_was_rotated_for(
    rotated: Result, tmp_path: Path
) -> None:
    """Its steps are those of 4 bits: 8 bits would clip where 4 did."""
    rotated.save(tmp_path / "out")
    said = "its keys were rotated for caches of 4 bits, not of 8; give that width, or"
    with pytest.raises(UsageError, match=said):
        _quantized(tmp_path / "out" / "model.onnx", cache_bits=8)
    again = _quantized(tmp_path / "out" / "model.onnx", preset="fast")
    grids = (point.config.grid for point in cache_points(again.plan))
    assert list(grids) == [point.config.grid for point in cache_points(rotated.plan)]


@pytest.mark.parametrize("text", ["", "[4,[0,0],VALUES]", "[4,[1,1],VALUES]"])
def test_a_plan_and_a_model_that_disagree_are_refused(rotated: Result, text: str) -> None:
    graph = rotated.plan.graph.clone()
    node = next(n for n in graph.nodes if n.op_type == "GroupQueryAttention")
    node.metadata_props[STEPS_KEY] = text.replace("VALUES", str([1.0] * 32))
    plan = replace(rotated.plan, graph=graph)
    with pytest.raises(PlanError, match="the plan has other codes of its channels than the model"):
        write_qdq(plan)


def test_no_offset_is_moved_where_attention_would_see_it(model: Path, tmp_path: Path) -> None:
    capped = ir.load(model)
    for node in capped.graph:
        if node.op_type == "GroupQueryAttention":
            node.attributes["softcap"] = ir.AttrFloat32("softcap", 5.0)
    ir.save(capped, tmp_path / "model.onnx")
    shutil.copy(model.parent / "model.onnx_data", tmp_path)
    result = _quantized(tmp_path / "model.onnx", improve=["rotate{check=0}"])
    assert outputs_in_bases(result.plan.graph)
    wanted = _run(tmp_path / "model.onnx", IDS[:1], 0, {})["logits"]
    found = _run(result.plan.graph.model, IDS[:1], 0, {})["logits"]
    np.testing.assert_allclose(found, wanted, atol=2e-4)


def test_nothing_is_equalized_where_activations_are_floats(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took SmolLM2 a minute and a half, and cannot gain."""

    def tried(*_: Any, **__: Any) -> None:
        raise AssertionError("equalization was tried")

    monkeypatch.setattr("intact.placement.huge.handle_huge", tried)
    result = _quantized(model, improve=["rotate{check=0}"])
    (record,) = result.plan.provenance.improvements
    assert record.before < 40


def test_a_few_nodes_at_a_time_are_the_same(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {"improve": ["rotate"]}
    whole = _quantized(model, **asked).plan
    monkeypatch.setattr("intact.improve.rewrite.rotate._HELD", 1)
    parts = _quantized(model, **asked).plan
    assert outputs_in_bases(parts.graph) == outputs_in_bases(whole.graph)
    for first, second in zip(whole.graph.nodes, parts.graph.nodes, strict=True):
        assert first.metadata_props.get(STEPS_KEY) == second.metadata_props.get(STEPS_KEY)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "[4,[1,1]]", "[4,[99,0],[]]", "[40,[0,0],[1]]", '["4",[0,0],[]]', "[4,[-1,0],[]]"],
)
def test_metadata_of_others_is_none(rotated: Result, text: str) -> None:
    graph = rotated.plan.graph.clone()
    node = next(n for n in graph.nodes if n.op_type == "GroupQueryAttention")
    assert steps_of(node) is not None
    node.metadata_props[STEPS_KEY] = text
    assert steps_of(node) is None
    size = [1.0] * 32
    node.metadata_props[STEPS_KEY] = f"[4,[9,0],{size}]"
    assert steps_of(node) is None
    node.metadata_props[STEPS_KEY] = f"[4,[8,0],{size}]"
    assert steps_of(node) is not None


def test_what_diagnosis_tells_to_do_helps(model: Path) -> None:
    """More bits for caches, and not for activations, which are floats."""
    result = _quantized(model, preset="fast")
    found = intact.diagnose(result, IDS, context=24).findings
    remedies = [dict(each.options) for finding in found for each in finding.remedies]
    widths = [each["bits"] for each in remedies if each.get("bits")]
    assert widths
    assert all(set(each.values()) == {8} for each in widths)
    assert not any("activation_bits" in each for each in remedies)
    wider = _quantized(
        model, preset="fast", bits={k: n for each in widths for k, n in each.items()}
    )
    few, more = (intact.evaluate(each, IDS, context=24).sqnr_db for each in (result, wider))
    assert more > few + 1


def test_what_computes_in_float16_may_keep_a_neighbour(model: Path, tmp_path: Path) -> None:
    """The runtime leaves out roundings to float16 as it likes; `verify` ended in its error."""
    result = _quantized(model, float_type="float16", improve=["rotate{check=0}"])
    result.save(tmp_path / "out")
    found = intact.verify(tmp_path / "out", IDS, context=24, samples=3)
    codes = [each for each in found.layers if "cache of" in each.operation]
    assert len(codes) == 4
    assert sum(each.mismatches for each in codes) < 0.02 * sum(each.values for each in codes)


def test_what_is_slower_than_float_is_told_what_is_faster(rotated: Result) -> None:
    """`--fastest` keeps nodes of integers in float, of which there are none."""
    remedy = faster(rotated.plan)
    assert not remedy.options
    assert "without --cache-bits they are floats" in remedy.text
    weights = intact.quantize(dense_net(), block=32).plan
    assert "--activations dynamic" in faster(weights).text
    integers = intact.quantize(dense_net(), mixed(8, 1)).plan
    assert faster(integers).options == {"fastest": True}
