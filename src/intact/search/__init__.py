"""Searching for the best strategy: which tensors are quantised, and with how many bits."""
