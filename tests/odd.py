"""Odd models that must work, one function each: odd names, ports, constants, bodies, types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.models import ModelBuilder

F = TensorProto.FLOAT


def _dense(b: ModelBuilder, x: str, out: str | None = None, **node: Any) -> str:
    return b.node("Gemm", x, b.weight(6, 6), b.weight(6), transB=1, out=out, **node)


def _start(opset: int = 17) -> tuple[ModelBuilder, str]:
    b = ModelBuilder(opset)
    return b, b.input("x", ["n", 6])


def without_names() -> onnx.ModelProto:
    b, x = _start()
    _dense(b, b.node("Relu", _dense(b, x, name=""), name=""), "y", name="")
    b.output("y")
    model = b.build()
    model.graph.name = ""
    return model


def equal_node_names() -> onnx.ModelProto:
    b, x = _start()
    _dense(b, b.node("Relu", _dense(b, x, name="n"), name="n"), "y", name="n")
    b.output("y")
    return b.build()


ODD_NAMES = (
    "with blank",
    "a/b//c",
    "..",
    "../../up",
    "layer.output[0]",
    "a.output[0] ",
    "größe π",
    "🙂",
    "line\nbreak",
    "<script>alert(1)</script>",
    "\\",
    "quote\"'",
    "%s {0} $HOME",
    "x" * 2000,
    "/",
    "CON",
    "\ttab",
    "node.input[1]",
)


def odd_names() -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.input("in put/0:<b>", ["n", 6])
    for name in ODD_NAMES:
        x = b.node("Gemm", x, b.weight(6, 6, name=f"w {name}"), out=name, name=name)
    b.node("Relu", x, out="out\nput", name="last")
    b.output("out\nput")
    return b.build()


def several_ports() -> onnx.ModelProto:
    b = ModelBuilder()
    one, two = b.input("one", ["n", 6]), b.input("two", ["n", 6])
    left, right = _dense(b, one), _dense(b, two)
    b.node("Add", left, right, out="sum")
    _dense(b, "sum", out="inner")
    _dense(b, "inner", out="last")
    for name in ("last", "inner", "sum"):
        b.output(name)
    return b.build()


def input_is_output() -> onnx.ModelProto:
    b, x = _start()
    _dense(b, x, "y")
    b.output("y")
    b.output("x", ["n", 6])
    return b.build()


def output_twice() -> onnx.ModelProto:
    b, x = _start()
    _dense(b, x, "y")
    b.output("y")
    b.node("Identity", "y", out="again")
    b.output("again")
    return b.build()


def default_inputs() -> onnx.ModelProto:
    b, x = _start()
    weight = b.weight(6, 6, name="w")
    b.node("Gemm", x, weight, out="y", name="g")
    b.output("y")
    model = b.build()
    model.graph.input.append(helper.make_tensor_value_info("w", F, [6, 6]))
    return model


def constant_outputs() -> onnx.ModelProto:
    b, x = _start()
    b.node("MatMul", x, b.weight(6, 6, name="w"), out="y")
    b.output("y")
    b.output("w", [6, 6])
    return b.build()


def shared_weight() -> onnx.ModelProto:
    b, x = _start()
    weight, bias = b.weight(6, 6), b.weight(6)
    y = b.node("Gemm", x, weight, bias)
    b.node("Gemm", b.node("Relu", y), weight, bias, out="y")
    b.output("y")
    return b.build()


def shared_along_other_axes() -> onnx.ModelProto:
    """One weight whose output channels are its rows, its columns, and again its rows."""
    b, x = _start()
    weight = b.weight(6, 6)
    y = b.node("Gemm", x, weight, transB=1)
    y = b.node("MatMul", b.node("Relu", y), weight)
    b.node("Gemm", y, weight, out="y", transB=1)
    b.output("y")
    return b.build()


def weight_and_data() -> onnx.ModelProto:
    b, x = _start()
    weight = b.weight(6, 6)
    y = b.node("MatMul", x, weight)
    b.node("Add", b.node("MatMul", y, b.weight(6, 6)), b.node("ReduceMean", weight), out="y")
    b.node("Mul", weight, b.node("Relu", b.node("ReduceMax", y, keepdims=0)), out="z")
    b.output("y")
    b.output("z")
    return b.build()


def bias_is_weight() -> onnx.ModelProto:
    b, x = _start()
    both = b.weight(6, 6)
    flat = b.weight(6)
    y = b.node("Gemm", x, both, flat)
    b.node("Add", b.node("Mul", y, flat), b.node("Gemm", x, both, flat), out="y")
    b.output("y")
    return b.build()


def empty_tensors() -> onnx.ModelProto:
    b, x = _start()
    nothing = b.constant(np.zeros((0, 6), np.float32))
    empty = b.node("Slice", x, b.ints(0), b.ints(0), b.ints(1))
    y = b.node("Concat", _dense(b, x), empty, axis=1)
    b.node("Concat", y, nothing, axis=0, out="y")
    b.node("MatMul", nothing, b.weight(6, 3), out="none")
    b.output("y")
    b.output("none")
    return b.build()


def scalars() -> onnx.ModelProto:
    b, x = _start()
    total = b.node("ReduceMean", _dense(b, x), keepdims=0)
    scaled = b.node("Mul", total, b.scalar(2))
    b.node("Add", _dense(b, x), scaled, out="y")
    b.output("y")
    return b.build()


def _body(name: str, nodes: list[onnx.NodeProto], inputs: Any, outputs: Any) -> onnx.GraphProto:
    return helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs],
        [helper.make_tensor_value_info(n, t, s) for n, t, s in outputs],
    )


def conditional() -> onnx.ModelProto:
    """Branches that read outer values: a quantized activation and a weight used outside too."""
    b, x = _start()
    weight = b.weight(6, 6, name="w")
    y = b.node("Relu", b.node("MatMul", x, weight))
    condition = b.node("Greater", b.node("ReduceMax", y, keepdims=0), b.scalar(0))
    make = helper.make_node
    yes = _body("yes", [make("MatMul", [y, "w"], ["t"], name="inner")], [], [("t", F, None)])
    no = _body("no", [make("Neg", [y], ["e"], name="inner")], [], [("e", F, None)])
    z = b.node("If", condition, then_branch=yes, else_branch=no)
    _dense(b, z, "y")
    b.output("y")
    return b.build()


def loop() -> onnx.ModelProto:
    b, x = _start()
    y = _dense(b, x)
    make = helper.make_node
    nodes = [
        make("MatMul", ["state", "w"], ["product"], name="product"),
        make("Add", ["product", y], ["next"], name="next"),
        make("Identity", ["go"], ["still"], name="still"),
    ]
    carried: list[Any] = [
        ("i", TensorProto.INT64, []),
        ("go", TensorProto.BOOL, []),
        ("state", F, None),
    ]
    body = _body("body", nodes, carried, [("still", TensorProto.BOOL, []), ("next", F, None)])
    b.weight(6, 6, name="w")
    trips, go = b.constant(np.int64(2)), b.constant(np.bool_(True))
    z = b.node("Loop", trips, go, y, body=body)
    _dense(b, b.node("MatMul", z, "w"), "y")
    b.output("y")
    return b.build()


def scan() -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.input("x", ["n", 4, 6])
    y = b.node("MatMul", x, b.weight(6, 6))
    rows = b.node("Transpose", y, perm=[1, 0, 2])
    start = b.node("ReduceMax", y, axes=[1], keepdims=0)
    make = helper.make_node
    nodes = [
        make("Max", ["state", "row"], ["next"], name="next"),
        make("Identity", ["next"], ["out"], name="out"),
    ]
    body = _body(
        "body", nodes, [("state", F, None), ("row", F, None)], [("next", F, None), ("out", F, None)]
    )
    outs = [b._fresh("last"), b._fresh("all")]
    b.nodes.append(make("Scan", [start, rows], outs, name="scan", num_scan_inputs=1, body=body))
    b.node("MatMul", b.node("Transpose", outs[1], perm=[1, 0, 2]), b.weight(6, 6), out="y")
    b.output("y")
    return b.build()


def functions() -> onnx.ModelProto:
    """A function called twice, which calls another."""
    b, x = _start()
    b.domains["local"] = 1
    make, imports = helper.make_node, [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    inner = [make("Sigmoid", ["a"], ["s"]), make("Mul", ["a", "s"], ["b"])]
    outer = [
        make("Swish", ["p"], ["q"], domain="local", name="inner"),
        make("Add", ["p", "q"], ["r"], name="sum"),
    ]
    b.functions.append(helper.make_function("local", "Swish", ["a"], ["b"], inner, imports))
    b.functions.append(helper.make_function("local", "Twice", ["p"], ["r"], outer, imports))
    y = b.node("Twice", _dense(b, x), domain="local", name="same")
    y = b.node("Twice", _dense(b, y), domain="local", name="same")
    _dense(b, y, "y")
    b.output("y")
    return b.build()


def sequences() -> onnx.ModelProto:
    b, x = _start()
    y = _dense(b, x)
    both = b.node("SequenceConstruct", y, b.node("Relu", y))
    second = b.node("SequenceAt", both, b.constant(np.int64(1)))
    joined = b.node("ConcatFromSequence", both, axis=1)
    z = b.node("MatMul", joined, b.weight(12, 6))
    b.node("Add", z, _dense(b, second), out="y")
    b.output("y")
    return b.build()


def optionals() -> onnx.ModelProto:
    b, x = _start(18)
    y = _dense(b, x)
    some = b.node("Optional", y)
    _dense(b, b.node("OptionalGetElement", some), "y")
    b.output("y")
    return b.build()


def dead_nodes() -> onnx.ModelProto:
    b, x = _start()
    b.node("Relu", _dense(b, x))
    b.node("Relu", b.constant(np.full(6, np.nan, np.float32)))
    _dense(b, x, "y")
    b.output("y")
    return b.build()


def contrib_operator() -> onnx.ModelProto:
    """An operator of ONNX Runtime's own domain between quantized layers."""
    b, x = _start()
    b.domains["com.microsoft"] = 1
    y = b.node("FastGelu", _dense(b, x), domain="com.microsoft")
    _dense(b, b.node("Add", y, _dense(b, y)), "y")
    b.output("y")
    return b.build()


