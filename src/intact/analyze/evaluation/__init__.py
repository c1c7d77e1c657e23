"""Both models of a result run on samples, and what they score."""
