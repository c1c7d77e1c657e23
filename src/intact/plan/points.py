"""Lists the quantization points: the places where data are quantized.

Executors and formats do not interpret configs; they read these points.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec
import numpy as np
import onnx_ir as ir

from intact.config import MEANING, StateMeaning, TensorQuantConfig
from intact.errors import PlanError
from intact.graph import OpKind, is_constant, moves_values, op_spec
from intact.plan.bounds import is_bound
from intact.plan.quantized_graph import Codes, QuantizedGraph, TensorEnd, quantizes


class QuantPoint(msgspec.Struct, frozen=True):
    """A place where data are quantized.

    Attributes:
        value: The value that is quantized.
        config: The config; scale and offset are read from its dominator.
        end: The end of the config; it names the point.
        readers: The (node, slot) pairs that read the quantized data.
        at_output: The producer's output is quantized, for all readers and the graph output;
            otherwise only for ``readers``, after the producer's own quantization if any.
        is_passed_on: The data are on the grid already: the producer moves codes of its input, which
            has the same scale.
        baked: The integers of a constant that are stored in the plan; None if they are computed by
            quantizing the constant.
    """

    value: ir.Value
    config: TensorQuantConfig
    end: TensorEnd
    readers: tuple[tuple[ir.Node, int], ...]
    at_output: bool
    is_passed_on: bool = False
    baked: Codes | None = None

    @property
    def is_constant(self) -> bool:
        """Whether the data are a weight, a bias or another constant of the model."""
        return is_constant(self.value)

    def constant_codes(self) -> Codes:
        """Return the integers of a constant; all executors and formats use these.

        Raises:
            PlanError: The value is not a constant.
        """
        tensor = self.value.const_value
        if tensor is None:
            raise PlanError(f"{self.end}: {self.value.name} is not a constant of the model")
        if self.baked is not None:
            return self.baked
        # A bias may need more bits than a float32 quotient has.
        dtype = np.float64 if self.config.bits > 16 else np.float32
        return self.config.quantize(tensor.numpy().astype(dtype, copy=False))


class QuantPlace(msgspec.Struct, frozen=True):
    """A quantization point without numbers: plans of one `QuantizedGraph.structure` share it.

    Attributes:
        value: The same as in `QuantPoint`; so are those that are not listed.
        ends: The ends that quantize; the first one's is the config, and names the point.
    """

    value: ir.Value
    ends: tuple[TensorEnd, ...]
    readers: tuple[tuple[ir.Node, int], ...]
    at_output: bool
    is_passed_on: bool = False

    def point(self, plan: QuantizedGraph) -> QuantPoint:
        """Return the point of a plan of this structure."""
        end, baked = self.ends[0], None
        if plan.baked and not self.at_output:
            baked = next((plan.baked[each] for each in self.ends if each in plan.baked), None)
        return QuantPoint(
            self.value,
            plan.configs[end],
            end,
            self.readers,
            self.at_output,
            self.is_passed_on,
            baked,
        )


def quantization_points(plan: QuantizedGraph) -> Iterator[QuantPoint]:
    """Yield the points of a plan by value in topological order, outputs before inputs.

    The plan may lack scales (to find the tensors that calibration must observe).
    """
    for place in quantization_places(plan):
        yield place.point(plan)


def quantization_places(plan: QuantizedGraph) -> Iterator[QuantPlace]:
    """Yield the places of the points of a plan, in the order of `quantization_points`."""
    seen: set[ir.Value] = set()
    grids: _Grids = {}
    for node in plan.graph.nodes:
        for value in (*node.inputs, *node.outputs):
            if value is None or value in seen:
                continue
            seen.add(value)
            # Topological order: what a node moves is on the grid that its input was given before.
            for place in _places_of(plan, value, grids):
                dominator = plan.configs[place.ends[0]].dominator
                grids |= dict.fromkeys(place.readers, dominator)
                yield place


def has_logarithmic_levels(plan: QuantizedGraph) -> bool:
    """Tell whether something is quantized to logarithmic levels: there are no integers then."""
    return any(config.grid.exponential and quantizes(config) for config in plan.configs.values())


def refuse_unready(plan: QuantizedGraph) -> None:
    """Check that all ends have scales.

    Raises:
        PlanError: An end has no scale; the message names the first one and its state.
    """
    for end, config in plan.configs.items():
        if MEANING[config.state] is StateMeaning.REFUSED:
            raise PlanError(
                f"{end} is {config.state.name}: it has no scale yet",
                remedy="calibrate the plan first",
            )


_Grids: TypeAlias = dict[tuple[ir.Node, int], TensorQuantConfig]
"""The dominator of the quantized data at a node's input slot."""


def _places_of(plan: QuantizedGraph, value: ir.Value, grids: _Grids) -> Iterator[QuantPlace]:
    node, config = value.producer(), plan.producer_config(value)
    if node is not None and config is not None and (quantizes(config) or is_joined(plan, value)):
        yield QuantPlace(
            value,
            (TensorEnd.output(str(node.name), value.index() or 0),),
            plan.graph.consumers(value),
            at_output=True,
            is_passed_on=moves_values(node) and grids.get((node, 0)) is config.dominator,
        )
    groups: dict[int, list[tuple[ir.Node, int, TensorQuantConfig]]] = {}
    for node, slot, config in plan.consumer_configs(value):
        # A bound follows its data and is compared, not quantized.
        if is_bound(node, slot, config):
            continue
        # Readers with one dominator read the same codes: they are quantized once for all.
        groups.setdefault(id(config.dominator), []).append((node, slot, config))
    for group in groups.values():
        ends = [TensorEnd.input(str(n.name), s) for n, s, config in group if quantizes(config)]
        if ends:
            readers = tuple((n, s) for n, s, c in group if quantizes(c) or _is_governed(c))
            yield QuantPlace(value, tuple(ends), readers, at_output=False)


def is_joined(plan: QuantizedGraph, value: ir.Value) -> bool:
    """Tell whether the join that alone reads a value governs it, on the grid of the join's output.

    A join computes nothing: what it governs is quantized where it is made, to the join's scale.
    """
    config = plan.producer_config(value)
    if config is None or not _is_governed(config) or value.is_graph_output():
        return False
    readers = {node for node, _ in plan.graph.consumers(value)}
    if len(readers) != 1:
        return False
    join = next(iter(readers))
    spec = op_spec(join)
    if spec is None or spec.kind is not OpKind.JOIN:
        return False
    output = plan.output_config(join)
    is_same = config.dominator is output.dominator and config.same_grid(output)
    return is_same and (quantizes(output) or is_joined(plan, join.outputs[0]))


def _is_governed(config: TensorQuantConfig) -> bool:
    return MEANING[config.state] is StateMeaning.GOVERNED
