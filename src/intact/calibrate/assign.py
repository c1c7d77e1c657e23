"""From statistics and a method to scales: the model is not run again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from intact.calibrate.bias import assign_biases
from intact.calibrate.statistics import Statistics
from intact.config import QuantState, TensorQuantConfig
from intact.errors import CalibrationError, nearest
from intact.graph import Role, input_role
from intact.numerics.affine_params import PowerOfTwo, params_from_range
from intact.numerics.distribution import Distribution
from intact.numerics.logarithmic import scale_from_threshold
from intact.numerics.thresholds import METHODS, Levels, Scheme, estimate_range, weight_range
from intact.plan import Note, NoteKind, QuantizedGraph, QuantPoint, quantization_points
from intact.targets import Target


@dataclass(frozen=True)
class Method:
    """How scales are derived.

    Attributes:
        activations: Name of the threshold method.
        fallback: Method for tensors for which ``activations`` is not defined.
        weights: Method for weights.
        options: Parameters of the methods, e.g. ``percentile``.
    """

    activations: str
    fallback: str
    weights: str
    options: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def of(
        target: Target,
        activations: str | None = None,
        weights: str | None = None,
        options: Mapping[str, float] | None = None,
    ) -> Method:
        """Return the target's method, with what the caller names instead.

        Args:
            target: Declares method, fallback and options.
            activations: Threshold method for activations.
            weights: Threshold method for weights.
            options: Options of the activations' method, on top of the target's.

        Raises:
            CalibrationError: A name is no threshold method, or the method has no such option or
                does not take its value.
        """
        declared = target.calibration
        method = Method(
            activations or declared.method,
            declared.fallback,
            weights or declared.weight_method,
            dict(declared.options),
        )
        for name in (method.activations, method.fallback):
            if name not in METHODS:
                raise CalibrationError(
                    f"unknown threshold method {name!r}", remedy=nearest(name, METHODS)
                )
        # Tried on two numbers, so that a mistake is found before the samples are run.
        sample, levels = np.array([-1, 1], np.float32), Levels(-127, 127, Scheme.SYMMETRIC)
        if weights is not None:
            weight_range(sample, levels, weights, None)
        if options:
            estimate_range(Distribution.from_values(sample), levels, method.activations, **options)
        return replace(method, options={**method.options, **(options or {})})


def required_tensors(plan: QuantizedGraph) -> tuple[str, ...]:
    """Return the names of the activations whose statistics the plan needs, in graph order."""
    points = quantization_points(plan)
    names = (str(p.value.name) for p in points if not p.is_constant and _needs_range(p.config))
    return tuple(dict.fromkeys(names))


def assign(plan: QuantizedGraph, statistics: Statistics, method: Method) -> QuantizedGraph:
    """Give every quantised end its scale and offset.

    Activations from the statistics, weights from their values, biases as the product of the two
    (and where an int32 bias would overflow, by a larger weight scale; a note says so).

    Returns:
        A new plan in which no end is INITIAL or PASSIVE_INIT.

    Raises:
        CalibrationError: Statistics are missing or of another model, or a method is not defined.
    """
    if statistics.model_hash != plan.graph.hash:
        raise CalibrationError("the statistics are of another model", remedy="collect them again")
    plan = plan.copy()
    points = list(quantization_points(plan))
    activations = [point for point in points if not _is_parameter(point)]
    notes = _assign_activations(activations, statistics, method)
    for point in points:
        if _role(point) is Role.WEIGHT and point.is_constant:
            _assign_weight(point, method)
    notes += assign_biases(plan)
    _activate(plan.configs.values())
    plan.provenance |= {
        "method": method.activations,
        "weight_method": method.weights,
        "statistics": statistics.hash(),
    }
    return plan.with_notes(tuple(notes))


def _role(point: QuantPoint) -> Role:
    node, slot = point.readers[0] if point.readers else (None, 0)
    return Role.DATA if node is None or point.at_output else input_role(node, slot)


def _is_parameter(point: QuantPoint) -> bool:
    return point.is_constant and _role(point) in (Role.WEIGHT, Role.BIAS)


def _needs_range(config: TensorQuantConfig) -> bool:
    """Tell whether a tensor's own range matters: it owns a scale, or its group takes the union."""
    if config.dominator.detail.get("fixed"):
        return False
    return config.dominator is config or config.detail.get("follows") == "union"


