"""Declares the plan: a float graph, a target and the decision about each tensor end."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.config import (
    MEANING,
    UNBAKED,
    QuantState,
    StateMeaning,
    TensorQuantConfig,
    copy_configs,
)
from intact.errors import PlanError
from intact.graph import IMPLICIT_SLOT, Graph, is_even_average
from intact.ops.operators import AveragePool, is_a
from intact.plan.provenance import Provenance
from intact.targets import Arithmetic, Functions, Target


class Direction(StrEnum):
    """Whether an end is where a node reads a tensor or where it writes one."""

    INPUT = "input"
    OUTPUT = "output"


class TensorEnd(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """One input or output slot of one node.

    Configs belong to ends and not to tensors, because two consumers may quantize the same
    tensor differently (PPQ document, "Tensor Quantization Config").

    >>> str(TensorEnd("conv1", Direction.INPUT, 0))
    'conv1.input[0]'
    >>> TensorEnd.parse("block/conv.1.output[0]").node
    'block/conv.1'
    """

    node: str
    direction: Direction
    slot: int

    @staticmethod
    def input(node: str, slot: int) -> TensorEnd:
        """Return the end where ``node`` reads its input ``slot``."""
        return TensorEnd(node, Direction.INPUT, slot)

    @staticmethod
    def output(node: str, slot: int = 0) -> TensorEnd:
        """Return the end where ``node`` writes its output ``slot``."""
        return TensorEnd(node, Direction.OUTPUT, slot)

    @staticmethod
    def parse(text: str) -> TensorEnd:
        """Read the form that ``str`` writes.

        Raises:
            PlanError: The text is not of the form ``NODE.input[K]`` or ``NODE.output[K]``.
        """
        # From the right: node names may hold dots and brackets themselves.
        for direction in Direction:
            head, mark, tail = text.rpartition(f".{direction}[")
            if mark and head and tail.endswith("]") and tail[:-1].isdecimal():
                return TensorEnd(head, direction, int(tail[:-1]))
        raise PlanError(
            f"{text!r} does not name a tensor end", remedy="write NODE.input[K] or NODE.output[K]"
        )

    def __str__(self) -> str:
        return f"{self.node}.{self.direction}[{self.slot}]"


COMPOSED = "intact.composed"
"""Metadata of a node that was read, and that the file has as several operators on codes."""

Codes: TypeAlias = npt.NDArray[np.integer[Any]]

"""Integers of a constant; 4-bit integers in an 8-bit type."""


class Decision(msgspec.Struct, frozen=True):
    """Whether a node computes with integers, and the reason."""

    quantized: bool
    reason: str


class Float16Nodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The float nodes of a plan that compute in float16, and those that do not.

    Attributes:
        nodes: Names of those that do, in the order of the graph.
        float32: Why others that ONNX has in float16 stay float32, by name.
    """

    nodes: tuple[str, ...] = ()
    float32: dict[str, str] = {}

    def without(self, reasons: Mapping[str, str]) -> Float16Nodes:
        """Keep more nodes in float32, each with its reason."""
        left = tuple(name for name in self.nodes if name not in reasons)
        return Float16Nodes(left, {**self.float32, **reasons})


class NoteKind(StrEnum):
    """What a note is about."""

    CALIBRATION = "calibration"
    BIAS_OVERFLOW = "bias_overflow"
    FUSION = "fusion"
    TIE = "tie"
    EXPORT = "export"
    WIDTH = "width"
    REWRITE = "rewrite"
    SPEED = "speed"
    HEAD = "head"


class Note(msgspec.Struct, frozen=True, order=True):
    """Something a user should know about the plan: where, what and what to do."""

    kind: NoteKind
    node: str
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        tail = f"; {self.remedy}" if self.remedy else ""
        return f"{self.node}: {self.message}{tail}" if self.node else f"{self.message}{tail}"


