"""Operators in which training tools write a fake quantizer, and how their numbers are read.

One operator stands for quantizing and dequantizing: `FAMILIES` has one row for each, with the names
of its inputs. What is no input is looked for among the attributes.

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
import onnx_ir as ir

from intact.errors import ModelError
from intact.formats.onnx_qdq.reader.given import (
    Given,
    Grid,
    Operator,
    quantizer_name,
    unreadable_quantizer,
)
from intact.formats.onnx_qdq.reader.grids import affine, bit_width, ends
from intact.formats.onnx_qdq.reader.parameters import is_quantize, read_parameters
from intact.formats.onnx_qdq.reader.widths import RANGE, shown_widths, silent_weights
from intact.graph import input_value, is_constant
from intact.graph.traversal import nodes_of

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
    grid: Callable[[Given], Grid]
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
    grid = family.grid(Given(node, family.operators[name]))
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
