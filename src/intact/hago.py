"""Offers the names of [tvm]'s demonstration, each a thin one over what is there.

::

    from intact import hago

    hardware = hago.create_sample_hardware()
    strategy, sim_acc = hago.search_quantize_strategy(graph, hardware, dataset)
    quantizer = hago.create_quantizer(graph, hardware, strategy)
    simulated_graph = quantizer.simulate()
    quantized_graph = quantizer.quantize()

A graph is an ONNX model here. `intact.search_strategy` has all the options, and target files say
more of what hardware is (`intact targets show tvm`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import onnx
import onnx_ir as ir

from intact import api
from intact.data.preprocess import Preprocess
from intact.errors import ExportError, TargetError, UsageError, nearest
from intact.formats.base.format import Io, WrittenFiles
from intact.formats.onnx_levels.write import write_levels
from intact.formats.onnx_qdq.write import write_qdq
from intact.formats.registry import FORMATS
from intact.graph import normalize
from intact.graph.ops import OPS, OpKind
from intact.plan import QuantizedGraph
from intact.plan.inference import Scale, infers_scale
from intact.plan.tie import Range, Rectify, rectifies
from intact.results.result import Result
from intact.results.sources import float_model
from intact.search.setup import float_graph
from intact.search.strategy import Strategy
from intact.targets import DType, OpRule, Target, TargetArithmetic, Wrap, load_target
from intact.targets.arithmetic import ArithmeticOverride
from intact.targets.check import check
from intact.targets.rules import Signature, with_float_form

if TYPE_CHECKING:
    from intact.analyze.errors import GraphStatistic
    from intact.recipe.groups import DataSource, ModelSource

__all__ = [
    "Hardware",
    "OpDesc",
    "Quantizer",
    "create_quantizer",
    "create_sample_hardware",
    "inspect_graph_statistic",
    "register_finfer_scale",
    "register_fthreshold_rectify",
    "search_quantize_strategy",
]

_ONNX_NAMES: Mapping[str, tuple[str, ...]] = {
    "abs": ("Abs",),
    "add": ("Add",),
    "clip": ("Clip",),
    "concatenate": ("Concat",),
    "expand_dims": ("Unsqueeze",),
    "image.resize2d": ("Resize",),
    "max": ("ReduceMax",),
    "maximum": ("Max",),
    "mean": ("ReduceMean",),
    "min": ("ReduceMin",),
    "minimum": ("Min",),
    "multiply": ("Mul",),
    "nn.avg_pool2d": ("AveragePool",),
    "nn.batch_flatten": ("Flatten",),
    "nn.batch_matmul": ("MatMul",),
    "nn.conv2d": ("Conv",),
    "nn.conv2d_transpose": ("ConvTranspose",),
    "nn.dense": ("Gemm", "MatMul"),
    "nn.depth_to_space": ("DepthToSpace",),
    "nn.global_avg_pool2d": ("GlobalAveragePool",),
    "nn.global_max_pool2d": ("GlobalMaxPool",),
    "nn.leaky_relu": ("LeakyRelu",),
    "nn.max_pool2d": ("MaxPool",),
    "nn.pad": ("Pad",),
    "nn.prelu": ("PRelu",),
    "nn.relu": ("Relu",),
    "nn.softmax": ("Softmax",),
    "reshape": ("Reshape",),
    "sigmoid": ("Sigmoid",),
    "split": ("Split",),
    "squeeze": ("Squeeze",),
    "strided_slice": ("Slice",),
    "subtract": ("Sub",),
    "sum": ("ReduceSum",),
    "take": ("Gather",),
    "tanh": ("Tanh",),
    "tile": ("Tile",),
    "transpose": ("Transpose",),
}
"""TVM's names of operators; those of ONNX are their own."""

_BASE = "tvm"
"""The target that says how the integers compute; what has which types, a `Hardware` says."""

_INTEGER_FORMAT = "onnx_integer"
_FORMATS = ("onnx_qdq", _INTEGER_FORMAT, "tvm")


