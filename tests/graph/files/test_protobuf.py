"""Protobuf by hand: what it reads and writes is what the library does."""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.errors import ModelError
from intact.graph import load_model
from intact.graph.files import load
from intact.graph.files.protobuf import frame_weights, read_without_weights
from tests import models


def pages(content: bytes) -> mmap.mmap:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


@pytest.mark.parametrize("name", models.MODELS)
@pytest.mark.parametrize("larger_than", [0, 100, 1 << 30])
def test_the_rest_and_the_weights_are_the_model(name: str, larger_than: int) -> None:
    model = models.MODELS[name].build(18)
    content = pages(model.SerializeToString())
    proto, spans = read_without_weights(content, larger_than=larger_than)
    large = {t.name for t in model.graph.initializer if len(t.raw_data) > larger_than}
    assert spans.keys() == large
    for tensor in proto.graph.initializer:
        if tensor.name in spans:
            assert not tensor.HasField("raw_data")
            tensor.raw_data = content[slice(*spans[tensor.name])]
    assert proto == model


def test_frames_and_weights_are_the_model() -> None:
    model = models.residual_net()
    rest, content = onnx.ModelProto(), []
    rest.CopyFrom(model)
    del rest.graph.initializer[:]
    for tensor in model.graph.initializer:
        header = onnx.TensorProto()
        header.CopyFrom(tensor)
        header.ClearField("raw_data")
        content.append((header, tensor.raw_data))
    frames = frame_weights(rest, [(header, len(data)) for header, data in content])
    written = b"".join(frame + data for frame, (_, data) in zip(frames, content, strict=True))
    assert onnx.ModelProto.FromString(written) == model


@pytest.mark.parametrize(
    "content",
    [
        b"\x08\x08\x3a\x00",  # an empty graph
        b"\x08\x08\x38\x05",  # a number where the graph should be
        b"\x3d\x0a\x02\x0a\x00",  # four bytes there, which could be fields
        b"\x3a\x02\x28\x07",  # a number where an initializer should be
        b"\x3a\x04\x2a\x02\x48\x07",  # and where its raw data should be
    ],
)
def test_fields_that_are_empty_or_of_another_type_are_read_as_the_library_does(
    content: bytes,
) -> None:
    found, spans = read_without_weights(pages(content), larger_than=0)
    assert found == onnx.ModelProto.FromString(content)
    assert found.HasField("graph") == onnx.ModelProto.FromString(content).HasField("graph")
    assert spans == {}


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damaged_files_are_refused_or_read_as_the_library_does(data: st.DataObject) -> None:
    content = bytearray(models.sequence_net().SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(1, len(content)))]
    try:
        expected = onnx.ModelProto.FromString(bytes(content))
    except Exception:
        expected = None
    try:
        found, _ = read_without_weights(pages(bytes(content)), larger_than=1 << 30)
    except Exception:
        return
    assert expected is None or found == expected


def test_a_large_file_is_read_from_its_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(models.residual_net(), path)
    plain = load_model(path)
    monkeypatch.setattr(load, "MAP_FROM", 1)
    monkeypatch.setattr(load, "_MAPPED_WEIGHT", 100)
    model = load_model(path)
    kept = 0
    for name, value in plain.graph.initializers.items():
        tensor = model.graph.initializers[name].const_value
        assert tensor is not None
        assert value.const_value is not None
        np.testing.assert_array_equal(tensor.numpy(), value.const_value.numpy())
        kept += type(tensor).__name__ == "MappedTensor"
    assert kept > 3


def test_weights_of_one_name_are_refused() -> None:
    model = models.residual_net()
    model.graph.initializer.append(model.graph.initializer[0])
    with pytest.raises(ValueError, match="two initializers have the name"):
        read_without_weights(pages(model.SerializeToString()), larger_than=0)


@pytest.mark.parametrize("cut", [1, 50, 1000])
def test_a_large_truncated_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    monkeypatch.setattr(load, "MAP_FROM", 1)
    path = tmp_path / "cut.onnx"
    path.write_bytes(models.residual_net().SerializeToString()[:-cut])
    with pytest.raises(ModelError, match=r"cut\.onnx' is not an ONNX file, or is truncated"):
        load_model(path)
