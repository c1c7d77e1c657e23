"""Lists the numbers that decide what a user sees, each with its reason.

From which noise a result is called lost, what a change must gain to be made or told, how much
slower is slow, how long a command may take for it, how much memory. What is only a matter of how
something is computed stays where it is computed.
"""

from __future__ import annotations

# ---- Samples that run at once --------------------------------------------------------------------
# In their last bits a runtime's floats may change with the batch, and with them what is chosen by
# them. So no size depends on the machine or its threads, and there is one for each way of running.

TRIED_AT_ONCE = 4
"""Many plans, in several threads at once: memory for them is what there is least of."""
HELD_AT_ONCE = 8
"""A float and a quantized model of which all activations are held."""
WALKED_AT_ONCE = 10
"""One node after the other, each on all samples, of which the activations between are held."""
RUN_AT_ONCE = 16
"""Outputs, or layers from given inputs: larger batches are not faster, and these stay in caches."""
OBSERVED_AT_ONCE = 32
"""Tensors that are counted; fewer where they are large."""
TIMED_AT_ONCE = 32
"""Candidates whose latency is compared."""
EVALUATED_AT_ONCE = 100
"""What `evaluate` runs and times, and so what a report says of latency; fewer where tensors are
large."""
EVALUATED_BYTES = 1 << 26
"""What the largest tensor of these may take: runtimes hold several, of two models."""

# ---- Pictures of a report ------------------------------------------------------------------------

PICTURES = 24
"""Samples of a contact sheet: a glance shows whether crop, border and colours are right."""
PICTURE_SIDE = 96
"""Pixels of the longer side of each."""
BOXED_SIDE = 256
"""The same where boxes are drawn into them."""
PICTURE_BYTES = 1_000_000
"""What all pictures of a page may take: it is still mailed."""

# ---- Signal to quantization noise, dB ------------------------------------------------------------
# 8 bits usually leave an output 20 to 40 dB.

CLOSE_DB = 40.0
"""Where every output has that (1 % of noise), no pass runs that nobody asked for."""
WELL_DB = 30.0
"""Where every output has that, a result is well: causes are not looked for."""
ENOUGH_DB = 25.0
"""Where every output of the best of two methods has that, no further method is tried."""
USUAL_DB = 20.0
"""What 8 bits leave of a healthy net at least: below that, what every quantizer does is a fault."""
LOST_DB = 15.0
"""Below that an output is said to be lost."""
SAME_DB = 10.0
"""Above that two runtimes are taken to compute the same."""
LITTLE_DB = 3.0
"""Below that an output has little in common with the float model's: half of its power is noise."""
HALF_DB = 3.0
"""What a processor's sums cost an output to be mentioned: then half of its noise is theirs."""
MOST_DB = 100.0
"""Where outputs are equal and have infinitely many."""

# ---- Ranges --------------------------------------------------------------------------------------

FLOAT16_ROOM = 2.0
"""How many times what samples reach float16 has to hold: other samples, and what quantizing changes
before it, move values, and beyond its range there is no number at all."""

# ---- What a change must gain, dB -----------------------------------------------------------------

TOLD_DB = 1.0
"""To be worth nodes in float, or a line about them."""
CLIPPED_DB = 0.5
"""What another method must gain where clipping is said to cost."""
GATED_DB = 3.0
"""To be worth an operator in front of each gate: half of the noise of the layers around."""
SAFE_DB = 0.3
"""What an output may lose against the safe method; what more nodes in float must gain beside
others, which need no further conversion."""
CHANCE_DB = 0.2
"""Less is chance, or the machine's floats."""
STRANGE_DB = 6.0
"""What new samples lose more where three quarters of their noise are values beyond the ranges."""

# ---- Decisions of classifiers --------------------------------------------------------------------

AGREEING = 0.95
"""Share of the decisions that a good result has in common with the float model."""
TOLERATED = 1.0
"""Points of accuracy that a deployed model may lose: 99 % of the float model's, as MLPerf asks for
(Reddi et al., "MLPerf Inference Benchmark", 2020), where that is near 100 %. Of perplexity as many
percent."""
CUT = 0.05
"""Share of a tensor's values beyond its codes that no method gives up for finer steps."""

