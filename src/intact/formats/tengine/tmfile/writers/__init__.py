"""From the steps of a program to the tensors and nodes of a file, one function an operation."""
