"""Declares a strategy: which nodes and edges are quantized, with which bits and thresholds.

Source: [tvm], "Log Format". A plan with scales converts to a strategy, and the strategy to the same
plan again, bit for bit and without data: from its scales, or where it has none from its thresholds
(see `threshold_of` for the formula). Weights that were not rounded to nearest are named, and lie in
a file beside the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from intact.calibrate.assign import activate
from intact.calibrate.method import Method
from intact.calibrate.scales.bias import assign_biases
from intact.calibrate.scales.ranges import weight_params
from intact.calibrate.scales.roles import is_fixed
from intact.config import MEANING, QuantState, StateMeaning, TensorQuantConfig
from intact.errors import ConfigError, PlanError
from intact.graph import Graph, Role, constant_array, input_role
from intact.numerics.affine_params import QuantParams
from intact.plan import Direction, Overrides, QuantizedGraph, TensorEnd, build_plan
from intact.plan.given_scales import GIVEN
from intact.plan.overrides import WIDEST_CODES
from intact.plan.points import quantization_places
from intact.plan.stored_weights import is_in_blocks
from intact.plan.topology import decide, kept_float_entry
from intact.plan.untie import RequantizeReason, requantized
from intact.search.roundings import Roundings
from intact.targets import Target

Threshold: TypeAlias = float | list[float]

"""One number, or one for each channel."""


def has_integers(config: TensorQuantConfig) -> bool:
    """Tell whether a tensor end holds integers, its own or those of its dominator."""
    return MEANING[config.state] in (StateMeaning.QUANTIZES, StateMeaning.GOVERNED)


def _integer_ends(plan: QuantizedGraph) -> Iterator[tuple[TensorEnd, TensorQuantConfig]]:
    """Yield the ends that hold integers, except bounds: they follow their data."""
    for end, config in plan.configs.items():
        if has_integers(config) and role_at(plan, end) is not Role.PARAMETER:
            yield end, config


def scale_owners(plan: QuantizedGraph) -> Iterator[tuple[TensorEnd, TensorQuantConfig]]:
    """Yield every config that owns a scale, except biases: their scales follow."""
    for end, config in plan.configs.items():
        is_bias = config.bits > WIDEST_CODES and role_at(plan, end) is Role.BIAS
        is_float = config.state in (QuantState.FP32, QuantState.SOI)
        if config.dominator is config and not is_bias and not is_float:
            yield end, config


def role_at(plan: QuantizedGraph, end: TensorEnd) -> Role:
    """Return the role of the value read at an end; DATA for an output."""
    is_input = end.direction is Direction.INPUT
    return input_role(plan.graph.node(end.node), end.slot) if is_input else Role.DATA


def sign_bit(config: TensorQuantConfig) -> int:
    """Return 1 for symmetric signed codes, else 0."""
    return int(config.grid.symmetric and config.quant_min < 0)


def threshold_of(config: TensorQuantConfig, params: QuantParams) -> Threshold:
    """Convert a scale to a threshold: ``scale * 2 ** (bits - sign_bit)``."""
    found = params.scale.astype(np.float64) * 2.0 ** (config.bits - sign_bit(config))
    threshold: Threshold = found.tolist()
    return threshold


def checked_params(
    plan: QuantizedGraph,
    end: TensorEnd,
    number: Threshold,
    zero_point: int | list[int] | None,
    *,
    is_threshold: bool,
) -> QuantParams:
    """Check scale and zero point of an end that owns a scale.

    Args:
        plan: A plan, with or without scales.
        end: The tensor end.
        number: The scale, positive.
        zero_point: Shaped like it; None for zeros.
        is_threshold: The number is a threshold, from which the scale follows.

    Raises:
        ConfigError: They do not fit the grid or the channels of the weight, or the scale is not a
            positive finite float32.
    """
    config = plan.configs[end]
    exact: npt.NDArray[np.float64] = np.asarray(number, np.float64)
    divisor = 2.0 ** (config.bits - sign_bit(config)) if is_threshold else 1.0
    # Divided in float64 by a power of two, which is exact, and rounded once: the way back from
    # `threshold_of` gives the same bits.
    with np.errstate(over="ignore", under="ignore"):  # the check below finds overflow
        scale = (exact / divisor).astype(np.float32)
    axis = config.grid.axis
    if axis is not None:
        array = constant_array(plan.graph.node(end.node).inputs[end.slot])
        # An empty slice for a missing array: no scale of channels fits it.
        shape = () if array is None else array.shape
        if scale.shape != shape[axis : axis + 1]:
            raise ConfigError(f"{scale.size} numbers for a weight of shape {list(shape)}")
    offset = None if zero_point is None else np.asarray(zero_point).astype(np.int64)
    return config.grid.check_params(scale, offset)


Code: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**32)]

Bits: TypeAlias = Annotated[int, msgspec.Meta(ge=2, le=64)]


class Topology(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which parts of the model are quantized.

    Attributes:
        node_conds: For every node by name: whether it computes with integers.
        edge_conds: For every tensor end (``NODE.input[K]``, ``NODE.output[K]``): whether it holds
            integers, its own or those of its dominator.
        kept_float: Nodes and operator types that the search or the user keeps float. All other
            float nodes follow from these and the target.
        apart: Inputs of joins that are requantized because ranges are unlike.
    """

    node_conds: dict[str, bool]
    edge_conds: dict[str, bool]
    kept_float: list[str] = []
    apart: list[str] = []


