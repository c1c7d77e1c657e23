"""A few bytes do not become memory or time without end, and the limits can be raised."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from intact import inspect
from intact.cli import entry
from intact.data.sources import load_arrays
from intact.errors import DataError, ModelError
from intact.graph import load_model
from intact.graph.files import expansion
from intact.graph.files.limits import NODE_RUNS, raised_limits, remedy
from tests.models import ModelBuilder


def nested_functions(depth: int, calls: int = 10) -> onnx.ModelProto:
    """Functions that call the one before so many times."""
    b = ModelBuilder()
    b.domains["own"] = 1
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    for level in range(depth):
        body = []
        last = "x"
        for call in range(calls):
            out = "y" if call == calls - 1 else f"t{call}"
            operator = helper.make_node(f"F{level - 1}", [last], [out], domain="own")
            body.append(operator if level else helper.make_node("Relu", [last], [out]))
            last = out
        b.functions.append(helper.make_function("own", f"F{level}", ["x"], ["y"], body, imports))
    b.node(f"F{depth - 1}", b.input("x", ["n", 2]), domain="own", out="y")
    b.output("y")
    return b.build()


def loop(turns: int, *, ends: bool = False, depth: int = 1) -> onnx.ModelProto:
    """Loops in loops, each with so many turns unless a condition that is computed ends it."""
    float_type, bool_type = (
        helper.make_tensor_type_proto(kind, []) for kind in (TensorProto.FLOAT, TensorProto.BOOL)
    )
    node = helper.make_node("Neg", ["v"], ["w"])
    for _ in range(depth):
        condition = helper.make_node(
            *(("Less", ["w", "v"]) if ends else ("Identity", ["c"])), ["d"]
        )
        body = helper.make_graph(
            [node, condition],
            "body",
            [
                helper.make_tensor_value_info("i", TensorProto.INT64, []),
                helper.make_value_info("c", bool_type),
                helper.make_value_info("v", float_type),
            ],
            [helper.make_value_info("d", bool_type), helper.make_value_info("w", float_type)],
        )
        node = helper.make_node("Loop", ["turns", "", "v"], ["w"], body=body)
    b = ModelBuilder()
    b.constant(np.int64(turns), "turns")
    node.input[2], node.output[0] = b.input("x", []), "y"
    b.nodes.append(node)
    b.output("y")
    return b.build()


def loop_of(copy: str, *, begins: bool = True) -> onnx.ModelProto:
    """A loop of 2^62 turns behind an operator, or of no number; it may not begin at all."""
    model = loop(2**62)
    (node,) = model.graph.node
    node.input[:2] = ["copied" if copy else "", "begins"]
    model.graph.initializer.append(numpy_helper.from_array(np.array(begins), "begins"))
    if copy:
        model.graph.node.insert(0, helper.make_node(copy, ["turns"], ["copied"]))
    return model


def sparse(*, sizes: list[int]) -> onnx.ModelProto:
    b = ModelBuilder()
    b.node("Relu", b.input("x", ["n", 2]), out="y")
    b.output("y")
    model = b.build()
    for number, size in enumerate(sizes):
        tensor = model.graph.sparse_initializer.add(dims=[size])
        tensor.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), f"w{number}"))
        tensor.indices.CopyFrom(numpy_helper.from_array(np.zeros(1, np.int64)))
    return model


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (nested_functions(9), r"has 1111111111 nodes where its functions are written out"),
        (nested_functions(40), r"has about 10\^40 nodes"),
        (loop(2**62), r"nodes to run, as often as its loops turn"),
        (loop(1000, depth=4), r"nodes to run"),
        (loop_of("Identity"), r"nodes to run"),
        (loop_of(""), r"nodes to run"),
        (sparse(sizes=[2**25, 2**25, 2**25]), r"sparse initializers have 402653184"),
        (sparse(sizes=[2**25] * 20), r"raise_limits 10$"),
        (sparse(sizes=[2**62]), r"sparse initializers have 18446744073709551616 bytes"),
    ],
)
def test_small_models_that_become_large(model: onnx.ModelProto, says: str) -> None:
    start = time.monotonic()
    with pytest.raises(ModelError, match=says):
        load_model(model)
    assert time.monotonic() - start < 10


def long(*, nodes: int) -> onnx.ModelProto:
    """A chain, of which the last node has an attribute that ONNX does not allow."""
    b = ModelBuilder()
    b.node("Relu", b.input("x", ["n", 2]), out="t0")
    b.output("t0")
    model = b.build()
    chain = (helper.make_node("Relu", [f"t{at}"], [f"t{at + 1}"]) for at in range(nodes - 1))
    model.graph.node.extend(chain)
    model.graph.node[-1].attribute.add(name="alpha")
    return model


def in_a_branch(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model whose only node is an If with the nodes of another in one of its branches."""
    branch = helper.make_graph(model.graph.node, "branch", [], [])
    empty = helper.make_graph([], "empty", [], [])
    outer = onnx.ModelProto(opset_import=model.opset_import, ir_version=model.ir_version)
    outer.graph.node.append(
        helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=empty)
    )
    return outer


