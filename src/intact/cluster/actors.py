"""Actors of Ray that have loaded one job: what starts them, what they read, what they answer.

Nodes share no disk: the files of a job are sent through Ray's object store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from intact.cluster.connection import Connection, lost_reason, ray_module
from intact.cluster.folders import new_owner, remove_left, temporary_folder


class Savable(Protocol):
    """A job: what workers load."""

    def save(self, folder: Path) -> None:
        """Write it to an empty folder."""


class LostError(Exception):
    """A worker died; the message says how."""


class Actors:
    """Starts actors of one class on the nodes of a cluster.

    Args:
        connection: To the cluster; it is open.
        kind: Their class.
        job: What they load.
        workers: How many there are at most at a time.
        threads: Of each; 0 divides the processors of the cluster.

    Attributes:
        files: A reference to the files of the job, for `unpacked`.
        owner: Part of the names of their temporary folders.
        threads: Of each.
    """

    def __init__(
        self, connection: Connection, kind: type, job: Savable, *, workers: int, threads: int = 0
    ) -> None:
        ray, processors = ray_module(), max(1, connection.processors)
        self.threads = threads or max(1, processors // workers)
        # Each claims a processor, for more might fit on no node. With fewer processors than
        # workers none is claimed, or some would wait for ever.
        claimed = 1 if workers <= processors else 0
        self._actor = ray.remote(kind).options(
            num_cpus=claimed, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        self.owner = new_owner()
        with temporary_folder(self.owner) as folder:
            job.save(folder)
            self.files = ray.put(packed(folder))

    def start(self) -> Any:
        """Start one, and return its handle."""
        return self._actor.remote()

    def close(self) -> None:
        """Remove what actors that were killed while they loaded have left on this machine."""
        remove_left(self.owner)


def reply_of(reference: Any) -> bytes:
    """Wait for what an actor answers.

    Raises:
        LostError: It died.
    """
    ray = ray_module()
    try:
        content: bytes = ray.get(reference)
    except ray.exceptions.RayTaskError:
        raise  # a bug: errors are replies
    except ray.exceptions.RayError as error:
        raise LostError(lost_reason(error)) from error
    return content


def kill(actor: Any) -> None:
    """End an actor, even while it works."""
    with contextlib.suppress(Exception):  # it, or the whole cluster, is dead already
        ray_module().kill(actor)


@contextmanager
def unpacked(files: dict[str, bytes], owner: str) -> Iterator[Path]:
    """Write the files of a job to a folder, which is removed again: what is open stays readable.

    Args:
        files: As `packed` read them.
        owner: Of ``Actors``.
    """
    with temporary_folder(owner) as folder:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield folder


def packed(folder: Path) -> dict[str, bytes]:
    """Read all files below a folder, by relative path."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