@dataclass
class QuantizedGraph:
    """The plan. Engines, formats and reports read it; none of them changes it.

    Passes take a ``QuantizedGraph`` and return a new one; ``copy`` keeps the sharing of scales
    between configs. The float graph is never modified.

    Attributes:
        graph: The normalized float model.
        target: The hardware described.
        configs: The config of every tensor end of every node.
        decisions: For each node name, whether it is quantized and the reason.
        notes: Events of quantization that a user should know about.
        provenance: Where the plan comes from.
        baked: The integers of constants whose ends are BAKED or PASSIVE_BAKED, by the end that
            names their quantization point. They are used as they are, even if quantizing the
            float constant gives other integers. Copies share the arrays; nothing writes to them.
        float16: Which float nodes compute in float16; None where float32 is all that floats are.
        preprocessing: The steps of its samples, as the TOML of a result's folder, for the files
            that are written; "" where they are not known. It is not stored.
    """

    graph: Graph
    target: Target
    configs: dict[TensorEnd, TensorQuantConfig]
    decisions: dict[str, Decision]
    notes: tuple[Note, ...] = ()
    provenance: Provenance = field(default_factory=Provenance)
    baked: dict[TensorEnd, Codes] = field(default_factory=dict)
    float16: Float16Nodes | None = None
    preprocessing: str = field(default="", compare=False)

    def __repr__(self) -> str:
        """Count quantized nodes, configs and other figures of the plan."""
        return (
            f"QuantizedGraph({self.target.name}: {self.quantized_nodes} of "
            f"{len(self.decisions)} nodes quantized, {len(self.configs)} tensor ends, "
            f"{len(self.notes)} notes)"
        )

    @property
    def quantized_nodes(self) -> int:
        """How many nodes compute with integers."""
        return sum(decision.quantized for decision in self.decisions.values())

    @property
    def keeps_runtime(self) -> bool:
        """Whether the plan was read from a quantized model, so runtimes must compute as on it."""
        return self.provenance.is_read

    def is_quantized(self, node: ir.Node) -> bool:
        """Tell whether a node computes with integers."""
        return self.decisions[str(node.name)].quantized

    def input_config(self, node: ir.Node, slot: int) -> TensorQuantConfig:
        """Return the config where ``node`` reads its input ``slot``."""
        return self.configs[TensorEnd.input(str(node.name), slot)]

    def output_config(self, node: ir.Node, slot: int = 0) -> TensorQuantConfig:
        """Return the config where ``node`` writes its output ``slot``."""
        return self.configs[TensorEnd.output(str(node.name), slot)]

    def producer_config(self, value: ir.Value) -> TensorQuantConfig | None:
        """Return the config of the end that writes ``value``; None for inputs and constants."""
        node = value.producer()
        slot = value.index()
        return None if node is None or slot is None else self.output_config(node, slot)

    def consumer_configs(self, value: ir.Value) -> Iterator[tuple[ir.Node, int, TensorQuantConfig]]:
        """Yield node, slot and config of every end that reads ``value``, in topological order."""
        for node, slot in self.graph.consumers(value):
            if slot != IMPLICIT_SLOT:  # a value that a body reads from outside it
                yield node, slot, self.input_config(node, slot)

    def arithmetic_of(self, node: ir.Node) -> Arithmetic:
        """Return the target's arithmetic of a node, with what depends on the plan's zero points."""
        # Of the second operand: targets have other kernels where the weight's zero point is not 0.
        right = self.configs.get(TensorEnd.input(str(node.name), 1))
        found = self.target.arithmetic_of(node, None if right is None else _zero_point(right))
        if found.functions is not Functions.COMPOSED:
            return found
        is_read = self.keeps_runtime and COMPOSED not in node.metadata_props
        is_uneven = is_a(node, AveragePool) and not is_even_average(node)
        if is_read or is_uneven:  # its file has one operator
            return msgspec.structs.replace(found, functions=Functions.FLOAT32)
        return found

    def with_exact_sums(self) -> QuantizedGraph:
        """Return the plan on hardware whose accumulators hold every sum; its configs are shared."""
        arithmetic = self.target.arithmetic.with_exact_sums()
        return replace(self, target=msgspec.structs.replace(self.target, arithmetic=arithmetic))

    def structure(self) -> Hashable:
        """Return what is equal for plans of one graph that differ in numbers only.

        Such plans have other grids, scales or integers, but at each end the same state, and the
        same ends share a scale. An end whose integers are stored counts as one that quantizes.
        """
        # By the order in which scales come up, as identities differ between copies of one plan.
        groups: dict[int, int] = {}
        configs = self.configs.values()
        return (
            tuple(self.configs),
            # Lists, not generators, inside tuple(): this is asked for every candidate of a search,
            # and is faster so.
            tuple([UNBAKED.get(config.state, config.state) for config in configs]),
            tuple([groups.setdefault(id(config.dominator), len(groups)) for config in configs]),
        )

    def copy(self) -> QuantizedGraph:
        """Copy the plan; configs that share a scale here share one in the copy."""
        return replace(
            self,
            configs=copy_configs(self.configs),
            decisions=dict(self.decisions),
            baked=dict(self.baked),
        )

    def with_notes(self, notes: tuple[Note, ...]) -> QuantizedGraph:
        """Return this plan with more notes."""
        return replace(self, notes=self.notes + notes)


def _zero_point(config: TensorQuantConfig) -> int | None:
    """Return the zero point as codes with a sign have it; None if unknown or not one alone."""
    params = config.params
    codes = np.asarray([] if params is None else params.zero_point)
    if not codes.size or codes.min() != codes.max():
        return None
    # Targets say it of codes with a sign: 128 of unsigned ones is their 0.
    return int(codes.min()) - (1 << (config.bits - 1) if config.quant_min >= 0 else 0)


def quantizes(config: TensorQuantConfig) -> bool:
    """Tell whether an end's data are integers: quantized here, now or later, or already before."""
    return MEANING[config.state] in _INTEGERS or config.state in (
        QuantState.INITIAL,
        QuantState.PASSIVE_INIT,
    )


_INTEGERS = (StateMeaning.QUANTIZES, StateMeaning.BAKED)
