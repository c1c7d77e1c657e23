"""Samples: what users bring to calibrate and to evaluate on, read, preprocessed and checked."""
