"""Formats: one folder each, with what writes it, reads it and runs it.

`registry.py`: the formats by name, imported when used; `base/`: what they share (`foreign.py`:
reading model files of others); `NAME/`: what one is, writes, reads, runs and verifies.
"""
