"""Passes that improve accuracy: over float models (`rewrite`) and over plans (`refine`).

`passes.py`, `presets.py`
    The table of passes; which of them run where the user names none.
`rewrite/`
    Float model to float model: `equalize.py` (with `ties.py`: which channels share a factor),
    `absorb.py`, `smooth.py` (`smooth_blocks.py`: weights in blocks), `rotate.py` (keys of caches,
    by `key_moments.py`); `gate.py` measures whether they gain.
`refine/`
    Plan with scales to plan: `ranges.py`, `weight_scales.py`, `rounding.py`, `bias.py`, each on
    `walk.py`, which runs both models node by node.
`learn/`
    All that needs torch: training (`training.py`), and learning of rounding and scales block by
    block (`reconstruct.py`). `operators/` has torch's rule for each operator.
"""