@pytest.mark.parametrize("where", [lambda model: model, in_a_branch])
def test_a_model_of_too_many_nodes_is_refused_before_its_nodes_are_looked_at(
    where: Callable[[onnx.ModelProto], onnx.ModelProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expansion, "NODES", 1000)
    model = where(long(nodes=3000))
    with pytest.raises(ModelError, match=r"has 300[01] nodes, 1000 are allowed.* smaller models"):
        load_model(model)
    with raised_limits(4), pytest.raises(ModelError, match="'alpha' has no type"):
        load_model(model)


def crowded(field: str) -> onnx.ModelProto:
    """A chain that ONNX does not allow, with 3000 messages in a field of the model or graph."""
    model = long(nodes=10)
    holder = model if field == "functions" else model.graph
    for at in range(3000):
        each = getattr(holder, field).add(name=f"v{at}")
        if field == "functions":
            each.domain = "own"
    return model


@pytest.mark.parametrize(
    ("field", "what"),
    [
        ("initializer", "3000 initializers"),
        ("input", "3001 inputs"),
        ("output", "3001 outputs"),
        ("value_info", "3000 declared types"),
        ("functions", "3000 functions"),
    ],
)
def test_a_model_that_declares_too_much_is_refused_before_it_is_looked_at(
    field: str,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expansion, "TENSORS", 1000)
    monkeypatch.setattr(expansion, "FUNCTIONS", 1000)
    model = crowded(field)
    with pytest.raises(ModelError, match=rf"has {what}.* 1000 are allowed.* raise_limits [34]"):
        load_model(model)
    with raised_limits(4), pytest.raises(ModelError, match="'alpha' has no type"):
        load_model(model)


def test_tensors_of_branches_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expansion, "TENSORS", 1000)
    model = in_a_branch(long(nodes=10))
    model.graph.node[0].attribute[0].g.CopyFrom(crowded("initializer").graph)
    with pytest.raises(ModelError, match="has 3000 initializers, 1000 are allowed"):
        load_model(model)


def test_a_function_that_calls_itself() -> None:
    model = nested_functions(2)
    model.functions[0].node[0].op_type = "F1"
    model.functions[0].node[0].domain = "own"
    with pytest.raises(ModelError, match="calls itself"):
        load_model(model)


@pytest.mark.parametrize(
    "model",
    [
        nested_functions(5),
        loop(1000),
        loop(2**62, ends=True),
        loop_of("", begins=False),
        sparse(sizes=[2**20]),
    ],
)
def test_models_of_a_usual_size(model: onnx.ModelProto) -> None:
    load_model(model)


def test_limits_can_be_raised() -> None:
    model = loop(NODE_RUNS)
    with pytest.raises(ModelError, match="allow it with raise_limits 3"):
        load_model(model)
    with raised_limits(3):
        load_model(model)
    with pytest.raises(ModelError):
        load_model(model)
    assert "raise" not in remedy(10**9, 1, "export it without")


def test_limits_are_raised_by_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(loop(NODE_RUNS).SerializeToString())
    assert entry.run(["inspect", str(path)]) == 2
    assert "allow it with --raise-limits 3" in capsys.readouterr().err
    assert entry.run(["inspect", str(path), "--raise-limits", "3"]) == 0
    inspect(path, raise_limits=3)


def test_a_small_archive_that_unpacks_to_much(tmp_path: Path) -> None:
    path = tmp_path / "zeros.npz"
    np.savez_compressed(path, x=np.zeros(300 << 20, np.uint8))
    with pytest.raises(DataError, match=r"unpack to 314572928, .* raise_limits 2"):
        load_arrays(path)
    with raised_limits(2):
        arrays = load_arrays(path)
    assert isinstance(arrays, dict)
    assert arrays["x"].nbytes == 300 << 20
