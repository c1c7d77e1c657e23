"""Caches that are empty in all samples get the range of what is appended to them."""

from __future__ import annotations

import numpy as np
import pytest

from intact.calibrate.collect import collect
from intact.data.sources import Reading, open_samples
from intact.graph import normalize
from intact.graph.caches import growing_inputs
from tests.texts import DECODER, tiny_decoder

IDS = np.random.default_rng(0).integers(4, 50, 60)


@pytest.mark.parametrize("max_memory", [None, 3 << 20])
def test_an_empty_cache_is_as_what_is_appended(max_memory: int | None) -> None:
    graph = normalize(tiny_decoder())
    grown = growing_inputs(graph)
    assert grown == {
        f"past_key_values.{layer}.{what}": f"present.{layer}.{what}"
        for layer in range(DECODER.layers)
        for what in ("key", "value")
    }
    samples = open_samples(IDS, graph, reading=Reading(context=20))
    names = (*grown, *grown.values(), "attention_mask")
    found = collect(graph, samples, names, max_memory=max_memory)
    for name, present in grown.items():
        assert found[name].samples == 3
        assert found[name].minimum == found[present].minimum
        assert (found[name].counts == found[present].counts).all()
        assert found[name] is not found[present]


def test_a_cache_with_content_keeps_its_own_range() -> None:
    graph = normalize(tiny_decoder())
    samples = open_samples(IDS, graph, reading=Reading(context=20))
    feeds = [batch for batch, _ in samples.batches(1)]
    for feed in feeds:
        feed["attention_mask"] = np.ones((1, 22), np.int64)
        for name in growing_inputs(graph):
            feed[name] = np.full((1, DECODER.key_heads, 2, DECODER.head), 100, np.float32)
    name = "past_key_values.0.key"
    found = collect(graph, open_samples(feeds, graph), (name, "present.0.key"))
    assert (found[name].minimum, found[name].maximum) == (100, 100)
    assert found["present.0.key"].minimum < 100
