"""Folders of images: files, labels, decoding and conversion to the model's input."""
