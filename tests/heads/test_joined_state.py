"""A recurrent net that is written out, whose states are one input and one output."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest

import intact
from intact.calibrate.joined_state import JoinedState
from intact.formats.base.format import Deployed
from intact.formats.registry import runtime_of
from intact.graph import normalize
from intact.numerics.metrics import sqnr_db
from intact.plan import NoteKind, build_plan
from intact.results.result import Result
from intact.targets import load_target
from tests.models import ModelBuilder

UNITS, INPUTS = 64, 32
Arrays = dict[str, npt.NDArray[np.float32]]


@cache
def lstm(large: float) -> onnx.ModelProto:
    """An LSTM over one frame; a unit of its cell state reaches ``large``."""
    b = ModelBuilder(seed=2)
    x, state = b.input("x", ["batch", INPUTS]), b.input("state", ["batch", 2, UNITS])
    parts = []
    for at, name in enumerate(("h", "c")):
        ends = (b.ints(each) for each in (at, at + 1, 1))
        part = b.node("Slice", state, *ends, name=f"slice_{name}", out=f"{name}_slice")
        parts.append(b.node("Squeeze", part, b.ints(1), name=f"squeeze_{name}", out=name))
    h, c = parts
    bias = np.zeros(4 * UNITS, np.float32)
    bias[UNITS : 2 * UNITS] = 1  # what is kept of the cell state
    bias[UNITS] = 12  # of its first unit all
    dense = b.node("MatMul", x, b.weight(INPUTS, 4 * UNITS), name="dense_x")
    dense = b.node("Add", dense, b.node("MatMul", h, b.weight(UNITS, 4 * UNITS), name="dense_h"))
    dense = b.node("Add", dense, b.constant(bias), name="gates")
    names = [f"gate_{k}" for k in "ifgo"]
    b.nodes.append(
        onnx.helper.make_node("Split", [dense], names, "split", axis=1, num_outputs=4)
        if b.opset >= 18
        else onnx.helper.make_node("Split", [dense], names, "split", axis=1)
    )
    i, f, g, o = (
        b.node("Tanh" if name.endswith("g") else "Sigmoid", name, name=f"{name}_function")
        for name in names
    )
    c = b.node(
        "Add", b.node("Mul", f, c, name="kept"), b.node("Mul", i, g, name="new"), name="cell"
    )
    h = b.node("Mul", o, b.node("Tanh", c, name="bounded"), name="hidden")
    stacked = [b.node("Unsqueeze", each, b.ints(1)) for each in (h, c)]
    b.node("Concat", *stacked, name="stack", out="new_state", axis=1)
    b.node("MatMul", h, b.weight(UNITS, 8), name="last", out="y")
    b.output("new_state", ["batch", 2, UNITS])
    b.output("y", ["batch", 8])
    return b.build()


def feeds(large: float, count: int, seed: int) -> Arrays:
    """Frames with the states that lead there."""
    random = np.random.default_rng(seed)
    session = ort.InferenceSession(lstm(large).SerializeToString())
    state = np.zeros((1, 2, UNITS), np.float32)
    frames, states = [], []
    for _ in range(count):
        x = random.normal(size=(1, INPUTS)).astype(np.float32)
        state[:, 1, 0] = np.clip(state[:, 1, 0], -large, large)
        state[:, 1, 0] += large / count
        frames.append(x)
        states.append(state.copy())
        state = np.asarray(session.run(["new_state"], {"x": x, "state": state})[0])
    return {"x": np.concatenate(frames), "state": np.concatenate(states)}


def decibels(result: Result, large: float) -> dict[str, float]:
    """What was written against the float model: h, c without its first unit, and y."""
    given = feeds(large, 8, seed=3)
    ((name, exported),) = result.exports.items()
    run = runtime_of(name).run
    deployed = Deployed(result.plan, exported, threads=1)
    rows = [{k: v[at : at + 1] for k, v in given.items()} for at in range(8)]
    outputs = [run(deployed, row) for row in rows]
    found = {k: np.concatenate([each[k] for each in outputs]) for k in ("new_state", "y")}
    session = ort.InferenceSession(lstm(large).SerializeToString())
    wanted = dict(zip(("new_state", "y"), session.run(["new_state", "y"], given), strict=True))
    return {
        "h": sqnr_db(wanted["new_state"][:, 0], found["new_state"][:, 0]),
        "c": sqnr_db(wanted["new_state"][:, 1, 1:], found["new_state"][:, 1, 1:]),
        "y": sqnr_db(wanted["y"], found["y"]),
    }


def quantized(large: float, target: str = "tflite", **options: Any) -> Result:
    given = feeds(large, 64, seed=1)
    return intact.quantize(
        lstm(large), dict(given), target=target, preset="fast", threads=1, **options
    )


@pytest.mark.runtime_fact("ai-edge-litert")
def test_what_reads_and_updates_an_unlike_state_stays_float() -> None:
    result = quantized(300.0)
    floats = {name for name, each in result.plan.decisions.items() if not each.quantized}
    assert {"slice_h", "slice_c", "kept", "cell", "bounded", "stack"} <= floats
    assert not floats & {"dense_x", "dense_h", "last", "gates", "gate_i_function"}
    assert min(decibels(result, 300.0).values()) > 25  # in integers 0.0, -0.1 and 1.4
    (note,) = (str(each) for each in result.plan.notes if each.kind is NoteKind.HEAD)
    assert note.endswith("--quantize-heads undoes it")


def test_a_state_of_alike_parts_stays_codes() -> None:
    assert all(each.quantized for each in quantized(1.0).plan.decisions.values())


def test_the_large_parts_are_found() -> None:
    plan = build_plan(normalize(lstm(300.0)), load_target("tflite"))
    state = JoinedState.of(plan)
    assert state is not None
    (parts,) = state.inputs
    assert {str(value.name) for value in parts.parts} == {"h", "c"}
    assert {node.name for node in parts.movers} == {
        f"{kind}_{name}" for kind in ("slice", "squeeze") for name in "hc"
    }
