"""Operators, each declared once: its options with their defaults, what it computes, what it is."""
