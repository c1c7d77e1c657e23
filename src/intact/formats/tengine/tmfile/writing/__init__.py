"""From the nodes of a graph to the tensors and nodes of a file, one function an operator."""
