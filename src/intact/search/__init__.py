"""Search for the best strategy: which tensors are quantized, and with how many bits.

The choice space, plans of candidates, the loop, strategies; `samplers/`, `measuring/` (scores;
trials that end early, and what margins foresee: `stopping.py`), `cost/`, `pool.py` (workers that
measure), `logs/`; `setup.py`: what a search needs before its first trial;
`weight_rounding.py`: weights of few bits, rounded before it.
"""
