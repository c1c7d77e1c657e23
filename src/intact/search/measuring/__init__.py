"""Trials: what candidates are run on, what their outputs are worth, when that is enough."""
