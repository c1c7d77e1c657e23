"""What a worker does, wherever it runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from intact.search.workers.messages import (
    Confirm,
    FloatScore,
    Measure,
    Problem,
    Ready,
    Reply,
    Request,
    Result,
    Score,
    Start,
    decode_request,
    encode,
)
from intact.search.workers.pool import Measurer, attempt

OPENER = f"{__name__}:open_evaluator"
"""The opener of a saved bench."""


def open_evaluator(folder: Path, threads: int) -> Measurer:
    """Return an evaluator of the bench in a folder."""
    from intact.search.measuring.evaluator import Bench, Evaluator

    return Evaluator(Bench.load(folder), threads=threads)


class Server:
    """Answers requests, one after the other."""

    def __init__(self) -> None:
        self._measurer: Measurer | None = None

    def answer(self, content: bytes) -> bytes:
        """Return the reply to a request; errors are replies too."""
        try:
            return encode(self._reply(decode_request(content)))
        except Exception as error:
            return encode(Problem.of(error))

    def _reply(self, request: Request) -> Reply:
        if isinstance(request, Start):
            self._measurer = _opener(request.opener)(Path(request.folder), request.threads)
            return Ready()
        measurer = self._measurer
        if measurer is None:
            raise RuntimeError("a worker was asked before it was started")
        match request:
            case Measure(ask):
                return Result(attempt(lambda: measurer.measure(ask)))
            case Confirm(candidate):
                return Result(attempt(lambda: measurer.confirm(candidate)))
            case FloatScore():
                return Score(measurer.float_score)


def _opener(name: str) -> Callable[[Path, int], Measurer]:
    module, _, function = name.partition(":")
    found: Callable[[Path, int], Measurer] = getattr(importlib.import_module(module), function)
    return found
