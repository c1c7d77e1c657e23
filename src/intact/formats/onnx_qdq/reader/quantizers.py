"""Operators in which training tools write a fake quantizer, and how their numbers are read.

One operator stands for quantizing and dequantizing: `FAMILIES` has one row for each, with the names
of its inputs. What is no input is looked for among the attributes.

Sources: MQBench, github.com/ModelTC/MQBench: mqbench/custom_symbolic_opset.py and
mqbench/fake_quantize/{lsq,dsq,tqt,fixed,pact,nnie}.py (names, inputs, attributes),
mqbench/deploy/deploy_openvino.py (absolute scale, rounded and clipped zero point); PACT and QDrop
export the operators of torch. PyTorch, ``torch.fake_quantize_per_tensor_affine`` and
``torch.fake_quantize_per_channel_affine``. QONNX: operator documentation of Quant, BipolarQuant
and Trunc.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.errors import ModelError
from intact.graph import constant_array, input_value, is_constant

_EPSILON = np.finfo(np.float32).eps
"""The smallest scale that a learned quantizer of MQBench computes with."""
_MOST_BITS = 32
_OTHER_DOMAINS = frozenset({"", "ai.onnx.ml", "com.microsoft", "org.openvinotoolkit"})
"""Domains whose quantizers are read elsewhere or are no concern of this table."""
_SPELLINGS = {"ch_axis": ("ch_axis", "axis")}
"""Names of attributes that mean the same."""
_ROUNDINGS = frozenset({"ROUND", "HALF_EVEN"})
_TENSOR = ("scale", "zero_point", "quant_min", "quant_max", "grad_factor")
_CHANNEL = ("scale", "zero_point", "ch_axis", "quant_min", "quant_max", "grad_factor")
_WITHOUT_AXIS = 5
"""Inputs of a quantizer by channel that gives its range and no axis: MQBench reads the last two."""


class Grid(msgspec.Struct, frozen=True, eq=False):
    """What a quantizer says of codes and numbers.

    Attributes:
        scale: float32, of any shape that broadcasts, or ``[channels]``.
        zero_point: int64, of one element or as many as ``scale``.
        quant_min: Smallest code.
        quant_max: Largest code.
        axis: The channel axis as given; None where the operator does not say.
        changes: What was made another number than the file's, in words.
    """

    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int64]
    quant_min: int
    quant_max: int
    axis: int | None = None
    changes: tuple[str, ...] = ()


class Operator(msgspec.Struct, frozen=True):
    """One row of the table.

    Attributes:
        inputs: Names of the inputs behind the tensor.
        learned: The scale was trained, and is never less than `_EPSILON`.
        power_of_two: The scale is rounded up to a power of two.
    """

    inputs: tuple[str, ...]
    learned: bool = False
    power_of_two: bool = False


class Family(msgspec.Struct, frozen=True):
    """The quantizers of one tool.

    Attributes:
        title: Its name in messages.
        domains: Where they live, in lower case.
        operators: Rows by name.
        refused: Why others of the same tool cannot be read, by name.
        grid: Reads one.
    """

    title: str
    domains: tuple[str, ...]
    operators: Mapping[str, Operator]
    refused: Mapping[str, str]
    grid: Callable[[Given], Grid]


class Given(msgspec.Struct, frozen=True):
    """What a node gives, by the names of its row."""

    node: ir.Node
    operator: Operator

    def optional(self, name: str) -> npt.NDArray[np.float64] | None:
        """Return numbers, from an input or else an attribute; None where they are missing.

        Raises:
            ModelError: The model computes them.
        """
        names = self.operator.inputs
        if len(self.node.inputs) == _WITHOUT_AXIS:
            names = tuple(each for each in names if each != "ch_axis")
        slot = names.index(name) + 1 if name in names else -1
        value = input_value(self.node, slot)
        if value is not None:
            found = constant_array(value)
            if found is None:
                raise unreadable_quantizer(
                    self.node,
                    f"its {name} {value.name!r} is computed by the model",
                    "export the model with the scales frozen, in evaluation mode",
                )
            return _numbers(self.node, name, found)
        for spelling in _SPELLINGS.get(name, (name,)):
            if (attribute := self.node.attributes.get(spelling)) is not None:
                return _numbers(self.node, name, attribute.value)
        return None

    def array(self, name: str, default: float | None = None) -> npt.NDArray[np.float64]:
        """Return numbers that have to be there unless there is a default.

        Raises:
            ModelError: They are missing, or the model computes them.
        """
        found = self.optional(name)
        if found is None and default is None:
            raise unreadable_quantizer(self.node, f"it has no {name}")
        return np.asarray(default) if found is None else found

    def whole(self, name: str, default: int | None = None) -> int:
        """Return one whole number.

        Raises:
            ModelError: It is none.
        """
        found = self.array(name, default)
        if found.size != 1 or not float(found.item()).is_integer():
            raise unreadable_quantizer(self.node, f"its {name} is {found.tolist()}")
        return int(found.item())

    def text(self, name: str, default: str) -> str:
        """Return a text attribute."""
        attribute = self.node.attributes.get(name)
        if attribute is None or attribute.type is not ir.AttributeType.STRING:
            return default
        return attribute.as_string()


def quantizer_name(node: ir.Node) -> str:
    """Return the operator's name; exports to ATen hide it in an attribute."""
    if node.op_type == "ATen" and "operator" in node.attributes:
        return str(node.attributes["operator"].value)
    return node.op_type


