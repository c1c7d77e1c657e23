"""The float model in pieces computes what the whole one does, from wherever it is changed."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from intact.engines.piecewise import FloatPieces
from intact.graph import Graph, normalize
from tests.gallery.layers import Layers

Floats = npt.NDArray[np.float32]

WEIGHTS = [np.random.default_rng(seed).normal(size=(4, 4)).astype(np.float32) for seed in range(3)]
FEEDS = {"x": np.random.default_rng(9).normal(size=(5, 4)).astype(np.float32)}


def _net() -> Graph:
    """Three layers, of which a branch goes round the second, and two outputs."""
    b = Layers()
    x = b.input("x", ("batch", 4))
    for at, name in enumerate(("first", "second", "last")):
        x = b.node("MatMul", x, b.constant(WEIGHTS[at]), name=f"mul{at}")
        x = b.node("Relu", x, out=name)
        x = b.node("Add", x, "first", out="joined") if name == "second" else x
    b.output("last", ("batch", 4))
    b.output("second", ("batch", 4))
    return normalize(b.build())


def _by_hand(changed: dict[str, Floats], weights: list[Floats]) -> dict[str, Floats]:
    def of(name: str, array: Floats) -> Floats:
        return changed.get(name, array)

    first = of("first", np.maximum(of("x", FEEDS["x"]) @ weights[0], 0))
    second = of("second", np.maximum(first @ weights[1], 0))
    last = of("last", np.maximum(of("joined", first + second) @ weights[2], 0))
    return {"last": last, "second": second}


@pytest.mark.parametrize("limit", [math.inf, 100, 0], ids=["all kept", "some kept", "none kept"])
@pytest.mark.parametrize("tensors", [[], ["x"], ["first"], ["second"], ["joined"], ["last"]])
def test_replaced_tensors_change_what_reads_them(tensors: list[str], limit: float) -> None:
    pieces = FloatPieces(_net(), ["first", "second", "joined", "last"])
    changed = {name: np.full((5, 4), 0.5, np.float32) for name in tensors}
    found = pieces.run(pieces.values(FEEDS, limit=limit), changed)
    wanted = _by_hand(changed, WEIGHTS)
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("limit", [math.inf, 0])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_exchanged_constants_change_what_reads_them(at: int, limit: float) -> None:
    pieces = FloatPieces(_net(), ["first", "joined"])
    known = pieces.values(FEEDS, limit=limit)
    other = np.eye(4, dtype=np.float32)
    found = pieces.exchanged({(f"mul{at}", 1): other}).run(known, {})
    weights = [other if k == at else each for k, each in enumerate(WEIGHTS)]
    for name, array in _by_hand({}, weights).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        pieces.run(known, {})["last"], _by_hand({}, WEIGHTS)["last"], rtol=1e-4, atol=1e-5
    )


def test_only_what_follows_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from intact.engines.piecewise import floats

    pieces = FloatPieces(_net(), ["first", "second", "joined"])
    known, ran = pieces.values(FEEDS), []

    def counting(piece: object, session: object, arrays: object) -> object:
        ran.append(piece)
        return plain(piece, session, arrays)  # type: ignore[arg-type]

    plain = floats._run
    monkeypatch.setattr(floats, "_run", counting)
    pieces.run(known, {"joined": known["joined"]})
    assert len(ran) == 1
