"""Samples as a call has them fed (by its options, else as for calibration), and who runs them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from intact.calibrate.states import state_step
from intact.data.feeding import Feeding
from intact.data.sources import open_samples
from intact.data.stream import Samples
from intact.errors import UsageError
from intact.graph import Graph
from intact.plan.provenance import Provenance

if TYPE_CHECKING:
    from intact.calibrate.shards import SampleMap
    from intact.recipe.groups import ClusterOptions, DataSource, FeedOptions


def open_fed(
    data: DataSource,
    graph: Graph,
    options: FeedOptions,
    kept: Provenance | None = None,
    **how: Any,
) -> Samples:
    """Open samples, with the states that the float model gives.

    Args:
        data: The samples.
        graph: The float model.
        options: As a call gave them.
        kept: How the samples of the calibration were fed, which holds where nothing is given.
        **how: The other arguments of `open_samples`.

    Raises:
        IntactError: As of `open_samples`; or the model has no such input or output.
    """
    kept = kept or Provenance()
    feeding = Feeding(tuple(options.no_batch) or kept.no_batch, options.state or kept.states)
    step = state_step(graph, feeding)
    how = {"transform": options.transform, **how}
    return open_samples(data, graph, feeding=feeding, step=step, **how)


def cluster_of(options: ClusterOptions) -> AbstractContextManager[SampleMap | None]:
    """Return the cluster of the options that samples are mapped over, if they name one.

    Raises:
        UsageError: There are workers and no cluster.
        MissingExtraError: Ray is not installed.
    """
    if options.cluster is None:
        if options.workers is not None:
            raise UsageError(
                "--workers are those of a cluster, and there is none",
                remedy="give --cluster local, or --threads instead",
            )
        return nullcontext()
    from intact.calibrate.shards import SampleMap

    return SampleMap(options.cluster, options.workers)
