"""Copies what lies beside a decoder that runs it: ``genai_config.json``, the tokenizer.

The configuration is that of ONNX Runtime's generative API.

A result has copies of them, and the configuration names the model that was written. It needs no
more: the runtime takes the types and sizes of caches from the model (onnxruntime-genai 0.18, run
with caches of 8 and 4 bits). The files may be anyone's: no link is followed, and what they name is
not opened.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from intact._files import without_links
from intact.plan import Note, NoteKind

CONFIG = "genai_config.json"
_LARGEST_CONFIG = 1 << 20
_LARGEST = 1 << 28
_MODEL, _DECODER, _FILE = "model", "decoder", "filename"


class _UnusableError(Exception):
    """A file is not taken along, for this reason."""


class Companions(msgspec.Struct, frozen=True):
    """Files that lie beside a model.

    Attributes:
        config: What ``genai_config.json`` says; None without it.
        files: The other files, by their names.
        left: Why some are left out.
    """

    config: dict[str, Any] | None = None
    files: dict[str, bytes] = {}
    left: tuple[str, ...] = ()

    @staticmethod
    def read(folder: Path, names: Iterable[str], model: str | None) -> Companions:
        """Read what lies in a folder.

        Args:
            folder: The folder.
            names: The files that are taken along.
            model: Name of the model that they must be about; None for any.
        """
        config, files, left = None, dict[str, bytes](), list[str]()
        for name in names:
            try:
                if name == CONFIG:
                    config = _config(folder, model)
                elif (content := _content(folder / name, _LARGEST)) is not None:
                    files[name] = content
            except _UnusableError as reason:
                left.append(f"{name} beside the model: {reason}")
        return Companions(config, files, tuple(left))

    @property
    def notes(self) -> tuple[Note, ...]:
        """What a user should know of those that are left out."""
        return tuple(Note(NoteKind.EXPORT, "", f"left out: {each}") for each in self.left)

    def write(self, folder: Path, deployed: str) -> None:
        """Write the files into a result's folder.

        Args:
            folder: The folder.
            deployed: Name of the model that runs.
        """
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        if self.config is not None:
            model = self.config[_MODEL]
            config = {
                **self.config,
                _MODEL: {**model, _DECODER: {**model[_DECODER], _FILE: deployed}},
            }
            text = json.dumps(config, indent=4, ensure_ascii=False) + "\n"
            (folder / CONFIG).write_text(text, encoding="utf-8")


def _content(path: Path, largest: int) -> bytes | None:
    """Read a file; None where there is none."""
    try:
        # The file is opened first and examined by its descriptor: a check by its name could be of
        # another.
        descriptor = without_links(str(path), os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # ELOOP: it is a link
        if path.is_symlink():
            raise _UnusableError("it is a link, which is not followed; copy the file") from error
        raise _UnusableError(f"it cannot be read ({getattr(error, 'strerror', error)})") from error
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        # A pipe or a device would be read for ever.
        if not stat.S_ISREG(found.st_mode):
            raise _UnusableError("it is no file")
        if found.st_size > largest:
            raise _UnusableError(f"it is larger than {largest >> 20} MiB")
        # At most so much, because the file may grow after its size was read.
        return file.read(largest)


def _config(folder: Path, model: str | None) -> dict[str, Any] | None:
    """Read the configuration of a model that is one decoder.

    Args:
        folder: Where it lies.
        model: Name of the model that it must be about; None for any.
    """
    content = _content(folder / CONFIG, _LARGEST_CONFIG)
    if content is None:
        return None
    try:
        found = json.loads(content)
        decoder = found[_MODEL][_DECODER]
        name = decoder.get(_FILE, model)
        parts = "pipeline" in decoder
    # Valid JSON of any shape may stand there, nested as deeply as its author likes.
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise _UnusableError("it is not what ONNX Runtime's generative API reads") from error
    if parts:
        raise _UnusableError("its decoder is a pipeline of several models")
    if model is not None and name != model:
        raise _UnusableError(f"it is about {name!r}, not {model!r}"[:200])
    return dict(found)
