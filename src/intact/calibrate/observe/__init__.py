"""Running the float model and counting what its tensors hold, within a budget of memory."""
