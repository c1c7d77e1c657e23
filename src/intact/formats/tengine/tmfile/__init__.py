"""Tengine's model files, ``.tmfile``: read as float models, written in float and in integers."""
