"""Each operator of Tengine that is read, against what its kernels compute."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import numpy as np
import pytest

from intact.errors import ModelError
from intact.formats.tengine.tmfile.codec import encode
from intact.formats.tengine.tmfile.file import Layout, TmFile
from intact.formats.tengine.tmfile.onnx_builder import READERS
from intact.formats.tengine.tmfile.operators import OPERATORS
from intact.formats.tengine.tmfile.read import read_tmfile
from tests.formats.tengine.tmfile.files import Array, bytes_of, file_of
from tests.formats.tengine.tmfile.networks import run

_RANDOM = np.random.default_rng(3)
X = _RANDOM.normal(size=(1, 4, 5, 6)).astype(np.float32)
ROW = X.reshape(1, -1)
C = _RANDOM.uniform(0.5, 2, size=(4, 4)).astype(np.float32)
CHANNELS = C[0].reshape(4, 1, 1)
CODES = np.array([1, -2, 3, 4], np.int8)
PAD = {f"{axis}_{end}": 0 for axis in "nchw" for end in (0, 1)}
SLICE: dict[str, Any] = {
    **dict.fromkeys(("axis", "is_caffe", "is_mxnet", "is_onnx", "begin", "end", "step"), 0),
    **dict.fromkeys(("slice_points", "begins", "sizes")),
}
DIMS = {f"dim_{k}": -2 for k in range(4)}
INTERP = {"type": 1, "scale_w": 2.0, "scale_h": 1.5, "output_w": 0, "output_h": 0}
ELTWISE = {"caffe_flavor": 0, "shift": 0.0, "power": 0.0, "scale": 0.0}


CASES: dict[str, tuple[str, dict[str, Any] | None, Array, tuple[Array, ...], Any]] = {
    "relu": ("ReLu", {"negative_slope": 0.0}, X, (), np.maximum(X, 0)),
    "leaky": ("ReLu", {"negative_slope": 0.5}, X, (), np.where(X < 0, X * np.float32(0.5), X)),
    "relu6": ("ReLu6", None, 9 * X, (), np.clip(9 * X, 0, 6)),
    "clip": ("Clip", {"min": -0.5, "max": 0.25}, X, (), np.clip(X, -0.5, np.float32(0.25))),
    "prelu": ("PReLU", None, X, (C[0],), np.where(X < 0, X * CHANNELS, X)),
    "prelu half": ("PReLU", None, X, (C[0].astype(np.float16),),
                   np.where(X < 0, X * CHANNELS.astype(np.float16).astype(np.float32), X)),
    "prelu row": ("PReLU", None, ROW, (C[0, :1],), np.where(ROW < 0, ROW * C[0, 0], ROW)),
    "codes": ("Scale", {"axis": 1, "num_axes": 1, "bias_term": 0}, X,
              (CODES,), X * (CODES / np.float32(2)).reshape(4, 1, 1)),
    "sigmoid": ("Sigmoid", None, X, (), 1 / (1 + np.exp(-X))),
    "logistic": ("Logistic", None, X, (), 1 / (1 + np.exp(-X))),
    "tanh": ("Tanh", None, X, (), np.tanh(X)),
    "elu": ("Elu", {"alpha": 0.5}, X, (), np.where(X < 0, (np.exp(X) - 1) / 2, X)),
    "softplus": ("Softplus", None, X, (), np.log1p(np.exp(X))),
    "mish": ("Mish", None, X, (), X * np.tanh(np.log1p(np.exp(X)))),
    "hard swish": ("HardSwish", {"alpha": 9.0, "beta": 9.0}, 3 * X, (),
                   3 * X * np.clip(3 * X + 3, 0, 6) / 6),
    "hard sigmoid": ("HardSigmoid", {"alpha": 0.5, "beta": 0.25}, X, (),
                     np.clip(X / 2 + 0.25, 0, 1)),
    "dropout": ("Dropout", None, X, (), X),
    "noop": ("Noop", None, X, (), X),
    "softmax": ("Softmax", {"axis": -3}, X, (), np.exp(X) / np.exp(X).sum(1, keepdims=True)),
    "sum": ("Eltwise", {"type": 2, **ELTWISE}, X, (C[0],), X + CHANNELS),
    "sub": ("Eltwise", {"type": 4, **ELTWISE}, X, (np.array([2], np.float32),), X - 2),
    "prod image": ("Eltwise", {"type": 0, **ELTWISE}, X, (X[:, :1] + 1,), X * (X[:, :1] + 1)),
    "div": ("Eltwise", {"type": 10, **ELTWISE}, X, (np.abs(X) + 1,), X / (np.abs(X) + 1)),
    "max": ("Eltwise", {"type": 6, **ELTWISE}, X, (-X,), np.maximum(X, -X)),
    "exp": ("Eltwise", {"type": 12, **ELTWISE}, X, (), np.exp(X)),
    "scale": ("Scale", {"axis": 1, "num_axes": 1, "bias_term": 1}, X, (C[0], C[1]),
              X * CHANNELS + C[1].reshape(4, 1, 1)),
    "batch norm": ("BatchNormalization",
                   {"rescale_factor": 2.0, "epsilon": 0.5, "caffe_flavor": 0}, X, tuple(C),
                   (X - (C[2] / 2).reshape(4, 1, 1)) / np.sqrt(C[3] / 2 + 0.5).reshape(4, 1, 1)
                   * CHANNELS + C[1].reshape(4, 1, 1)),
    "batch norm of caffe": ("BatchNormalization",
                            {"rescale_factor": 1.0, "epsilon": 0.5, "caffe_flavor": 1}, X, tuple(C),
                            (X - C[2].reshape(4, 1, 1)) / np.sqrt(C[3] + 0.5).reshape(4, 1, 1)),
    "dense images": ("FullyConnected", {"output_channel": 2}, X, (C.reshape(2, 8)[:, :1]
                     * np.ones((2, 120), np.float32), np.array([1, 2], np.float32)),
                     (ROW.sum() * C.reshape(2, 8)[:, 0] + [1, 2]).reshape(1, 2, 1, 1)),
    "gemm": ("Gemm", {"alpha": 2.0, "beta": 3.0, "trans_a": 0, "trans_b": 0}, ROW[:, :4],
             (C, C[0]), 2 * ROW[:, :4] @ C + 3 * C[0]),
    "flatten": ("Flatten", {"axis": 1, "end_axis": 3}, X, (), ROW),
    "reshape": ("Reshape", {"is_mxnet": 0, "reverse": 0, "shape": [0, -1, 6], "is_onnx": 0}, X, (),
                X.reshape(1, 20, 6)),
    "reshape with zeros": ("Reshape",
                           {"is_mxnet": 0, "reverse": 0, "shape": [0, 0, 30], "is_onnx": 1}, X, (),
                           X.reshape(1, 4, 30)),
    "squeeze of tensorflow": ("Squeeze", {**DIMS, "dim_0": 1, "dim_1": 2}, X[:, :, :1, :1], (),
                              X[:, :, 0, 0]),
    "squeeze all": ("Squeeze", DIMS, X[:, :, :1], (), X[0, :, 0]),
    "unsqueeze": ("Unsqueeze", {"axes": [2, 0]}, X, (), X.reshape(1, 1, 1, 4, 5, 6)),
    "expand dims": ("ExpandDims", {"axis": 1}, X, (), X[:, None]),
    "permute": ("Permute", {"flag": 0, "order_0": 0, "order_1": 2, "order_2": 3, "order_3": 1}, X,
                (), X.transpose(0, 2, 3, 1)),
    "transpose": ("Transpose", {"order": [3, 0, 1, 2]}, X, (), X.transpose(3, 0, 1, 2)),
    "slice of onnx": ("Slice", {**SLICE, "is_onnx": 1, "axis": 3, "begin": 1, "end": -1, "step": 2},
                      X, (), X[..., 1:-1:2]),
    "slice to the end": ("Slice", {**SLICE, "is_onnx": 1, "axis": 2, "begin": 2, "end": 2**31 - 1},
                         X, (), X[:, :, 2:]),
    "slice of mxnet": ("Slice", {**SLICE, "is_mxnet": 1, "axis": 1, "begin": 1, "end": 3}, X, (),
                       X[:, 1:3]),
    "slice of tensorflow": ("Slice", {**SLICE, "begins": [0, 1, 0, 2], "sizes": [1, 2, 5, 3]}, X,
                            (), X[:, 1:3, :, 2:5]),
    "slice of caffe": ("Slice", {**SLICE, "is_caffe": 1, "axis": 1, "slice_points": [1, 3]}, X, (),
                       [X[:, :1], X[:, 1:3], X[:, 3:]]),
    "split": ("Split", {"axis": 3, "split_dim": 2, "is_caffe": 0, "is_onnx": 1, "sizes": [2, 4]}, X,
              (), [X[..., :2], X[..., 2:]]),
    "split in equal parts": ("Split", {"axis": 1, "split_dim": 2, "is_caffe": 0, "is_onnx": 1,
                                       "sizes": None}, X, (), [X[:, :2], X[:, 2:]]),
    "split of caffe": ("Split", {"axis": 0, "split_dim": 0, "is_caffe": 1, "is_onnx": 0,
                                 "sizes": None}, X, (), [X, X]),
    "pad": ("Pad", {**PAD, "c_1": 1, "h_0": 2, "w_1": 1, "mode": 0, "value": 0.5}, X, (),
            np.pad(X, ((0, 0), (0, 1), (2, 0), (0, 1)), constant_values=0.5)),
    "mirror": ("Pad", {**PAD, "h_0": 2, "w_1": 1, "mode": 2, "value": 0.0}, X, (),
               np.pad(X, ((0, 0), (0, 0), (2, 0), (0, 1)), mode="reflect")),
    "mean": ("Reduction", {**DIMS, "dim_0": 2, "dim_1": -1, "type": 1, "keepdim": 0}, X, (),
             X.mean(axis=(2, 3))),
    "largest": ("Reduction", {**DIMS, "dim_0": 1, "type": 4, "keepdim": 1}, X, (),
                X.max(axis=1, keepdims=True)),
    "nearest": ("Interp", INTERP, X, (),
                X[:, :, (np.arange(7) / 1.5).astype(int)][..., np.arange(12) // 2]),
    "upsample": ("Upsample", {"scale": 3.0}, X, (), X.repeat(3, axis=2).repeat(3, axis=3)),
    "resize": ("Resize", {"scale_w": 2.0, "scale_h": 1.0, "type": 0}, X, (), X.repeat(2, axis=3)),
    "to a size": ("Interp", {**INTERP, "scale_w": 0.0, "scale_h": 0.0, "output_w": 3,
                             "output_h": 5}, X, (), X[..., ::2]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_computes_what_tengine_computes(name: str) -> None:
    operator, options, image, constants, wanted = CASES[name]
    results = wanted if isinstance(wanted, list) else [wanted]
    data = bytes_of(operator, options, image.shape, *constants, outputs=len(results))
    model = read_tmfile(data)
    found = run(model, {"x": image})
    assert [str(value.name) for value in model.graph.outputs] == [
        f"y{number}" for number in range(len(results))
    ]
    for each, result in zip(found, results, strict=True):
        assert each.shape == result.shape
        np.testing.assert_allclose(each, result, rtol=2e-5, atol=1e-6)


def test_every_operator_that_is_read_is_tried() -> None:
    elsewhere = {"Convolution", "Deconvolution", "Pooling", "Concat", "Maximum", "Minimum"}
    assert {case[0] for case in CASES.values()} | elsewhere == set(READERS)
    assert set(READERS) | {"Const", "InputOp"} == set(OPERATORS)


def conv(**changes: int) -> dict[str, int]:
    """Options of a Convolution of one channel by 3x3."""
    names = "stride_h stride_w dilation_h dilation_w input_channel output_channel group"
    pads = dict.fromkeys(("pad_top", "pad_left", "pad_bottom", "pad_right"), changes.pop("pad", 0))
    kernel = {"kernel_h": 3, "kernel_w": 3, "activation": -1}
    return {**dict.fromkeys(names.split(), 1), **kernel, **pads, **changes}


@pytest.mark.parametrize(
    ("pad", "stride", "length", "before", "after"),
    [(-1, 1, 5, 1, 1), (-1, 2, 4, 0, 1), (-2, 2, 4, 1, 0), (-2, 2, 5, 1, 1), (2, 1, 3, 2, 2)],
)
def test_paddings_that_keep_the_size(
    pad: int, stride: int, length: int, before: int, after: int
) -> None:
    image = _RANDOM.integers(-9, 9, (1, 1, length, length)).astype(np.float32)
    padded = np.pad(image[0, 0], (before, after))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3))[::stride, ::stride]
    options = conv(pad=pad, stride_h=stride, stride_w=stride)
    data = bytes_of("Convolution", options, image.shape, np.ones((1, 1, 3, 3), np.float32))
    np.testing.assert_array_equal(
        run(read_tmfile(data), {"x": image})[0][0, 0], windows.sum(axis=(2, 3))
    )


@pytest.mark.parametrize(("activation", "low", "high"), [(0, 0, np.inf), (6, 0, 6)])
def test_what_a_convolution_applies(activation: int, low: float, high: float) -> None:
    image = _RANDOM.normal(size=(1, 1, 5, 5)).astype(np.float32)
    kernel = np.full((1, 1, 3, 3), 5, np.float32)
    plain, fused = (
        run(read_tmfile(bytes_of("Convolution", options, image.shape, kernel)), {"x": image})[0]
        for options in (conv(), conv(activation=activation))
    )
    np.testing.assert_array_equal(fused, np.clip(plain, low, high))
    assert (fused != plain).any()


REFUSED: dict[str, tuple[str, dict[str, Any] | None, Array, tuple[Array, ...], str]] = {
    "activation": ("Convolution", conv(activation=1), X[:, :1], (np.ones((1, 1, 3, 3)),), "is 1"),
    "kernel": ("Convolution", conv(), X[:, :1], (np.ones((1, 1, 5, 5)),), "its kernel"),
    "groups": ("Convolution", conv(group=3), X, (np.ones((1, 1, 3, 3)),), "3 groups"),
    "no weight": ("Convolution", conv(), X, (), "input 1 is absent"),
    "bias": ("Convolution", conv(), X[:, :1], (np.ones((1, 1, 3, 3)), C[0]), "4 elements"),
    "rows": ("Pooling", None, ROW, (), "not that of images"),
    "reversed": ("Reshape", {"is_mxnet": 0, "reverse": 1, "shape": [1, 120], "is_onnx": 0}, X, (),
                 "reshapes"),
    "reshape": ("Reshape", {"is_mxnet": 0, "reverse": 0, "shape": [1, 7], "is_onnx": 0}, X, (),
                "cannot become"),
    "eltwise": ("Eltwise", {"type": 11, **ELTWISE}, X, (), "type 11"),
    "spread": ("Eltwise", {"type": 2, **ELTWISE}, X, (np.ones(6),), "joins"),
    "clip": ("Clip", {"min": 1.0, "max": 0.0}, X, (), "clips to 1.0"),
    "axis": ("Softmax", {"axis": 4}, X, (), "no axis 4"),
    "order": ("Transpose", {"order": [0, 1, 1, 2]}, X, (), "orders 4 axes"),
    "bilinear": ("Resize", {"scale_w": 2.0, "scale_h": 1.0, "type": 1}, X, (), "of type 1"),
    "factors": ("Interp", {**INTERP, "scale_h": float("nan")}, X, (), "its factors"),
    "large": ("Interp", {**INTERP, "scale_h": 1e5, "scale_w": 1e5}, X, (), "its output"),
    "split": ("Split", {"axis": 1, "split_dim": 1, "is_caffe": 0, "is_onnx": 1, "sizes": [3]}, X,
              (), "parts"),
    "slice": ("Slice", {**SLICE, "is_onnx": 1, "axis": 1, "begin": -3, "end": 4}, X, (), "keeps"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_by_name(name: str) -> None:
    operator, options, image, constants, reason = REFUSED[name]
    if options is None:
        options = dict.fromkeys((OPERATORS[operator].options or OPERATORS["ReLu"].options).names, 1)  # type: ignore[union-attr]
    arrays = [np.float32(each) for each in constants]
    with pytest.raises(ModelError, match=reason) as error:
        read_tmfile(bytes_of(operator, options, image.shape, *arrays))
    assert "'op'" in str(error.value)
    assert operator in str(error.value)


def test_all_that_cannot_be_read_is_named() -> None:
    file = file_of("Softmax", {"axis": 9}, X.shape)
    other = dataclasses.replace(
        file.nodes[-1],
        name="second",
        outputs=(2,),
        operator="Clip",
        options={"min": 1.0, "max": 0.0},
    )
    tensors = (*file.tensors, dataclasses.replace(file.tensors[-1], name="z"))
    both = dataclasses.replace(file, tensors=tensors, nodes=(*file.nodes, other))
    with pytest.raises(ModelError) as error:
        read_tmfile(encode(both))
    assert "Softmax ('op'): it has no axis 9 of 4" in str(error.value)
    assert "Clip ('second'): it clips to 1.0 .. 0.0" in str(error.value)


def test_operators_that_are_not_read_are_called_by_their_names() -> None:
    data = bytearray(bytes_of("Noop", None, X.shape))
    at = data.index(struct.pack("<II", 1, OPERATORS["Noop"].number))
    data[at : at + 8] = struct.pack("<II", 1, 13)
    with pytest.raises(ModelError, match=r"LRN \('op'\): the operator is not known"):
        read_tmfile(bytes(data))


def test_channels_last_are_refused() -> None:
    data = bytearray(bytes_of("Noop", None, X.shape))
    root = struct.unpack_from("<I", data, 8)[0]
    (graphs,) = struct.unpack_from("<I", data, root + 8)
    (graph,) = struct.unpack_from("<I", data, graphs + 4)
    struct.pack_into("<ii", data, graph + 4, Layout.CHANNELS_LAST, Layout.CHANNELS_LAST)
    with pytest.raises(ModelError, match="channels last"):
        read_tmfile(bytes(data))


def test_joins_and_extremes() -> None:
    def joined(operator: str, options: dict[str, Any] | None) -> TmFile:
        file = file_of(operator, options, X.shape)
        second = dataclasses.replace(file.tensors[0], name="second")
        nodes = (
            file.nodes[0],
            dataclasses.replace(file.nodes[0], name="second", outputs=(2,)),
            dataclasses.replace(file.nodes[1], inputs=(0, 2)),
        )
        tensors = (*file.tensors, second)
        return dataclasses.replace(file, tensors=tensors, nodes=nodes, inputs=(0, 1), outputs=(2,))

    feeds = {"x": X, "second": -2 * X}
    for operator, options, wanted in (
        ("Concat", {"axis": -2}, np.concatenate([X, -2 * X], axis=2)),
        ("Maximum", None, np.maximum(X, -2 * X)),
        ("Minimum", None, np.minimum(X, -2 * X)),
        ("Eltwise", {"type": 4, **ELTWISE}, 3 * X),
    ):
        model = read_tmfile(encode(joined(operator, options)))
        np.testing.assert_allclose(run(model, feeds)[0], wanted, rtol=1e-6)


def test_names_that_are_missing_or_shared_become_names_of_their_own() -> None:
    file = file_of("Noop", None, X.shape)
    tensors = tuple(dataclasses.replace(each, name="same") for each in file.tensors)
    model = read_tmfile(encode(dataclasses.replace(file, tensors=tensors)))
    assert [str(value.name) for value in (*model.graph.inputs, *model.graph.outputs)] == [
        "same",
        "same_2",
    ]
    tensors = tuple(dataclasses.replace(each, name="") for each in file.tensors)
    nodes = tuple(dataclasses.replace(each, name="") for each in file.nodes)
    model = read_tmfile(encode(dataclasses.replace(file, tensors=tensors, nodes=nodes)))
    assert [str(value.name) for value in model.graph.outputs] == ["tensor_1"]


def test_images_that_were_flattened_to_four_dimensions() -> None:
    said = (1, 120, 1, 1)
    data = bytes_of("Flatten", {"axis": 1, "end_axis": 3}, X.shape, said=said)
    np.testing.assert_array_equal(run(read_tmfile(data), {"x": X})[0], X.reshape(said))
