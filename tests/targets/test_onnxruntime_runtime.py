"""What ``onnxruntime.toml`` says about operators, against the graph ONNX Runtime makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.runtime_fact("onnxruntime")

X = [1, 4, 8, 8]
Array = npt.NDArray[Any]


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def operators_after_optimization(
    folder: Path,
    op_type: str,
    inputs: list[list[int]],
    constants: tuple[Array | None, ...] = (),
    *,
    weight: list[int] | None = None,
    same_scale: bool = False,
    output_zero_point: int = 100,
    quantize_output: bool = True,
    then: str = "",
    opset: int = 17,
    **attributes: Any,
) -> list[str]:
    """Operators of the optimized graph for Quantize-Dequantize, operator, Quantize-Dequantize."""
    nodes: list[onnx.NodeProto] = []
    scale = 0.05 if same_scale else 0.07
    arrays: dict[str, Array] = {
        "s": np.array(0.05, np.float32),
        "z": np.array(100, np.uint8),
        "so": np.array(scale, np.float32),
        "zo": np.array(output_zero_point, np.uint8),
    }
    names = []
    for index, _ in enumerate(inputs):
        nodes.append(helper.make_node("QuantizeLinear", [f"x{index}", "s", "z"], [f"q{index}"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"q{index}", "s", "z"], [f"d{index}"]))
        names.append(f"d{index}")
    if weight is not None:
        arrays |= {"w": np.ones(weight, np.int8), "zw": np.array(0, np.int8)}
        nodes.append(helper.make_node("DequantizeLinear", ["w", "s", "zw"], ["dw"]))
        names.append("dw")
    for index, constant in enumerate(constants):
        names.append("" if constant is None else f"c{index}")
        if constant is not None:
            arrays[f"c{index}"] = constant
    nodes.append(helper.make_node(op_type, names, ["y"], **attributes))
    last = "y"
    if then:
        nodes.append(helper.make_node(then, ["y"], ["t"]))
        last = "t"
    if quantize_output:
        nodes.append(helper.make_node("QuantizeLinear", [last, "so", "zo"], ["qy"]))
        nodes.append(helper.make_node("DequantizeLinear", ["qy", "so", "zo"], ["out"]))
        last = "out"
    graph = helper.make_graph(
        nodes,
        "probe",
        [
            helper.make_tensor_value_info(f"x{index}", TensorProto.FLOAT, shape)
            for index, shape in enumerate(inputs)
        ],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    optimized = onnx.load(folder / "optimized.onnx")
    return [n.op_type for n in optimized.graph.node if n.op_type != "QuantizeLinear"]


@pytest.mark.parametrize(
    ("op_type", "shape", "constants", "attributes"),
    [
        ("DepthToSpace", X, (), {"blocksize": 2}),
        ("Expand", [1, 4, 1, 1], (ints(1, 4, 2, 2),), {}),
        ("Flatten", X, (), {}),
        ("Gather", X, (ints(0, 2),), {"axis": 1}),
        ("MaxPool", X, (), {"kernel_shape": [2, 2]}),
        ("Reshape", X, (ints(1, -1),), {}),
        ("Resize", X, (None, np.array([1, 1, 2, 2], np.float32)), {"mode": "nearest"}),
        ("Slice", X, (ints(0), ints(2), ints(1)), {}),
        ("Squeeze", [1, 4], (ints(0),), {}),
        ("Tile", X, (ints(1, 1, 2, 2),), {}),
        ("Transpose", X, (), {"perm": [0, 2, 3, 1]}),
        ("Unsqueeze", X, (ints(0),), {}),
    ],
)
def test_operators_that_move_values_run_on_codes_of_one_scale(
    op_type: str,
    shape: list[int],
    constants: tuple[Array | None, ...],
    attributes: dict[str, Any],
    tmp_path: Path,
) -> None:
    found = operators_after_optimization(
        tmp_path, op_type, [shape], constants, same_scale=True, **attributes
    )
    assert found == [op_type, "DequantizeLinear"]
    found = operators_after_optimization(tmp_path, op_type, [shape], constants, **attributes)
    assert found[0] == "DequantizeLinear"  # two scales: in float


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("Add", 2, {}),
        ("Mul", 2, {}),
        ("Concat", 2, {"axis": 1}),
        ("AveragePool", 1, {"kernel_shape": [2, 2]}),
        ("GlobalAveragePool", 1, {}),
        ("Sigmoid", 1, {}),
        ("LeakyRelu", 1, {}),
    ],
)
def test_operators_with_integer_kernels_requantize(
    op_type: str, inputs: int, attributes: dict[str, Any], tmp_path: Path
) -> None:
    found = operators_after_optimization(tmp_path, op_type, [X] * inputs, **attributes)
    assert found == [f"QLinear{op_type}", "DequantizeLinear"]


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("Sub", 2, {}),
        ("Div", 2, {}),
        ("Tanh", 1, {}),
        ("HardSwish", 1, {}),
        ("ReduceMean", 1, {"axes": [2, 3]}),
        ("Resize", 1, {"mode": "linear"}),
    ],
)
def test_operators_without_integer_kernels_are_not_described(
    op_type: str, inputs: int, attributes: dict[str, Any], tmp_path: Path
) -> None:
    constants = (None, np.array([1, 1, 2, 2], np.float32)) if op_type == "Resize" else ()
    found = operators_after_optimization(
        tmp_path, op_type, [X] * inputs, constants, same_scale=True, **attributes
    )
    assert found[0] == "DequantizeLinear"


def test_max_pool_is_integer_from_opset_12(tmp_path: Path) -> None:
    for opset, first in ((11, "DequantizeLinear"), (12, "MaxPool")):
        found = operators_after_optimization(
            tmp_path, "MaxPool", [X], same_scale=True, opset=opset, kernel_shape=[2, 2]
        )
        assert found[0] == first


def test_multiply_and_accumulate(tmp_path: Path) -> None:
    found = operators_after_optimization(tmp_path, "Conv", [X], weight=[4, 4, 1, 1])
    assert "QLinearConv" in found  # among transpositions to its own layout
    assert "Conv" not in found
    found = operators_after_optimization(tmp_path, "ConvTranspose", [X], weight=[4, 4, 1, 1])
    assert "ConvTranspose" in found
    row, matrix = [1, 4], [4, 4]
    for op_type, integer, floating in (
        ("Gemm", "QGemm", "QGemm"),
        ("MatMul", "QLinearMatMul", "MatMulIntegerToFloat"),
    ):
        found = operators_after_optimization(tmp_path, op_type, [row], weight=matrix)
        assert found == [integer, "DequantizeLinear"]
        found = operators_after_optimization(
            tmp_path, op_type, [row], weight=matrix, quantize_output=False
        )
        assert found == [floating]


@pytest.mark.parametrize("op_type", ["Conv", "Add", "Mul", "GlobalAveragePool", "Concat"])
def test_relu_disappears_behind_the_operators_it_is_fused_with(
    op_type: str, tmp_path: Path
) -> None:
    inputs = [X, X] if op_type in {"Add", "Mul", "Concat"} else [X]
    weight = [4, 4, 1, 1] if op_type == "Conv" else None
    attributes: dict[str, Any] = {"axis": 1} if op_type == "Concat" else {}
    for zero_point, fused in ((0, True), (100, False)):
        found = operators_after_optimization(
            tmp_path,
            op_type,
            inputs,
            weight=weight,
            then="Relu",
            output_zero_point=zero_point,
            **attributes,
        )
        assert (f"QLinear{op_type}" in found) is fused
