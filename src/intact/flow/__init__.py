"""Carries out the commands that make results, from model and data to the written folder.

`stages.py` has the steps of a quantization: `SHARED` (open, shape, plan) run once for all targets,
`Observe` once for all targets of a graph, `OWN` (from scales to a last look) for each target.
`quantize.py` has quantize, import and export, which begin or end at a stage; `calibration.py`
observes samples and chooses scales; `look.py` asks the checks of `analyze/diagnose/`; then there
are `search.py`, `train.py`, and `torch_modules.py` for modules of torch.
"""
