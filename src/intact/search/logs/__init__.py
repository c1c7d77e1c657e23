"""Trials on disk: one line of JSON each, as the TVM document has it."""