class Methods(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The threshold methods, by name."""

    activations: str = GIVEN
    weights: str = GIVEN


@dataclass(frozen=True)
class Outline:
    """What the strategies of plans of one structure have in common: their decisions and their ends.

    Attributes:
        topology: Which parts are quantized.
        integers: The ends that hold integers, by name; bounds are left out.
        owners: The ends that own a scale, by name.
    """

    topology: Topology
    integers: tuple[tuple[str, TensorEnd], ...]
    owners: tuple[tuple[str, TensorEnd], ...]

    @staticmethod
    def of(plan: QuantizedGraph) -> Outline:
        """Extract it from a plan.

        Raises:
            PlanError: See `Strategy.of`.
        """
        for end, config in plan.configs.items():
            # Baked integers of a read model follow from no threshold.
            if MEANING[config.state] in (StateMeaning.REFUSED, StateMeaning.BAKED):
                raise PlanError(
                    f"{end} is {config.state.name}, which a strategy cannot describe",
                    remedy="calibrate a plan of the float model",
                )
        integers = tuple((str(end), end) for end, _ in _integer_ends(plan))
        # Bounds have an edge as well, which says False: they follow their data.
        names = {name for name, _ in integers}
        topology = Topology(
            {name: decision.quantized for name, decision in plan.decisions.items()},
            {str(end): str(end) in names for end in plan.configs},
            _kept_float(plan),
            [
                str(e)
                for e, each in plan.configs.items()
                if requantized(each) is RequantizeReason.UNLIKE
            ],
        )
        owners = tuple(
            (str(end), end) for end, each in scale_owners(plan) if not is_in_blocks(each)
        )
        return Outline(topology, integers, owners)


class Strategy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The decisions that make a plan, given a model and a target.

    Attributes:
        model_hash: Hash of the normalized float model.
        topology: Which parts are quantized.
        bits: The width of every quantized end; 32 for an int32 bias, 64 for an int64 one.
        thresholds: What the methods gave, by tensor: the end of the node that computes it, or of
            the first that reads it where none does. One number, or one for each channel. Biases
            have none: their scale is the product of those of input and weight.
        scales: The scales by the end that owns each, shaped like thresholds. Empty in strategies of
            others: their scales are those of the thresholds at these ends. Those of blocks are not
            here: they follow from the weight.
        zero_points: Zero points by the end that owns a scale, where codes are unsigned or
            asymmetric. Their sign bit is 0 and the threshold is the width of the range. Elsewhere
            the sign bit is 1.
        methods: The threshold methods.
        rounded: The weights that are rounded otherwise than to nearest: the hash of each by its end
            (`intact.search.roundings`).
    """

    model_hash: str
    topology: Topology
    bits: dict[str, Bits]
    thresholds: dict[str, Threshold]
    scales: dict[str, Threshold] = {}
    zero_points: dict[str, Code | list[Code]] = {}
    methods: Methods = Methods()
    rounded: dict[str, str] = {}

    @staticmethod
    def of(
        plan: QuantizedGraph,
        thresholds: Mapping[str, Threshold] | None = None,
        rounded: Mapping[str, str] | None = None,
        outline: Outline | None = None,
    ) -> Strategy:
        """Extract the strategy of a plan.

        Args:
            plan: A plan with scales, made from a float model.
            thresholds: What the methods gave (`Planner.thresholds`); None for those of the scales.
            rounded: The rounded weights that are put into the plan (`Roundings.named`).
            outline: That of this plan or another of its structure; None where there is none yet.

        Raises:
            PlanError: An end has no scale, or the plan holds integers of an imported quantized
                model.
        """
        outline = Outline.of(plan) if outline is None else outline
        of_scales: dict[str, Threshold] = {}
        scales: dict[str, Threshold] = {}
        zero_points: dict[str, Code | list[Code]] = {}
        for name, end in outline.owners:
            config = plan.configs[end]
            params = config.params
            if params is None:
                continue
            scales[name] = params.scale.astype(np.float64).tolist()
            if thresholds is None:
                of_scales[name] = threshold_of(config, params)
            if not sign_bit(config):
                zero_points[name] = params.zero_point.tolist()
        return Strategy(
            model_hash=plan.graph.hash,
            topology=outline.topology,
            bits={name: plan.configs[end].bits for name, end in outline.integers},
            thresholds=of_scales if thresholds is None else dict(thresholds),
            scales=scales,
            zero_points=zero_points,
            methods=Methods(
                plan.provenance.method or GIVEN, plan.provenance.weight_method or GIVEN
            ),
            rounded=dict(rounded or {}),
        )

    def plan(
        self,
        graph: Graph,
        target: Target,
        overrides: Overrides | None = None,
        roundings: Roundings | None = None,
    ) -> QuantizedGraph:
        """Make the plan of the strategy; no data are needed.

        It equals the plan that the strategy was extracted from, except in notes and in what the
        provenance says about statistics.

        Args:
            graph: The normalized model.
            target: The hardware.
            overrides: The user's other overrides.
            roundings: The rounded weights that it names, from the file beside the log.

        Raises:
            PlanError: The strategy belongs to another model, or does not fit the target, or a
                rounded weight that it names is missing.
        """
        if self.model_hash != graph.hash:
            raise PlanError(
                f"the strategy is for model {self.model_hash[:12]}, this one is {graph.hash[:12]}",
                remedy="give the model that was searched",
            )
        plan = build_plan(graph, target, self._requests(graph, target, overrides or Overrides()))
        self._check_nodes(plan)
        self._set_scales(plan)
        # Biases follow from the scales of input and weight, so these are set before.
        assign_biases(plan)
        activate(plan)
        # Last, because states say only now which ends hold integers.
        self._check_ends(plan)
        for end, config in scale_owners(plan):
            if not is_fixed(config):
                is_weight = role_at(plan, end) is Role.WEIGHT
                config.observer = self.methods.weights if is_weight else self.methods.activations
        methods = self.methods
        plan.provenance = plan.provenance.calibrated(methods.activations, methods.weights)
        return (roundings or Roundings()).restore(plan, self.rounded)

    def _requests(self, graph: Graph, target: Target, overrides: Overrides) -> Overrides:
        """Convert the strategy to overrides of the target."""
        names = {str(node.name) for node in graph.nodes}
        _refuse_odd("nodes", self.topology.node_conds, names)
        # The names are compared with the model before any is parsed or used: a log is anyone's
        # file.
        there = [end for end, is_there in self.topology.edge_conds.items() if is_there]
        _refuse_odd("bits", self.bits, there)
        ends = {end: TensorEnd.parse(end) for end in self.bits}
        _refuse_odd("ties", {*self.topology.apart} & {*there}, self.topology.apart)
        requests = msgspec.structs.replace(
            overrides,
            apart=overrides.apart | frozenset(map(TensorEnd.parse, self.topology.apart)),
            keep_float=tuple(dict.fromkeys((*overrides.keep_float, *self.topology.kept_float))),
            widths={
                end: self.bits[name]
                for name, end in ends.items()
                if self.bits[name] <= WIDEST_CODES
            },
        )
        # A log has more float nodes than the search kept float: some follow from others. Which, the
        # target says, so it is asked until nothing changes.
        requests = requests.resolved(graph).overrides
        while True:  # each iteration keeps more nodes float
            decisions = decide(graph, target, requests)
            conds = self.topology.node_conds
            float_ones = [name for name in decisions if not conds[name]]
            found = [name for name in float_ones if decisions[name].quantized]
            if not found:
                return requests
            requests = msgspec.structs.replace(requests, keep_float=(*requests.keep_float, *found))

    def _set_scales(self, plan: QuantizedGraph) -> None:
        owners = {
            str(end): config for end, config in scale_owners(plan) if not is_in_blocks(config)
        }
        self._set_scales_of_blocks(plan)
        ends = set(map(str, plan.configs))
        # Thresholds may be of any end, scales only of those that own one.
        _refuse_odd("thresholds", self.thresholds, ends & {*self.thresholds})
        numbers = self.scales or self.thresholds
        what = "scale" if self.scales else "threshold"
        _refuse_odd(f"{what}s", {*numbers} if self.scales else {*numbers} & {*owners}, owners)
        shifted = {end for end, config in owners.items() if not sign_bit(config)}
        _refuse_odd("zero points", self.zero_points, shifted)
        for name, config in owners.items():
            try:
                params = checked_params(
                    plan,
                    TensorEnd.parse(name),
                    numbers[name],
                    self.zero_points.get(name),
                    is_threshold=not self.scales,
                )
            except ConfigError as error:
                raise PlanError(
                    f"the strategy's {what} at {name!r}: {error}", remedy=_REMEDY
                ) from error
            if not is_fixed(config):
                config.set_params(*params)
                config.observer = GIVEN  # so that no bias raises the scale
            # A prescribed scale is compared and not set: the target's file may have changed since.
            elif config.params is None or not _equal(config.params, params):
                raise PlanError(
                    f"the strategy's {what} at {name!r}: the target prescribes another scale",
                    remedy=_REMEDY,
                )

    def _set_scales_of_blocks(self, plan: QuantizedGraph) -> None:
        # Millions, which follow from weight and method; rounded ones are set with their integers.
        for place in quantization_places(plan):
            config = plan.configs[place.ends[0]]
            if not is_in_blocks(config):
                continue
            target = plan.target
            params = weight_params(
                place.point(plan),
                Method.of(target, None, self.methods.weights),
                truncates=target.weight.truncated_zero_point,
                blocks=target.blocks,
            )
            config.set_checked(params)

    def _check_nodes(self, plan: QuantizedGraph) -> None:
        for name, decision in plan.decisions.items():
            if decision.quantized != self.topology.node_conds[name]:
                raise PlanError(
                    f"the strategy quantizes {name!r}, which stays float here: {decision.reason}",
                    remedy=_REMEDY,
                )

    def _check_ends(self, plan: QuantizedGraph) -> None:
        here = f"target {plan.target.name}"
        _refuse_odd("edges", self.topology.edge_conds, map(str, plan.configs))
        found = {str(end): config.bits for end, config in _integer_ends(plan)}
        for name, is_there in self.topology.edge_conds.items():
            wanted = self.bits.get(name)
            if is_there != (name in found) or found.get(name) != wanted:
                raise PlanError(
                    f"the strategy has {_width(wanted)} at {name!r}, {here} has "
                    f"{_width(found.get(name))}",
                    remedy=_REMEDY,
                )


_REMEDY = "give the target and the options that were searched with"


def _equal(left: QuantParams, right: QuantParams) -> bool:
    same_scale = np.array_equal(left.scale, right.scale)
    return same_scale and np.array_equal(left.zero_point, right.zero_point)


def _kept_float(plan: QuantizedGraph) -> list[str]:
    names = (kept_float_entry(decision) for decision in plan.decisions.values())
    return sorted({name for name in names if name is not None})


def _width(bits: int | None) -> str:
    return "float" if bits is None else f"{bits} bits"


def _refuse_odd(what: str, found: Iterable[str], expected: Iterable[str]) -> None:
    """Check that the names are those of the plan."""
    wanted = set(expected)
    # Sorted, so that of several the same is named each time.
    for name in sorted(wanted ^ set(found)):
        told = f"lack {name!r}" if name in wanted else f"have {name!r}, unknown to this plan"
        raise PlanError(f"the strategy's {what} {told}", remedy=_REMEDY)
