"""Executors: the float model and the simulated quantized one, in ONNX Runtime.

Which there are, and in what they differ: `executor.py`. Float (`session.py`) and simulated
(`simulate.py`) execution in ONNX Runtime, simulation in pieces that plans share (`piecewise/`), the
integer engine (`integer/`); what a simulation cannot follow (`limits.py`).
"""
