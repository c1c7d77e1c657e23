"""Suppresses log messages of onnxscript and onnx-ir, which would mix with intact's output."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

_LIBRARIES = ("onnxscript", "onnx_ir")

for _name in _LIBRARIES:  # without a handler Python prints warnings to stderr
    logging.getLogger(_name).addHandler(logging.NullHandler())


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the libraries' warnings while the block runs."""
    loggers = [logging.getLogger(name) for name in _LIBRARIES]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
