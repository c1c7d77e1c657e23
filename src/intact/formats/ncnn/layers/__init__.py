"""Writers of layers by the operation of a step; importing this registers all of them."""

from intact.formats.ncnn.layers import elementwise, moves, pooling, products

__all__ = ["elementwise", "moves", "pooling", "products"]
