"""Encodings: JSON tables of scales, as AIMET writes them and the QNN and SNPE converters read."""
