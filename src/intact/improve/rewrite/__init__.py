"""Passes over float models before calibration; the results of the model do not change."""
