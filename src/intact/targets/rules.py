"""Declares a target's rules for operators: conditions, rules and fusions."""

from __future__ import annotations

import enum
from typing import Literal, TypeAlias

import msgspec

from intact.targets.scheme import DType, SchemeOverride

# An alias, since the field `float` of OpRule hides the type inside the class.
_Number: TypeAlias = float
AttributeItem: TypeAlias = bool | int | float | str | tuple[int, ...]
AttributeValue: TypeAlias = bool | int | float | str | tuple[AttributeItem, ...]


class Groups(enum.StrEnum):
    """How a convolution splits its channels."""

    ONE = "one"
    """Every output channel reads every input channel."""
    DEPTHWISE = "depthwise"
    """Each group reads one input channel."""
    GROUPED = "grouped"
    """More than one group, and each reads more than one input channel."""


class ScaleRule(enum.StrEnum):
    """Which scales of an operator are equal on the hardware."""

    FREE = "free"
    """None: the operator requantizes."""
    OUTPUT_FOLLOWS_INPUT = "output_follows_input"
    """The output has the scale of the first data input."""
    INPUT_FOLLOWS_OUTPUT = "input_follows_output"
    """The first data input has the scale of the output (in place, see ``Topology.in_place``)."""
    EITHER_FOLLOWS = "either_follows"
    """The first data input has the scale of the output. If that is impossible (others read it, or
    its scale is fixed), the output has that of the input. For operators that only move codes.
    """
    UNIFY_INPUTS = "unify_inputs"
    """All data inputs have one scale."""
    UNIFY_ALL = "unify_all"
    """All data inputs and the output have one scale."""


IN_PLACE = frozenset({ScaleRule.INPUT_FOLLOWS_OUTPUT, ScaleRule.EITHER_FOLLOWS})
"""Rules in which an input takes the scale of an output, for in-place operators."""

JOINING = frozenset({ScaleRule.UNIFY_INPUTS, ScaleRule.UNIFY_ALL})
"""Rules that tie inputs to each other."""


