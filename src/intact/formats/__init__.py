"""Formats: one folder each, with what writes it, reads it and runs it."""
