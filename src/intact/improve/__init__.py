"""Losing less accuracy: passes over float models (`rewrite`) and over plans (`refine`)."""