@dataclass(frozen=True)
class OpDesc:
    """One form of an operator on the hardware.

    Attributes:
        in_dtypes: Data types of the inputs, then of the weight: ``int4``, ``int8``, ``int16``,
            ``int32``, their unsigned ones, or ``float32``.
        out_dtypes: Data types of the outputs.
    """

    in_dtypes: Sequence[str]
    out_dtypes: Sequence[str]

    def signature(self, op_name: str) -> Signature:
        """Return it as a target has it.

        Raises:
            TargetError: There is no such data type, or none is given.
        """
        names = {dtype.value for dtype in DType}
        for name in (*self.in_dtypes, *self.out_dtypes):
            if name not in names:
                raise TargetError(f"{op_name}: data type {name!r}", remedy=nearest(name, names))
        if not self.in_dtypes or not self.out_dtypes:
            raise TargetError(
                f"{op_name}: no data type", remedy="give in_dtypes and out_dtypes, ['int8'] say"
            )
        return Signature(
            inputs=tuple(map(DType, self.in_dtypes)), outputs=tuple(map(DType, self.out_dtypes))
        )


class Hardware(defaultdict[str, list[OpDesc]]):
    """What an accelerator computes: descriptions by operator, best first.

    An operator without any stays float. One with float32 alone does, too: integers end before it.
    One with float32 beside integers computes with integers behind a quantized source. Names are
    TVM's (``nn.conv2d``) or ONNX's (``Conv``).

    >>> desc = Hardware()
    >>> desc["nn.conv2d"].append(OpDesc(in_dtypes=["int8", "int8"], out_dtypes=["int32"]))
    >>> [rule.ops for rule in desc.target().rules]
    [('Conv',)]
    """

    def __init__(self) -> None:
        super().__init__(list)

    def target(self, name: str = "hardware") -> Target:
        """Return the hardware as a target.

        It rounds and requantizes as target ``tvm`` does, and ties the scales that it ties. Products
        are summed in the type of their output, and wrap there: in the narrowest where descriptions
        differ. An output of 8 bits or fewer holds codes, not sums.

        Raises:
            UsageError: An operator is unknown.
            TargetError: A description is impossible.
        """
        base = load_target(_BASE)
        described: dict[str, list[Signature]] = {}
        for op_name, descs in self.items():
            for op_type in _op_types(op_name):
                described.setdefault(op_type, []).extend(d.signature(op_name) for d in descs)
        rules = tuple(
            with_float_form(rule, name)
            for op_type, signatures in described.items()
            if signatures
            for rule in _rules(base, op_type, signatures)
        )
        described_target = msgspec.structs.replace(
            base,
            name=name,
            description="described by intact.hago.Hardware",
            extends="",
            formats=_FORMATS,
            integer_format=_INTEGER_FORMAT,
            rules=rules,
            arithmetic=_with_accumulators(base.arithmetic, described),
        )
        return check(described_target, "intact.hago.Hardware")


def _op_types(op_name: str) -> tuple[str, ...]:
    found = _ONNX_NAMES.get(op_name) or ((op_name,) if op_name in OPS else ())
    if not found:
        raise UsageError(f"operator {op_name!r}", remedy=nearest(op_name, [*_ONNX_NAMES, *OPS]))
    return found


def _rules(base: Target, op_type: str, signatures: Sequence[Signature]) -> Iterator[OpRule]:
    """Yield the rules of an operator: those of the base, where it has some, with other types."""
    own, *others = signatures
    types = {"inputs": own.inputs, "outputs": own.outputs, "alternatives": tuple(others)}
    known = [rule for rule in base.rules if op_type in rule.ops and rule.quantize]
    # The base's rules keep their ties of scales and their conditions; only the types are the
    # user's.
    for rule in known or [OpRule(ops=(op_type,))]:
        yield msgspec.structs.replace(rule, ops=(op_type,), reason="", **types)


