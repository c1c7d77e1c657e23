"""What runs on a cluster: a connection for the time of a call."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from intact.errors import UsageError
from intact.plan import Note, NoteKind
from intact.recipe.groups import ClusterOptions

if TYPE_CHECKING:
    from intact.calibrate.shards import ShardedCollector


def refuse_workers_alone(options: ClusterOptions) -> None:
    """Refuse workers that would be nowhere."""
    if options.workers is not None and options.cluster is None:
        raise UsageError(
            "--workers are those of a cluster, and there is none",
            remedy="give --cluster local, or --threads instead",
        )


def collector_of(options: ClusterOptions) -> AbstractContextManager[ShardedCollector | None]:
    """Return what collects statistics on the cluster of the options, if they name one.

    Raises:
        UsageError: There are workers and no cluster.
        MissingExtraError: Ray is not installed.
    """
    refuse_workers_alone(options)
    if options.cluster is None:
        return nullcontext()
    from intact.calibrate.shards import ShardedCollector

    return ShardedCollector(options.cluster, options.workers)


def processor_notes(collector: ShardedCollector | None) -> tuple[Note, ...]:
    """Note workers on other processors than this machine's."""
    if collector is None or not collector.processors:
        return ()
    names = ", ".join(sorted(collector.processors))
    message = (
        f"some samples were run on other processors ({names}): ONNX Runtime's floats may differ in "
        "their last bits there"
    )
    return (Note(NoteKind.CALIBRATION, "", message),)
