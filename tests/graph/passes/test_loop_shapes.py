"""What a Loop gives has the shape that its values keep."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from intact.graph import normalize

HEAD = '<ir_version: 9, opset_import: ["" : 17]>'


def shapes_of(body: str, states: str, *, given: str = "float[3] w") -> list[list[object] | None]:
    """Return the shapes that a Loop of unknown length gives, its two states being x and w."""
    text = f"""{HEAD} main (float[N,3] x, {given}, int64 n) => (float[?,?] y, float[?] z) {{
        y, z = Loop <body = body (int64 i, bool c, {states}) => (bool c, float[?,?] t, float[?] v)
            {{ {body} }}> (n, , x, w) }}"""
    graph = normalize(onnx.parser.parse_model(text))
    (loop,) = (node for node in graph.nodes if node.op_type == "Loop")
    return [plain(value.shape) for value in loop.outputs]


def plain(shape: ir.Shape | None) -> list[object] | None:
    return None if shape is None else [d if isinstance(d, int) else d.value for d in shape]


@pytest.mark.parametrize("states", ["float[N,3] s, float[3] u", "float[?,?] s, float[?] u"])
def test_states_that_keep_their_shape_have_it_behind_the_loop(states: str) -> None:
    assert shapes_of("t = Add(s, u) v = Neg(u)", states) == [["N", 3], [3]]


@pytest.mark.parametrize("states", ["float[N,3] s, float[3] u", "float[?,?] s, float[?] u"])
def test_a_state_that_grows_has_none_and_neither_what_depends_on_it(states: str) -> None:
    found = shapes_of("t = Concat <axis = 0> (s, s) v = Neg(u)", states)
    assert found[0] is None or found[0][0] != "N"
    assert found[1] == [3]
    # Of one length before the first turn, and of two behind it.
    grows = (
        "one = Constant <value_ints = [1]> () t = Mul(s, s) v = ReduceSum <keepdims = 0> (t, one)"
    )
    found = shapes_of(grows, "float[?,?] s, float[?] u", given="float[1] w")
    assert found == [["N", 3], None]


def test_what_stands_behind_a_loop_knows_its_shape() -> None:
    text = f"""{HEAD} main (float[N,3] x, int64 n) => (float[?,?] z) {{
        w = Constant <value = float[3,2] {{1,2,3,4,5,6}}> ()
        y = Loop <body = body (int64 i, bool c, float[N,3] s) => (bool c, float[N,3] t)
            {{ t = Tanh(s) }}> (n, , x)
        z = MatMul(y, w) }}"""
    graph = normalize(onnx.parser.parse_model(text))
    assert plain(graph.outputs[0].shape) == ["N", 2]


def test_loops_in_a_loop_keep_theirs_where_the_outer_one_does() -> None:
    for grows in (False, True):
        last = "Concat <axis = 0> (q, q)" if grows else "Neg(q)"
        text = f"""{HEAD} main (float[N,3] x, int64 n) => (float[?,?] y) {{
            y = Loop <body = outer (int64 i, bool c, float[?,?] s) => (bool c, float[?,?] t)
                {{ q = Loop <body = inner (int64 j, bool e, float[?,?] p) => (bool e, float[?,?] r)
                       {{ r = Tanh(p) }}> (i, , s)
                   t = {last} }}> (n, , x) }}"""
        graph = normalize(onnx.parser.parse_model(text))
        (outer,) = graph.nodes
        assert plain(outer.outputs[0].shape) == (None if grows else ["N", 3])
