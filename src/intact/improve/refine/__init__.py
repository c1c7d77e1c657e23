"""Passes over calibrated plans; the float model does not change."""
