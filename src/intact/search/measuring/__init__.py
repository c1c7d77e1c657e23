"""Measuring candidates: the samples, the objective, early stopping."""