def _assign_activations(
    points: list[QuantPoint], statistics: Statistics, method: Method
) -> list[Note]:
    ranges: dict[int, tuple[float, float]] = {}
    roots: dict[int, TensorQuantConfig] = {}
    fallen: list[str] = []
    for point in points:
        if not _needs_range(point.config):
            continue
        low, high = _range(point, statistics, method, fallen)
        root = point.config.dominator
        before = ranges.get(id(root), (low, high))
        ranges[id(root)] = (min(low, before[0]), max(high, before[1]))
        roots[id(root)] = root
    for key, root in roots.items():
        _set_range(root, *ranges[key], PowerOfTwo.NEAREST)
        root.observer = method.activations
    if not fallen:
        return []
    message = (
        f"{method.activations} is not defined for asymmetric tensors with both signs; "
        f"{len(fallen)} of them use {method.fallback} (first: {fallen[0]})"
    )
    return [Note(NoteKind.CALIBRATION, "", message)]


def _range(
    point: QuantPoint, statistics: Statistics, method: Method, fallen: list[str]
) -> tuple[float, float]:
    if point.is_constant and point.value.const_value is not None:
        distribution = Distribution.from_values(point.value.const_value.numpy().astype(np.float32))
        return distribution.minimum, distribution.maximum
    name = str(point.value.name)
    distribution = statistics[name].distribution()
    levels = _levels(point.config, distribution)
    chosen = method.activations
    if levels.scheme not in METHODS[chosen].schemes:
        chosen = method.fallback
        fallen.append(name)
    options = {
        key: value for key, value in method.options.items() if key in METHODS[chosen].options
    }
    return estimate_range(distribution, levels, chosen, **options)


def _levels(config: TensorQuantConfig, distribution: Distribution) -> Levels:
    """Return the levels as they serve this tensor: all on one side where its values are."""
    levels = config.levels
    if levels.scheme is Scheme.ASYMMETRIC and distribution.minimum >= 0:
        return Levels(0, levels.quant_max - levels.quant_min, Scheme.ONE_SIDED)
    return levels


def _assign_weight(point: QuantPoint, method: Method) -> None:
    config, tensor = point.config, point.value.const_value
    if tensor is None or config.dominator is not config:
        return
    values = tensor.numpy().astype(np.float32)
    if not np.isfinite(values).all():
        raise CalibrationError(
            f"weight {point.value.name!r} of {point.end.node} holds NaN or infinity",
            remedy="mend the model, or keep the node float",
        )
    low, high = weight_range(values, config.levels, method.weights, config.granularity.axis)
    _set_range(config, low, high, PowerOfTwo.CEIL)  # a clipped weight is wrong for every sample
    config.observer = method.weights


def _set_range(
    config: TensorQuantConfig, low: npt.ArrayLike, high: npt.ArrayLike, power: PowerOfTwo
) -> None:
    """Give a config the scale and offset that hold a range, or one for each channel."""
    if config.grid.exponential:
        threshold = np.maximum(np.abs(low), np.abs(high))
        config.set_params(scale_from_threshold(threshold, config.quant_max))
        return
    params = params_from_range(
        low,
        high,
        config.quant_min,
        config.quant_max,
        symmetric=config.grid.symmetric,
        power_of_two=power if config.grid.power_of_two else None,
    )
    config.set_params(params.scale, params.zero_point)


def _activate(configs: Iterable[TensorQuantConfig]) -> None:
    for config in configs:
        if config.state is QuantState.INITIAL:
            config.transition(QuantState.ACTIVATED)
        elif config.state is QuantState.PASSIVE_INIT:
            config.transition(QuantState.PASSIVE)
