"""Refuses model files of training frameworks, and says how an ONNX model is made of them.

None of them is opened: some are programs (pickles), others need the framework.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import NamedTuple

from intact.errors import ModelError
from intact.graph.files.regular import open_file

_HEAD = 16
_ZIP = b"PK\x03\x04"
_SAVED_MODEL = "saved_model.pb"
_CONFIG = "config.json"
_LISTING = 1 << 20
"""Bytes at the end of an archive that are searched for names, to tell programs from weights."""


class _Kind(NamedTuple):
    name: str
    remedy: str
    """How to make an ONNX model; ``path`` is the file, ``onnx`` what is to be beside it, both also
    ``quoted`` for a shell."""


_EXPORT = (
    "in Python, with the module in memory: "
    "torch.onnx.export(module.eval(), (example_batch,), {onnx!r}, dynamo=True)"
)
_PYTORCH = _Kind("a PyTorch file of weights or objects, which holds no graph", _EXPORT)
_TORCHSCRIPT = _Kind(
    "a TorchScript program",
    "in Python: import torch; torch.onnx.export(torch.jit.load({path!r}).eval(), "
    "(example_batch,), {onnx!r}, dynamo=False)",
)
_EXPORTED = _Kind(
    "a program of torch.export",
    "in Python: import torch; torch.onnx.export(torch.export.load({path!r}), "
    "f={onnx!r}, dynamo=True)",
)
_KERAS = _Kind(
    "a Keras model",
    'in Python: import keras; keras.saving.load_model({path!r}).export({onnx!r}, format="onnx")',
)
_SAVED = _Kind(
    "a TensorFlow SavedModel",
    "python -m tf2onnx.convert --saved-model={quoted} --output={quoted_onnx}",
)
_FROZEN = _Kind(
    "a TensorFlow graph",
    "python -m tf2onnx.convert --graphdef={quoted} --output={quoted_onnx} "
    "--inputs=NAME:0 --outputs=NAME:0",
)
_WEIGHTS = _Kind("a safetensors file, which holds weights and no graph", f"load it, and {_EXPORT}")

_IR = _Kind(
    "an OpenVINO model",
    "intact takes the ONNX model that it was converted from, and --target openvino writes such a "
    "model",
)
_TRANSFORMERS = _Kind(
    "a folder of Hugging Face's transformers without an ONNX model",
    "optimum-cli export onnx --model {quoted} {quoted_onnx_folder}",
)
_TORCH = frozenset({".bin", ".ckpt", ".pt", ".pt2", ".pth"})

_KINDS: tuple[tuple[bytes, frozenset[str], _Kind], ...] = (
    (b"\x89HDF\r\n\x1a\n", frozenset({".h5", ".hdf5", ".keras"}), _KERAS),
    (_ZIP, frozenset({".keras"}), _KERAS),
    (_ZIP, _TORCH, _PYTORCH),
    (b"\x80", _TORCH, _PYTORCH),  # a pickle
    (b"<?xml", frozenset({".xml"}), _IR),
    (b"<net", frozenset({".xml"}), _IR),
    (b"\x0a", frozenset({".pb"}), _FROZEN),  # the tag of a node; ONNX begins with another
)
"""How files begin, with their suffixes."""


def refuse_foreign(path: Path, where: str) -> None:
    """Refuse the model file of a training framework.

    Args:
        path: A file or folder, which need not exist.
        where: What it is called in messages.

    Raises:
        ModelError: It is one; the remedy is what makes an ONNX model of it.
    """
    kind = _kind(path)
    if kind is None:
        return
    if path.name == _SAVED_MODEL:
        # The file has the same name in every SavedModel; the folder is what a user knows it by.
        path = path.resolve().parent
    onnx = path.with_suffix(".onnx") if path.suffix else path.with_name(f"{path.name}.onnx")
    filled = kind.remedy.format(
        path=str(path),
        onnx=str(onnx),
        quoted=shlex.quote(str(path)),
        quoted_onnx=shlex.quote(str(onnx)),
        quoted_onnx_folder=shlex.quote(f"{path}_onnx"),
    )
    remedy = filled if kind is _IR else f"export it; {filled}"
    raise ModelError(f"{where} is {kind.name}, not ONNX", remedy=remedy)


def _kind(path: Path) -> _Kind | None:
    try:
        if path.is_dir():
            if (path / _SAVED_MODEL).is_file():
                return _SAVED
            is_other = not (path / _CONFIG).is_file() or any(path.rglob("*.onnx"))
            return None if is_other else _TRANSFORMERS
        with open_file(path) as file:
            # Suffixes alone tell little: `.bin` and `.pb` are those of many formats, ONNX among
            # them.
            head = file.read(_HEAD)
            file.seek(max(file.seek(0, os.SEEK_END) - _LISTING, 0))
            tail = file.read(_LISTING) if head.startswith(_ZIP) else b""
    except (OSError, ValueError):  # ValueError: a null byte in the path
        return None
    suffix = path.suffix.lower()
    if path.name == _SAVED_MODEL:
        return _SAVED
    if suffix == ".safetensors" and head[8:9] == b"{":  # behind eight bytes of a length
        return _WEIGHTS
    found = (kind for start, those, kind in _KINDS if head.startswith(start) and suffix in those)
    kind = next(found, None)
    return _of_members(tail) if kind is _PYTORCH else kind


def _of_members(tail: bytes) -> _Kind:
    """Tell what torch has written, by the names of an archive's members, which stand at its end."""
    if b"/constants.pkl" in tail or b"/code/__torch__" in tail:
        return _TORCHSCRIPT
    return _EXPORTED if b"models/model.json" in tail else _PYTORCH
