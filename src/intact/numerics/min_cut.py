"""Finds the cheapest of all ways to give each of many things one of two labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_CAPACITY = 1 << 29
"""What all costs together are in the integers of the flow: twice that still fits in 32 bits."""


def cheapest_labels(
    costs: npt.NDArray[np.float64], edges: Sequence[tuple[int, int, float]]
) -> npt.NDArray[np.bool_]:
    """Return the labels of least total cost, exactly, up to one part in 2^29 of all costs.

    The minimum of a sum of costs of one and two labels is a minimum cut, which a maximum flow
    finds (Picard and Ratliff, "Minimum cuts and related problems", Networks 5, 1975).

    Args:
        costs: Cost of each thing where its label is False and where it is True, float64
            ``[things, 2]``, 0 or more; infinity rules a label out.
        edges: (first, second, cost): what it costs where the first is True and the second False.

    Returns:
        The labels, bool ``[things]``; False where both cost the same.

    >>> costs = np.array([[5.0, 1.0], [1.0, 2.0], [1.0, 9.0]])
    >>> cheapest_labels(costs, [(0, 1, 3.0)]).tolist()
    [True, True, False]
    """
    from scipy.sparse import coo_array, csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    count = len(costs)
    source, sink = count, count + 1
    things = np.arange(count)
    first, second, weights = (
        np.array([edge[k] for edge in edges], dtype)
        for k, dtype in ((0, np.int64), (1, np.int64), (2, np.float64))
    )
    rows = np.concatenate([np.full(count, source), things, first])
    columns = np.concatenate([things, np.full(count, sink), second])
    values = np.concatenate([costs[:, 0], costs[:, 1], weights])
    # scipy's flow takes integers of 32 bits: costs are shares of their sum, so that no cut leaves
    # them.
    total = float(values[np.isfinite(values)].sum()) or 1.0
    scaled = np.where(np.isfinite(values), values * (_CAPACITY / total), 2.0 * _CAPACITY)
    shape = (count + 2, count + 2)
    summed = coo_array((scaled, (rows, columns)), shape=shape).tocsr()
    capacities = csr_array(
        (np.minimum(summed.data, 2 * _CAPACITY).astype(np.int32), summed.indices, summed.indptr),
        shape=shape,
    )
    flow = maximum_flow(capacities, source, sink).flow
    # What is reached from the source through edges with capacity left is its side of a minimum cut,
    # and the smallest such side: equal costs are False.
    left = csr_array(capacities - flow)
    left.eliminate_zeros()
    reached = np.zeros(count + 2, np.bool_)
    reached[breadth_first_order(left, source, return_predecessors=False)] = True
    return reached[:count]
