"""How the nodes of a plan become steps; one table, one function an operator."""
