"""A table is read by what is in it, and so are the scales that a float ONNX model carries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import numpy_helper

from intact.errors import DataError, ModelError
from intact.formats import scales
from intact.formats.scales import read_scales, scales_of_model, tensor_names
from intact.graph import load_model
from intact.plan import given_scales
from tests.models import residual_net


def test_the_first_character_tells_json_from_text(tmp_path: Path) -> None:
    text, document = tmp_path / "a.json", tmp_path / "b.scale"
    text.write_text("image 0.100000 0\n")
    document.write_text(
        ' \n{"activation_encodings": {"image": [{"bitwidth": 8, "scale": 0.1, "offset": -128}]}}'
    )
    first, second = read_scales(text)["image"], read_scales(str(document))["image"]
    assert first.scale == second.scale
    assert (first.kind, second.kind) == ("int8", "uint8")
    assert read_scales(text).source == str(text)


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="nowhere: no such file; check scales"):
        read_scales(tmp_path / "nowhere")
    with pytest.raises(DataError, match="cannot be read"):
        read_scales(tmp_path)
    monkeypatch.setattr(scales, "_MOST_BYTES", 10)
    large = tmp_path / "large"
    large.write_text("image 0.100000 0\n")
    with pytest.raises(DataError, match="larger than"):
        read_scales(large)


@pytest.mark.parametrize("data", [b"a 0.100000 0\n" * 4, b'{"encodings": [1, 2, 3, 4]}'])
def test_more_entries_than_a_model_has_tensors_are_not_read(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given_scales, "_MOST_ENTRIES", 3)
    path = tmp_path / "many"
    path.write_bytes(data)
    with pytest.raises(DataError, match="many: 4 entries, at most 3 can be read"):
        read_scales(path)


@pytest.mark.parametrize(
    "text",
    ["image 0.100000 0\n", '{"version": "0.6.1", "param_encodings": {"image": []}}'],
)
def test_a_mark_of_utf_8_before_the_table_is_passed_over(tmp_path: Path, text: str) -> None:
    path = tmp_path / "table"
    path.write_text(text, encoding="utf-8-sig")
    table = read_scales(path)
    assert list(table.scales) == ["image"] or table.ignored


def annotated(tensor: str, **parameters: npt.ArrayLike | str) -> onnx.ModelProto:
    model = residual_net()
    annotation = model.graph.quantization_annotation.add(tensor_name=tensor)
    for key, array in parameters.items():
        name = array if isinstance(array, str) else f"{tensor}_{key}"
        if not isinstance(array, str):
            constant = numpy_helper.from_array(np.asarray(array), name)
            model.graph.initializer.append(constant)
        annotation.quant_parameter_tensor_names.add(key=key, value=name)
    return model


def test_scale_and_zero_point_are_read_from_the_file(tmp_path: Path) -> None:
    model = annotated("image", SCALE_TENSOR=np.float32(0.1), ZERO_POINT_TENSOR=np.int8(-3))
    onnx.save(model, tmp_path / "m.onnx")
    found = scales_of_model(load_model(tmp_path / "m.onnx"))
    assert found is not None
    scale = found["image"]
    assert (scale.scale.tolist(), scale.zero_point.tolist()) == (np.float32(0.1), -3)
    assert scale.kind == "int8"


def test_weights_may_have_a_scale_for_each_channel() -> None:
    weight = residual_net().graph.initializer[0].name
    scales, zeros = np.array([0.5, 1.0], np.float32), np.zeros(2, np.uint8)
    found = scales_of_model(
        load_model(annotated(weight, SCALE_TENSOR=scales, ZERO_POINT_TENSOR=zeros))
    )
    assert found is not None
    assert found[weight].scale.tolist() == [0.5, 1.0]


def test_without_zero_point_the_integers_are_those_of_quantize_linear() -> None:
    found = scales_of_model(load_model(annotated("image", SCALE_TENSOR=np.float32(0.1))))
    assert found is not None
    assert (found["image"].kind, int(found["image"].zero_point)) == ("uint8", 0)


def test_a_model_without_annotations_gives_none() -> None:
    assert scales_of_model(load_model(residual_net())) is None
    assert "image" in tensor_names(load_model(residual_net()))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"SCALE_TENSOR": "nowhere"}, "of 'image': 'nowhere' is no constant"),
        ({"SCALE_TENSOR": "image"}, "'image' is no constant"),
        ({"SCALE_TENSOR": np.float32(0)}, "of 'image': the scale 0.0"),
        ({"SCALE_TENSOR": np.ones((2, 2), np.float32)}, r"shape \[2, 2\]"),
        (
            {"SCALE_TENSOR": np.float32(1), "ZERO_POINT_TENSOR": np.float32(0)},
            "zero point has type FLOAT",
        ),
        (
            {"SCALE_TENSOR": np.float32(1), "ZERO_POINT_TENSOR": np.zeros(3, np.int8)},
            r"shape \[\] with zero points of shape \[3\]",
        ),
    ],
)
def test_a_wrong_annotation_is_refused_with_its_tensor(
    parameters: dict[str, npt.ArrayLike | str], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        scales_of_model(load_model(annotated("image", **parameters)))
