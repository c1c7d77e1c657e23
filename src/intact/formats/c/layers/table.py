"""Which function writes which operation."""

from __future__ import annotations

from intact.errors import Unsupported
from intact.formats.c.layer import Layer, Write
from intact.formats.c.layers import elementwise, functions, pooling, products, resizing
from intact.formats.c.layers import moves as moving
from intact.program import Step
from intact.program.operations import Dequantize, FloatNodes, Quantize


def _refuse(layer: Layer) -> None:
    raise no_kernel(layer.step)


WRITERS: dict[type, Write] = {
    **elementwise.WRITERS,
    **functions.WRITERS,
    **moving.WRITERS,
    **pooling.WRITERS,
    **products.WRITERS,
    **resizing.WRITERS,
    Quantize: _refuse,
    Dequantize: _refuse,
    FloatNodes: _refuse,
}


def is_held(step: Step) -> bool:
    """Tell whether there is a kernel for a step's operation at all."""
    return WRITERS.get(type(step.operation), _refuse) is not _refuse


def no_kernel(step: Step) -> Unsupported:
    """Return why there is no kernel for a step's operation."""
    if isinstance(step.operation, FloatNodes | Quantize | Dequantize):
        return Unsupported(
            "it computes in float",
            "quantize it, or cut the model there and compute it in code of your own",
        )
    kind = type(step.operation).__name__
    return Unsupported(f"there is no C kernel for {kind}", "keep it out of the part on the chip")


def write_layer(layer: Layer) -> None:
    """Write one layer, or raise a Unsupported."""
    WRITERS.get(type(layer.step.operation), _refuse)(layer)