def constant_nodes() -> onnx.ModelProto:
    b, x = _start()
    half = b.node("Constant", value_float=0.5)
    row = b.node("Constant", value_floats=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    shape = b.node("Constant", value_ints=[-1, 6])
    axis = b.node("Constant", value_int=0)
    y = b.node("Mul", b.node("Add", _dense(b, x), row), half)
    y = b.node("Reshape", b.node("Gather", b.node("Unsqueeze", y, axis), axis, axis=0), shape)
    _dense(b, y, "y")
    b.output("y")
    return b.build()


def sparse_initializers() -> onnx.ModelProto:
    b, x = _start()
    b.node("MatMul", b.node("MatMul", x, "rows"), "flat", out="y")
    b.output("y")
    model = b.build()
    for name, indices in (("rows", [[0, 1], [2, 2], [5, 0]]), ("flat", [1, 14, 30])):
        values = numpy_helper.from_array(np.array([0.5, -1, 2], np.float32), name)
        places = numpy_helper.from_array(np.array(indices, np.int64), f"{name} places")
        model.graph.sparse_initializer.append(
            onnx.SparseTensorProto(values=values, indices=places, dims=[6, 6])
        )
    return model


def doubles() -> onnx.ModelProto:
    """A float64 part that stays as it is, behind a quantized one."""
    b, x = _start()
    y = b.node("Cast", _dense(b, x), to=TensorProto.DOUBLE)
    y = b.node("MatMul", y, b.constant(np.eye(6) * 0.5))
    _dense(b, b.node("Cast", y, to=F), "y")
    b.output("y")
    return b.build()


def metadata() -> onnx.ModelProto:
    model = shared_weight()
    model.producer_name, model.doc_string = "someone", "a text"
    entry = model.metadata_props.add()
    entry.key, entry.value = "author", "somebody"
    return model


ODD: Mapping[str, Callable[[], onnx.ModelProto]] = {
    make.__name__: make
    for make in (
        without_names,
        equal_node_names,
        odd_names,
        several_ports,
        input_is_output,
        output_twice,
        default_inputs,
        constant_outputs,
        shared_weight,
        shared_along_other_axes,
        weight_and_data,
        bias_is_weight,
        empty_tensors,
        scalars,
        conditional,
        loop,
        scan,
        functions,
        sequences,
        optionals,
        dead_nodes,
        contrib_operator,
        constant_nodes,
        sparse_initializers,
        doubles,
        metadata,
    )
}
"""Each goes through: quantized, saved, loaded, evaluated and verified."""
