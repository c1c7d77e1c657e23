"""How large keys and values become in a decoder's caches.

Keys are turned by a rotary embedding before they are kept. A key that calibration saw at one place
may come at any other, where its numbers are others: observed numbers alone would clip it (9.3 % of
error at place 32,000, measured). The length of a pair is the same at every place, and bounds both
of its numbers (see `intact.graph.caches.Rotation`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from intact.data.batching import Batch
from intact.engines.session import make_session, run_session
from intact.errors import CalibrationError
from intact.graph.caches import rotation_of
from intact.graph.edit import Editor
from intact.plan import QuantizedGraph
from intact.plan.caches import CachePoint, CacheRanges, cache_points


def cache_ranges(plan: QuantizedGraph, batches: Iterable[Batch], *, threads: int = 0) -> CacheRanges:
    """Run the float model, and return the largest magnitudes of what it appends to its caches.

    Args:
        plan: With the caches; scales are not needed.
        batches: Inputs by name. The result does not depend on their order.
        threads: Threads inside one operator; 0 lets the runtime choose.

    Returns:
        Those of each cache that holds codes.

    Raises:
        CalibrationError: There is NaN or infinity.
    """
    points = list(cache_points(plan))
    if not points:
        return {}
    editor = Editor(plan.graph.model)
    names = [str(point.cache.appended.name) for point in points]
    editor.model.graph.outputs[:] = [editor.value(name) for name in dict.fromkeys(names)]
    session = make_session(editor.finish(), threads=threads)
    wanted = {each.name for each in session.get_inputs()}
    found = {point.end: np.zeros(point.cache.channels) for point in points}
    for batch in batches:
        feeds = {name: array for name, array in batch.items() if name in wanted}
        for point, values in zip(points, run_session(session, feeds, names), strict=True):
            found[point.end] = np.maximum(found[point.end], _largest(point, values))
    for point in points:
        if not np.isfinite(found[point.end]).all():
            raise CalibrationError(
                f"what {point.end.node} appends to {point.cache.ports[0]} holds NaN or infinity",
                remedy="mend the model or the samples, or keep the node float",
            )
    return found


def _largest(point: CachePoint, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the largest magnitudes of one batch, at any place, ``[channels]``."""
    cache = point.cache
    heads = values.reshape(*values.shape[:-1], cache.heads, cache.size)
    rotation = rotation_of(cache.appended, cache.size)
    if rotation is None:
        magnitudes = np.abs(heads.astype(np.float64))
    else:
        magnitudes = rotation.envelope(heads)
    return magnitudes.reshape(-1, cache.channels).max(axis=0, initial=0.0)
