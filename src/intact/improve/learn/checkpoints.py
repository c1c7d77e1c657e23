"""Saves the state of a training on disk: tensors and plain values, no code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from intact._files import appearing
from intact.errors import DataError, OutputError


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a state in one step: a kill leaves the old file or the new one.

    Raises:
        OutputError: It cannot be written.
    """
    try:
        with appearing(path) as (file,):
            torch.save(state, file)
    except (OSError, RuntimeError) as error:
        raise OutputError(
            f"{path}: cannot be written ({error})", remedy="make room, or name another folder"
        ) from error


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """Read a state; None where there is no file.

    Raises:
        DataError: It is damaged, or holds something else.
    """
    if not path.is_file():
        return None
    try:
        # The file may be anyone's: with `weights_only` torch builds tensors and plain values, no
        # objects.
        state = torch.load(path, map_location="cpu", weights_only=True)
        if isinstance(state, dict) and "of" in state:
            return state
        reason = "it holds something else"
    except Exception as error:  # torch raises pickle, zip and its own errors
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    raise damaged_error(path, reason)


def damaged_error(path: Path, reason: str) -> DataError:
    """Return the error of a file that cannot be used."""
    return DataError(
        f"{path}: no state of a training ({reason})", remedy="remove it, and start anew"
    )
