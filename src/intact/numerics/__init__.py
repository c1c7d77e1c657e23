"""Pure functions on arrays: no graph, no target, no files.

``rounding``, ``affine``, ``logarithmic``  what an integer code means and how a float becomes one
``histogram``, ``exact_sum``               what one pass over a tensor collects, merging exactly
``distribution``, ``thresholds``           what is read from that, and the ranges derived from it
``metrics``                                how far two results are apart

Nothing is imported here: ``rounding`` and ``affine`` need numpy only, while ``histogram`` and the
search kernels bring numba with them.
"""
