"""Results: what is asked for, what was made, and the folders that hold it."""
