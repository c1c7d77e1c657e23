"""Results: what is asked for, what was made, and the folders that hold it.

What is asked for a target and what was made of it: `recipes.py` (joined options, the recipe of a
result), `sources.py` (models, results and targets as they are named), `job.py` (a plan, how it gets
its scales, what is written), `request.py` (what a call asks of its targets), `result.py` (the
folder), `exchange.py` (folders replaced in one step), `first_run.py`, `execution.py` (runs by any
executor), `samples.py` (samples as for the calibration, or as given).
"""
