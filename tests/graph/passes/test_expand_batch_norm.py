"""BatchNormalization that nothing in front takes: into the layer behind, or Mul and Add."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from intact.engines.session import FloatModel
from intact.graph import Graph, load_model, normalize
from intact.graph.files.save import save_model
from intact.graph.passes.expand import EXPANSIONS, expand
from intact.ops import EXPANDABLE
from intact.plan.preparation import graphs_for
from intact.targets import load_target
from tests.models import ModelBuilder

IMAGE = ("batch", 4, 6, 6)
Shape = Sequence[int | str]
Tail = Callable[[ModelBuilder, str], str]


def model_of(tail: Tail, shape: Shape = IMAGE, *, shown: bool = False) -> onnx.ModelProto:
    """Abs and BatchNormalization ``norm``, and what reads it; its result may be an output too."""
    b = ModelBuilder()
    x = b.node("Abs", b.input("x", shape))  # behind an activation, a dense layer has it already
    gamma, variance = np.array([1.5, -2, 0, 0.1]), np.array([0.1, 4, 1, 1e-6])
    rest = [b.constant(np.array(each, np.float32)) for each in ([1, 0, -3, 0.2], [2, 0.5, 0, 1])]
    parameters = [b.constant(gamma.astype(np.float32)), *rest]
    parameters.append(b.constant(variance.astype(np.float32)))
    b.node("BatchNormalization", x, *parameters, out="n", name="norm", epsilon=1e-3)
    b.output(tail(b, "n"))
    if shown:
        b.output("n")
    return b.build()


def expanded(model: onnx.ModelProto) -> tuple[Counter[str], Graph]:
    """Expand and compare the outputs; return the operators too."""
    graph = normalize(model)
    assert any(node.op_type == "BatchNormalization" for node in graph.nodes)
    hashed, found = graph.hash, expand(graph, ["BatchNormalization"])
    assert graph.hash == hashed
    shape = [3 if not isinstance(n, int) else n for n in graph.inputs[0].shape or ()]
    feeds = {"x": np.random.default_rng(0).normal(0, 2, shape).astype(np.float32)}
    before, after = (FloatModel(each, threads=1).run(feeds) for each in (graph, found))
    assert before.keys() == after.keys()
    for name, wanted in before.items():
        largest = float(np.abs(wanted).max())
        np.testing.assert_allclose(after[name], wanted, rtol=1e-5, atol=1e-5 * largest)
    normalize(found.model)
    return Counter(node.op_type for node in found.nodes), found


def convolution(b: ModelBuilder, x: str, *, bias: bool = True, group: int = 1, pad: int = 0) -> str:
    extra = [b.weight(8)] if bias else []
    weight = b.weight(8, 4 // group, 3, 3)
    return b.node("Conv", x, weight, *extra, group=group, pads=[pad] * 4, name="conv")


def dense(b: ModelBuilder, x: str, *, transposed: int = 0) -> str:
    weight = b.weight(5, 4) if transposed else b.weight(4, 5)
    return b.node("Gemm", x, weight, b.weight(5), transB=transposed, name="dense")


def both(b: ModelBuilder, x: str) -> str:
    """Two layers that share a weight."""
    weight = b.weight(4, 4, 1, 1)
    left, right = b.node("Conv", x, weight), b.node("Conv", x, weight, b.weight(4))
    return b.node("Concat", left, right, axis=1)


FOLDED: dict[str, tuple[Tail, Shape]] = {
    "conv": (convolution, IMAGE),
    "no bias": (lambda b, x: convolution(b, x, bias=False), IMAGE),
    "grouped": (lambda b, x: convolution(b, x, group=2), IMAGE),
    "depthwise": (lambda b, x: convolution(b, x, group=4), IMAGE),
    "dense": (dense, ("batch", 4)),
    "transposed": (lambda b, x: dense(b, x, transposed=1), ("batch", 4)),
    "product": (lambda b, x: b.node("MatMul", x, b.weight(4, 5)), ("batch", 4)),
    "two readers": (both, IMAGE),
}


@pytest.mark.parametrize("name", FOLDED)
def test_it_goes_into_the_layers_behind_where_that_is_exact(name: str) -> None:
    kinds, graph = expanded(model_of(*FOLDED[name]))
    assert not kinds.keys() & {"BatchNormalization", "Mul", "MatMul"}
    layers = [str(n.name) for n in graph.nodes if n.op_type in {"Conv", "Gemm"}]
    assert set(graph.input_batch_norms) == set(layers)
    assert all(norm.gamma[1] == -2 for norm in graph.input_batch_norms.values())


def other_reader(b: ModelBuilder, x: str) -> str:
    return b.node("Concat", convolution(b, x), b.node("MaxPool", x, kernel_shape=[3, 3]), axis=1)


SPLIT: dict[str, tuple[Tail, Shape]] = {
    "padding": (lambda b, x: convolution(b, x, pad=1), IMAGE),
    "another reader": (other_reader, IMAGE),
    "as a weight": (lambda b, x: b.node("MatMul", b.weight(3, 6), x), IMAGE),
    "an activation": (lambda b, x: b.node("Relu", x), IMAGE),
    "a batch of rows": (lambda b, x: b.node("MatMul", x, b.weight(6, 5)), ("batch", 4, 6)),
    "vectors": (lambda b, x: b.node("Relu", x), ("batch", 4)),
    "volumes": (lambda b, x: b.node("Relu", x), ("batch", 4, 2, 3, 2)),
}


@pytest.mark.parametrize("name", SPLIT)
def test_it_becomes_a_product_and_a_sum_elsewhere(name: str) -> None:
    kinds, graph = expanded(model_of(*SPLIT[name]))
    assert (kinds["BatchNormalization"], kinds["Mul"], kinds["Add"]) == (0, 1, 1)
    assert not graph.input_batch_norms
    norm = graph.batch_norms["norm"]  # the Add has the name, and the parameters
    assert norm.mean.tolist() == [2, 0.5, 0, 1]
    assert graph.node("norm").op_type == "Add"
    assert graph.node("norm").outputs[0].name == "n"


def test_an_output_is_not_folded_away() -> None:
    kinds, _ = expanded(model_of(convolution, shown=True))
    assert (kinds["Mul"], kinds["Add"]) == (1, 1)


def test_parameters_are_in_the_file(tmp_path: Path) -> None:
    _, graph = expanded(model_of(convolution))
    save_model(graph.model, tmp_path / "model.onnx")
    again = Graph(load_model(tmp_path / "model.onnx"))
    assert again.input_batch_norms["conv"].beta.tolist() == pytest.approx([1, 0, -3, 0.2])


def test_what_trains_or_is_not_finite_stays() -> None:
    model = model_of(lambda b, x: b.node("Relu", x))
    for each in model.graph.initializer:
        if each.name == model.graph.node[1].input[4]:
            each.CopyFrom(onnx.numpy_helper.from_array(np.full(4, -1, np.float32), each.name))
    graph = normalize(model)
    kinds = Counter(node.op_type for node in expand(graph, ["BatchNormalization"]).nodes)
    assert kinds["BatchNormalization"] == 1


def test_targets_with_the_same_needs_share_a_graph() -> None:
    graph = normalize(model_of(lambda b, x: b.node("Relu", x)))
    targets = [load_target(n) for n in ("tflite", "onnxruntime", "tflite-micro", "tvm", "vta")]
    found = graphs_for(graph, targets)
    assert found[0] is found[2]
    assert found[1] is found[4] is graph
    assert "Mul" in {node.op_type for node in found[3].nodes}


def test_the_names_of_expansions_are_those_that_targets_take() -> None:
    assert tuple(sorted(EXPANSIONS)) == EXPANDABLE
