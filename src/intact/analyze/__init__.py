"""What quantizing costs, where, why, and what mends it.

Errors
    `errors.py` by layer and edge, from both models run by `side_by_side.py`; `layers.py` by layer
    in three ways (accumulated, by itself with `teacher.py`, alone); `layer_costs.py`, what each
    layer alone costs the outputs, by which they are ranked everywhere; `verdict.py`, one sentence.
`diagnose/`
    Why a result loses. `registry.py` is the table of checks: `quantize` asks them within a budget
    of seconds, which are counted and not measured, `diagnose` without one. Checks look at
    `evidence.py` and say `findings.py`. Their subjects: samples (`sample_signs.py`,
    `preprocessing.py`, `calibration_samples.py`, `wrong_answers.py`), quantizers (`quantizers.py`,
    `weights.py`, `costliest.py`; `counterfactuals.py` measures what a cause explains), sums
    (`arithmetic.py`), plan and statistics (`static.py`), runtime (`runtime.py`). `loss.py` says
    where most is lost and what float regains; `remedies.py` tries remedies as commands.
`evaluation/`, `verification/`
    Both models on samples, scored; a runtime against its plan. `shards.py`: on a cluster.
`comparison.py`, `result_comparison.py`
    What differs between results; results side by side.
`report/`
    The page of a result: figures (`figures.py`, `network.py`, `distributions.py`), places of nodes
    (`layout.py`), the page (`page.py`, with `graph.js` and `sections.js`), gathered by `gather.py`.
"""
