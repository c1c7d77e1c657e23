"""A cluster of Ray on this machine, for the tests of a file; or workers of this process instead."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from intact.calibrate.shards import sample_map


class Inline:
    """In the place of `ShardMap`: one worker of this process, which answers the last shard first.

    Attributes:
        shards: How many the last one had.
    """

    shards = 0
    _folder: Path

    def __init__(self, _: object, job: Any, opener: str, **how: Any) -> None:
        self.workers, self._job = how["workers"] or 2, job
        module, _colon, function = opener.partition(":")
        self._open = getattr(import_module(module), function)
        self._threads = how["threads"] or 1

    def results(
        self, items: Iterable[Any], message: Callable[[Any, bytes], bytes]
    ) -> Iterator[tuple[Any, bytes]]:
        self._folder.mkdir()
        self._job.save(self._folder)
        answer = self._open(self._folder, self._threads)
        shutil.rmtree(self._folder)
        said = answer(b"")
        sent = [(item, message(item, said)) for item in items]
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
        monkeypatch.setattr(sample_map, "ShardMap", cls)
        monkeypatch.setattr("intact.cluster.Connection.open", lambda _: None)


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
