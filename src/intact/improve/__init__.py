"""Passes that improve accuracy: over float models (`rewrite`) and over plans (`refine`).

Less loss: `passes.py` (the table of passes, what a user asks of them), `presets.py` (which run
where nobody names them); `rewrite/` (float model to float model: equalization with `ties.py`, which
channels share a factor; `absorb.py`, `smooth.py`; `gate.py` measures their blocks), `refine/` (plan
with scales to plan: `walk.py` runs both models node by node; `ranges.py` with `block.py`, weight
scales, `rounding.py` by second moments of `numerics/second_order.py`, `bias.py`), `layers.py`
(weights as groups of matrices), `channels.py`, `learn/` (all that needs torch: training;
`reconstruct.py` learns rounding and scales of `blocks.py`, run by `slices.py`; `operators/` are its
rules).
"""
