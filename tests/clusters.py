"""A cluster of Ray on this machine, for the tests of a file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest


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
