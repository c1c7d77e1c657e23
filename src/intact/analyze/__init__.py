"""What quantizing costs, where, why, and what mends it."""
