"""Nothing outside a model's folder is read, wherever in the model a tensor names it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from intact.errors import ModelError
from intact.formats.onnx_integer.run import OnnxIntegerRuntime
from intact.graph import load_model
from tests.models import ModelBuilder

Place = Callable[[onnx.ModelProto, TensorProto], object]


def branch(tensor: TensorProto | None = None) -> onnx.GraphProto:
    """The body of an If."""
    node = helper.make_node(
        "Constant", [], ["inside"], value=numpy_helper.from_array(np.zeros((), np.float32))
    )
    output = helper.make_tensor_value_info("inside", TensorProto.FLOAT, [])
    return helper.make_graph([node], "branch", [], [output], [tensor] if tensor else [])


def in_branch(model: onnx.ModelProto, tensor: TensorProto) -> None:
    condition = numpy_helper.from_array(np.array(True), "condition")
    model.graph.initializer.append(condition)
    bodies = {"then_branch": branch(tensor), "else_branch": branch()}
    model.graph.node.append(helper.make_node("If", ["condition"], ["chosen"], **bodies))


def in_function(model: onnx.ModelProto, tensor: TensorProto) -> None:
    node = helper.make_node("Constant", [], ["y"], value=tensor)
    imports = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("own", "Made", [], ["y"], [node], imports))


def sparse_values(model: onnx.ModelProto, tensor: TensorProto) -> None:
    sparse = model.graph.sparse_initializer.add(dims=[8])
    sparse.values.CopyFrom(tensor)
    sparse.indices.CopyFrom(numpy_helper.from_array(np.arange(4)))


def sparse_indices(model: onnx.ModelProto, tensor: TensorProto) -> None:
    sparse = model.graph.sparse_initializer.add(dims=[8])
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    sparse.indices.CopyFrom(tensor)
    sparse.indices.data_type = TensorProto.INT64
    sparse.indices.dims[:] = [2]


def sparse_in_branch(model: onnx.ModelProto, tensor: TensorProto) -> None:
    in_branch(model, numpy_helper.from_array(np.zeros((), np.float32), "harmless"))
    sparse = model.graph.node[-1].attribute[0].g.sparse_initializer.add(dims=[8])
    sparse.values.CopyFrom(tensor)
    sparse.indices.CopyFrom(numpy_helper.from_array(np.arange(4)))


def sparse_constant(model: onnx.ModelProto, tensor: TensorProto) -> None:
    node = model.graph.node.add(op_type="Constant", output=["c"])
    attribute = node.attribute.add(name="sparse_value", type=onnx.AttributeProto.SPARSE_TENSOR)
    attribute.sparse_tensor.dims[:] = [8]
    attribute.sparse_tensor.values.CopyFrom(tensor)


def in_attribute(model: onnx.ModelProto, tensor: TensorProto) -> None:
    model.graph.node.append(helper.make_node("Constant", [], ["c"], value=tensor))


def in_list(model: onnx.ModelProto, tensor: TensorProto) -> None:
    node = model.graph.node.add(op_type="Other", domain="own", output=["c"])
    attribute = node.attribute.add(name="list", type=onnx.AttributeProto.TENSORS)
    attribute.tensors.append(tensor)


def in_training(model: onnx.ModelProto, tensor: TensorProto) -> None:
    model.training_info.add().initialization.initializer.append(tensor)


PLACES: list[Place] = [
    lambda model, tensor: model.graph.initializer.append(tensor),
    in_branch,
    in_function,
    sparse_values,
    sparse_indices,
    sparse_in_branch,
    sparse_constant,
    in_attribute,
    in_list,
    in_training,
]


def written(folder: Path, place: Place, location: str) -> Path:
    """A model with one external tensor of four floats."""
    b = ModelBuilder()
    b.domains["own"] = 1
    b.node("Relu", b.input("x", ["n", 2]), out="y")
    b.output("y")
    model = b.build()
    tensor = TensorProto(name="far", data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    place(model, tensor)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model's folder; beside it, and in the working directory, what must not be read."""
    (tmp_path / "secret.bin").write_bytes(np.arange(1, 5, dtype=np.float32).tobytes())
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "link.bin").symlink_to("../secret.bin")
    (inner / "up").symlink_to("..")
    (inner / "zero").symlink_to("/dev/zero")
    os.mkfifo(inner / "pipe")
    monkeypatch.chdir(tmp_path)
    return inner


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("../secret.bin", "outside the model's folder"),
        ("inner/../../secret.bin", "outside the model's folder"),
        ("..\\secret.bin", "outside the model's folder"),
        ("/etc/hostname", "outside the model's folder"),
        ("link.bin", "outside the model's folder"),
        ("up/secret.bin", "outside the model's folder"),
        ("zero", "outside the model's folder"),
        ("pipe", "a pipe or a device"),
    ],
)
def test_a_tensor_elsewhere_is_refused(
    folder: Path, place: Place, location: str, says: str
) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        load_model(written(folder, place, location))
    assert "'far'" in str(caught.value)


@pytest.mark.parametrize("place", [sparse_values, sparse_indices, sparse_in_branch])
def test_a_sparse_tensor_does_not_read_the_working_directory(folder: Path, place: Place) -> None:
    path = written(folder, place, "secret.bin")  # which is there, but not in the model's folder
    with pytest.raises(ModelError, match="does not exist"):
        load_model(path)
    with pytest.raises(ModelError, match="load the model by its path"):
        load_model(onnx.load(path, load_external_data=False))


def test_a_sparse_tensor_reads_the_folder_of_its_model(folder: Path) -> None:
    (folder / "own.bin").write_bytes(np.arange(1, 5, dtype=np.float32).tobytes())
    model = load_model(written(folder, sparse_values, "own.bin"))
    tensor = model.graph.initializers["far"].const_value
    assert tensor is not None
    assert tensor.numpy().tolist() == [1, 2, 3, 4, 0, 0, 0, 0]


@pytest.mark.parametrize("name", ["/dev/zero", "pipe"])
def test_a_model_that_never_ends(folder: Path, name: str) -> None:
    with pytest.raises(ModelError, match=r"it is a (pipe|device)"):
        load_model(folder / name)


def test_a_deployed_integer_model_reads_no_other_file(folder: Path) -> None:
    content = written(folder, PLACES[0], "secret.bin").read_bytes()
    with pytest.raises(ModelError, match="tensor 'far' is in an external file"):
        OnnxIntegerRuntime(content)
