"""Which scale a point gets: from a table, around mask constants, of a bias."""
