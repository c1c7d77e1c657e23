"""Written files say who made them, the same whenever they are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import intact
from intact import demo

STEPS = "format = 1\nmean = [2.0]\nscale = [0.5]\n"
MADE = {"intact.version": intact.__version__, "intact.target": "", "intact.preprocess": STEPS}


def of_onnx(path: Path) -> dict[str, str]:
    model = onnx.load(path)
    assert model.producer_name == "intact"
    return {each.key: each.value for each in model.metadata_props if each.key in MADE}


def of_openvino(path: Path) -> dict[str, str]:
    openvino = pytest.importorskip("openvino")
    model = openvino.Core().read_model(path)
    return {key: model.get_rt_info(key.split(".")).astype(str) for key in MADE}


def of_tflite(path: Path) -> dict[str, str]:
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    held = {each.name.decode(): model.buffers[each.buffer].data for each in model.metadata}
    return {key: bytes(value).decode() for key, value in held.items()}


@pytest.mark.parametrize(
    ("target", "formats", "name", "read"),
    [
        ("onnxruntime", None, "model.int8.onnx", of_onnx),
        ("openvino", None, "model.fq.onnx", of_onnx),
        ("openvino", None, "model.xml", of_openvino),
        ("tflite", None, "model.int8.tflite", of_tflite),
        ("integer-pow2", ["onnx_integer"], "model.integer.onnx", of_onnx),
    ],
)
def test_a_file_says_who_made_it_and_is_the_same_again(
    target: str,
    formats: list[str] | None,
    name: str,
    read: Callable[[Path], dict[str, str]],
    tmp_path: Path,
) -> None:
    data = np.load(demo.calibration_path())["image"][:8]
    for output in ("one", "other"):
        intact.quantize(
            demo.model_path(), data, target=target, formats=formats, mean=[2.0], scale=[0.5],
            output=tmp_path / output,
        )  # fmt: skip
    one = tmp_path / "one" / name
    assert one.read_bytes() == (tmp_path / "other" / name).read_bytes()
    expected = {**MADE, "intact.target": target}
    if formats:  # is compared byte by byte: the next version gives the same
        del expected["intact.version"]
    assert {key: value.strip() for key, value in read(one).items()} == {
        key: value.strip() for key, value in expected.items()
    }
    assert not intact.verify(tmp_path / "one", data, samples=2).refused
