"""Lists the operators in which training tools write a fake quantizer, and reads them.

One operator stands for quantizing and dequantizing: `FAMILIES` has one row for each, with the names
of its inputs. What is no input is looked for among the attributes. A grid is said as scale and
range, as scale and bit width, or by the ends of a range.

Sources: MQBench, github.com/ModelTC/MQBench: mqbench/custom_symbolic_opset.py and
mqbench/fake_quantize/{lsq,dsq,tqt,fixed,pact,nnie}.py (names, inputs, attributes),
mqbench/deploy/deploy_openvino.py (absolute scale, rounded and clipped zero point); PACT and QDrop
export the operators of torch. PyTorch, ``torch.fake_quantize_per_tensor_affine`` and
``torch.fake_quantize_per_channel_affine``. QONNX: operator documentation of Quant, BipolarQuant
and Trunc. OpenVINO's operation set, FakeQuantize-1; NNCF and MQBench write it, and intact.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.errors import ModelError
from intact.formats.onnx_qdq.reader.given import (
    GivenNumbers,
    Grid,
    Operator,
    broadcast_axis,
    quantizer_name,
    unreadable_quantizer,
)
from intact.formats.onnx_qdq.reader.parameters import is_quantize, read_parameters
from intact.formats.onnx_qdq.reader.widths import RANGE, shown_widths, silent_weights
from intact.graph import input_value, is_constant
from intact.graph.traversal import nodes_of
from intact.numerics.affine_params import QuantParams
from intact.numerics.conversion import Ends, params_of_ends

_MOST_BITS = 32
_WIDTHS = f"2 to {_MOST_BITS} bits are read"
_MOST_LEVELS = 1 << 16
_EPSILON = np.finfo(np.float32).eps
"""The smallest scale that a learned quantizer of MQBench computes with."""
_SMALLEST = float(np.finfo(np.float32).tiny)
"""Scale that a plan can hold."""
_OFF = 0.01
"""How far, in steps, 0 may lie from a level. Ends in float32 are off by 1e-4 at 16 bits."""
_ROUNDINGS = frozenset({"ROUND", "HALF_EVEN"})


def affine(given: GivenNumbers) -> Grid:
    """Read scale, zero point and range, as MQBench takes them to OpenVINO."""
    scale, zero_point = given.array("scale"), given.array("zero_point", 0)
    low, high = given.whole("quant_min"), given.whole("quant_max")
    # Before an array of that type is made, or a shift by that width.
    if not (2 <= high - low < 2**_MOST_BITS and max(-low, high) < 2**_MOST_BITS):
        raise unreadable_quantizer(given.node, f"its codes are {low}..{high}", _WIDTHS)
    changes = []
    if (scale < 0).any():
        changes.append("negative scales were made positive")
    least = _EPSILON if given.operator.learned else 0.0
    # Training may have crossed 0: the tool computes with the magnitude.
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
    # As the tool does when it deploys: learned zero points are fractions.
    codes = np.clip(np.rint(zero_point), low, high)
    if not np.array_equal(codes, zero_point):
        changes.append(f"zero points were rounded to whole numbers within {low}..{high}")
    if given.optional("ch_axis") is not None:
        axis: int | None = given.whole("ch_axis")
    else:
        axis = broadcast_axis(given.node, scale.shape) if scale.ndim > 1 else None
    return Grid(_float32(positive), _int64(given, codes), low, high, axis, tuple(changes))


def bit_width(given: GivenNumbers) -> Grid:
    """Read scale, zero point and bit width of QONNX."""
    bits = given.whole("bit_width")
    signed, narrow = given.whole("signed", 1), given.whole("narrow", 0)
    if not 2 <= bits <= _MOST_BITS:
        raise unreadable_quantizer(given.node, f"it has {bits} bits", _WIDTHS)
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
    scale = _float32(given.array("scale"))
    axis = broadcast_axis(given.node, scale.shape)
    return Grid(scale, _int64(given, zero_point), low, high, axis)


def _float32(scale: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return scale.astype(np.float32)


def _int64(given: GivenNumbers, codes: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    if not np.isfinite(codes).all():
        raise unreadable_quantizer(given.node, "its zero point is not finite")
    return codes.astype(np.int64)


def ends(given: GivenNumbers) -> Grid:
    """Read the lowest and highest number and the levels of OpenVINO's FakeQuantize."""
    node = given.node
    if len(node.inputs) != 5:
        raise unreadable_quantizer(node, f"it has {len(node.inputs)} inputs and 1 outputs")
    levels = given.whole("levels")
    if not 3 <= levels <= _MOST_LEVELS:
        raise unreadable_quantizer(node, f"it has {levels} levels", f"3 to {_MOST_LEVELS} are read")
    low, high, out_low, out_high = (_finite(given, name) for name in given.operator.inputs)
    # Two ranges would scale numbers besides quantizing them.
    if not (np.array_equal(low, out_low) and np.array_equal(high, out_high)):
        raise unreadable_quantizer(node, "its output range is not its input range")
    try:
        low, high = np.broadcast_arrays(low, high)
    except ValueError as error:
        raise unreadable_quantizer(node, "its ends have different shapes") from error
    axis = broadcast_axis(node, low.shape)
    if not ((low < high) & (low <= 0) & (high >= 0)).all():
        raise unreadable_quantizer(node, "a range of it is empty or does not hold 0")
    if ((high.astype(np.float64) - low) / (levels - 1) < _SMALLEST).any():
        raise unreadable_quantizer(node, "its levels are nearer than normal float32 numbers")
    quant_min, params = _codes(low, high, levels)
    exact = quant_min - low.astype(np.float64) / params.scale
    if np.abs(exact - params.zero_point).max() > _OFF:
        raise unreadable_quantizer(node, "0 lies between two of its levels")
    return Grid(*params, quant_min, quant_min + levels - 1, axis, holds_fewer=True)


