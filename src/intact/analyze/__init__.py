"""What quantizing costs, where, why, and what mends it.

What quantizing costs, computed here only. `side_by_side.py` runs both models and sums what is
compared; `errors.py` sums by layer and edge; `layers.py` has the errors of layers three ways
(accumulated, by itself with `teacher.py`, alone). `layer_costs.py` has what each layer alone costs
the outputs: the one measurement by which layers are named, ranked and tried in float. `diagnose/`:
why a result loses. `registry.py` is the table of checks, each with its causes, what it needs and
what it costs in seconds, counted and not measured: `quantize` asks them within a budget, `diagnose`
without one; a check that costs more is asked where its sign says that it is worth while.
`evidence.py` is what checks look at, and what several of them measure. Samples: `sample_signs.py`,
`quick_findings.py`, `preprocessing.py` (judged by labels, BatchNormalizations, answers),
`calibration_samples.py`. Quantizers: `quantizers.py`, `weights.py` (of the causes that fit the
costliest, that one without which most of the noise is gone, measured by `counterfactuals.py`),
`costliest.py` (what no single tensor is at fault for is said of the layer, or the set, that costs
most). Sums: `arithmetic.py`. Plan and statistics: `static.py`, `batch_norms.py`. Runtime:
`runtime.py`. `loss.py`: which output loses too much, where, and what float regains. `compare.py`:
what differs between results. `report/`: what a page shows as figures (`figures.py`, `network.py`,
`distributions.py`), where nodes are drawn (`layout.py`), the page that holds and draws them
(`page.py`; `graph.js` and `sections.js` serve both pages); `gather.py` makes it for a result,
`notebook.py` shows it there. `diagnose/result_diagnosis.py` asks for a result, `deployed.py` its
runtime; `remedies.py` tries remedies as commands, `rehearsal.py` plans, writes and simulates other
calls from a result. `evaluation/` runs both models on samples and scores them, `verification/`
compares a runtime with the plan; their `shards.py` do so on a cluster. `result_comparison.py`:
results side by side.
"""
