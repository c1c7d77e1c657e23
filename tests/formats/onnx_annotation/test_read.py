"""Scales that a float model carries as quantization_annotation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import numpy_helper

from intact.errors import ModelError
from intact.formats.scales import scales_of_model, tensor_names
from intact.graph import load_model
from tests.models import residual_net


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
