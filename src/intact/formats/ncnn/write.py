"""Writes an integer program as ``.param``, ``.bin`` and calibration table of ncnn.

`write_ncnn` is the way in. It brings the program into forms that ncnn has (masks as floats, inputs
of token ids, one sample without a batch axis), has each step written as a layer by the function
that `WRITERS` has for its operation, and lists all that ncnn cannot hold in one error.

ncnn quantizes only the inputs and weights of convolutions and dense layers, symmetrically, and some
weights in blocks; between layers there are floats. So conversions (`Quantize`, `Requantize`,
`Dequantize`) become no layers, and any other tensor that the program has as codes is refused.

The model is written for one sample at a time, as ncnn computes it: the batch is left out. "Whole
numbers" are integers that are not codes, such as token ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from intact.errors import Unsupported
from intact.formats.ncnn import elementwise, moves, products
from intact.formats.ncnn.builder import WRITERS, NcnnBuilder
from intact.formats.ncnn.fronts import is_without_sample, with_fronts
from intact.formats.ncnn.masks import with_masks
from intact.formats.ncnn.model import (
    LARGEST_CODE,
    MAGIC,
    NcnnModel,
    known_lengths,
    lengths,
    notes_of,
    sample,
)
from intact.formats.ncnn.recurrent import with_samples
from intact.formats.ncnn.table import table_text
from intact.ops import functions
from intact.program import Program, Step, Tensor
from intact.program.forms import has_blocks
from intact.program.operations import (
    Bounds,
    Convolution,
    Dequantize,
    FloatNodes,
    FullyConnected,
    Function,
    Lookup,
    Requantize,
    Reshape,
    Transpose,
    TransposedConvolution,
)
from intact.program.passes.whole_inputs import is_whole, with_floats, with_views
from intact.program.unsupported import UnsupportedNodes
from intact.targets.advice import advice, quantize_for

_MODULES = (elementwise, moves, products)
"""Their writers are registered when they are imported."""

_PRODUCTS = (Convolution, FullyConnected, TransposedConvolution)
_KEEP_FLOAT = "keep what is quantized otherwise than to 8 bits float with --keep-float"
_LEAVE_OUT = "what has no layer in float either must leave the model"


def write_ncnn(program: Program, target: str = "") -> NcnnModel:
    """Write a program; equal programs give equal bytes.

    Args:
        program: As `lower_nodes` makes it.
        target: Name of what it was quantized for, on which the remedy depends.

    Raises:
        ExportError: What ncnn has no layer for, or computes in float while the program does not;
            all is listed.
    """
    program = with_masks(with_floats(with_views(program, (Lookup,))))
    writer = _Writer(with_fronts(with_samples(program)))
    writer.write()
    found = UnsupportedNodes(
        "ncnn cannot hold",
        lambda: f"{advice(quantize_for('ncnn', target), _KEEP_FLOAT)}; {_LEAVE_OUT}",
    )
    for place, reason in writer.unsupported.items():
        found.add(place, reason)
    found.raise_any()
    return writer.model()


@dataclass
class _Writer:
    """Adds the layers of one program.

    Attributes:
        unsupported: Why something cannot be written, by place.
    """

    program: Program
    builder: NcnnBuilder = field(default_factory=NcnnBuilder)
    unsupported: dict[str, str] = field(default_factory=dict)

    def write(self) -> None:
        """Add every layer; collect what cannot be."""
        for tensor, reason in _other_codes(self.program):
            self.unsupported.setdefault(str(tensor.end or tensor.name), reason)
        for name, tensor in self.program.inputs.items():
            with self._collecting(name):
                self._input(name, tensor)
        # Planned for integers: written in float the model would compute something else than was
        # promised.
        for name, reason in self.program.in_float.items():
            self.unsupported.setdefault(repr(name), reason)
        activations = _fused_activations(self.program)
        fused = {step.name for step in activations.values()}
        for step in self.program.steps:
            if step.name not in fused and not self._is_no_layer(step):
                with self._collecting(step.nodes[0]):
                    whole = _with_activation(step, activations.get(step.name))
                    WRITERS.of(whole.operation)(whole.operation, whole, self.builder)
        if not self.unsupported:  # what follows from other refusals says nothing
            self._refuse_shapes()
        for name, tensor in self.program.outputs.items():
            if tensor.is_constant:
                self.unsupported[repr(name)] = "an output that is a constant"
        self._refuse_unwritten()

    def model(self) -> NcnnModel:
        """Make the model of all layers; `write` was called before."""
        builder, program = self.builder, self.program
        inputs = {name: builder.blob(tensor) for name, tensor in program.inputs.items()}
        outputs = {name: builder.output(name, t, inputs) for name, t in program.outputs.items()}
        # Last, once every reader is known.
        layers = builder.split(outputs.values())
        tops = {blob for layer in layers for blob in layer.tops}
        lines = [MAGIC, f"{len(layers)} {len(tops)}", *(layer.line() for layer in layers)]
        return NcnnModel(
            param="".join(f"{line}\n" for line in lines),
            weights=b"".join(layer.data for layer in layers),
            table=table_text(builder.entries),
            blobs={name: blob for name, blob in builder.blobs.items() if blob in tops},
            inputs=inputs,
            outputs=outputs,
            products=builder.products,
            notes=tuple(notes_of(inputs | outputs, builder.wide)),
            whole=frozenset(inputs[name] for name, t in program.inputs.items() if is_whole(t)),
        )

    def _refuse_unwritten(self) -> None:
        """Refuse whole numbers that are computed from data, where a layer reads them."""
        written = {blob for layer in self.builder.layers for blob in layer.tops}
        read = {blob for layer in self.builder.layers for blob in layer.bottoms} - written
        for step in self.program.steps:
            blobs = {self.builder.blobs.get(tensor.value) for tensor in step.outputs}
            if blobs & read:
                for node in step.nodes[:1]:
                    self.unsupported.setdefault(repr(node), "whole numbers that a layer reads")

    def _refuse_shapes(self) -> None:
        """Refuse what is not of one sample, or computes with more axes than a blob has."""
        for step in self.program.steps:
            if not step.nodes or self._is_no_layer(step):
                continue
            moves = isinstance(step.operation, Reshape | Transpose)
            for tensor in (*step.activations, *step.outputs):
                if is_without_sample(tensor) or (not moves and len(tensor.shape) > 1):
                    with self._collecting(step.nodes[0]):
                        known_lengths(tensor)
        for name, tensor in self.program.outputs.items():
            if is_without_sample(tensor):
                with self._collecting(name):
                    known_lengths(tensor)

    def _is_no_layer(self, step: Step) -> bool:
        """Tell whether a step is a conversion, or computes a shape or index."""
        ends = {tensor.name for tensor in self.program.outputs.values()}
        return not step.nodes or all(
            tensor.dtype.kind in "biu" and tensor.encoding is None and tensor.name not in ends
            for tensor in step.outputs
        )

    @contextmanager
    def _collecting(self, name: str) -> Iterator[None]:
        try:
            yield
        except Unsupported as reason:
            self.unsupported.setdefault(repr(name), str(reason))

    def _input(self, name: str, tensor: Tensor) -> None:
        if is_whole(tensor):
            self._refuse_other_readers(tensor)
        elif tensor.dtype != np.float32:
            raise Unsupported("an input that is not float32")
        is_open = None in known_lengths(tensor)
        shape = {} if is_open else lengths(sample(tensor))  # if open, the caller's holds
        self.builder.emit("Input", name, [], [self.builder.blob(tensor)], shape)

    def _refuse_other_readers(self, tensor: Tensor) -> None:
        """Refuse whole numbers that more than one look-up reads, or something else.

        A ``Split`` would hand them on, which may hold what it reads as float16. A view of them has
        their name.
        """
        kept = {each.name for each in self.program.outputs.values()}
        readers = [
            step
            for step in self.program.steps
            if any(each.value == tensor.value for each in step.activations)
            and not all(each.value == tensor.value for each in step.outputs)
        ]
        if tensor.name in kept or len(readers) != 1 or not isinstance(readers[0].operation, Lookup):
            raise Unsupported("an input of whole numbers that is not read by one look-up alone")


@WRITERS.register(FloatNodes)
def _no_layer(operation: FloatNodes, _step: Step, _builder: NcnnBuilder) -> None:
    node = operation.nodes[0]
    domain = f" of domain {node.domain!r}" if node.domain else ""
    raise Unsupported(operation.reason or f"intact writes no ncnn layer for {node.op_type}{domain}")


def _fused_activations(program: Program) -> Mapping[str, Step]:
    """Find the Relu or Clip that alone reads a product, by name of the product's step.

    A Clip is not fused into a layer with groups: ncnn's kernels for 3x3 windows know a Relu
    only, and others would be taken.
    """
    kept = {tensor.value for tensor in program.outputs.values()}
    readers: dict[str, list[Step]] = {}
    for step in program.steps:
        for tensor in step.activations if step.nodes else ():
            # By value, not by name: conversions between a product and its activation are no layers.
            readers.setdefault(tensor.value, []).append(step)
    found = {}
    for step in program.steps:
        value = step.outputs[0].value
        # An output that is seen must not be clamped, and ``Gemm`` has no activation.
        if not isinstance(step.operation, _PRODUCTS) or value in kept or has_blocks(step.inputs[1]):
            continue
        match readers.get(value, []):
            case [Step(operation=Function(kind=functions.clamp, bounds=bounds)) as reader]:
                has_groups = getattr(step.operation, "groups", 1) > 1
                if bounds.low <= bounds.high and (bounds == Bounds(0.0) or not has_groups):
                    found[step.name] = reader
    return found


def _with_activation(step: Step, activation: Step | None) -> Step:
    """Join a product with the activation that reads it, whose result it has then."""
    if activation is None or not isinstance(step.operation, _PRODUCTS):
        return step
    clamp = activation.operation
    bounds = clamp.bounds if isinstance(clamp, Function) else Bounds()
    result = replace(step.outputs[0], value=activation.outputs[0].value)
    return replace(step, operation=replace(step.operation, bounds=bounds), outputs=(result,))


def _other_codes(program: Program) -> Iterator[tuple[Tensor, str]]:
    """Yield the tensors of codes that ncnn cannot hold, with reasons."""
    nothing_else = (
        "ncnn quantizes inputs and weights of convolutions and dense layers, nothing else"
    )
    for step in program.steps:
        if not step.nodes and not _converts_for_others(step, program):
            continue
        for slot, tensor in enumerate(step.inputs):
            if tensor is None or tensor.encoding is None:
                continue
            if slot == 1 and has_blocks(tensor):
                continue
            is_operand = isinstance(step.operation, _PRODUCTS) and slot <= 1
            reason = _other_levels(tensor) if is_operand else nothing_else
            if reason:
                yield tensor, reason
        yield from ((tensor, nothing_else) for tensor in step.outputs if tensor.encoding)


def _converts_for_others(step: Step, program: Program) -> bool:
    """Tell whether a step converts codes, and none of its readers is refused anyway.

    As conversions are no layers, such a one would otherwise be left out unseen.
    """
    if not isinstance(step.operation, Dequantize | Requantize):
        return False
    value = step.outputs[0].value
    return not any(
        tensor.value == value
        for each in program.steps
        if program.in_float.keys() & set(each.nodes)
        for tensor in each.activations
    )


def _other_levels(tensor: Tensor) -> str:
    """Say why ncnn cannot hold the codes of an operand of a product; "" if it can."""
    encoding = tensor.encoding
    if encoding is None:
        return ""
    span = f"{encoding.quant_min}..{encoding.quant_max}"
    if encoding.zero_point.any() or encoding.quant_min >= 0:
        return "its levels are not symmetric around 0"
    if encoding.quant_min < -LARGEST_CODE or encoding.quant_max > LARGEST_CODE:
        return f"its codes {span} leave -127..127"
    if not tensor.is_constant and (encoding.quant_min, encoding.quant_max) != (-127, 127):
        return f"its codes {span} are fewer than ncnn's -127..127"
    if not tensor.is_constant and encoding.axis is not None:
        return "an activation with one scale a channel"
    return ""
