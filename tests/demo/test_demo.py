"""The demo model is what its documentation says: small, accurate, with a dynamic batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from intact import demo
from tests.images import Images

MAX_MODEL_BYTES = 400_000


def test_files_are_small() -> None:
    assert demo.model_path().stat().st_size < MAX_MODEL_BYTES
    assert demo.calibration_path().stat().st_size < 10_000
    assert demo.test_path().stat().st_size < 30_000


def test_images_are_as_documented(digits_calib: Images, digits_test: Images) -> None:
    for images, count in ((digits_calib, 200), (digits_test, 600)):
        assert images.image.shape == (count, 1, 8, 8)
        assert (images.image.min(), images.image.max()) == (0, 16)
        assert set(images.labels.tolist()) == set(range(10))


def test_calibration_and_test_images_differ(digits_calib: Images, digits_test: Images) -> None:
    calibration = {image.tobytes() for image in digits_calib.image}
    assert calibration.isdisjoint(image.tobytes() for image in digits_test.image)


def test_model_reaches_97_percent(digits_model: Path, digits_test: Images) -> None:
    session = ort.InferenceSession(digits_model, providers=["CPUExecutionProvider"])
    logits = session.run(["logits"], {"image": digits_test.image})[0]
    assert np.mean(logits.argmax(axis=1) == digits_test.labels) >= 0.97
    single = session.run(["logits"], {"image": digits_test.image[:1]})[0]
    np.testing.assert_allclose(single, logits[:1], rtol=1e-4, atol=1e-4)


def test_model_holds_what_a_quantizer_has_to_handle(digits_model: Path) -> None:
    graph = onnx.load(digits_model).graph
    operators = {node.op_type for node in graph.node}
    assert operators >= {"Conv", "BatchNormalization", "Add", "Relu", "GlobalAveragePool", "Gemm"}
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    assert {attribute.i for attribute in attributes if attribute.name == "group"} == {1, 64}