class Condition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a rule applies: every given field must hold; for an unknown shape none does.

    Attributes:
        attributes: Allowed values by attribute name. A list contains alternatives. For a list
            attribute such as ``strides`` a number means that value along every axis, a flat list
            means exactly that list, and a list of lists contains alternatives. An attribute that
            the node does not have has its ONNX default.
        kernel_shape: Exact kernel, for instance ``[3, 3]``; read from the weight if the
            attribute is missing.
        groups: One kind or a list of kinds.
        ranks: Allowed ranks of data input 0.
        weight_ranks: Allowed ranks of the constant weight.
        weight_slot: Which factor of a product of matrices is the constant: 0, 1.
        constant_weight: Whether a factor is a constant of the model.
        constant_input: Whether one of the data inputs is a constant of the model.
        own_function: Operators of which one data input is made from another: ``["Sigmoid"]`` for
            ``x * sigmoid(x)``, several for functions of functions.
        max_consumers: Maximum number of readers of output 0; a graph output counts as one.
        power_of_two_window: Whether a mean averages 2, 4, 8 ... elements, so that a shift divides.
        right_zero_point: Zero point of the second operand; that of unsigned codes is counted from
            the middle of their type, as that of the same codes with a sign. Only for arithmetic:
            rules are chosen before there are scales.
    """

    attributes: dict[str, AttributeValue] = {}
    kernel_shape: tuple[int, ...] | None = None
    groups: Groups | tuple[Groups, ...] | None = None
    ranks: tuple[int, ...] | None = None
    weight_ranks: tuple[int, ...] | None = None
    weight_slot: int | None = None
    constant_weight: bool | None = None
    constant_input: bool | None = None
    own_function: tuple[str, ...] = ()
    max_consumers: int | None = None
    power_of_two_window: bool | None = None
    right_zero_point: int | None = None


class FixedOutput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Scale and offset that the hardware requires for an output."""

    scale: float
    offset: int = 0


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Data types of the inputs (data inputs, then the weight) and outputs of an operator."""

    inputs: tuple[DType, ...]
    outputs: tuple[DType, ...]

    @property
    def is_float(self) -> bool:
        """Whether it describes the float form of an operator."""
        return bool(self.inputs) and all(dtype.is_float for dtype in self.inputs)


class OpRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a target treats some operators; only the last rule that matches a node applies.

    Attributes:
        ops: ONNX operator types of the default domain.
        when: Condition for nodes; all nodes if omitted.
        quantize: Whether they compute with integers.
        reason: Why not; shown to users, required if ``quantize`` is false.
        weights_only: They compute in float, but their constant weights are stored as integers, in
            the scheme of ``weight``; requires ``quantize`` to be false. For recurrent operators and
            for the table of Gather.
        float: The operator also has a float form, so it is quantized only behind a quantized source
            (topology rule of [tvm]).
        float_output: The integer form can output float32.
        inputs: Data types of data inputs, then of the weight; empty for those of ``[activation]``
            and ``[weight]``. A shorter list repeats its last data type. In a file, float32 alone
            says that there is a float form, and no other unless ``alternatives`` have one ([tvm]);
            see `with_float_form`.
        outputs: Data types of outputs.
        alternatives: Other data types, best first, for the choice of bit-widths; in a file also the
            float form.
        scales: Which scales are tied.
        max_consumers: With ``input_follows_output`` and ``either_follows``: the input follows only
            if it has at most so many readers (Tengine's "used fewer than twice" is 1).
        fixed_output: Required scale and offset of the output.
        activation: Overrides of the target's ``[activation]``.
        weight: Overrides of the target's ``[weight]``.
        quantize_inputs: Which inputs are quantized: ``"all"``, ``"data"`` (the weight stays float)
            or a list of input slots. An input that is fused with its producer is never quantized,
            so "quantize only the residual input of Add" is a Conv-Add fusion.
        opset: The oldest opset of ONNX in which a file has the integer form; an older model is
            written at this one.
        cost: Relative cost of the integer form.
    """

    ops: tuple[str, ...]
    when: Condition | None = None
    quantize: bool = True
    reason: str = ""
    weights_only: bool = False
    float: bool = False
    float_output: bool = False
    inputs: tuple[DType, ...] = ()
    outputs: tuple[DType, ...] = ()
    alternatives: tuple[Signature, ...] = ()
    scales: ScaleRule = ScaleRule.FREE
    max_consumers: int | None = None
    fixed_output: FixedOutput | None = None
    activation: SchemeOverride | None = None
    weight: SchemeOverride | None = None
    quantize_inputs: Literal["all", "data"] | tuple[int, ...] = "all"
    opset: int = 0
    cost: _Number | None = None

    @property
    def quantizes_weight(self) -> bool:
        """Whether a weight is quantized if the rule does not list slots."""
        return self.quantize_inputs != "data"

    def quantizes_input(self, slot: int) -> bool:
        """Tell whether a data input is quantized; with a list of slots, also a weight."""
        return isinstance(self.quantize_inputs, str) or slot in self.quantize_inputs


def with_float_form(rule: OpRule, target: str) -> OpRule:
    """Return a rule whose float form is said by ``float`` or ``quantize``, not by data types.

    [tvm] describes an operator by all its data types. One with float32 alone is not quantized; one
    that has float32 beside integers is, behind a quantized source.

    Args:
        rule: As a file has it.
        target: The name of the target, for the reason that users see.
    """
    own = Signature(inputs=rule.inputs, outputs=rule.outputs)
    integers = tuple(each for each in (own, *rule.alternatives) if not each.is_float)
    if not rule.quantize or len(integers) == 1 + len(rule.alternatives):
        return rule
    if not integers:
        reason = rule.reason or f"target {target} describes it with float32 inputs only"
        # What else the rule states is about integers, and is refused beside quantize = false.
        return OpRule(ops=rule.ops, when=rule.when, quantize=False, reason=reason)
    first, *others = integers
    return msgspec.structs.replace(
        rule,
        float=True,
        inputs=first.inputs,
        outputs=first.outputs,
        alternatives=tuple(others),
    )


class Fusion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A chain of operators that the hardware runs as one.

    Attributes:
        pattern: Alternatives for each step, for instance ``[["Conv", "Gemm"], ["Relu"]]``.
        shares_input: The last operator also reads the input of the first (Swish: x * Sigmoid(x)).
    """

    pattern: tuple[tuple[str, ...], ...]
    shares_input: bool = False
