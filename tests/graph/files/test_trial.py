"""Models on which compiled code ends the process are refused with one line."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import onnx
import pytest

from intact.errors import ModelError
from intact.graph import normalize
from intact.graph.files.trial import survives
from intact.graph.passes import library
from tests.models import ModelBuilder


def test_work_that_ends_its_process() -> None:
    assert survives(lambda: None)
    assert survives(lambda: 1 // 0)  # said when it is really done
    assert not survives(os.abort)


@pytest.mark.skipif(not hasattr(signal, "SIGCHLD"), reason="signals of POSIX")
def test_a_host_that_ignores_its_children() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert survives(lambda: None)
    finally:
        signal.signal(signal.SIGCHLD, before)


def _sliced() -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.node("Conv", b.input("x", ["n", 2, 8, 8]), b.weight(4, 2, 3, 3))
    b.node("Relu", b.node("Slice", x, b.ints(0), b.ints(3), b.ints(3)), out="y")
    b.output("y")
    return b.build()


def test_a_model_is_tried_once_where_nothing_new_can_be_inferred(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[object] = []

    def counted(work: Callable[[], object], elsewhere: object) -> bool:
        tried.append(work)
        return survives(work)

    monkeypatch.setattr(library, "survives", counted)
    normalize(_sliced())
    assert len(tried) == 1


@pytest.fixture(params=["forked", "started"])
def _process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are tried in a copy of this process, or where there are none in another."""
    if request.param == "started":
        monkeypatch.setattr("intact.graph.files.trial._FORKS", False)


@pytest.mark.usefixtures("_process")
@pytest.mark.parametrize("opset", [9, 13, 18])
def test_a_slice_behind_a_window_that_is_too_large(opset: int) -> None:
    b = ModelBuilder(opset)
    x = b.node("MaxPool", b.input("x", ["n", 2, 4, 4]), kernel_shape=[3, 7])
    if opset < 10:
        b.node("Slice", x, starts=[0], ends=[1], axes=[3], out="y")
    else:
        b.node("Slice", x, b.ints(0), b.ints(1), b.ints(3), out="y")
    b.output("y")
    with pytest.raises(ModelError, match=r"negative size|impossible sizes"):
        normalize(b.build())


@pytest.mark.usefixtures("_process")
def test_a_slice_behind_sizes_that_folding_computes() -> None:
    b = ModelBuilder()
    x = b.input("x", [1, 2, 4, 4])
    sizes = b.node("Shape", b.node("Reshape", x, b.node("Abs", b.ints(1, 2, 4, 4))))
    x = b.node("Reshape", x, b.node("Concat", b.node("Abs", sizes), axis=0))
    x = b.node("MaxPool", x, kernel_shape=[3, 7])
    b.node("Slice", x, b.ints(0), b.ints(1), b.ints(3), out="y")
    b.output("y")
    with pytest.raises(ModelError, match="negative size"):
        normalize(b.build())


@pytest.mark.parametrize(
    ("op_type", "opset", "attributes", "says"),
    [
        ("MaxPool", 13, {"kernel_shape": [3, 2**63 - 1]}, "kernel_shape 9223372036854775807"),
        ("MaxPool", 13, {"kernel_shape": [3, 3], "strides": [1, -(2**63)]}, "strides -9223"),
        ("Softmax", 13, {"axis": 2**40}, "axis 1099511627776, which must be from -64 to 63"),
        ("Split", 18, {"num_outputs": 2**31 - 1}, "num_outputs 2147483647, but 1 outputs"),
    ],
)
def test_numbers_that_no_tensor_has(
    op_type: str, opset: int, attributes: dict[str, Any], says: str
) -> None:
    b = ModelBuilder(opset)
    b.node(op_type, b.input("x", ["n", 2, 4, 4]), out="y", name="node", **attributes)
    b.output("y")
    with pytest.raises(ModelError, match=f"node 'node' .* has {says}"):
        normalize(b.build())


def test_batch_axes_that_no_tensor_has() -> None:
    b = ModelBuilder()
    b.node("GatherND", b.input("x", ["n", 2]), b.ints(0), out="y", batch_dims=-(2**31))
    b.output("y")
    with pytest.raises(ModelError, match="batch_dims -2147483648"):
        normalize(b.build())
