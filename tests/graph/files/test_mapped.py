"""Weights that stay in their files: read right, at odd places, and when the file is gone."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from intact.graph.files.external import MappedFile, MappedTensor, tensor_bytes


def mapped(path: Path, array: np.ndarray, dtype: ir.DataType, *, before: int = 0) -> MappedTensor:
    path.write_bytes(b"\1" * before + array.tobytes())
    return MappedTensor(MappedFile.open(path), before, dtype, ir.Shape(array.shape), "w")


@pytest.mark.parametrize("before", [0, 1, 64])
@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [
        (np.arange(6, dtype=np.float32).reshape(2, 3), ir.DataType.FLOAT),
        (np.arange(4, dtype=np.float16), ir.DataType.FLOAT16),
        (np.arange(4).astype(ml_dtypes.bfloat16), ir.DataType.BFLOAT16),
        (np.array([-5, 2**60]), ir.DataType.INT64),
        (np.array(7, np.int8), ir.DataType.INT8),
    ],
)
def test_numbers_are_those_of_the_file(
    tmp_path: Path, numbers: np.ndarray, dtype: ir.DataType, before: int
) -> None:
    tensor = mapped(tmp_path / "w.bin", numbers, dtype, before=before)
    np.testing.assert_array_equal(tensor.numpy(), numbers)
    assert tensor.numpy().dtype == numbers.dtype
    assert tensor.numpy().flags.aligned
    assert tensor.tobytes() == bytes(tensor_bytes(tensor)) == numbers.tobytes()


def test_numbers_cannot_be_written(tmp_path: Path) -> None:
    tensor = mapped(tmp_path / "w.bin", np.ones(3, np.float32), ir.DataType.FLOAT)
    with pytest.raises(ValueError, match="read-only"):
        tensor.numpy()[0] = 2


def test_a_replaced_file_is_noticed_and_the_numbers_stay(tmp_path: Path) -> None:
    path = tmp_path / "w.bin"
    tensor = mapped(path, np.ones(3, np.float32), ir.DataType.FLOAT)
    assert tensor.file.is_still_there()
    (tmp_path / "other").write_bytes(bytes(12))
    (tmp_path / "other").replace(path)
    assert not tensor.file.is_still_there()
    path.unlink()
    assert not tensor.file.is_still_there()
    np.testing.assert_array_equal(tensor.numpy(), 1)


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, np.bool_, np.float64, ml_dtypes.float8_e4m3fn])
def test_bytes_are_those_of_onnx(dtype: type) -> None:
    tensor = ir.tensor(np.array([[1, 0, 1], [1, 1, 0]]).astype(dtype))
    assert bytes(tensor_bytes(tensor)) == tensor.tobytes()


def test_bytes_of_a_transposed_tensor() -> None:
    tensor = ir.tensor(np.arange(6, dtype=np.float32).reshape(2, 3).T)
    assert bytes(tensor_bytes(tensor)) == tensor.tobytes()


def test_a_file_that_is_replaced_while_it_is_mapped_is_not_taken_for_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "w", tmp_path / "other"
    path.write_bytes(b"old")
    other.write_bytes(b"new")
    map_pages = mmap.mmap

    def replaced(*arguments: Any, **options: Any) -> mmap.mmap:
        pages = map_pages(*arguments, **options)
        other.replace(path)
        return pages

    monkeypatch.setattr(mmap, "mmap", replaced)
    file = MappedFile.open(path)
    assert file.pages[:] == b"old"
    assert not file.is_still_there()
