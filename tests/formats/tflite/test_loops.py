"""Loops of unknown length: LiteRT computes what ONNX Runtime does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from intact.engines.session import FloatModel
from intact.errors import ExportError, ModelError
from intact.formats.base.format import Io
from intact.formats.tflite.deployed import run_tflite
from intact.formats.tflite.read import assemble, read_tflite_model
from intact.formats.tflite.reader.decode import open_tflite
from intact.formats.tflite.reader.operators import build_model
from intact.formats.tflite.run import Kernels
from intact.formats.tflite.verify import verify_read_tflite, verify_tflite
from intact.formats.tflite.write import write_tflite
from intact.graph import Graph, normalize
from intact.plan import QuantizedGraph, build_float, build_plan
from intact.plan.preparation import graphs_for
from intact.program.deployed import deployed_program
from intact.targets import load_target
from tests.formats.tflite.files import operators_of
from tests.models import ModelBuilder
from tests.plans import calibrate

flatbuffers = pytest.importorskip("flatbuffers")
schema = pytest.importorskip("ai_edge_litert.schema_py_generated")

Arrays = dict[str, npt.NDArray[Any]]
HEAD = '<ir_version: 9, opset_import: ["" : 17]>'
X = np.array([[-2.5, 0.25, 1.5], [0.5, 1.0, -0.75]], np.float32)


def model_of(body: str, inputs: str, outputs: str = "float[N,3] y") -> onnx.ModelProto:
    """Read a model that is written as text."""
    return onnx.parser.parse_model(f"{HEAD} main ({inputs}) => ({outputs}) {{ {body} }}")


def loop(turn: str, head: str = "n, , x", condition: str = "d") -> str:
    """Write a Loop of one value."""
    return f"""y = Loop <body = body (int64 i, bool c, float[N,3] s)
        => (bool {condition}, float[N,3] t) {{ {turn} }}> ({head})"""


LARGEST = "total = ReduceMax <keepdims = 0> (t) d = Less(total, most)"
COUNTED = model_of(
    loop("w = Cast <to = 1> (i) t = Add(s, w)", condition="c"), "float[N,3] x, int64 n"
)
ENDED = model_of(loop(f"t = Add(s, s) {LARGEST}", ", go, x"), "float[N,3] x, float most, bool go")
BOTH = model_of(
    loop(f"t = Add(s, x) {LARGEST}", "n, go, x"), "float[N,3] x, float most, int64 n, bool go"
)
SWAPPED = model_of(
    """y, z = Loop <body = body (int64 i, bool c, float[N,3] s, float[N,3] r)
        => (bool c, float[N,3] r, float[N,3] q) { q = Tanh(s) }> (n, , x, w)""",
    "float[N,3] x, float[N,3] w, int64 n",
    "float[N,3] y, float[N,3] z",
)
HANDED_ON = model_of(
    """y, z, k, l = Loop <
        body = body (int64 i, bool c, float[N,3] s, float[N,3] r, int64 j, float[N,3] p)
        => (bool c, float[N,3] r, float[N,3] s, int64 o, float[N,3] q)
        { q = Add(p, s) o = Identity(i) }> (n, , x, w, n, x)""",
    "float[N,3] x, float[N,3] w, int64 n",
    "float[N,3] y, float[N,3] z, int64 k, float[N,3] l",
)
EXCHANGED = model_of(
    """y, z = Loop <body = body (int64 i, bool c, float[N,3] s, float[N,3] r)
        => (bool c, float[N,3] r, float[N,3] s) { e = Neg(s) }> (n, , x, w)""",
    "float[N,3] x, float[N,3] w, int64 n",
    "float[N,3] y, float[N,3] z",
)
NESTED = model_of(
    loop(
        """t = Loop <body = inner (int64 j, bool e, float[N,3] p) => (bool e, float[N,3] q)
            { a = Tanh(p) b = Add(a, x) q = Mul(b, s) }> (i, , s)""",
        condition="c",
    ),
    "float[N,3] x, int64 n",
)
CONSTANT = model_of(
    f"""w = Constant <value = float[3] {{1.0, 2.0, 3.0}}> ()
        start = Constant <value = float[1,3] {{0.5, 0.25, -1.0}}> ()
        f = Loop <body = body (int64 i, bool c, float[1,3] s) => (bool d, float[1,3] t)
            {{ k = Mul(s, w) t = Neg(k) {LARGEST} }}> (n, , start)
        y = Add(f, x)""",
    "float[N,3] x, float most, int64 n",
)
ONCE = model_of(loop("t = Neg(s) d = Constant <value = bool {0}> ()"), "float[N,3] x, int64 n")

FAR = model_of(
    f"""far = Constant <value_int = {2**63 - 1}> ()
        y = Loop <body = body (int64[1] i, bool[1] c, float[N,3] s) => (bool[1,1] d, float[N,3] t)
            {{ w = Cast <to = 1> (i) t = Add(s, w)
               total = ReduceMax <keepdims = 1> (t)
               d = Less(total, most) }}> (far, go, x)""",
    "float[N,3] x, float most, bool[1] go",
)
NOTHING_READ = model_of(
    """y, unread = Loop <body = body (int64 i, bool c, float[N,3] s, int64 k)
        => (bool c, float[N,3] t, int64 j)
        { one = Constant <value_int = 2> () w = Cast <to = 1> (k) t = Add(s, w) j = Add(k, one) }
        > (n, , x, n)""",
    "float[N,3] x, int64 n",
)
LOOPS = [
    FAR,
    NOTHING_READ,
    COUNTED,
    ENDED,
    BOTH,
    SWAPPED,
    HANDED_ON,
    EXCHANGED,
    NESTED,
    CONSTANT,
    ONCE,
]


def in_float(model: onnx.ModelProto, target: str = "tflite") -> QuantizedGraph:
    (graph,) = graphs_for(normalize(model), [load_target(target)])
    return build_float(graph, load_target(target))


def feeds_of(model: onnx.ModelProto, turns: int, *, most: float = 1e9, go: bool = True) -> Arrays:
    every: Arrays = {
        "x": X,
        "w": X[:, ::-1].copy(),
        "n": np.array(turns, np.int64),
        "most": np.array(most, np.float32),
        "go": np.array(go),
    }
    shapes = {each.name: len(each.type.tensor_type.shape.dim) for each in model.graph.input}
    return {name: every[name].reshape(every[name].shape or (1,) * n) for name, n in shapes.items()}


def assert_same(
    model: onnx.ModelProto, content: bytes, plan: QuantizedGraph, kernels: Kernels, feeds: Arrays
) -> None:
    found = run_tflite(plan, content, feeds, kernels)
    for name, array in FloatModel(plan.graph).run(feeds).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("kernels", Kernels)
@pytest.mark.parametrize("model", LOOPS)
def test_a_loop_turns_as_often_as_in_onnx(model: onnx.ModelProto, kernels: Kernels) -> None:
    plan = in_float(model)
    content = write_tflite(deployed_program(plan, float_operations=True), io=Io.FLOAT)
    assert "WHILE" in operators_of(content)
    for turns in (0, 1, 2, 7):
        assert_same(model, content, plan, kernels, feeds_of(model, turns, most=40.0))
    for most in (-10.0, 3.0, 5.0):
        assert_same(model, content, plan, kernels, feeds_of(model, 20, most=most))
    assert_same(model, content, plan, kernels, feeds_of(model, 3, go=False))


def between_layers(body: str = "", head: str = "n, go, h") -> onnx.ModelProto:
    """Write a loop between two layers, which are computed in integers."""
    turn = body or f"m = MatMul(s, w) a = Tanh(m) t = Add(a, h) {LARGEST}"
    weights = ", ".join(f"{k / 4 - 1}" for k in range(9))
    return model_of(
        f"""w = Constant <value = float[3,3] {{ {weights} }}> ()
            h = MatMul(x, w)
            k = Loop <body = body (int64 i, bool c, float[N,3] s) => (bool d, float[N,3] t)
                {{ {turn} }}> ({head})
            y = MatMul(k, w)""",
        "float[N,3] x, float most, int64 n, bool go",
    )


def test_layers_around_a_loop_are_integers_and_verified() -> None:
    samples = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    rest = {"most": np.array(2.0, "f4"), "n": np.array(5), "go": np.array(True)}
    (graph,) = graphs_for(normalize(between_layers()), [load_target("tflite")])
    plan = calibrate(build_plan(graph, load_target("tflite")), {"x": samples, **rest})
    (loop,) = (node for node in graph.nodes if node.op_type == "Loop")
    assert [plan.is_quantized(node) for node in graph.nodes] == [True, False, True]
    why = "what is inside of a Loop computes in float: the number of its turns has no bound"
    assert plan.decisions[str(loop.name)].reason == why
    content = write_tflite(deployed_program(plan, float_operations=True), io=Io.FLOAT)
    feeds = [{"x": samples[:8], **rest, "n": np.array(n)} for n in (0, 1, 4, 50)]
    found = verify_tflite(plan, content, feeds)
    assert found.layers
    assert {each.mismatches for part in (found.layers, found.outputs) for each in part} == {0}


def test_images_in_a_loop_have_the_channels_that_layers_want() -> None:
    b = ModelBuilder(17)
    x, n = b.input("x", ["batch", 3, 6, 6]), b.input("n", [], TensorProto.INT64)
    first, inner, last = b.weight(4, 3, 3, 3), b.weight(4, 4, 3, 3), b.weight(2, 4, 3, 3)
    h = b.node("Conv", x, first, pads=[1, 1, 1, 1])
    body = onnx.parser.parse_graph(f"""turn (int64 i, bool c, float[N,4,6,6] s)
        => (bool c, float[N,4,6,6] t) {{ a = Conv <pads = [1, 1, 1, 1]> (s, {inner})
            q = Tanh(a) t = Add(q, {h}) }}""")
    b.nodes.append(helper.make_node("Loop", [n, "", h], ["k"], name="loop", body=body))
    b.node("Conv", "k", last, out="y")
    b.output("y", ["batch", 2, 4, 4])
    (graph,) = graphs_for(normalize(b.build()), [load_target("tflite")])
    samples = np.random.default_rng(0).normal(size=(8, 3, 6, 6)).astype(np.float32)
    data = {"x": samples, "n": np.array(3)}
    plan = calibrate(build_plan(graph, load_target("tflite")), data)
    content = write_tflite(deployed_program(plan, float_operations=True), io=Io.FLOAT)
    found = verify_tflite(plan, content, [{**data, "n": np.array(n)} for n in (0, 1, 5)])
    assert sum(each.mismatches for each in found.layers) == 0
    assert max(each.largest for each in found.outputs) <= 1


def refusal(model: onnx.ModelProto, target: str = "tflite") -> str:
    plan = in_float(model, target)
    program = deployed_program(plan, float_operations=True)
    with pytest.raises(ExportError) as raised:
        write_tflite(program, io=Io.FLOAT, target=plan.target)
    return str(raised.value)


def test_what_loops_cannot_hold_is_said_by_name() -> None:
    collects = model_of(
        """y, z = Loop <body = body (int64 i, bool c, float[N,3] s)
            => (bool c, float[N,3] t, float[N,3] t2) { t = Tanh(s) t2 = Neg(s) }> (n, , x)""",
        "float[N,3] x, int64 n",
        "float[N,3] y, float[?,N,3] z",
    )
    assert "'Loop_1'" in refusal(collects)
    assert "it collects a value of each turn" in refusal(collects)
    grows = model_of(
        """y = Loop <body = body (int64 i, bool c, float[M,3] s) => (bool c, float[K,3] t)
            { t = Concat <axis = 0> (s, s) }> (n, , x)""",
        "float[N,3] x, int64 n",
        "float[M,3] y",
    )
    assert "'s' may change its shape from turn to turn" in refusal(grows)
    odd = model_of(loop("t = Celu(s)", condition="c"), "float[N,3] x, int64 n")
    assert "in its turns" in refusal(odd)
    assert "no loops for TensorFlow Lite Micro" in refusal(COUNTED, "tflite-micro")


def read_back(content: bytes) -> Graph:
    return assemble(build_model(open_tflite(content)))


@pytest.mark.parametrize("model", LOOPS)
def test_a_loop_is_read_back(model: onnx.ModelProto) -> None:
    plan = in_float(model)
    graph = read_back(write_tflite(deployed_program(plan, float_operations=True), io=Io.FLOAT))
    assert "Loop" in {node.op_type for node in graph.nodes}
    onnx.checker.check_model(ir.to_proto(graph.model), full_check=True)
    for turns in (0, 1, 2, 7):
        # What is read has the batch of the file.
        feeds = {n: a[:1] if a.ndim > 1 else a for n, a in feeds_of(model, turns, most=9.0).items()}
        found = FloatModel(graph).run(feeds)
        for name, array in FloatModel(plan.graph).run(feeds).items():
            np.testing.assert_array_equal(found[name], array)


def test_a_quantized_file_with_a_loop_is_read_and_verified() -> None:
    samples = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    rest = {"most": np.array(2.0, "f4"), "n": np.array(5), "go": np.array(True)}
    (graph,) = graphs_for(normalize(between_layers()), [load_target("tflite")])
    plan = calibrate(build_plan(graph, load_target("tflite")), {"x": samples, **rest})
    content = write_tflite(deployed_program(plan, float_operations=True), io=Io.FLOAT)
    read = read_tflite_model(content, load_target("tflite"))
    kinds = [node.op_type for node in read.plan.graph.nodes if read.plan.is_quantized(node)]
    assert len(kinds) == 2
    for n in (0, 1, 6):
        feeds = {"x": samples[:1], **rest, "n": np.array(n)}
        found = verify_read_tflite(read, content, [feeds], Kernels.REF)
        assert found.layers
        assert {each.mismatches for part in (found.layers, found.outputs) for each in part} == {0}


def changed(change: Callable[[Any], None]) -> bytes:
    """Return a file with two loops, one in the other, that was changed."""
    plan = in_float(NESTED)
    content = write_tflite(deployed_program(plan, float_operations=True), io=Io.FLOAT)
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    change(model)
    builder = flatbuffers.Builder(1 << 12)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def loops_of(model: Any) -> list[Any]:
    operators = (op for graph in model.subgraphs for op in graph.operators)
    return [op for op in operators if op.builtinOptionsType == schema.BuiltinOptions.WhileOptions]


def run_itself(model: Any) -> None:
    for op in loops_of(model):
        op.builtinOptions.bodySubgraphIndex = loops_of(model)[0].builtinOptions.bodySubgraphIndex


def run_nothing(model: Any) -> None:
    loops_of(model)[0].builtinOptions.condSubgraphIndex = 99


def run_main(model: Any) -> None:
    loops_of(model)[0].builtinOptions.bodySubgraphIndex = 0


def drop_input(model: Any) -> None:
    model.subgraphs[-1].inputs = model.subgraphs[-1].inputs[1:]


def repeat_input(model: Any) -> None:
    graph = model.subgraphs[-1]
    graph.inputs = [graph.inputs[0]] * len(graph.inputs)


def many(model: Any) -> None:
    graph = model.subgraphs[-1]
    graph.operators = [*graph.operators, *[op for op in loops_of(model)[:1] for _ in range(2000)]]


@pytest.mark.parametrize(
    "change", [run_itself, run_nothing, run_main, drop_input, repeat_input, many]
)
def test_damaged_loops_are_refused(change: Callable[[Any], None]) -> None:
    with pytest.raises(ModelError, match="damaged"):
        open_tflite(changed(change))


def test_loops_whose_values_grow_are_not_read() -> None:
    def grow(model: Any) -> None:
        graph = model.subgraphs[loops_of(model)[0].builtinOptions.bodySubgraphIndex]
        graph.tensors[graph.inputs[2]].shape = [2, 3]

    with pytest.raises(ModelError, match="changes its type or shape in turns"):
        build_model(open_tflite(changed(grow)))


def test_loops_of_codes_are_refused() -> None:
    def of_codes(model: Any) -> None:
        for graph in model.subgraphs:
            for tensor in graph.tensors:
                if tensor.type == schema.TensorType.FLOAT32:
                    tensor.type = schema.TensorType.INT8
                    tensor.quantization = schema.QuantizationParametersT()
                    tensor.quantization.scale = np.array([1 / 128], np.float32)
                    tensor.quantization.zeroPoint = np.array([0], np.int64)

    with pytest.raises(ModelError, match="turns"):
        build_model(open_tflite(changed(of_codes)))
