"""Float models to Tengine files and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from intact.errors import ExportError, ModelError
from intact.formats.tengine.tmfile.codec import open_tmfile
from intact.formats.tengine.tmfile.file import FileNode
from intact.formats.tengine.tmfile.read import read_tmfile
from intact.formats.tengine.tmfile.write import write_float
from intact.graph import normalize
from tests.formats.tengine.tmfile.files import bytes_of, pool_options, tengine_pool
from tests.formats.tengine.tmfile.networks import FLOAT, run
from tests.models import ModelBuilder, random_inputs


@pytest.mark.crossed
@pytest.mark.parametrize("opset", [13, 18, 21])
@pytest.mark.parametrize("name", FLOAT)
def test_comes_back_with_the_same_bits(name: str, opset: int) -> None:
    model = FLOAT[name](max(opset, 14) if name == "pointwise" else opset)
    graph = normalize(model)
    data = write_float(graph)
    back = normalize(read_tmfile(data))
    feeds = random_inputs(model, batch=1)
    # From opset 19 on ONNX Runtime divides in AveragePool where it multiplied before.
    tolerance = 1e-6 if (name, opset) == ("pools", 21) else 0
    for wanted, found in zip(run(graph, feeds), run(back, feeds), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=0)
    again = write_float(back)  # scalars that are spread have got four dimensions by now
    assert write_float(normalize(read_tmfile(again))) == again
    assert again == data or name == "pointwise"
    names = {str(value.name) for value in back.values}
    constants = set(graph.model.graph.initializers)
    assert {str(value.name) for value in graph.values} - constants <= names


@pytest.mark.parametrize("name", ["residual", "depthwise", "pools"])
def test_the_batch_stays_open(name: str) -> None:
    model = FLOAT[name](17)
    feeds = random_inputs(model, batch=3)
    wanted = run(normalize(model), feeds)[0]
    np.testing.assert_array_equal(run(read_tmfile(write_float(normalize(model))), feeds)[0], wanted)


def test_a_model_that_mixes_samples_keeps_the_batch_of_the_file() -> None:
    b = ModelBuilder()
    x = b.node("Transpose", b.input("image", [1, 2, 3, 4]), perm=[1, 0, 2, 3])
    b.node("Relu", x, out="y")
    b.output("y")
    found = read_tmfile(write_float(normalize(b.build())))
    assert list(found.graph.inputs[0].shape or ()) == [1, 2, 3, 4]


def only_node(data: bytes) -> FileNode:
    """The node of a file that is neither a constant nor an input."""
    nodes = [each for each in open_tmfile(data).nodes if each.operator not in ("Const", "InputOp")]
    assert len(nodes) == 1
    return nodes[0]


_SMALL = st.integers(1, 4)


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(2, 9), st.integers(2, 9)),
    st.tuples(_SMALL, _SMALL),
    st.tuples(_SMALL, _SMALL),
    st.tuples(*(st.integers(0, 2),) * 4),
    st.sampled_from(["MaxPool", "AveragePool", "counted"]),
    st.booleans(),
)
def test_pools_are_written_as_tengine_computes_them(lengths, kernel, strides, pads, kind, ceil):  # type: ignore[no-untyped-def]
    assume(all(p < k for p, k in zip(pads, (*kernel, *kernel), strict=True)))
    rows = zip(lengths, pads[:2], pads[2:], kernel, strict=True)
    assume(all(length + before + after >= size for length, before, after, size in rows))
    b = ModelBuilder(22)
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads, "ceil_mode": int(ceil)}
    if kind == "counted":
        kind, attributes = "AveragePool", attributes | {"count_include_pad": 1}
    b.node(kind, b.input("x", [1, 2, *lengths]), out="y", **attributes)
    b.output("y")
    model = b.build()
    graph = normalize(model)
    assume(len(graph.nodes) == 1)
    feeds = random_inputs(model, batch=1)
    try:
        data = write_float(graph)
    except ExportError:
        # Both paddings alike, and windows that end in the image or its padding, are never refused.
        spans = zip(lengths, kernel, strides, pads, strict=False)
        exact = all((n + 2 * p - k) % s == 0 for n, k, s, p in spans)
        assert not (exact and pads[:2] == pads[2:]) or kernel == lengths
        return
    (wanted,) = run(graph, feeds)
    options = only_node(data).options
    np.testing.assert_allclose(
        tengine_pool(feeds["x"][0], options), wanted[0], rtol=1e-5, atol=1e-6
    )


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(2, 9), st.integers(2, 9)),
    st.tuples(_SMALL, _SMALL),
    st.tuples(_SMALL, _SMALL),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.sampled_from([0, 1, 2, 0x10]),
    st.booleans(),
)
def test_pools_are_read_as_tengine_computes_them(lengths, kernel, strides, pads, flavor, is_mean):  # type: ignore[no-untyped-def]
    starts = [pad // 2 if flavor == 2 else pad for pad in pads]
    assume(all(pad < size for pad, size in zip(starts, kernel, strict=True)))
    options = pool_options(
        method=int(is_mean),
        kernel_h=kernel[0],
        kernel_w=kernel[1],
        stride_h=strides[0],
        stride_w=strides[1],
        flavor=flavor,
        pad_top=pads[0],
        pad_left=pads[1],
    )
    image = np.random.default_rng(1).normal(size=(1, 2, *lengths)).astype(np.float32)
    data = bytes_of("Pooling", options, image.shape)
    try:
        model = read_tmfile(data)
    except ModelError as refused:
        reason = str(refused)
    else:
        found = run(model, {"x": image})[0][0]
        np.testing.assert_allclose(found, tengine_pool(image[0], options), rtol=1e-5, atol=1e-6)
        return
    # Windows that see padding only, and means of a part of the padding.
    assert "windows of" in reason or (is_mean and "a part of the padding" in reason)


def test_all_that_cannot_be_written_is_listed() -> None:
    b = ModelBuilder()
    x = b.input("image", ["batch", 4, 8, 8])
    x = b.node("Neg", x, name="negated")
    x = b.node("Conv", x, b.weight(4, 4, 3, 3), name="fine")
    x = b.node("Erf", x, name="curved")
    x = b.node("MaxPool", x, kernel_shape=[2, 2], dilations=[2, 2], name="gaps")
    x = b.node("ConvTranspose", x, b.weight(4, 4, 3, 3), name="narrow")
    b.node("Add", b.node("Flatten", x), b.weight(1, 144), name="rows", out="y")
    b.output("y")
    with pytest.raises(ExportError) as error:
        write_float(normalize(b.build()))
    text = str(error.value)
    for name in ("negated", "curved", "gaps", "narrow", "rows"):
        assert repr(name) in text
    assert "fine" not in text
    assert "\n" not in text


@pytest.mark.parametrize("handed_out", [("first", "second"), ("first",), ("second", "first")])
def test_parts_are_handed_out_together_or_not_at_all(handed_out: tuple[str, ...]) -> None:
    b = ModelBuilder(18)
    x = b.node("Relu", b.input("image", ["batch", 4, 3, 3]))
    b.split(x, [1, 3], 1)
    b.nodes[-1].output[:] = ["first", "second"]
    b.node("Sigmoid", "second", out="function")
    for name in (*handed_out, "function"):
        b.output(name)
    model = b.build()
    if handed_out != ("first", "second"):
        with pytest.raises(ExportError, match="outputs that are none of the model"):
            write_float(normalize(model))
        return
    found = read_tmfile(write_float(normalize(model)))
    assert [str(value.name) for value in found.graph.outputs] == [*handed_out, "function"]
    feeds = random_inputs(model)
    for left, right in zip(run(normalize(model), feeds), run(found, feeds), strict=True):
        np.testing.assert_array_equal(left, right)


def test_open_lengths_besides_the_batch_are_refused() -> None:
    b = ModelBuilder()
    b.node("Relu", b.input("image", ["batch", 3, "height", 8]), out="y")
    b.output("y")
    with pytest.raises(ExportError, match="lengths of 'image' are not known"):
        write_float(normalize(b.build()))
