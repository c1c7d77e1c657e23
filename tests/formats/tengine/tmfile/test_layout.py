"""The layout of a file, held against one that was put together by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from intact.formats.tengine.tmfile.onnx_builder import OnnxBuilder
from intact.formats.tengine.tmfile.read import is_tmfile, read_tmfile
from intact.formats.tengine.tmfile.write import write_float, write_int8
from intact.graph import normalize
from tests.formats.tengine.tmfile import by_hand
from tests.formats.tengine.tmfile.by_hand import Hand, Node, Tensor, assembled, taken_apart
from tests.formats.tengine.tmfile.files import file_of
from tests.formats.tengine.tmfile.networks import run
from tests.models import ModelBuilder
from tests.plans import calibrated

Array = npt.NDArray[Any]

_RANDOM = np.random.default_rng(5)
KERNEL = _RANDOM.normal(size=(2, 3, 1, 1)).astype(np.float32)
SHIFT = np.array([0.5, -0.25], np.float32)
MATRIX = _RANDOM.normal(size=(4, 2)).astype(np.float32)
BIAS = np.array([1, 2, 3, 4], np.float32)
CONVOLUTION = (1, 1, 1, 1, 1, 1, 3, 2, 1, -1, 0, 0, 0, 0)
POOLING = (1, 2, 2, 1, 1, 1, 0, 0, 0, 0, 0)


def constant(name: str, array: Array) -> Tensor:
    """A constant of float32."""
    return Tensor(name, array.shape, by_hand.CONST_TENSOR, data=array.tobytes())


def hand() -> Hand:
    """Conv, Relu, a mean, Flatten, a dense layer and Softmax, as the writer numbers them."""
    tensors = [
        Tensor("image", (1, 3, 2, 2), by_hand.INPUT_TENSOR),
        constant("kernel", KERNEL),
        constant("shift", SHIFT),
        Tensor("conv", (1, 2, 2, 2)),
        Tensor("relu", (1, 2, 2, 2)),
        Tensor("mean", (1, 2, 1, 1)),
        Tensor("row", (1, 2)),
        constant("matrix", MATRIX),
        constant("bias", BIAS),
        Tensor("dense", (1, 4)),
        Tensor("result", (1, 4)),
    ]
    nodes = [
        Node("image", by_hand.INPUT, (), ("image",)),
        Node("kernel", by_hand.CONST, (), ("kernel",)),
        Node("shift", by_hand.CONST, (), ("shift",)),
        Node("n1", by_hand.CONVOLUTION, ("image", "kernel", "shift"), ("conv",), CONVOLUTION),
        Node("n2", by_hand.RELU, ("conv",), ("relu",), (0.0,)),
        Node("n3", by_hand.POOLING, ("relu",), ("mean",), POOLING),
        Node("n4", by_hand.FLATTEN, ("mean",), ("row",), (1, 3)),
        Node("matrix", by_hand.CONST, (), ("matrix",)),
        Node("bias", by_hand.CONST, (), ("bias",)),
        Node("n5", by_hand.FULLY_CONNECTED, ("row", "matrix", "bias"), ("dense",), (4,)),
        Node("n6", by_hand.SOFTMAX, ("dense",), ("result",), (1,)),
    ]
    return Hand(tensors, nodes, ("image",), ("n6",))


def model() -> onnx.ModelProto:
    """The same in ONNX."""
    b = ModelBuilder()
    x = b.input("image", ["batch", 3, 2, 2])
    weights = b.constant(KERNEL, "kernel"), b.constant(SHIFT, "shift")
    x = b.node("Conv", x, *weights, name="n1", out="conv")
    x = b.node("GlobalAveragePool", b.node("Relu", x, name="n2", out="relu"), name="n3", out="mean")
    x = b.node("Flatten", x, name="n4", out="row")
    dense = b.constant(MATRIX, "matrix"), b.constant(BIAS, "bias")
    x = b.node("Gemm", x, *dense, transB=1, name="n5", out="dense")
    b.node("Softmax", x, axis=-1, name="n6", out="result")
    b.output("result", ["batch", 4])
    return b.build()


def expected(images: Array) -> Array:
    """What both compute."""
    maps = np.einsum("oi,nihw->nohw", KERNEL[:, :, 0, 0], images) + SHIFT[:, None, None]
    logits = np.maximum(maps, 0).mean(axis=(2, 3)) @ MATRIX.T + BIAS
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def test_reads_what_is_put_together_by_hand() -> None:
    images = _RANDOM.normal(size=(3, 3, 2, 2)).astype(np.float32)
    found = read_tmfile(assembled(hand()))
    assert [node.name for node in found.graph] == ["n1", "n2", "n3", "n4", "n5", "n6"]
    names = {str(value.name) for value in found.graph.initializers.values()}
    assert names == {"kernel", "shift", "matrix", "bias"}
    np.testing.assert_allclose(run(found, {"image": images})[0], expected(images), rtol=1e-5)


def test_a_fused_relu_and_images_into_a_dense_layer() -> None:
    """As Tengine's own converter leaves them."""
    graph = hand()
    del graph.tensors[6], graph.tensors[4]
    del graph.nodes[6], graph.nodes[4]
    graph.nodes[3].options = (*CONVOLUTION[:9], 0, *CONVOLUTION[10:])
    graph.nodes[4].inputs, graph.nodes[7].inputs = ("conv",), ("mean", "matrix", "bias")
    for tensor in graph.tensors[-2:]:
        tensor.dims = (1, 4, 1, 1)
    images = _RANDOM.normal(size=(2, 3, 2, 2)).astype(np.float32)
    (found,) = run(read_tmfile(assembled(graph)), {"image": images})
    assert found.shape == (2, 4, 1, 1)
    np.testing.assert_allclose(found[:, :, 0, 0], expected(images), rtol=1e-5)


