"""Which function writes which operation."""

from __future__ import annotations

from intact.formats.c.layer import Layer, Write
from intact.formats.c.layers import elementwise, functions, moving, pooling, products, resizing
from intact.formats.c.refusal import Refusal
from intact.program import Step
from intact.program.operations import Dequantize, FloatNodes, Quantize

_FLOAT = "the node computes in float"
_QUANTIZED = "quantise it, or cut the model before it and compute it in your own code"


def _refuse_float(_: Layer) -> None:
    raise Refusal(_FLOAT, _QUANTIZED)


WRITERS: dict[type, Write] = {
    **elementwise.WRITERS,
    **functions.WRITERS,
    **moving.WRITERS,
    **pooling.WRITERS,
    **products.WRITERS,
    **resizing.WRITERS,
    Quantize: _refuse_float,
    Dequantize: _refuse_float,
    FloatNodes: _refuse_float,
}


def is_held(step: Step) -> bool:
    """Tell whether there is a kernel for a step's operation at all."""
    return WRITERS.get(type(step.operation), _refuse_float) is not _refuse_float


def write_layer(layer: Layer) -> None:
    """Write one layer, or raise a Refusal."""
    writer = WRITERS.get(type(layer.step.operation))
    if writer is None:
        kind = type(layer.step.operation).__name__
        raise Refusal(f"there is no C kernel for {kind}", "keep the node out of the part on chip")
    writer(layer)
