"""Model files: reading, checking and writing them, with weights that stay on disk."""
