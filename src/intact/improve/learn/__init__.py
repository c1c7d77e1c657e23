"""Everything that needs torch: modules that compute plans, and their training (extra ``train``).

Nothing outside this room imports torch, and the rest of the package imports this room inside the
functions that need it.
"""
