"""Opens samples that a result is run or trained on, prepared as for its calibration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from intact.data.stream import Samples
from intact.results.execution import in_numbers
from intact.results.preprocessing import steps_for
from intact.results.recipes import open_fed
from intact.results.result import Result

if TYPE_CHECKING:
    from intact.recipe.groups import ComparisonOptions, DataSource


def open_for_result(
    options: ComparisonOptions,
    data: DataSource,
    result: Result,
    *,
    limit: int | None,
    labels: str | Path | None = None,
) -> Samples:
    """Open samples for both models of a result.

    Args:
        options: As a call gave them.
        data: The samples.
        result: The result; its steps and feeding hold where nothing else is given.
        limit: At most so many samples.
        labels: A CSV file of ``file,label``, for a folder of images.

    Raises:
        IntactError: As in `open_fed`, or the steps contradict each other.
    """
    mask = result.plan.provenance.mask
    opened = open_fed(
        data,
        result.plan.graph,
        options,
        result.plan.provenance,
        preprocess=steps_for(options, data, result.preprocess),
        limit=limit,
        labels=labels,
        skip_bad=options.skip_bad,
        # The data may hold the mask by which calibration counted: a run needs it only as an input.
        unread=frozenset({mask} if mask else ()),
    )
    return replace(in_numbers(opened, result.plan), progress=options.progress)
