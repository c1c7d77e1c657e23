"""Precision where it pays: nodes that are faster in float, or lose less there, stay float.

What is faster follows from measured times.

``pieces.py`` has the parts of a plan that are placed as one, and what a placement costs;
``costs.py`` where the costs come from: a runtime's profile, or the target's cost table;
``cache.py`` keeps what was measured; ``choice.py`` solves, measures the solutions as wholes, and
takes the fastest; ``placing.py`` does that for a job of calibration. ``alternatives.py`` tries what
may lose less: ``heads.py`` behind the last layers, ``spectra.py`` in front of logarithms.
"""
