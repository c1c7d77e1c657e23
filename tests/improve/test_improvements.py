"""Improvement passes by name: each in its place, and named in the plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from intact import api, demo
from intact.engines.session import FloatModel
from intact.errors import UsageError
from intact.flow.result import Result
from intact.improve.improvements import Improvements


def quantized(*names: str, **options: object) -> Result:
    return api.quantize(
        demo.model_path(),
        demo.calibration_path(),
        target="integer-pow2",
        samples=30,
        improve=names,
        **options,  # type: ignore[arg-type]
    )


def test_a_wrong_name_is_guessed() -> None:
    with pytest.raises(UsageError, match="did you mean 'equalize'"):
        Improvements.of(["equalise"])


def test_passes_are_kept_in_order_and_once() -> None:
    found = Improvements.of(["weight-scales", "equalize", "weight-scales"])
    assert found == Improvements(("equalize",), ("weight-scales",))


def test_a_rewritten_model_computes_the_same_from_other_weights() -> None:
    plain, equalized = quantized(), quantized("equalize")
    assert plain.plan.graph.hash != equalized.plan.graph.hash
    assert plain.plan.provenance.improve == ()
    assert equalized.plan.provenance.improve == ("equalize",)
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
    steps = [each[1:] for each in told if each[0] == "improving weights: rounding"]
    nodes = len(list(found.plan.graph.nodes))
    assert steps == [(done, nodes) for done in range(nodes)]


def test_rounded_weights_lose_less_and_are_kept(tmp_path: Path) -> None:
    plain, rounded = quantized(weight_bits=4), quantized("rounding", weight_bits=4)
    assert rounded.plan.provenance.improve == ("rounding",)
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
    plain, refined = quantized(), quantized("weight-scales")
    assert refined.plan.provenance.improve == ("weight-scales",)
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
