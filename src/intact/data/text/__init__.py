"""Text as samples of models that take token ids: their inputs, tokenizers, windows and lines."""
