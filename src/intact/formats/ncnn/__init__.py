"""ncnn: ``.param`` and ``.bin`` with int8 layers, the calibration table, and running them."""