def _finite(given: GivenNumbers, name: str) -> Ends:
    found = _float32(given.array(name))
    if found.size == 0 or not np.isfinite(found).all():
        raise unreadable_quantizer(given.node, "its range is not finite float32")
    return found


def _codes(low: Ends, high: Ends, levels: int) -> tuple[int, QuantParams]:
    """Return the smallest code, scale and zero point: signed codes if 0 is in their middle."""
    half = -(levels // 2)
    signed = params_of_ends(low, high, half, half + levels - 1)
    if not signed.zero_point.any():
        return half, signed
    return 0, params_of_ends(low, high, 0, levels - 1)


_OTHER_DOMAINS = frozenset({"", "ai.onnx.ml", "com.microsoft"})
"""Domains whose other quantizers are read elsewhere or are no concern of this table."""
_TENSOR = ("scale", "zero_point", "quant_min", "quant_max", "grad_factor")
_CHANNEL = ("scale", "zero_point", "ch_axis", "quant_min", "quant_max", "grad_factor")


class Family(msgspec.Struct, frozen=True):
    """The quantizers of one tool.

    Attributes:
        title: Its name in messages.
        domains: Where they live, in lower case.
        operators: Rows by name.
        refused: Why others of the same tool cannot be read, by name.
        grid: Reads one.
        target: Hardware that they are for, unless the user names another.
    """

    title: str
    domains: tuple[str, ...]
    operators: Mapping[str, Operator]
    refused: Mapping[str, str]
    grid: Callable[[GivenNumbers], Grid]
    target: str = "onnxruntime"


def is_quantizer(node: ir.Node) -> bool:
    """Check whether a node is a fake quantizer of the table, or of a tool that is not in it."""
    name, domain = quantizer_name(node), node.domain.lower()
    if any(name in family.operators for family in FAMILIES):
        return True
    if any(name in family.refused and domain in family.domains for family in FAMILIES):
        return True
    lower = name.lower()
    if "fake" in lower and "quant" in lower:
        return domain == "" or domain not in _OTHER_DOMAINS  # no operator of ONNX is named so
    return lower in {"quant", "intquant"} and domain not in _OTHER_DOMAINS


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
        tools = ", ".join(f"{each.title} (domain {_listed(each)})" for each in FAMILIES)
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
    grid = family.grid(GivenNumbers(node, family.operators[name]))
    count = grid.scale.size
    if count == 0 or grid.zero_point.size not in (1, count):
        reason = f"it has {count} scales and {grid.zero_point.size} zero points"
        raise unreadable_quantizer(node, reason)
    if not (np.isfinite(grid.scale) & (grid.scale >= np.finfo(np.float32).tiny)).all():
        raise unreadable_quantizer(node, "a scale of it is not positive and finite")
    return grid


def fitting_target(model: ir.Model) -> str:
    """Name the hardware that fake quantizers are for: weights of 128 levels are MQBench's."""
    targets, spans = [FAMILIES[0].target], set()
    for node in nodes_of(model.graph):
        targets += [each.target for each in FAMILIES if node.op_type in each.operators]
        if node.op_type in FAMILIES[0].operators and is_constant(input_value(node, 0)):
            with contextlib.suppress(ModelError):  # reading says what is wrong with it
                grid = read_quantizer(node)
                spans.add(grid.quant_max - grid.quant_min)
        if is_quantize(node) and any(key in node.attributes for key in RANGE):
            with contextlib.suppress(ModelError):
                parameters = read_parameters(node)
                if is_constant(input_value(node, 0)):
                    spans.add(parameters.quant_max - parameters.quant_min)
    with contextlib.suppress(ModelError):
        weights = silent_weights(model.graph)
        shown = shown_widths(weights)
        spans |= {2 ** shown.get(each.node, 8) - 1 for each in weights}
    return "openvino-mqbench" if spans == {127} else targets[-1]


def _listed(family: Family) -> str:
    *others, last = (repr(domain) for domain in family.domains)
    return f"{', '.join(others)} or {last}" if others else last


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
        affine,
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
        bit_width,
    ),
    Family(
        "OpenVINO",
        ("org.openvinotoolkit",),
        {"FakeQuantize": Operator(("low", "high", "out_low", "out_high"))},
        {},
        ends,
        "openvino",
    ),
)
