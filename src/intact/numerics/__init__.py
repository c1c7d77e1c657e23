"""Pure functions on arrays: no graph, no target, no files.

``rounding``, ``affine``, ``logarithmic``  what an integer code means and how a float becomes one
``histogram``, ``exact_sum``               what one pass over a tensor collects, merging exactly
``bins``, ``distribution``                 what is read from that
``levels``, ``thresholds``                 the ranges derived from it, one file a heavy method
``metrics``                                how far two results are apart

Nothing is imported here: ``rounding`` and ``affine`` need numpy only, while ``histogram`` and the
search kernels bring numba with them.
"""
