"""Samples as a call has them fed: by its options, else as for the calibration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from intact.calibrate.states import state_step
from intact.data.feeding import Feeding
from intact.data.sources import open_samples
from intact.data.stream import Samples
from intact.graph import Graph
from intact.plan.provenance import Provenance

if TYPE_CHECKING:
    from intact.recipe.groups import DataSource, FeedOptions


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
