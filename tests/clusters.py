"""A cluster of Ray on this machine, for the tests of a file; or workers of this process instead."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from intact.calibrate import shards
from intact.workers.ray_ import Connection


class Inline:
    """In the place of `Pool`: one worker of this process, which answers the last shard first.

    Attributes:
        shards: How many the last one had.
    """

    shards = 0
    _folder: Path

    def __init__(self, _: object, job: Any, workers: int, **how: Any) -> None:
        del workers, how
        self._job = job

    def start(self) -> None: ...

    def results(
        self, items: Iterable[Any], message: Callable[[Any, bytes], bytes]
    ) -> Iterator[tuple[Any, bytes]]:
        self._folder.mkdir()
        self._job.save(self._folder)
        answer, hello = type(self._job).load(self._folder).open(1)
        shutil.rmtree(self._folder)
        sent = [(item, message(item, hello)) for item in items]
        Inline.shards = len(sent)
        answer(sent[0][1])  # of a worker that is lost before it is heard
        for item, content in reversed(sent):
            yield item, answer(content)

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None: ...

    @classmethod
    def put(cls, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        """Let everything that is mapped be mapped by it, with jobs in a folder that is new."""
        monkeypatch.setattr(cls, "_folder", folder, raising=False)
        monkeypatch.setattr(shards, "Pool", cls)
        monkeypatch.setattr(Connection, "open", lambda _: None)
        monkeypatch.setattr(Connection, "processors", 2)


@contextlib.contextmanager
def local_cluster(processors: int = 2) -> Iterator[None]:
    """Start Ray with so many processors, and end it."""
    ray = pytest.importorskip("ray")
    for is_last in (False, True):
        try:
            ray.init("local", include_dashboard=False, log_to_driver=False, num_cpus=processors)
            break
        except Exception:  # it gives up after 30 s, which a busy machine may need
            ray.shutdown()
            if is_last:
                raise
    try:
        yield
    finally:
        ray.shutdown()
