"""The ways through the house: from models and data to results, and from results to figures.

`stages.py`: the walk of a quantization as three rows of stages, each a value:
`SHARED` (open, shape, plan) for all targets, `Observe` once for all targets of a graph, `OWN`
(scale to look) for each; `quantize.py`: quantize, import and export, which begin or end at a stage;
`calibration.py`: samples observed, scales chosen; `search.py`, `train.py`; `torch_modules.py`:
modules of torch as models and as results; `look.py` asks the checks of `analyze/diagnose/`;
`inspection.py` plans without data.
"""
