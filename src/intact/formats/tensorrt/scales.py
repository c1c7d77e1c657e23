"""The scales of a plan's activations by tensor, as TensorRT's tables name them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from intact.plan import QuantizedGraph, quantization_points

LARGEST_CODE = 127
"""A range ``amax`` is ``127 * scale`` on either side of 0 (developer guide, INT8 calibration)."""


@dataclass(frozen=True)
class ActivationScales:
    """Scales as TensorRT without explicit quantisation knows them: one for a tensor.

    Attributes:
        scales: By the names of the float model's tensors, in the model's order.
        several: Tensors left out because readers quantise them with different scales.
    """

    scales: dict[str, np.float32] = field(default_factory=dict)
    several: tuple[str, ...] = ()


def activation_scales(plan: QuantizedGraph) -> ActivationScales:
    """Collect the scales of a calibrated plan whose activations have one scale each.

    Weights are not in TensorRT's tables: it takes their scales from the weights.
    """
    found: dict[str, np.float32] = {}
    several: dict[str, None] = {}
    for point in quantization_points(plan):
        params = point.config.params
        if point.is_constant or params is None:
            continue
        name, scale = str(point.value.name), np.float32(params.scale)
        if found.setdefault(name, scale) != scale:
            several[name] = None
    kept = {name: scale for name, scale in found.items() if name not in several}
    return ActivationScales(kept, tuple(several))
