"""Good and bad files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from intact.errors import ModelError, OutputError
from intact.graph import load_model, save_model
from tests import models


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere\.onnx' does not exist"):
        load_model(tmp_path / "nowhere.onnx")


def test_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a folder; name the"):
        load_model(tmp_path)


def test_file_below_a_file(tmp_path: Path) -> None:
    path = written(tmp_path / "file", b"x")
    with pytest.raises(ModelError, match="cannot be read"):
        load_model(path / "model.onnx")


@pytest.mark.parametrize("content", [b"", b"\x00", b"hello world, no model", b"\x7fELF" * 99])
def test_not_a_model(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ModelError, match=r"bad\.onnx") as caught:
        load_model(written(tmp_path / "bad.onnx", content))
    assert "\n" not in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=64))
def test_random_bytes_are_never_a_model(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = written(tmp_path_factory.getbasetemp() / "random.onnx", content)
    with pytest.raises(ModelError):
        load_model(path)


def test_every_truncation_is_refused_or_complete(tmp_path: Path) -> None:
    content = models.residual_net().SerializeToString()
    for length in range(0, len(content) - 1, 97):
        path = written(tmp_path / "cut.onnx", content[:length])
        with pytest.raises(ModelError, match=r"cut\.onnx"):
            load_model(path)


def test_empty_graphs_are_refused() -> None:
    model = models.residual_net()
    del model.graph.node[:]
    with pytest.raises(ModelError):
        load_model(model)
    model = models.residual_net()
    del model.graph.output[:]
    with pytest.raises(ModelError, match="no outputs"):
        load_model(model)
    with pytest.raises(ModelError, match="no graph or no opset"):
        load_model(onnx.ModelProto())


@pytest.mark.parametrize("opset", [1, 10])
def test_old_opset(opset: int) -> None:
    model = models.residual_net()
    model.opset_import[0].version = opset
    with pytest.raises(ModelError, match=f"opset {opset}, the oldest .* 11; convert"):
        load_model(model)


def test_no_default_opset() -> None:
    model = models.residual_net()
    model.opset_import[0].domain = "my.ops"
    with pytest.raises(ModelError, match="default opset"):
        load_model(model)


def test_tensor_that_nothing_makes() -> None:
    model = models.residual_net()
    model.graph.node[2].input[0] = "ghost"
    with pytest.raises(ModelError, match="'ghost', which nothing makes"):
        load_model(model)


def test_output_that_nothing_makes() -> None:
    model = models.residual_net()
    model.graph.output[0].name = "ghost"
    with pytest.raises(ModelError, match="ghost"):
        load_model(model)


def external(folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(
        models.residual_net(),
        path,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    return path


def test_external_data_is_read_into_memory(tmp_path: Path) -> None:
    model = load_model(external(tmp_path))
    (tmp_path / "weights.bin").unlink()
    plain = load_model(models.residual_net())
    for name, value in plain.graph.initializers.items():
        tensor = model.graph.initializers[name].const_value
        assert tensor is not None
        assert value.const_value is not None
        np.testing.assert_array_equal(tensor.numpy(), value.const_value.numpy())


def test_external_data_missing(tmp_path: Path) -> None:
    path = external(tmp_path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"'weights\.bin' of tensor .* does not exist"):
        load_model(path)


def test_external_data_too_short(tmp_path: Path) -> None:
    path = external(tmp_path)
    os.truncate(tmp_path / "weights.bin", 100)
    with pytest.raises(ModelError, match="too short: 100 bytes"):
        load_model(path)


@pytest.mark.parametrize("location", ["../weights.bin", "/weights.bin"])
def test_external_data_outside_the_folder(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    path = external(folder)
    (folder / "weights.bin").rename(tmp_path / "weights.bin")
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="outside the model's folder"):
        load_model(path)


def test_external_data_behind_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    path = external(folder)
    (folder / "weights.bin").rename(tmp_path / "secret.bin")
    (folder / "weights.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(ModelError, match="outside"):
        load_model(path)


def test_external_data_without_a_path(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="load the model by its path"):
        load_model(onnx.load(external(tmp_path), load_external_data=False))


def test_saved_models_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "größe.onnx"
    source = models.transformer_block()
    save_model(load_model(source), path)
    feeds = models.random_inputs(source)
    expected = models.run_model(source, feeds)["features"]
    np.testing.assert_array_equal(models.run_model(onnx.load(path), feeds)["features"], expected)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_large_models_keep_their_weights_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intact.graph.load.LARGEST_FILE", 100)
    source = models.residual_net()
    save_model(load_model(source), tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx.data").stat().st_size > 1000
    feeds = models.random_inputs(source)
    expected = models.run_model(source, feeds)["logits"]
    again = ir.to_proto(load_model(tmp_path / "model.onnx"))
    np.testing.assert_array_equal(models.run_model(again, feeds)["logits"], expected)


def test_unwritable_paths(tmp_path: Path) -> None:
    model = load_model(models.residual_net())
    with pytest.raises(OutputError, match="it is a folder"):
        save_model(model, tmp_path)
    file = written(tmp_path / "file", b"x")
    with pytest.raises(OutputError, match="cannot write"):
        save_model(model, file / "model.onnx")
    assert file.read_bytes() == b"x"


def test_source_model_is_never_changed() -> None:
    source = load_model(models.residual_net())
    copy = load_model(source)
    for value in tuple(copy.graph.initializers.values()):
        value.name = f"{value.name}_renamed"
    for value in source.graph.initializers.values():
        assert value.const_value is not None
        assert value.const_value.name == value.name


def test_string_and_small_integer_tensors_survive(tmp_path: Path) -> None:
    builder = models.ModelBuilder(21)
    builder.input("x", ["batch", 2])
    builder.node("Relu", "x", out="y")
    builder.output("y")
    text = onnx.TensorProto(name="text", data_type=TensorProto.STRING, dims=[2])
    text.string_data.extend([b"a", b"\xff"])
    builder.initializers.append(text)
    builder.initializers.append(helper.make_tensor("four", TensorProto.INT4, [3], [-8, 7, 1]))
    save_model(load_model(builder.build()), tmp_path / "m.onnx")
    again = {tensor.name: tensor for tensor in onnx.load(tmp_path / "m.onnx").graph.initializer}
    assert list(again["text"].string_data) == [b"a", b"\xff"]
    assert onnx.numpy_helper.to_array(again["four"]).astype(int).tolist() == [-8, 7, 1]
