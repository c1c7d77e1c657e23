"""A Loop or Scan of a known number of turns becomes its turns."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.graph import Graph, normalize
from intact.graph.passes.expand import expand
from intact.graph.passes.loops import unroll_loops
from tests.models import run_model

HEAD = '<ir_version: 9, opset_import: ["" : 17]>'
X = np.array([-2.5, 0.0, 1.5], np.float32)


def model_of(body: str, inputs: str = "float[3] x", outputs: str = "float[3] y") -> onnx.ModelProto:
    """Read a model that is written as text."""
    return onnx.parser.parse_model(f"{HEAD} main ({inputs}) => ({outputs}) {{ {body} }}")


def operators(graph: Graph) -> Counter[str]:
    return Counter(node.op_type for node in graph.nodes)


def assert_same(source: onnx.ModelProto, graph: Graph, feeds: dict[str, np.ndarray]) -> None:
    result = ir.to_proto(graph.model)
    onnx.checker.check_model(result, full_check=True)
    for name, array in run_model(source, feeds).items():
        np.testing.assert_array_equal(run_model(result, feeds)[name], array)


def loop(turns: int, condition: str = "Identity(c)", begins: bool = True) -> str:
    """Write a Loop that adds the number of its turn, and collects what it had."""
    return f"""
        n = Constant <value_int = {turns}> ()
        yes = Constant <value = bool {{{int(begins)}}}> ()
        y, all = Loop <body = body (int64 i, bool c, float[3] s) => (bool d, float[3] t, float[3] u)
            {{ two = Constant <value = float {{2.0}}> ()
               number = Cast <to = 1> (i)
               more = Add(s, number)
               t = Mul(more, two)
               u = Neg(s)
               d = {condition} }}> (n, yes, x)"""


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_turns_stand_one_behind_the_other(turns: int) -> None:
    source = model_of(loop(turns), outputs="float[3] y, float[?,3] all")
    graph = normalize(source)
    assert "Loop" not in operators(graph)
    assert operators(graph)["Neg"] == turns
    assert_same(source, graph, {"x": X})


@pytest.mark.parametrize(
    ("turns", "condition", "begins", "ran"),
    [
        (0, "Identity(c)", True, 0),
        (-1, "Identity(c)", True, 0),
        (3, "Identity(c)", False, 0),
        (3, "Constant <value = bool {0}> ()", True, 1),
        (3, "Constant <value = bool {1}> ()", True, 3),
        (3, "Cast <to = 9> (c)", True, 3),
    ],
)
def test_the_condition_counts(turns: int, condition: str, begins: bool, ran: int) -> None:
    source = model_of(loop(turns, condition, begins))
    source.graph.node[-1].output.pop()
    body = source.graph.node[-1].attribute[0].g
    del body.output[2]  # nothing is collected, or no turn would leave nothing to stack
    graph = normalize(source)
    assert "Loop" not in operators(graph)
    assert sum(operators(graph)[kind] for kind in ("Add", "Mul")) == (2 * ran - 1 if ran else 0)
    assert_same(source, graph, {"x": X})


def test_a_loop_that_collects_nothing_stays() -> None:
    source = model_of(loop(0), outputs="float[3] y, float[?,3] all")
    assert operators(normalize(source))["Loop"] == 1


def test_a_condition_that_is_computed_stays() -> None:
    ends = "Less(total, most)"
    source = model_of(
        loop(4, ends).replace("d = ", "total = ReduceMax <keepdims = 0> (t)\nd = "),
        inputs="float[3] x, float most",
        outputs="float[3] y, float[?,3] all",
    )
    assert operators(normalize(source))["Loop"] == 1


def test_loops_that_need_too_many_nodes_stay() -> None:
    source = model_of(loop(5), outputs="float[3] y, float[?,3] all")
    model = ir.from_proto(source)
    assert unroll_loops(model, most=10) == 0
    huge = model_of(loop(10_000), outputs="float[3] y, float[?,3] all")
    assert operators(normalize(huge))["Loop"] == 1


def test_turns_share_the_weights_of_the_body() -> None:
    source = model_of(
        """
        n = Constant <value_int = 3> ()
        y = Loop <body = body (int64 i, bool c, float[1,3] s) => (bool d, float[1,3] t)
            { w = Constant <value = float[3,3] {1,2,3,4,5,6,7,8,9}> ()
              m = MatMul(s, w)
              t = Tanh(m)
              d = Identity(c) }> (n, , x)""",
        "float[1,3] x",
        "float[1,3] y",
    )
    graph = normalize(source)
    assert operators(graph) == {"MatMul": 3, "Tanh": 3}
    assert len(graph.model.graph.initializers) == 1
    assert_same(source, graph, {"x": X[None]})


def test_a_loop_in_a_loop_turns_as_often_as_the_outer_says() -> None:
    source = model_of("""
        n = Constant <value_int = 3> ()
        y = Loop <body = outer (int64 i, bool c, float[3] s) => (bool d, float[3] t)
            { t = Loop <body = inner (int64 j, bool e, float[3] p) => (bool f, float[3] q)
                { q = Add(p, s)
                  f = Identity(e) }> (i, , s)
              d = Identity(c) }> (n, , x)""")
    graph = normalize(source)
    assert operators(graph) == {"Add": 3}
    assert_same(source, graph, {"x": X})


def test_states_may_change_places() -> None:
    source = model_of(
        """
        n = Constant <value_int = 3> ()
        y, z = Loop <body = body (int64 i, bool c, float[3] a, float[3] b)
            => (bool c, float[3] b, float[3] a) { none = Identity(i) }> (n, , x, w)
        """,
        "float[3] x, float[3] w",
        "float[3] y, float[3] z",
    )
    graph = normalize(source)
    assert "Loop" not in operators(graph)
    assert_same(source, graph, {"x": X, "w": X[::-1].copy()})


@given(
    st.tuples(st.integers(0, 1), st.integers(0, 1)),
    st.tuples(st.integers(-2, 1), st.integers(-3, 2)),
    st.tuples(st.integers(-3, 2), st.integers(0, 1)),
)
@settings(max_examples=25, deadline=None)
def test_scans_along_any_axis_in_both_directions(
    directions: tuple[int, int], read: tuple[int, int], written: tuple[int, int]
) -> None:
    sizes: dict[str, list[int]] = {"p": [2, 2], "q": [3, 2, 4]}
    sizes["p"][read[0]] = sizes["q"][read[1]] = 3
    rest = [n for k, n in enumerate(sizes["q"]) if k != read[1] % 3]
    one = next(n for k, n in enumerate(sizes["p"]) if k != read[0] % 2)
    texts = {name: f"float{each}".replace(" ", "") for name, each in sizes.items()}
    inner = f"float{rest}".replace(" ", "")
    source = model_of(
        f"""
        y, z = Scan <body = body (float[2] s, float[{one}] a, {inner} b)
            => (float[2] t, {inner} u)
            {{ t = Add(s, a)
               m = ReduceMax <keepdims = 0> (t)
               u = Mul(b, m) }},
          num_scan_inputs = 2, scan_input_axes = [{read[0]}, {read[1]}],
          scan_input_directions = [{directions[0]}, {directions[1]}],
          scan_output_axes = [{written[0]}], scan_output_directions = [{written[1]}]> (x, p, q)
        """,
        f"float[2] x, {texts['p']} p, {texts['q']} q",
        "float[2] y, float[?,?,?] z",
    )
    graph = normalize(source)
    assert "Scan" not in operators(graph)
    random = np.random.default_rng(0)
    feeds = {name: random.normal(size=n).astype("f4") for name, n in {"x": [2], **sizes}.items()}
    assert_same(source, graph, feeds)


def test_a_scan_of_open_length_stays() -> None:
    source = model_of(
        """
        y = Scan <body = body (float[3] s, float[3] a) => (float[3] t) { t = Add(s, a) },
            num_scan_inputs = 1> (x, p)""",
        "float[3] x, float[N,3] p",
    )
    assert operators(normalize(source))["Scan"] == 1
    assert "Scan" not in operators(normalize(source, {"p": [4, 3]}))


BOUNDED = """
    n = Constant <value_int = {turns}> ()
    y = Loop <body = body (int64 i, bool c, float[3] s) => (bool d, float[3] t)
        {{ t = Add(s, s)
           total = ReduceMax <keepdims = 0> (t)
           d = Less(total, most) }}> (n, {begins}, x)"""


@pytest.mark.parametrize("most", [-10.0, 1.0, 5.0, 7.0, 1e9])
@pytest.mark.parametrize("begins", ["", "go"])
@pytest.mark.parametrize("goes", [True, False])
def test_turns_behind_the_end_change_nothing(most: float, begins: str, goes: bool) -> None:
    inputs = "float[3] x, float most, bool go"
    source = model_of(BOUNDED.format(turns=4, begins=begins), inputs)
    graph = expand(normalize(source), ["Loop"])
    assert "Loop" not in operators(graph)
    assert_same(source, graph, {"x": X, "most": np.array(most, np.float32), "go": np.array(goes)})


def test_what_cannot_be_written_out_says_why() -> None:
    grows = model_of(
        """
        n = Constant <value_int = 3> ()
        y = Loop <body = body (int64 i, bool c, float[k] s) => (bool d, float[k2] t)
            { t = Concat <axis = 0> (s, s)
              total = ReduceMax <keepdims = 0> (t)
              d = Less(total, most) }> (n, , x)""",
        "float[3] x, float most",
        "float[m] y",
    )
    open_ = model_of(
        "y = Loop <body = body (int64 i, bool c, float[3] s) => (bool d, float[3] t)"
        "{ t = Add(s, s) total = ReduceMax <keepdims = 0> (t) d = Less(total, most) }> (n, , x)",
        "float[3] x, float most, int64 n",
    )
    collects = model_of(
        loop(4, "Less(total, most)").replace("d = ", "total = ReduceMax <keepdims = 0> (t)\nd = "),
        "float[3] x, float most",
        "float[3] y, float[?,3] all",
    )
    many = model_of(BOUNDED.format(turns=1000, begins=""), "float[3] x, float most")
    reasons = {
        "its bodies may give different shapes": grows,
        "the number of its turns has no bound": open_,
        "it collects a value of each turn, as many as it turns": collects,
        "its turns would be more than 1000 nodes": many,
    }
    for reason, source in reasons.items():
        (node,) = (n for n in expand(normalize(source), ["Loop"]).nodes if n.op_type == "Loop")
        assert node.metadata_props["intact.not_expanded"] == reason


COUNTED = """
    most = Constant <value_int = {most}> ()
    start, yes = Constant <value_int = {start}> (), Constant <value = bool {{1}}> ()
    y, last = Loop <body = body (int64 i, bool c, float[3] s, int64 k)
        => (bool d, float[3] t, int64 k2)
        {{ one, end = Constant <value_int = 2> (), Constant <value_int = 9> ()
           t = Mul(s, w)
           k2 = Add(k, one)
           d = {condition} }}> (most, yes, x, start)"""


@pytest.mark.parametrize(
    ("most", "start", "condition", "turns"),
    [
        (2**62, 0, "Less(k2, end)", 5),
        (2**62, 8, "Less(k2, end)", 1),
        (3, 0, "Less(k2, end)", 3),
        (2**62, 0, "Less(i, end)", 10),
        (5, 0, "Greater(k2, end)", 1),
    ],
)
def test_a_loop_that_counts_for_itself_is_counted(
    most: int, start: int, condition: str, turns: int
) -> None:
    text = COUNTED.format(most=most, start=start, condition=condition)
    text = text.replace("start, yes = ", "start = ").replace(
        "), Constant <value = bool", ") yes = Constant <value = bool"
    )
    text = text.replace(
        "one, end = Constant <value_int = 2> (), ", "one = Constant <value_int = 2> () end = "
    )
    source = model_of(text, "float[3] x, float[3] w", "float[3] y, int64 last")
    graph = normalize(source)
    assert operators(graph)["Mul"] == turns
    assert "Loop" not in operators(graph)
    assert_same(source, graph, {"x": X, "w": X[::-1].copy()})


@pytest.mark.parametrize("condition", ["Less(k2, far)", "Less(k, k2)", "Not(given)"])
def test_a_count_that_data_or_nothing_ends_stays(condition: str) -> None:
    source = model_of(
        f"""
        most = Constant <value_int = {2**20}> ()
        start = Constant <value_int = 0> ()
        y, last = Loop <body = body (int64 i, bool c, float[3] s, int64 k)
            => (bool d, float[3] t, int64 k2)
            {{ one = Constant <value_int = 1> ()
               t = Mul(s, s)
               k2 = Add(k, one)
               d = {condition} }}> (most, , x, start)
        """,
        "float[3] x, int64 far, bool given",
        "float[3] y, int64 last",
    )
    assert operators(normalize(source))["Loop"] == 1


@pytest.mark.parametrize("place", ["", ", zero", ", last"])
def test_what_turns_append_to_a_sequence_is_joined(place: str) -> None:
    source = model_of(
        f"""
        n = Constant <value_int = 3> ()
        zero = Constant <value_int = 0> ()
        last = Constant <value_int = -1> ()
        empty = SequenceEmpty ()
        all, z = Loop <body = body (int64 i, bool c, seq(float[3]) q, float[3] s)
            => (bool d, seq(float[3]) r, float[3] t)
            {{ t = Add(s, x)
               r = SequenceInsert(q, t{place if place != ", last" else ""})
               d = Identity(c) }}> (n, , empty, x)
        more = SequenceInsert(all, x{place})
        y = ConcatFromSequence <axis = 0, new_axis = 1> (more)
        """,
        "float[3] x",
        "float[4,3] y, float[3] z",
    )
    graph = normalize(source)
    assert set(operators(graph)) <= {"Add", "Concat", "Unsqueeze", "Mul"}
    assert_same(source, graph, {"x": X})


def test_what_is_appended_without_a_loop_is_joined() -> None:
    source = model_of(
        """
        empty = SequenceEmpty ()
        one = SequenceInsert(empty, x)
        twice = Add(x, x)
        two = SequenceInsert(one, twice)
        y = ConcatFromSequence <axis = 0, new_axis = 1> (two)
        """,
        outputs="float[2,3] y",
    )
    source.graph.value_info.clear()
    graph = normalize(source)
    assert set(operators(graph)) <= {"Add", "Concat", "Unsqueeze"}
    assert_same(source, graph, {"x": X})


def test_a_split_to_a_sequence_is_written_for_the_opset_of_the_model() -> None:
    source = model_of(
        """
        size = Constant <value_int = 1> ()
        place = Constant <value_int = 2> ()
        parts = SplitToSequence <axis = 0> (x, size)
        y = SequenceAt(parts, place)
        """,
        outputs="float[1] y",
    )
    assert source.opset_import[0].version < 18  # since which a Split counts its parts
    graph = normalize(source)
    assert "SplitToSequence" not in operators(graph)
    assert_same(source, graph, {"x": X})


def test_turns_may_give_a_constant_of_the_body() -> None:
    source = model_of(
        """
        n = Constant <value_int = 3> ()
        y, all = Loop <body = body (int64 i, bool c, float[3] s) => (bool d, float[3] t, float[1] u)
            <float[1] u = {2.0}>
            { t = Neg(s) d = Identity(c) }> (n, , x)
        """,
        outputs="float[3] y, float[3,1] all",
    )
    graph = normalize(source)
    assert "Loop" not in operators(graph)
    assert_same(source, graph, {"x": X})


def test_a_loop_without_a_number_of_turns_counts_for_itself() -> None:
    source = model_of(
        """
        yes = Constant <value = bool {1}> ()
        y = Loop <body = body (int64 i, bool c, float[3] s) => (bool d, float[3] t)
            { two = Constant <value_int = 2> () t = Add(s, s) d = Less(i, two) }> ( , yes, x)
        """
    )
    graph = normalize(source)
    assert operators(graph)["Loop"] == 0
    assert_same(source, graph, {"x": X})


def test_turns_behind_the_end_read_no_place_that_is_not_there() -> None:
    source = model_of(
        """
        n = Constant <value_int = 10> ()
        zero = Constant <value = float {0.0}> ()
        y = Loop <body = body (int64 i, bool c, float s) => (bool d, float t)
            { v = Gather <axis = 0> (x, i)
              t = Add(s, v)
              one = Constant <value_int = 1> ()
              next = Add(i, one)
              d = Less(next, end) }> (n, , zero)
        """,
        "float[3] x, int64 end",
        "float y",
    )
    for value in (*source.graph.input, *source.graph.output):
        value.type.tensor_type.shape.SetInParent()
    graph = expand(normalize(source), ["Loop"])
    assert "Loop" not in operators(graph)
    for end in (1, 3):
        assert_same(source, graph, {"x": X, "end": np.array(end)})