# ---- Speed ---------------------------------------------------------------------------------------

SLOWER = {2: 1.5, 3: 1.15, 5: 1.05}
"""Times as long as the float model takes, in each of so many rounds, from which on it is no chance:
a little in few rounds may be."""
SAME_SPEED = 1.02
"""Times that differ by less are the same: the placement with more integers is taken."""
WORTH_OF_TIME = 0.1
"""Share of the time that is worth a remedy."""

# ---- Time that a command takes, seconds ----------------------------------------------------------

QUICK = 0.12
"""What a check at the end of `quantize` may take of a processor."""
SLOWNESS_SHARE = 0.025
"""Share of the time of a quantization that each model runs to see whether it became slower."""
LONG_RUNS_SHARE = 0.15
"""The same for both models together, where runs are long and each round shows the sign: other
models end at the first. As much again for loading both, where they are not loaded yet."""
LONG_RUNS_SECONDS = 20.0
"""For both models of a diagnosis, where runs are long."""
SLOWNESS_SECONDS = 1.0
"""For each of the two models that a diagnosis times, in all."""
REMEDIES_SECONDS = 300
"""For the remedies of a result, together, where nobody says how long."""
UNASKED_SECONDS = 120.0
"""For a pass that nobody asked for, where an output is lost, as counted before it runs."""
LATENCY_SECONDS = 4.0
"""For each of the two models of `evaluate`; one run of each is timed however long it takes."""
PLACEMENT_SECONDS = (3.0, 120.0)
"""For timing what is faster in float, at least and at most."""

# ---- Detections ----------------------------------------------------------------------------------

CONFIDENT = 0.25
"""Score from which on a detection is one that users see, as most detectors' own tools have it."""
DETECTED = 98.0
"""Percent of the float model's detections from which on a detector is not said to lose much,
whatever the decibels of its outputs."""
HARDLY_FOUND = 0.01
"""mAP at IoU 0.5 of the float model below which boxes or classes are likely to be misread."""

# ---- Memory, bytes -------------------------------------------------------------------------------

MEMORY_SHARE = 0.5
"""Share of the free memory that activations and counts have where --max-memory is left out."""

SEARCH_SAMPLES_BYTES = 4 << 30
"""Samples and float outputs that trials run on."""
SEARCH_CACHE_BYTES = 1 << 30
"""Activations that all workers together keep, to go on from where candidates begin to differ."""
SEARCH_SESSION_BYTES = 1 << 29
"""Weights in all pieces that they have compiled; of large models `SEARCH_SESSION_MODELS`."""
SEARCH_SESSION_MODELS = 1.5
"""So many models' weights each worker keeps in any case: a candidate's, and those that the next
have in their place. With less than one, each piece would be gone when the next candidate comes."""
TRAINING_BYTES = 2 << 30
"""Samples that are kept; of more, a part at a time is read, shuffled and used."""
CHOSEN_BYTES = 1 << 26
"""Samples that are kept to try plans on, but for a single one, which may be larger."""
TRIED_BYTES = 1 << 26
"""Constants that are tried at once, each in a session of its own that holds it several times."""
OUTPUT_BYTES = 1 << 28
"""Float outputs that passes are judged by, but for one sample's: those of a language model have a
number for each word of its vocabulary at each position."""

# ---- Samples -------------------------------------------------------------------------------------

CHOSEN = 32
"""Kept to try plans on, and to compare outputs before and after a pass."""
DRAWN = 32
"""Drawn where there are no data."""
VERIFIED = 64
"""Compared by `verify` with the runtime."""
INSPECTED = 64
"""That the errors of layers are accumulated over."""
REPORTED_ELEMENTS = 1 << 28
"""Elements of activations that a report compares, of all samples: there are as few samples as keep
below that, 8 at least. One of a vision transformer of 22 million weights has 15 million."""
