"""Trials on disk: one line of JSON each, as [tvm] has it."""
