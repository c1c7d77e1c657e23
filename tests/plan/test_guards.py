"""What a condition kept from failing is told of where all branches are computed."""

from __future__ import annotations

import onnx
import pytest

from intact.graph import normalize
from intact.plan import build_plan
from intact.plan.preparation import graphs_for
from intact.targets import load_target

HEAD = '<ir_version: 9, opset_import: ["" : 17]>'


def notes_of(then: str, target: str = "tflite") -> list[str]:
    """Return the notes on an If that computes a branch, or hands on its data."""
    text = f"""{HEAD} main (float[4] x, int64[4] k, bool go) => (float[4] y) {{
        r = Relu(x)
        c = If <then_branch = first () => (float[4] t) {{ {then} }},
                else_branch = second () => (float[4] e) {{ e = Neg(r) }}> (go)
        y = Relu(c) }}"""
    graph = normalize(onnx.parser.parse_model(text))
    (prepared,) = graphs_for(graph, [load_target(target)])
    plan = build_plan(prepared, load_target(target))
    return [str(note) for note in plan.notes if "would not run it" in str(note)]


@pytest.mark.parametrize(
    "branch",
    [
        "t = Gather(r, k)",
        "t = GatherElements(r, k)",
        "q = Div(k, k) t = Cast <to = 1> (q)",
        "q = Mod(k, k) t = Cast <to = 1> (q)",
    ],
)
def test_what_may_fail_is_named(branch: str) -> None:
    (note,) = notes_of(branch)
    guard = "it runs also where 'If_1' would not run it, and fails where places or divisors do not"
    assert guard in note
    assert "--input-value" in note
    assert notes_of(branch, "onnxruntime") == []


@pytest.mark.parametrize(
    "branch",
    [
        "at = Constant <value_ints = [3, 2, 1, 0]> () t = Gather(r, at)",
        "a = Cast <to = 1> (k) t = Div(r, a)",
        "t = Tanh(r)",
    ],
)
def test_what_cannot_fail_is_not(branch: str) -> None:
    assert notes_of(branch) == []
