"""Declares ``Target``: the complete description of a piece of hardware.

It is a frozen value read from a TOML file. No other code names a target.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Literal

import msgspec

from intact.targets.arithmetic import (
    Arithmetic,
    ArithmeticOverride,
    InstructionSet,
    PairSaturate,
    TargetArithmetic,
)
from intact.targets.blocks import Blocks
from intact.targets.float16 import Float16
from intact.targets.rules import Fusion, OpRule, ScaleRule
from intact.targets.scheme import BiasScheme, DType, SchemeOverride, TensorScheme

if TYPE_CHECKING:
    import onnx_ir as ir

FORMAT = 2

"""Version of the file format; one of before is upgraded (`intact.targets.format_1`)."""


class Topology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the choice of quantized nodes.

    Attributes:
        prune_without_consumer: An operator with a float form stays float if none of its readers
            computes with integers.
        in_place: Rules with ``input_follows_output`` and ``either_follows`` are applied, from the
            outputs upwards.
    """

    prune_without_consumer: bool = False
    in_place: bool = False


class BesideSigned(enum.StrEnum):
    """What becomes of an unsigned activation that a join such as Concat ties to a signed one."""

    BY_ERROR = "by_error"
    """It stays unsigned where other readers gain more by that than the join loses."""
    ALWAYS = "always"
    """It stays unsigned: behind a Relu codes are unsigned, whatever reads them ([mqbench])."""
    NEVER = "never"
    """All of the tie gets signed codes, by one quantizer."""


class Unsigned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which symmetric activations have unsigned codes, because they are never negative.

    Attributes:
        after: Operators whose results are never negative; a Clip only if its lower bound is a
            constant of 0 or more.
        through: Operators whose results are not negative if none of their data inputs is.
        beside_signed: What becomes of those that a join ties to signed ones: a join reads what
            stays unsigned through a second, signed quantizer.
    """

    after: tuple[str, ...] = ()
    through: tuple[str, ...] = ()
    beside_signed: BesideSigned = BesideSigned.BY_ERROR


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Default threshold methods, by their names in ``numerics.thresholds``.

    Attributes:
        method: Method for activations.
        fallback: Method where ``method`` is not defined for a tensor's scheme.
        weight_method: Method for weights.
        options: Numbers passed to ``method``.
        alternatives: Methods for activations to choose from beside ``method``, by what they do to
            the outputs of a model on some samples.
        variants: Replacements of methods, where the target's own tools use the same name for
            another computation.
        own_scales: Each activation's own scale is kept in the plan too where another's is in
            effect, for tables that hold scales as they were before they were shared.
        preset: What is done against losses unless the user says so: ``fast``, ``balanced`` or
            ``best``. ``fast`` leaves the scales and weights to the methods, as for targets that
            stand for what another tool writes.
    """

    method: str = "minmax"
    fallback: str = "minmax"
    weight_method: str = "minmax"
    options: dict[str, float] = {}
    alternatives: tuple[str, ...] = ()
    variants: dict[str, str] = {}
    own_scales: bool = False
    preset: Literal["fast", "balanced", "best"] = "balanced"


class Dynamic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a target computes with activations that it quantizes while the model runs.

    All else stays float then.

    Attributes:
        activation: Overrides of ``[activation]``.
        weight: Overrides of ``[weight]``.
        rules: ``[[dynamic.op]]`` entries, in the place of those that quantize; a file that extends
            another removes them with ``op = []``, and has no such kernels then.
        overrides: ``[[dynamic.overrides]]`` entries, behind those of ``[arithmetic]``.
        reason: Why other operators stay float; shown to users.
    """

    activation: SchemeOverride = SchemeOverride()
    weight: SchemeOverride = SchemeOverride()
    rules: tuple[OpRule, ...] = msgspec.field(name="op", default=())
    overrides: tuple[ArithmeticOverride, ...] = ()
    reason: str = ""


class CacheForm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes that keep what they append as codes.

    Attributes:
        op: Their type: GroupQueryAttention of ONNX Runtime, or Concat.
        bits: Widths of codes.
        reason: Completes "caches only: "; what users see of such a node.
        lacking: Why there are no other widths, for users.
    """

    op: str
    bits: tuple[int, ...]
    reason: str
    lacking: str = ""


