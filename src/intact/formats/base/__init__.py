"""What formats share: their description, helpers, and the comparison with the engine."""