def is_quantizer(node: ir.Node) -> bool:
    """Check whether a node is a fake quantizer of the table, or of a tool that is not in it."""
    name, domain = quantizer_name(node), node.domain.lower()
    if any(name in family.operators for family in FAMILIES):
        return True
    if any(name in family.refused and domain in family.domains for family in FAMILIES):
        return True
    lower = name.lower()
    is_named_so = ("fake" in lower and "quant" in lower) or lower in {"quant", "intquant"}
    return is_named_so and domain not in _OTHER_DOMAINS


def read_quantizer(node: ir.Node) -> Grid:
    """Return what a fake quantizer says.

    Raises:
        ModelError: It is not in the table, or says what a plan cannot hold; the node is named.
    """
    name, domain = quantizer_name(node), node.domain.lower()
    family = next((each for each in FAMILIES if name in each.operators), None)
    if family is None:
        reasons = [each.refused[name] for each in FAMILIES if name in each.refused]
        if reasons:
            raise unreadable_quantizer(node, reasons[0])
        tools = " and ".join(f"{each.title} (domain {_listed(each)})" for each in FAMILIES)
        raise unreadable_quantizer(
            node,
            "intact does not know this quantizer",
            f"those of {tools} are read, and QuantizeLinear with DequantizeLinear",
        )
    if domain not in family.domains:
        raise unreadable_quantizer(
            node,
            f"intact does not know {name} in domain {node.domain!r}",
            f"it is read in domain {_listed(family)}",
        )
    if not node.inputs or node.inputs[0] is None or len(node.outputs) != 1:
        raise unreadable_quantizer(
            node, f"it has {len(node.inputs)} inputs and {len(node.outputs)} outputs"
        )
    grid = family.grid(Given(node, family.operators[name]))
    if grid.quant_max - grid.quant_min < 2 or grid.quant_max - grid.quant_min >= 2**_MOST_BITS:
        span = f"{grid.quant_min}..{grid.quant_max}"
        raise unreadable_quantizer(node, f"its codes are {span}", "2 to 32 bits are read")
    if not (np.isfinite(grid.scale) & (grid.scale >= np.finfo(np.float32).tiny)).all():
        raise unreadable_quantizer(node, "a scale of it is not positive and finite")
    return grid


def fitting_target(model: ir.Model) -> str:
    """Name the hardware that fake quantizers are for: weights of 128 levels are MQBench's."""
    spans = set()
    for node in model.graph.all_nodes():
        if node.op_type in FAMILIES[0].operators and is_constant(input_value(node, 0)):
            with contextlib.suppress(ModelError):  # reading says what is wrong with it
                grid = read_quantizer(node)
                spans.add(grid.quant_max - grid.quant_min)
    return "openvino-mqbench" if spans == {127} else "onnxruntime"


def unreadable_quantizer(
    node: ir.Node, reason: str, remedy: str = "quantize the float model"
) -> ModelError:
    """Return the error that names a node, its operator and domain."""
    name = f"{node.domain}::{quantizer_name(node)}" if node.domain else quantizer_name(node)
    return ModelError(f"node {node.name!r} ({name}): {reason}", remedy=remedy)


def _listed(family: Family) -> str:
    *others, last = (repr(domain) for domain in family.domains)
    return f"{', '.join(others)} or {last}"


def _numbers(node: ir.Node, name: str, found: object) -> npt.NDArray[np.float64]:
    try:
        return np.asarray(found).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise unreadable_quantizer(node, f"its {name} is no number") from error