def _with_accumulators(
    arithmetic: TargetArithmetic, described: Mapping[str, Sequence[Signature]]
) -> TargetArithmetic:
    """Let products wrap in the types that descriptions give to their sums."""
    overrides = []
    for op_type, signatures in described.items():
        bits = [
            dtype.bits
            for each in signatures
            for dtype in each.outputs
            if not dtype.is_float and dtype.bits > DType.INT8.bits
        ]
        # Codes of 8 bits are results, and not sums; sums of 32 bits are those of the base.
        if OPS[op_type].kind is OpKind.COMPUTE and bits and min(bits) < DType.INT32.bits:
            overrides.append(ArithmeticOverride(ops=(op_type,), accumulator=Wrap(min(bits))))
    return msgspec.structs.replace(arithmetic, overrides=(*arithmetic.overrides, *overrides))


_INT8, _INT32, _FLOAT = "int8", "int32", "float32"
_SAMPLE: Mapping[tuple[str, ...], tuple[tuple[int, str, str], ...]] = {
    ("nn.conv2d", "nn.conv2d_transpose", "nn.dense", "multiply"): ((2, _INT8, _INT32),),
    ("add", "subtract"): ((2, _INT32, _INT32), (2, _FLOAT, _FLOAT)),
    ("concatenate", "maximum", "minimum"): ((2, _INT8, _INT8), (2, _FLOAT, _FLOAT)),
    (
        *("clip", "expand_dims", "nn.batch_flatten", "nn.depth_to_space", "nn.global_max_pool2d"),
        *("nn.leaky_relu", "nn.max_pool2d", "nn.pad", "nn.prelu", "nn.relu", "reshape", "sigmoid"),
        *("split", "squeeze", "strided_slice", "take", "tanh", "tile", "transpose"),
    ): ((1, _INT8, _INT8), (1, _FLOAT, _FLOAT)),
    ("mean", "nn.avg_pool2d", "nn.global_avg_pool2d", "nn.softmax"): ((1, _FLOAT, _FLOAT),),
}
"""Operators with the number of inputs, their type and that of the output, for each form."""


def create_sample_hardware() -> Hardware:
    """Return a description that serves most convolutional models: int8 products, int32 sums.

    Means and Softmax are in float, as in the document. Those of real hardware are targets, whose
    names every function here takes as well: ``x86``, ``arm``, ``cuda``, ``vta``, ``tvm``.
    """
    hardware = Hardware()
    for op_names, forms in _SAMPLE.items():
        for op_name in op_names:
            for count, inputs, output in forms:
                hardware[op_name].append(OpDesc([inputs] * count, [output]))
    return hardware


def search_quantize_strategy(
    graph: ModelSource,
    hardware: Hardware | Target | str,
    dataset: DataSource,
    **options: Any,
) -> tuple[Strategy, float]:
    """Search for the best strategy, with [tvm]'s greedy search unless another sampler is named.

    Args:
        graph: The float model.
        hardware: What it is for.
        dataset: A list of batches: dicts of arrays by input (with ``label`` or ``labels``, ``[N]``,
            for accuracy), or arrays for a model with one input; or all that
            `intact.search_strategy` takes.
        options: Those of `intact.search_strategy`: ``budget``, ``max_drop``, ``objective``,
            ``log`` ...

    Returns:
        The strategy, and its score on the dataset: accuracy in percent where there are labels, else
        agreement with the float model, or the SQNR in dB where the model gives no classes.

    Raises:
        IntactError: As in `intact.search_strategy`.
    """
    target = _target(hardware)
    found = api.search_strategy(
        graph, dataset, target=target, **{"sampler": "greedy", "preset": "fast", **options}
    )
    return found.strategy, found.score


