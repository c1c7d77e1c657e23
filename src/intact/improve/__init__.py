"""Passes that improve accuracy: over float models (`rewrite`) and over plans (`refine`)."""
