"""Calibration and evaluation data: reading, preprocessing, checks, labels and metrics."""