class Caches(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Caches that a target can keep as codes; float keys and values are made of them where read.

    Attributes:
        forms: ``[[cache.form]]`` entries.
        scheme: What is asked for, the same for all caches; None where they are floats, as in
            targets' files.
    """

    forms: tuple[CacheForm, ...] = msgspec.field(name="form", default=())
    scheme: TensorScheme | None = None

    @property
    def bits(self) -> tuple[int, ...]:
        """All widths."""
        return tuple(sorted({bits for form in self.forms for bits in form.bits}))

    def form_of(self, op_type: str) -> CacheForm | None:
        """Return how nodes of a type keep codes; None for nodes that do not."""
        return next((form for form in self.forms if form.op == op_type), None)


class Compiler(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What takes a file and leaves to the processor what the accelerator lacks.

    Attributes:
        program: Its name on the command line.
        accelerator: What it compiles for, as it calls it.
        source: Where it stands which operators it maps.
        unmapped: Operators that it leaves to the processor, although they compute with integers.
    """

    program: Literal["vela"]
    accelerator: str
    source: str
    unmapped: tuple[str, ...] = ()


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hardware description, complete and checked (see :mod:`intact.targets.load`).

    Attributes:
        format: Version of the file format.
        name: The name of the target.
        description: One sentence.
        also_called: What others call it: runtimes, tools, vendors, chips. A variant has its own.
        sources: Sources of the description.
        extends: Name of a shipped target, or a file in the same folder, that this file was merged
            over.
        formats: Export formats, best first.
        integer_format: Which of them is written where the user names none and it can hold the
            plan, a format of integers alone; "" for the first in any case.
        kernels: Name of the runtime's kernels with this arithmetic, as for ``intact verify
            --kernels``; "" if the runtime has only one kind.
        expand: Operators that the hardware has only as several simpler ones, as ``--expand`` does.
        runtime_version: Version of the runtime, like ``"8.6.1"``, for formats whose files contain
            it and are rejected by other versions (TensorRT's calibration cache); "" for others.
        keeps_floats: Whether the runtime of its Q/DQ models computes with floats what is planned in
            float. ONNX Runtime does not (see `intact.formats.onnx_qdq.shield`); TensorRT does, and
            takes no integer biases.
        activation: Default scheme of activations.
        weight: Default scheme of weights.
        bias: How biases are added.
        arithmetic: Arithmetic between input and output integers.
        rules: ``[[op]]`` entries; an operator without any stays float.
        fusions: ``[[fusion]]`` entries.
        unsigned: Which activations have unsigned codes; none if omitted.
        dynamic: With activations that are quantized while the model runs; None for a target that
            has no such kernels. See `intact.targets.activations`.
        topology: Options of the choice of quantized nodes.
        calibration: Default methods.
        blocks: Weights in blocks that it can hold; None if it has none.
        cache: Caches of decoders that it can keep as codes; None if it keeps floats.
        float16: How it computes what stays float in float16; None where it does not.
        compiler: What maps a written file to an accelerator; None where the file is what runs.
        cost: Relative cost by ``"Op.dtype"``, for instance ``"Conv.float32" = 3.3``.
    """

    format: int
    name: str
    description: str = ""
    also_called: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    extends: str = ""
    formats: tuple[str, ...] = ()
    integer_format: str = ""
    kernels: str = ""
    expand: tuple[str, ...] = ()
    runtime_version: str = ""
    keeps_floats: bool = False
    activation: TensorScheme
    weight: TensorScheme
    bias: BiasScheme = BiasScheme()
    arithmetic: TargetArithmetic
    rules: tuple[OpRule, ...] = msgspec.field(name="op", default=())
    fusions: tuple[Fusion, ...] = msgspec.field(name="fusion", default=())
    unsigned: Unsigned = Unsigned()
    dynamic: Dynamic | None = None
    topology: Topology = Topology()
    calibration: Calibration = Calibration()
    blocks: Blocks | None = None
    cache: Caches | None = None
    float16: Float16 | None = None
    compiler: Compiler | None = None
    cost: dict[str, float] = {}

    @property
    def saturates_pairs(self) -> bool:
        """Whether pairs of products saturate in some of its operators."""
        arithmetic = self.arithmetic.on(None)
        others = (each.changes.get("accumulator") for each in arithmetic.overrides)
        return any(isinstance(each, PairSaturate) for each in (arithmetic.accumulator, *others))

    @property
    def is_logarithmic(self) -> bool:
        """Whether tensors of some operators have logarithmic levels."""
        schemes = [self.activation, self.weight]
        for rule in self.rules:
            if rule.quantize:
                schemes += [self.activation_scheme(rule), self.weight_scheme(rule)]
        return any(scheme.is_logarithmic for scheme in schemes)

    def on(self, instructions: InstructionSet | None) -> Target:
        """The target as the kernels for a processor compute it, see `Arithmetic.on`."""
        return msgspec.structs.replace(self, arithmetic=self.arithmetic.on(instructions))

    def rule_for(self, node: ir.Node) -> OpRule | None:
        """Return the last rule that matches a node; None if the target does not describe it."""
        from intact.targets.match import matches

        # Operators of other domains may have the names of ONNX's and compute something else.
        if node.domain != "":
            return None
        op_type = node.op_type
        for rule in reversed(self.rules):
            if op_type in rule.ops and (rule.when is None or matches(rule.when, node)):
                return rule
        return None

    def describes(self, op_type: str) -> bool:
        """Tell whether the target computes any operator of a type with integers."""
        return any(op_type in rule.ops and rule.quantize for rule in self.rules)

    def float_reason(self, op_type: str) -> str:
        """Return why no operator of a type computes with integers; "" where a rule says nothing."""
        rules = [rule for rule in self.rules if op_type in rule.ops]
        return rules[-1].reason if rules and not any(rule.quantize for rule in rules) else ""

    def names(self, op_type: str) -> bool:
        """Tell whether a rule is about a type of operators, also one that keeps it float."""
        return any(op_type in rule.ops for rule in self.rules)

    def activation_scheme(self, rule: OpRule, *, unsigned: bool = False) -> TensorScheme:
        """Return the scheme of the activations of a rule's operators.

        Args:
            rule: The rule.
            unsigned: Whether the activation has unsigned codes.
        """
        scheme = self.activation.overridden(rule.activation)
        return scheme.unsigned() if unsigned else scheme

    def weight_scheme(self, rule: OpRule) -> TensorScheme:
        """Return the scheme of the weights of a rule's operators."""
        return self.weight.overridden(rule.weight)

    def arithmetic_for(self, op_type: str) -> Arithmetic:
        """Return the arithmetic of an operator type for which no condition holds."""
        return self.arithmetic.for_op(op_type, lambda _: False)

    def arithmetic_of(self, node: ir.Node, right_zero_point: int | None = None) -> Arithmetic:
        """Return the arithmetic of one node.

        Args:
            node: The node.
            right_zero_point: As a `Condition` counts it; None while it is unknown.
        """
        from intact.targets.match import matches

        return self.arithmetic.for_op(
            node.op_type, lambda when: matches(when, node, right_zero_point)
        )

    def cost_of(self, op_type: str, dtype: DType, rule: OpRule | None = None) -> float:
        """Return the relative cost of an operator in a data type; 1.0 by default."""
        # A rule's cost is that of its integer form only.
        if rule is not None and rule.cost is not None and not dtype.is_float:
            return rule.cost
        return self.cost.get(f"{op_type}.{dtype}", 1.0)


def without_in_place(target: Target) -> Target:
    """Copy a target without in-place operators, so that no input takes the scale of an output.

    Operators that only move codes still have one scale for input and output, that of the input.
    """
    rules = tuple(_apart(rule) for rule in target.rules)
    topology = msgspec.structs.replace(target.topology, in_place=False)
    return msgspec.structs.replace(target, rules=rules, topology=topology)


def _apart(rule: OpRule) -> OpRule:
    scales = _INSTEAD.get(rule.scales)
    if scales is None:
        return rule
    return msgspec.structs.replace(rule, scales=scales, max_consumers=None)


_INSTEAD = {
    ScaleRule.INPUT_FOLLOWS_OUTPUT: ScaleRule.FREE,
    ScaleRule.EITHER_FOLLOWS: ScaleRule.OUTPUT_FOLLOWS_INPUT,
}
