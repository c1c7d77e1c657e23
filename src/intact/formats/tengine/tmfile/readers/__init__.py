"""From the tensors and nodes of a file to a float graph, one function an operator."""