@dataclass(frozen=True)
class Quantizer:
    """A strategy that is about to be realized.

    Attributes:
        plan: The decisions, with their scales.
    """

    plan: QuantizedGraph

    def simulate(self) -> onnx.ModelProto:
        """Return the simulated graph, which computes with floats alone.

        On every quantized edge Div, a rounding, bounds and Mul quantize as [tvm]'s simulated
        quantize does, and constants are the floats that their integers stand for. With
        QuantizeLinear beside float constants ONNX Runtime would quantize these once more.

        Raises:
            ExportError: An activation has a scale for each channel.
        """
        return _proto(write_levels(self.plan).model)

    def quantize(self) -> onnx.ModelProto:
        """Return the graph of low precision, which takes and gives floats as the model does.

        If the hardware has an integer form of every operator it is plain operators on integers,
        else integer weights with QuantizeLinear and DequantizeLinear around the operators, of which
        ONNX Runtime makes its integer kernels.
        """
        try:
            written = FORMATS[_INTEGER_FORMAT].writer.write(self.plan, Io.FLOAT)
        except ExportError:  # the plan has float operators, or codes of 16 bits
            return _proto(write_qdq(self.plan).model)
        files = written.files if isinstance(written, WrittenFiles) else {}
        (content,) = files.values()
        return onnx.load_from_string(content)


def create_quantizer(
    graph: ModelSource, hardware: Hardware | Target | str, strategy: Strategy
) -> Quantizer:
    """Make the plan of a strategy; no data is needed.

    Raises:
        PlanError: The strategy is of another model, or does not fit the hardware.
    """
    target = _target(hardware)
    normalized = normalize(float_model(graph))
    return Quantizer(strategy.plan(float_graph(normalized, target, (), ()), target))


def inspect_graph_statistic(
    quantizer: Quantizer | Result | str | Path, dataset: DataSource, **options: Any
) -> GraphStatistic:
    """Compare every edge before and after quantizing, the most damaged first.

    Args:
        quantizer: What is about to be realized; or a result, or its folder.
        dataset: See `search_quantize_strategy`.
        options: Those of `intact.inspect_graph_statistic`: ``samples``, ``integers`` ...

    Raises:
        IntactError: As in `intact.inspect_graph_statistic`.
    """
    if isinstance(quantizer, Quantizer):
        quantizer = Result(quantizer.plan, None, {}, Preprocess())
    return api.inspect_graph_statistic(quantizer, dataset, **options)


ThresholdRectify: TypeAlias = Callable[
    [Sequence[int], Sequence[int], Sequence[float], Sequence[float]],
    tuple[Sequence[float], Sequence[float]],
]
"""Gives new thresholds of inputs and outputs from their bits and thresholds."""


def register_fthreshold_rectify(op_name: str) -> Callable[[ThresholdRectify], ThresholdRectify]:
    """Register what unifies the thresholds at an operator, in place of the largest one's scale.

    The function gets ``in_bits, out_bits, in_tholds, out_tholds`` of the ends that the hardware
    ties and returns the thresholds of the inputs and of the outputs. All tied ends come as inputs,
    also the result where it is tied to them.
    """

    def register(function: ThresholdRectify) -> ThresholdRectify:
        rectifies(*_op_types(op_name))(_on_ranges(function))
        return function

    return register


def _on_ranges(function: ThresholdRectify) -> Rectify:
    def rectify(bits: Sequence[int], ranges: Sequence[Range]) -> list[Range]:
        thresholds = [max(-low, high) for low, high in ranges]
        found, _ = function(bits, [], thresholds, [])
        return [
            (low * new / old, high * new / old) if old else (-new, new)
            for (low, high), old, new in zip(ranges, thresholds, found, strict=True)
        ]

    return rectify


ScaleOfInputs: TypeAlias = Callable[[Sequence[Scale]], Scale]
"""Gives the scale of an operator's sums from those of its inputs."""


def register_finfer_scale(op_name: str) -> Callable[[ScaleOfInputs], ScaleOfInputs]:
    """Register what gives the scale of an operator's sums from ``in_scales``."""

    def register(function: ScaleOfInputs) -> ScaleOfInputs:
        infer = infers_scale(*_op_types(op_name))
        infer(lambda _, scales: np.asarray(function(scales), np.float64))
        return function

    return register


def _target(hardware: Hardware | Target | str) -> Target:
    if isinstance(hardware, Hardware):
        return hardware.target()
    return hardware if isinstance(hardware, Target) else load_target(hardware)


def _proto(model: ir.Model) -> onnx.ModelProto:
    return ir.to_proto(model)
