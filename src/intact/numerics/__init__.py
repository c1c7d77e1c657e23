"""Pure functions on arrays: no graph, no target, no files.

``rounding``, ``affine``, ``logarithmic``  what an integer code means and how a float becomes one
``histogram``, ``exact_sum``               what one pass over a tensor collects, merging exactly
``distribution``                           bins, extremes and moments read from it
``levels``, ``thresholds``                 the ranges derived from them, one file a heavy method
``metrics``                                errors between two results
``native``                                 compiled loops, loaded without numba

Nothing is imported here: most modules need NumPy only; ``fixed_point_kernel``, ``fused``,
``second_order``, ``simulated_quantize`` and ``straight_through_kernel`` load numba.
"""
