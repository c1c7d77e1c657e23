"""The libraries' own log, which would stand between the lines that intact prints."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

_LIBRARIES = ("onnxscript", "onnx_ir")

for _name in _LIBRARIES:  # else Python prints to stderr what a program does not ask for
    logging.getLogger(_name).addHandler(logging.NullHandler())


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the libraries from logging what they merely could not simplify, or found odd."""
    loggers = [logging.getLogger(name) for name in _LIBRARIES]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
