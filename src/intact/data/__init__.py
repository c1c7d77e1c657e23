"""Calibration and evaluation data: reading, preprocessing, checks, labels and metrics.

Samples of users: files, images, functions, objects of training code (`objects.py`: their kinds, a
table; `items.py`: items to batches), labels, masks, metrics, preprocessing; the check against the
model's inputs.
"""
