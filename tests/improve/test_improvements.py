"""Improvement passes by name: each in its place, and named in the plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intact import api, demo
from intact.config import QuantState
from intact.engines.session import FloatModel
from intact.errors import UsageError
from intact.flow import stages
from intact.improve.passes import Request, requests_of, rewrite
from intact.plan import QuantizedGraph
from intact.results.result import Result


def quantized(*names: str, **options: object) -> Result:
    """Quantize with these passes only."""
    if not names:
        options.setdefault("preset", "fast")
    return api.quantize(
        demo.model_path(),
        demo.calibration_path(),
        target="integer-pow2",
        samples=30,
        improve=names,
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("equalise", "did you mean 'equalize'"),
        ("rounding{sample=3}", "no option 'sample'; did you mean 'samples'"),
        ("rounding{samples=0}", "samples is '0'; give a whole number of at least 1"),
        ("rounding{samples=x}", "samples is 'x'"),
        ("rounding{samples", "known:|did you mean"),
        ("bias{x=3}", "no option 'x'; known: check, samples"),
    ],
)
def test_what_is_wrong_is_named(text: str, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        Request.of(text)


def test_passes_run_in_their_order_and_once() -> None:
    found = requests_of(["weight-scales", "equalize", "weight-scales"])
    assert [each.name for each in found] == ["equalize", "weight-scales"]


def test_a_pass_has_one_set_of_options() -> None:
    with pytest.raises(UsageError, match="leave one out"):
        requests_of(["rounding{samples=3}", "rounding"])


def test_a_request_is_written_as_it_is_read() -> None:
    text = "rounding{samples=12,check=0}"
    assert str(Request.of(text)) == text
    assert Request.of(text).arguments == {"most": 12}
    assert not Request.of(text).is_checked


def test_a_search_takes_rewrites_that_need_no_samples() -> None:
    graph = quantized().plan.graph
    assert rewrite(graph, ["equalize"]).hash != graph.hash
    with pytest.raises(UsageError, match="leave it out of the search"):
        rewrite(graph, ["rounding"])


def test_a_rewritten_model_computes_the_same_from_other_weights() -> None:
    plain, equalized = quantized(), quantized("equalize{check=0}")
    assert plain.plan.graph.hash != equalized.plan.graph.hash
    assert plain.plan.provenance.improve == ()
    assert equalized.plan.provenance.improve == ("equalize{check=0}",)
    images = np.load(demo.test_path())["image"][:20].astype(np.float32)
    first, second = (
        FloatModel(each.plan.graph).run({"image": images}) for each in (plain, equalized)
    )
    for name, array in first.items():
        np.testing.assert_allclose(second[name], array, rtol=1e-4, atol=1e-4)


def test_refinements_tell_how_far_they_are() -> None:
    told: list[tuple[str, int, int | None]] = []

    class Told:
        name = ""

        def phase(self, name: str) -> None:
            self.name = name

        def __call__(self, done: int, count: int | None) -> None:
            told.append((self.name, done, count))

    found = quantized("rounding", progress=Told())
    steps = [each[1:] for each in told if each[0] == "improving: rounding"]
    nodes = len(list(found.plan.graph.nodes))
    assert steps == [(done, nodes) for done in range(nodes)]


def test_rounded_weights_lose_less_and_are_kept(tmp_path: Path) -> None:
    plain, rounded = quantized(weight_bits=4), quantized("rounding", weight_bits=4)
    assert rounded.plan.provenance.improve == ("rounding",)
    (record,) = rounded.plan.provenance.improvements
    assert record.kept
    assert record.after > record.before + 2
    assert plain.plan.graph.hash == rounded.plan.graph.hash
    before, after = (api.evaluate(each, demo.test_path(), samples=60) for each in (plain, rounded))
    assert after.sqnr_db > before.sqnr_db + 2
    rounded.save(tmp_path / "out")
    loaded = api.load_result(tmp_path / "out")
    assert loaded.plan.baked.keys() == rounded.plan.baked.keys()
    assert all(
        np.array_equal(codes, loaded.plan.baked[e]) for e, codes in rounded.plan.baked.items()
    )


def test_refined_scales_lose_no_more(tmp_path: object) -> None:
    plain, refined = quantized(), quantized("weight-scales{check=0}")
    assert refined.plan.provenance.improve == ("weight-scales{check=0}",)
    assert plain.plan.graph.hash == refined.plan.graph.hash
    lost, kept = (
        api.quant_loss(each, demo.calibration_path(), samples=30) for each in (plain, refined)
    )
    assert kept.layers[0].mean_cosine >= lost.layers[0].mean_cosine
    changed = [end for end, config in refined.plan.configs.items() if config.observer == "cosine"]
    assert changed


def test_refining_reads_the_samples_again() -> None:
    def batches() -> Iterator[dict[str, np.ndarray]]:
        yield {"image": np.zeros((4, 1, 8, 8), np.float32)}

    with pytest.raises(UsageError, match="a second time"):
        api.quantize(demo.model_path(), batches(), improve=["weight-scales"])


def test_few_bits_are_improved_unless_that_is_declined() -> None:
    plain, found = quantized(weight_bits=4), quantized(preset="balanced", weight_bits=4)
    assert plain.plan.provenance.improve == ()
    assert found.plan.provenance.improve == ("rounding",)
    default = api.quantize(demo.model_path(), demo.calibration_path(), weight_bits=4, samples=20)
    assert default.plan.provenance.improve == ("rounding",)
    (note,) = (each for each in default.plan.notes if "preset" in each.message)
    assert "weights of 6 bits or fewer" in note.message
    wide = api.quantize(demo.model_path(), demo.calibration_path(), samples=20)
    assert wide.plan.provenance.improve == ()


def test_what_is_close_to_float_is_improved_only_where_somebody_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made(**options: Any) -> Any:
        path = demo.calibration_path()
        return api.quantize(demo.model_path(), path, weight_bits=4, samples=8, **options).plan

    monkeypatch.setattr(stages, "CLOSE_DB", 1.0)
    plain = made()
    assert plain.provenance.improve == ()
    assert not any("preset" in note.message for note in plain.notes)
    assert made(preset="balanced").provenance.improve == ("rounding",)


def test_samples_that_are_read_once_are_no_reason_to_fail() -> None:
    def batches() -> Iterator[dict[str, np.ndarray]]:
        yield {"image": np.load(demo.calibration_path())["image"][:8].astype(np.float32)}

    found = api.quantize(demo.model_path(), batches(), weight_bits=4)
    assert found.plan.provenance.improve == ()


def test_passes_and_a_preset_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="leave one out"):
        quantized("rounding", preset="best")


def test_what_does_not_help_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def worse(plan: QuantizedGraph, *_: object, **__: object) -> QuantizedGraph:
        found = plan.copy()
        for config in found.configs.values():
            if config.state is QuantState.ACTIVATED and not config.grid.power_of_two:
                config.set_params(np.float32(4) * np.asarray(config.scale), config.offset)
        return found

    monkeypatch.setattr("intact.improve.refine.rounding.refine_rounding", worse)
    plain = api.quantize(demo.model_path(), demo.calibration_path(), samples=20)
    found = api.quantize(
        demo.model_path(), demo.calibration_path(), samples=20, improve=["rounding"]
    )
    (record,) = found.plan.provenance.improvements
    assert not record.kept
    assert record.after < record.before
    assert plain.plan.configs.keys() == found.plan.configs.keys()
    for end, config in plain.plan.configs.items():
        np.testing.assert_array_equal(config.scale, found.plan.configs[end].scale)


def test_a_pass_after_which_a_detector_finds_less_is_rolled_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made() -> tuple[bool, ...]:
        return tuple(each.improvement.kept for each in quantized("rounding").improvements)

    assert made() == (True,)
    monkeypatch.setattr("intact.analyze.detected.finds_more", lambda *_: False)
    assert made() == (False,)
    # Decibels take boxes in another order for noise.
    monkeypatch.setattr("intact.calibrate.outputs.Errors.is_better", lambda *_: False)
    monkeypatch.setattr("intact.analyze.detected.finds_more", lambda *_: True)
    assert made() == (True,)
