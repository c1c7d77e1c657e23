"""What is gathered of the nodes of a network, and what of its outline."""

from __future__ import annotations

import pytest

import intact
from intact.analyze.report import network
from intact.analyze.report.network import network_of, outline_of
from tests.reports import evil_model, samples


def test_outline_has_the_places_and_widths_and_quantizes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = ["GlobalAveragePool"]
    plan = intact.quantize(evil_model(), samples(), keep_float=kept, preset="fast").plan
    whole = network_of(plan, None, None)
    monkeypatch.setattr(network, "channels_of", None)
    outline = outline_of(plan)
    names = ("name", "op", "x", "y", "kind", "bits", "weight_bits")
    for one, other in zip(whole.nodes, outline.nodes, strict=True):
        assert [getattr(one, name) for name in names] == [getattr(other, name) for name in names]
    assert outline.edges == whole.edges
    assert any(node.weight for node in whole.nodes)
    assert not any(node.weight or node.reason for node in outline.nodes)
    assert outline.tensors == ()


def test_nodes_in_float16_are_marked() -> None:
    kept = ["GlobalAveragePool"]
    plan = intact.quantize(evil_model(), samples(), keep_float=kept, float_type="float16").plan
    assert plan.float16 is not None
    marked = [node.name for node in outline_of(plan).nodes if node.half]
    assert marked == list(plan.float16.nodes) != []
    full = intact.quantize(evil_model(), samples(), keep_float=kept, preset="fast").plan
    assert not any(node.half for node in outline_of(full).nodes)
