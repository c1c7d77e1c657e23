"""Widths of weights in blocks, by search: `--block` with `intact search`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import intact
from intact import api
from intact.config import PerBlock
from intact.errors import SearchError, UsageError
from intact.flow.search import FoundStrategy
from intact.plan import quantization_points
from intact.search.logs.settings import BlockSettings
from intact.search.space import Space
from intact.targets import load_target
from intact.targets.blockwise import in_blocks
from tests.block_nets import WORDS, decoder, dense_net
from tests.plans import graph_of

IDS = np.random.default_rng(0).integers(0, WORDS, (8, 7))
DENSE = np.random.default_rng(0).normal(size=(16, 100)).astype(np.float32)


def found(model: onnx.ModelProto, data: np.ndarray, **options: Any) -> FoundStrategy:
    given: dict[str, Any] = {"block": 16, "minimize": "bytes", "objective": "sqnr", "threads": 1}
    return api.search_strategy(model, data, **{**given, "budget": 12, **options})


def widths(result: Any) -> dict[str, int]:
    points = quantization_points(result.plan)
    assert all(
        isinstance(each.config.granularity, PerBlock) for each in quantization_points(result.plan)
    )
    return {end.node: result.plan.configs[end].bits for each in points for end in [each.end]}


def test_some_layers_are_wide_under_a_size(tmp_path: Path) -> None:
    search = found(dense_net(), DENSE, max_cost="75%", log=tmp_path / "log.jsonl")
    assert set(widths(search.result).values()) == {4, 8}
    report = intact.verify(search.result, DENSE)
    assert len(report.float_layers) == 3
    assert not any(each.differs for each in report.float_layers)
    again = api.replay_strategy(dense_net(), tmp_path / "log.jsonl")
    assert again.exported.message == search.result.exported.message
    # Millions of scales follow from the weights: a log has none.
    assert max(map(len, (tmp_path / "log.jsonl").read_text().splitlines())) < 10_000


def test_the_cost_is_that_of_the_file() -> None:
    search = found(decoder(), IDS, preset="fast", max_cost="80%")
    written = onnx.load_from_string(search.result.exported.message or b"")
    arrays = {each.name: numpy_helper.to_array(each) for each in written.graph.initializer}
    stored = sum(a.nbytes for name, a in arrays.items() if name.endswith(("quantized", "scales")))
    assert search.cost.of(search.best.candidate) == stored


def test_a_tied_table_has_one_width_and_is_stored_once() -> None:
    search = found(decoder(), IDS, max_cost="80%")
    both = widths(search.result)
    assert both["words"] == both["head"]
    assert not [note for note in search.result.plan.notes if "stored twice" in note.message]


def test_blocks_of_one_node_are_those_of_the_replay(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    search = found(decoder(), IDS, node_block={"layer": 32}, zero_points=True, log=log)
    sizes = {
        each.end.node: each.config.grid.block for each in quantization_points(search.result.plan)
    }
    assert sizes == {"words": 16, "head": 16, "layer": 32}
    again = api.replay_strategy(decoder(), log)
    assert again.exported.message == search.result.exported.message


@pytest.mark.parametrize(
    ("target", "asked", "choices"),
    [
        ("onnxruntime", None, (8, 4)),
        ("onnxruntime", [2, 4], (4, 2)),
        ("openvino", None, (8, 4)),
        ("ncnn", None, (6, 4)),
        ("tflite-xnnpack", None, (4,)),
    ],
)
def test_choices_are_the_widths_of_the_target(
    target: str, asked: list[int] | None, choices: tuple[int, ...]
) -> None:
    described = in_blocks(load_target(target), 32)
    space = Space.of(graph_of(decoder().SerializeToString()), described, widths=asked)
    weights = [group for group in space.groups if group.kind == "weight"]
    assert {group.choices for group in weights} == {choices}


def test_what_has_no_blocks_is_refused() -> None:
    with pytest.raises(UsageError, match="has no weights in blocks"):
        found(dense_net(), DENSE, target="tvm")
    with pytest.raises(UsageError, match="zero_points is for weights"):
        found(dense_net(), DENSE, block=None, zero_points=True)
    with pytest.raises(UsageError, match="leave no choice"):
        found(decoder(), IDS, weight_bits=4)


@pytest.mark.parametrize("text", ['{"block": "32"}', "[]", '{"odd": 1}'])
def test_a_damaged_log_is_refused(text: str) -> None:
    with pytest.raises(SearchError, match="the log's blocks"):
        BlockSettings.read({"blocks": text})
