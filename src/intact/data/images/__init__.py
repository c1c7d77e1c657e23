"""Folders of images: which files, which labels, how pixels become what the model takes."""
