"""Passes from programs to equal programs."""
