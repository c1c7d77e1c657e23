"""Calibration: samples in, statistics of the float model, scales out.

`collect` (with `observe/`), `Statistics`, `assign` (with `scales/`), samples drawn from statistics;
`choice.py`: which method, by what each does to the outputs, and `outputs.py`, which compares these
with the float model's; `shards.py`: samples in shards on a cluster, and `collect_on.py`, which
collects by them; `tail.py`: what decodes behind the last layers; `joined_state.py`: states of
unlike parts in one input; `front.py`: what leads to logarithms; `cache_ranges.py`: keys and values
of decoders.
"""