def _affine(given: Given) -> Grid:
    """Read scale, zero point and range, as MQBench takes them to OpenVINO."""
    scale, zero_point = given.array("scale"), given.array("zero_point", 0)
    low, high = given.whole("quant_min"), given.whole("quant_max")
    changes = []
    if (scale < 0).any():
        changes.append("negative scales were made positive")
    least = _EPSILON if given.operator.learned else 0.0
    positive = np.maximum(np.abs(scale), least)
    if given.operator.power_of_two:
        with np.errstate(divide="ignore"):
            exponent = np.where(positive < 2.0**-15, 0, np.floor(-np.log2(positive)))
        rounded = 2.0**-exponent
        if not np.array_equal(rounded, positive):
            changes.append("scales were rounded up to powers of two, as its operator does")
        positive = rounded
    elif (np.abs(scale) < least).any():
        changes.append(f"scales below {least:.8g} were raised to that, as its training does")
    codes = np.clip(np.rint(zero_point), low, high)
    if not np.array_equal(codes, zero_point):
        changes.append(f"zero points were rounded to whole numbers within {low}..{high}")
    axis = None if given.optional("ch_axis") is None else given.whole("ch_axis")
    return Grid(_float32(positive), _int64(given, codes), low, high, axis, tuple(changes))


def _bit_width(given: Given) -> Grid:
    """Read scale, zero point and bit width of QONNX."""
    bits = given.whole("bit_width")
    signed, narrow = given.whole("signed", 1), given.whole("narrow", 0)
    if not 2 <= bits <= _MOST_BITS:
        raise unreadable_quantizer(given.node, f"it has {bits} bits", "2 to 32 bits are read")
    rounding = given.text("rounding_mode", "ROUND")
    if rounding.upper() not in _ROUNDINGS:
        raise unreadable_quantizer(
            given.node, f"it rounds by {rounding}", "train with rounding_mode ROUND"
        )
    zero_point = given.array("zero_point", 0)
    if not np.array_equal(zero_point, np.rint(zero_point)):
        raise unreadable_quantizer(given.node, "its zero point is no whole number")
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    if narrow:
        low, high = (low + 1, high) if signed else (low, high - 1)
    if not ((low <= zero_point) & (zero_point <= high)).all():
        raise unreadable_quantizer(given.node, f"its zero point is outside {low}..{high}")
    return Grid(_float32(given.array("scale")), _int64(given, zero_point), low, high)


def _float32(scale: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return scale.astype(np.float32)


def _int64(given: Given, codes: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    if not np.isfinite(codes).all():
        raise unreadable_quantizer(given.node, "its zero point is not finite")
    return codes.astype(np.int64)


_LEVELS = "its levels are not equally spaced"
_FLOAT8 = "its codes are small floats"

FAMILIES = (
    Family(
        "MQBench and PyTorch",
        ("", "mqbench_custom", "custom", "sophgo_custom", "mmdeploy", "aten", "org.pytorch.aten"),
        {
            "FixedPerTensorAffine": Operator(_TENSOR),
            "FixedPerChannelAffine": Operator(_CHANNEL),
            "LearnablePerTensorAffine": Operator(_TENSOR, learned=True),
            "LearnablePerChannelAffine": Operator(_CHANNEL, learned=True),
            "PerTensorAffine": Operator(_TENSOR),
            "PerChannelAffine": Operator(_CHANNEL),
            "FakeQuantizeAffine": Operator(_CHANNEL),
            "FakeQuantizeLearnablePertensorAffine": Operator(_TENSOR, learned=True),
            "FakeQuantizeLearnablePerTensorAffine": Operator(_TENSOR, learned=True),
            "FakeQuantizeLearnablePerchannelAffine": Operator(_CHANNEL, learned=True),
            "FakeQuantizeLearnablePerChannelAffine": Operator(_CHANNEL, learned=True),
            "FakeQuantizeDSQPertensor": Operator(_TENSOR),
            "FakeQuantizeDSQPerchannel": Operator(_CHANNEL),
            "FakeQuantizeTqtAffine": Operator(_TENSOR, learned=True, power_of_two=True),
            "fake_quantize_per_tensor_affine": Operator(_TENSOR),
            "fake_quantize_per_channel_affine": Operator(_CHANNEL),
            "_fake_quantize_learnable_per_tensor_affine": Operator(_TENSOR, learned=True),
            "_fake_quantize_learnable_per_channel_affine": Operator(_CHANNEL, learned=True),
        },
        {
            "NNIEQuantize": _LEVELS,
            "FPEmuOp_per_tensor": _FLOAT8,
            "FPEmuOp_per_channel": _FLOAT8,
        },
        _affine,
    ),
    Family(
        "QONNX (Brevitas)",
        ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general"),
        dict.fromkeys(("Quant", "IntQuant"), Operator(("scale", "zero_point", "bit_width"))),
        {
            "BipolarQuant": "it has two levels, and none of them is 0",
            "Trunc": "it drops the lowest bits of codes",
            "FloatQuant": _FLOAT8,
        },
        _bit_width,
    ),
)
