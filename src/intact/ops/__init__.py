"""Operators, each declared once: its options with their defaults, what it computes, what it is."""

from __future__ import annotations

EXPANDABLE = ("BatchNormalization", "Div", "HardSigmoid", "LayerNormalization", "Pow")
"""Operators that ``intact.graph.passes.expand`` writes as several simpler ones."""

RECURRENT = ("GRU", "LSTM", "RNN")
"""Layers that hand their state from step to step."""

STORABLE = (*RECURRENT, "Gather")
"""Operators whose constants can be stored as integers while they compute in float: the weights of
recurrent ones, and the table in which Gather looks up rows."""
