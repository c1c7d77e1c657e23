"""Writing: streamed and plain files hold the same model; what fails leaves what was there."""

from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.errors import OutputError
from intact.graph import Graph, load_model, normalize, save_model
from intact.graph.files import save
from tests import models


@pytest.fixture(params=["plain", "inside", "beside"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the weights are written."""
    if request.param != "plain":
        monkeypatch.setattr(save, "STREAM_FROM", 10)
        monkeypatch.setattr(save, "_EXTERNAL_FROM", 20)
    if request.param == "beside":
        monkeypatch.setattr(save, "LARGEST_FILE", 20)
    return str(request.param)


@pytest.mark.parametrize("name", sorted(models.MODELS.keys() - {"odd_names", "shared_ports"}))
def test_every_way_writes_the_same_model(name: str, way: str, tmp_path: Path) -> None:
    graph = normalize(models.MODELS[name].build(18))
    path = tmp_path / "m.onnx"
    graph.save(path)
    assert Graph.load(path).hash == graph.hash
    onnx.checker.check_model(path)
    files = {each.name for each in tmp_path.iterdir()}
    assert files == ({"m.onnx", "m.onnx.data"} if way == "beside" else {"m.onnx"})
    first = [each.read_bytes() for each in sorted(tmp_path.iterdir())]
    graph.save(path)
    assert [each.read_bytes() for each in sorted(tmp_path.iterdir())] == first


@pytest.mark.parametrize("name", ["residual_net", "depthwise_net"])
def test_the_bytes_of_a_file_are_counted_without_writing_it(
    name: str, way: str, tmp_path: Path
) -> None:
    model = load_model(getattr(models, name)())
    save_model(model, tmp_path / "m.onnx")
    written = sum(each.stat().st_size for each in tmp_path.iterdir())
    if way != "beside":  # pages and places of weights are counted as if they were inside
        assert save.file_bytes(model) == written
    assert abs(save.file_bytes(model) - written) < 4096 * len(model.graph.initializers)


def test_counting_bytes_computes_no_large_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> ir.TensorProtocol:
        raise AssertionError("a weight was computed")

    model = load_model(models.residual_net())
    weight = next(iter(model.graph.initializers.values()))
    tensor = ir.LazyTensor(never, ir.DataType.FLOAT, ir.Shape([1 << 20]), name=weight.name)
    monkeypatch.setattr(save, "STREAM_FROM", 1 << 20)
    weight.const_value = tensor
    assert tensor.nbytes < save.file_bytes(model) < tensor.nbytes + (1 << 16)


def test_a_model_without_weights_of_its_own(way: str, tmp_path: Path) -> None:
    source = normalize(models.odd_names())
    source.save(tmp_path / "m.onnx")
    assert Graph.load(tmp_path / "m.onnx").hash == source.hash


def test_zeros_at_the_end_are_there(way: str, tmp_path: Path) -> None:
    model = models.residual_net()
    values = np.zeros(1 << 16, np.float32)
    values[5] = 1
    model.graph.initializer.append(onnx.numpy_helper.from_array(values, "zeros"))
    model.graph.output.append(
        onnx.helper.make_tensor_value_info("zeros", onnx.TensorProto.FLOAT, values.shape)
    )
    save_model(load_model(model), tmp_path / "m.onnx")
    tensor = load_model(tmp_path / "m.onnx").graph.initializers["zeros"].const_value
    assert tensor is not None
    np.testing.assert_array_equal(tensor.numpy(), values)


def test_a_full_disk_leaves_what_was_there(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(models.residual_net())
    path = tmp_path / "m.onnx"
    save_model(model, path)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    other = load_model(models.depthwise_net())
    monkeypatch.setattr(save, "_write_tensor" if way != "plain" else "appearing", full)
    with pytest.raises(OutputError, match="No space left on device"):
        save_model(other, path)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_a_model_may_replace_the_files_that_it_reads(way: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    source = normalize(models.residual_net())
    source.save(path)
    again = Graph.load(path)
    again.save(path)
    assert Graph.load(path).hash == again.hash == source.hash


def test_weights_are_not_copied_for_types(tmp_path: Path) -> None:
    model = load_model(models.residual_net())
    before = dict(model.graph.initializers)
    proto, absent = save.weights_as_inputs(model, larger_than=100)
    assert dict(model.graph.initializers) == before
    names = {value.name for value in proto.graph.input}
    assert {str(value.name) for value in absent} | {"image"} == names
    assert all(isinstance(value, ir.Value) for value in absent)
    onnx.checker.check_model(proto)


def test_weights_beside_appear_only_with_their_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    save_model(load_model(models.residual_net()), path, beside=True)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    open_file = Path.open

    class Full(io.BytesIO):
        """A file whose content does not reach the disk when it is closed."""

        def truncate(self, *_: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    def limited(self: Path, *arguments: Any, **options: Any) -> Any:
        if self.name.startswith(".m.onnx.") and ".data." not in self.name:
            return Full()
        return open_file(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", limited)
    with pytest.raises(OutputError, match="No space left on device"):
        save_model(load_model(models.depthwise_net()), path, beside=True)
    monkeypatch.undo()
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before