def test_writes_what_hands_would_put_together() -> None:
    assert taken_apart(write_float(normalize(model()))) == hand()


def test_writes_integers_as_hands_find_them() -> None:
    plan = calibrated(model(), "tengine")
    found = taken_apart(write_int8(plan))
    by_name = {tensor.name: tensor for tensor in found.tensors}
    assert "conv" not in by_name  # inside the Convolution
    assert {each.dtype for each in found.tensors} == {by_hand.INT8, by_hand.INT32}
    (convolution,) = [node for node in found.nodes if node.op == by_hand.CONVOLUTION]
    assert convolution.outputs == ("relu",)
    assert convolution.options == (*CONVOLUTION[:9], 0, *CONVOLUTION[10:])
    kernel, shift, image = by_name["kernel"], by_name["shift"], by_name["image"]
    scales = np.array([scale for _, scale in kernel.scales], np.float32)
    codes = np.frombuffer(kernel.data, np.int8).reshape(KERNEL.shape)
    np.testing.assert_allclose(codes * scales[:, None, None, None], KERNEL, atol=scales.max() / 2)
    assert scales.tolist() == (np.abs(KERNEL).max(axis=(1, 2, 3)) / np.float32(127)).tolist()
    assert [scale for _, scale in shift.scales] == (
        scales * np.float32(image.scales[0][1])
    ).tolist()
    sums = np.frombuffer(shift.data, np.int32)
    assert np.abs(sums * np.array([s for _, s in shift.scales], np.float64) - SHIFT).max() < 1e-3
    assert all(zero == 0 for each in found.tensors for zero, _ in each.scales)
    assert by_name["result"].scales == [(0, float(np.float32(0.007874)))]


@pytest.mark.parametrize("target", ["tengine", "tengine-u8"])
def test_equal_plans_give_equal_bytes(target: str) -> None:
    assert write_int8(calibrated(model(), target)) == write_int8(calibrated(model(), target))
    assert write_float(normalize(model())) == write_float(normalize(model()))


def test_tells_its_files_from_others(tmp_path: Path) -> None:
    data = assembled(hand())
    path = tmp_path / "model.tmfile"
    path.write_bytes(data)
    assert is_tmfile(data)
    assert is_tmfile(path)
    assert is_tmfile(str(path))
    for other in (b"", data[:11], assembled(hand(), version=1), model().SerializeToString()):
        assert not is_tmfile(other)
    assert not is_tmfile(data[:-20])  # the root is cut off
    assert not is_tmfile(tmp_path / "none")
    assert not is_tmfile(tmp_path)


def test_a_constant_has_each_shape_that_it_is_read_in() -> None:
    numbers = np.arange(4, dtype=np.float32)
    builder = OnnxBuilder(file_of("PReLU", None, (1, 4, 2, 2), numbers), batch=False)
    shapes: tuple[tuple[int, ...] | None, ...] = ((4, 1, 1), None, (4,), (4, 1, 1))
    stored = [builder.store(1, shape) for shape in shapes]
    assert [tuple(each.const_value.numpy().shape) for each in stored if each.const_value] == [
        (4, 1, 1),
        (4,),
        (4,),
        (4, 1, 1),
    ]
    assert [each.name for each in stored] == ["c0", "c0/reshaped", "c0/reshaped", "c0"]
