"""Calibration: samples in, statistics of the float model, scales out.

`collect` (with `observe/`), `Statistics`, `assign` (with `scales/`), samples drawn from statistics;
`shards/`: samples in shards on a cluster (`cutting.py` here, `reading.py` on a worker,
`sample_map.py` maps them; `collector.py` collects by them); `tail.py`: what decodes behind the last
layers; `joined_state.py`: states of unlike parts in one input; `front.py`: what leads to
logarithms.
"""
