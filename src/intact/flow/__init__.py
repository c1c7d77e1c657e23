"""The ways through the house: from models and data to results, and from results to figures."""
