"""Search for the best strategy: which tensors are quantized, and with how many bits."""
