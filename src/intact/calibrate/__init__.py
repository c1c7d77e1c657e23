"""Calibration: samples in, statistics of the float model, scales out."""
