"""Sums of products: convolutions, dense layers and products of matrices."""
