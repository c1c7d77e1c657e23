"""Self-contained C99 programs for microcontrollers."""
