"""Operations over axes: pools, reductions and resizing."""
