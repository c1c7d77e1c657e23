"""Files of training frameworks are refused with what makes an ONNX model of them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from intact.errors import ModelError
from intact.graph import load_model


def archive(path: Path, *names: str) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(name, b"")


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


ARCHIVES = {
    "net.pt": (("net/data.pkl", "net/data/0"), "weights or objects"),
    "net.pth": (("net/data.pkl", "net/code/__torch__.py", "net/constants.pkl"), "TorchScript"),
    "net.pt2": (("net/models/model.json",), "torch.export.load"),
    "net.keras": (("config.json", "model.weights.h5"), "keras.saving.load_model"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_are_told_apart_by_their_members(name: str, tmp_path: Path) -> None:
    names, said = ARCHIVES[name]
    archive(tmp_path / name, *names)
    message = refusal(tmp_path / name)
    assert said in message
    assert repr(str(tmp_path / "net.onnx")) in message


HEADS = {
    "net.h5": (b"\x89HDF\r\n\x1a\n", "Keras"),
    "old.pth": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "PyTorch"),
    "graph.pb": (b"\x0a\x08\x0a\x01x", "--graphdef"),
    "saved_model.pb": (b"\x08\x01\x12\x04", "--saved-model"),
    "net.safetensors": (b"\x02\0\0\0\0\0\0\0{}", "safetensors"),
}


@pytest.mark.parametrize("name", HEADS)
def test_files_are_told_apart_by_how_they_begin(name: str, tmp_path: Path) -> None:
    head, said = HEADS[name]
    (tmp_path / name).write_bytes(head)
    assert said in refusal(tmp_path / name)


def test_saved_model_is_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my net"
    folder.mkdir()
    assert "is a folder; name the .onnx" in refusal(folder)
    (folder / "saved_model.pb").write_bytes(b"")
    wanted = f"--saved-model='{folder}' --output='{tmp_path / 'my net.onnx'}'"
    assert wanted in refusal(folder)
    assert wanted in refusal(folder / "saved_model.pb")


@pytest.mark.parametrize("name", ["net.pt", "net.pb", "net.safetensors", "net.onnx"])
def test_damaged_file_is_no_file_of_a_framework(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"PK\x03" if name.endswith("pt") else b"abc")
    assert "is not an ONNX file" in refusal(tmp_path / name)


def test_damaged_archive_is_still_pytorchs(tmp_path: Path) -> None:
    (tmp_path / "net.pt").write_bytes(b"PK\x03\x04 and nothing more")
    assert "a PyTorch file" in refusal(tmp_path / "net.pt")


def test_quotes_in_names_stay_in_the_program(tmp_path: Path) -> None:
    path = tmp_path / "it's {mine}.keras"
    archive(path, "config.json")
    assert f"load_model({str(path)!r})" in refusal(path)
