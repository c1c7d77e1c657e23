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
from tests import models, odd


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


def test_no_default_opset() -> None:
    model = models.residual_net()
    model.opset_import[0].domain = "my.ops"
    with pytest.raises(ModelError, match="default opset"):
        load_model(model)


def test_tensor_that_nothing_makes() -> None:
    model = models.residual_net()
    model.graph.node[2].input[0] = "ghost"
    with pytest.raises(ModelError, match="'ghost', which no node produces"):
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


def test_external_data_outlives_its_file(tmp_path: Path) -> None:
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


def with_entry(path: Path, key: str, text: str, *, position: int = 0) -> Path:
    """Change an entry of the external data of one tensor."""
    model = onnx.load(path, load_external_data=False)
    tensor = model.graph.initializer[position]
    kept = [entry for entry in tensor.external_data if entry.key != key]
    del tensor.external_data[:]
    tensor.external_data.extend(kept)
    tensor.external_data.add(key=key, value=text)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("key", "text", "says"),
    [
        ("offset", "-8", "has offset '-8'"),
        ("length", "-8", "has length '-8'"),
        ("offset", "some", "has offset 'some'"),
        ("offset", "1e3", "has offset '1e3'"),
        ("length", "\u0664", "has length '\u0664'"),
        ("offset", "99999999999999999999", "too short"),
        ("length", "99999999999", "too short"),
        ("length", "4", "has offset .* and length 4"),
        ("location", "", "is a folder"),
        ("location", ".", "is a folder"),
        ("location", "sub/../../weights.bin", "outside the model's folder"),
        ("location", "we\0ights.bin", "is not a path"),
        ("location", "weights.bin/x", "does not exist"),
    ],
)
def test_external_data_at_a_bad_place(tmp_path: Path, key: str, text: str, says: str) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    path = with_entry(external(folder), key, text)
    with pytest.raises(ModelError, match=says) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)
    assert repr(onnx.load(path, load_external_data=False).graph.initializer[0].name) in str(
        caught.value
    )


def test_external_data_of_an_attribute_is_checked_too(tmp_path: Path) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(bytes(8))
    folder = tmp_path / "inner"
    folder.mkdir()
    tensor = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[2])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret.bin")
    builder = models.ModelBuilder()
    constant = builder.node("Constant", value=tensor)
    builder.node("Add", builder.input("x", ["n", 2]), constant, out="y")
    builder.output("y")
    path = written(folder / "m.onnx", builder.build().SerializeToString())
    with pytest.raises(ModelError, match=r"'\.\./secret\.bin' of tensor 't' is outside"):
        load_model(path)
    wrong = onnx.load(path, load_external_data=False)
    wrong.graph.node[0].attribute[0].t.external_data.add(key="offset", value="-8")
    with pytest.raises(ModelError, match="tensor 't' has offset '-8'"):
        load_model(written(folder / "wrong.onnx", wrong.SerializeToString()))
    tensor.external_data[0].value = "own.bin"
    (folder / "own.bin").write_bytes(np.array([3, 4], np.float32).tobytes())
    builder.nodes[0].attribute[0].t.CopyFrom(tensor)
    path = written(folder / "m.onnx", builder.build().SerializeToString())
    node = next(iter(load_model(path).graph))
    assert node.attributes["value"].as_tensor().numpy().tolist() == [3, 4]


def test_external_data_of_four_bits_and_of_no_elements(tmp_path: Path) -> None:
    builder = models.ModelBuilder(21)
    builder.node("Relu", builder.input("x", ["n", 2]), out="y")
    builder.output("y")
    (tmp_path / "w.bin").write_bytes(b"\0\x78\x01")  # the low half of a byte comes first
    for name, kind, dims, size in (("four", TensorProto.INT4, [3], 2), ("none", 1, [0, 4], 0)):
        tensor = TensorProto(name=name, data_type=kind, dims=dims)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "w.bin"), ("offset", "1"), ("length", str(size))):
            tensor.external_data.add(key=key, value=value)
        builder.initializers.append(tensor)
    path = written(tmp_path / "m.onnx", builder.build().SerializeToString())
    constants = load_model(path).graph.initializers
    found = {name: value.const_value for name, value in constants.items()}
    assert found["four"] is not None
    assert found["none"] is not None
    assert found["four"].numpy().astype(int).tolist() == [-8, 7, 1]
    assert found["none"].numpy().shape == (0, 4)


def test_a_hard_link_is_a_file_like_any_other(tmp_path: Path) -> None:
    path = external(tmp_path)
    os.link(tmp_path / "weights.bin", tmp_path / "twin.bin")
    assert load_model(path).graph.initializers


def test_sparse_initializers_are_written_out() -> None:
    constants = load_model(odd.sparse_initializers()).graph.initializers
    for name, places in (("rows", [(0, 1), (2, 2), (5, 0)]), ("flat", [(0, 1), (2, 2), (5, 0)])):
        tensor = constants[name].const_value
        assert tensor is not None
        expected = np.zeros((6, 6), np.float32)
        for place, value in zip(places, (0.5, -1, 2), strict=True):
            expected[place] = value
        np.testing.assert_array_equal(tensor.numpy(), expected)


@pytest.mark.parametrize(
    ("dims", "indices"),
    [
        ([1 << 20, 1 << 20], [0, 1, 2]),
        ([6, 6], [0, 1, 99]),
        ([6, 6], [0, 1, -1]),
        ([6, 6], [0, 1]),
        ([6, 6], [[0, 1], [0, 6], [1, 1]]),
        ([-6, -6], [0, 1, 2]),
    ],
)
def test_bad_sparse_initializers_are_refused(dims: list[int], indices: list[int]) -> None:
    model = odd.sparse_initializers()
    sparse = model.graph.sparse_initializer[0]
    del sparse.dims[:]
    sparse.dims.extend(dims)
    sparse.indices.CopyFrom(onnx.numpy_helper.from_array(np.array(indices), "i"))
    with pytest.raises(ModelError, match=r"sparse initializers? .*'rows'") as caught:
        load_model(model)
    assert "\n" not in str(caught.value)


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
    monkeypatch.setattr("intact.graph.files.save.LARGEST_FILE", 100)
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
