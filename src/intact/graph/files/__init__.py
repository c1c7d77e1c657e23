"""Model files: reading, checking and writing them, with weights mapped from disk."""
