"""Arithmetics that were measured, a step run by the engine, and ONNX Runtime as an oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from intact.config import Rounding
from intact.engines.integer import IntegerEngine
from intact.engines.session import make_session, run_session
from intact.program import Array, Encoding, Program, Shape
from intact.program.operations import Operation
from intact.targets import (
    Addition,
    Arithmetic,
    FixedPoint,
    FloatOnce,
    Multiplier,
    Product,
    Shift,
    ZeroPointOrder,
)
from tests.program.one_step import one_step

DOUBLE = Arithmetic(
    requantize=FixedPoint(Product.DOUBLE, multiplier=Multiplier.FLOAT64),
    rounding=Rounding.HALF_AWAY_FROM_ZERO,
)
"""LiteRT's reference kernels and TensorFlow Lite Micro."""

SINGLE = Arithmetic(requantize=FixedPoint(Product.SINGLE), rounding=Rounding.HALF_UP)
"""XNNPACK's additions and interpolation."""

AFTER = Arithmetic(requantize=FloatOnce())
"""Dequantize, compute, quantize: ONNX's definition."""

BEFORE = Arithmetic(requantize=FloatOnce(), zero_point=ZeroPointOrder.BEFORE_ROUNDING)
"""XNNPACK's mean, and ONNX Runtime's product."""

FUSED = msgspec.structs.replace(
    BEFORE,
    requantize=FloatOnce(addition=Addition.FUSED_MULTIPLY_ADD, integer_whole_windows=True),
)
"""ONNX Runtime's kernels of additions and averages."""

SHIFT = Arithmetic(requantize=Shift(), rounding=Rounding.HALF_UP)
"""Scales are powers of two."""

End = tuple[Shape, Encoding | None] | tuple[Array, Encoding | None]


def computed(program: Program, *arrays: Array) -> Array:
    """Return the only output of a program, inputs given in order."""
    feeds = dict(zip(program.inputs, arrays, strict=True))
    (result,) = IntegerEngine(program).run(feeds).outputs.values()
    return result


def run_step(
    operation: Operation,
    arithmetic: Arithmetic,
    inputs: Sequence[End],
    output: tuple[Shape, Encoding | None],
    *arrays: Array,
) -> Array:
    """Return what the engine computes in one step."""
    return computed(one_step(operation, arithmetic, inputs, [output]), *arrays)


def as_int8(codes: npt.ArrayLike) -> Array:
    """Return codes of type int8."""
    return np.asarray(codes, np.int8)


def random_codes(shape: tuple[int, ...], encoding: Encoding, seed: int = 0) -> Array:
    """Return codes of the whole range."""
    generator = np.random.default_rng(seed)
    codes: Array = generator.integers(
        encoding.quant_min, encoding.quant_max, shape, endpoint=True
    ).astype(encoding.dtype)
    return codes


def onnxruntime(
    op_type: str,
    inputs: Sequence[tuple[Array, Encoding]],
    output: Encoding,
    attributes: Mapping[str, Any] | None = None,
    constants: Sequence[npt.NDArray[Any] | None] = (),
) -> Array:
    """Return what ONNX Runtime makes of one node between Dequantize- and QuantizeLinear.

    Args:
        op_type: Of the node.
        inputs: Codes, in the layout of ONNX, with their encodings.
        output: Of the result.
        attributes: Of the node.
        constants: Its further inputs; None leaves one out.
    """
    nodes, initializers, names, graph_inputs = [], [], [], []
    for index, (codes, encoding) in enumerate(inputs):
        element = helper.np_dtype_to_tensor_dtype(codes.dtype)
        graph_inputs.append(helper.make_tensor_value_info(f"x{index}", element, codes.shape))
        initializers += _parameters(str(index), encoding)
        ends = [f"x{index}", f"scale{index}", f"zero{index}"]
        nodes.append(helper.make_node("DequantizeLinear", ends, [f"real{index}"]))
        names.append(f"real{index}")
    for index, array in enumerate(constants):
        names.append("" if array is None else f"constant{index}")
        if array is not None:
            initializers.append(numpy_helper.from_array(array, f"constant{index}"))
    nodes.append(helper.make_node(op_type, names, ["real"], **(attributes or {})))
    initializers += _parameters("", output)
    nodes.append(helper.make_node("QuantizeLinear", ["real", "scale", "zero"], ["y"]))
    element = helper.np_dtype_to_tensor_dtype(output.dtype)
    results = [helper.make_tensor_value_info("y", element, None)]
    graph = helper.make_graph(nodes, "one", graph_inputs, results, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = make_session(model.SerializeToString(), threads=1)
    feeds = {f"x{index}": codes for index, (codes, _) in enumerate(inputs)}
    return run_session(session, feeds)[0]


def _parameters(suffix: str, encoding: Encoding) -> list[onnx.TensorProto]:
    zero = encoding.zero_point.astype(encoding.dtype)
    return [
        numpy_helper.from_array(np.asarray(encoding.scale), f"scale{suffix}"),
        numpy_helper.from_array(np.asarray(zero), f"zero{suffix}"),
    ]
