"""Nodes of the model for which a program has no operation and Tengine has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.tengine.tmfile.layout import Element
from intact.formats.tengine.tmfile.writers.builder import WRITERS, TmFileBuilder
from intact.formats.tengine.tmfile.writers.moves import pad_options
from intact.formats.tengine.tmfile.writers.scales import Constant
from intact.graph import constant_array, input_value
from intact.program import Step
from intact.program.operations import FloatNodes

_CODES = (Element.INT8, Element.UINT8)


@WRITERS.register(FloatNodes)
def _float_nodes(operation: FloatNodes, step: Step, builder: TmFileBuilder) -> None:
    (node,) = operation.nodes
    write = _WRITERS.get(node.op_type) if node.domain == "" else None
    if write is None:
        raise Unsupported(f"Tengine has no {node.op_type}, or none like this")
    write(node, step, builder)


def _mish(_node: ir.Node, step: Step, builder: TmFileBuilder) -> None:
    builder.refuse_elements(Element.INT8)
    _of_one_image(step, builder)


def _softplus(_node: ir.Node, step: Step, builder: TmFileBuilder) -> None:
    builder.refuse_elements(*_CODES)
    _of_one_image(step, builder)


def _hard_sigmoid(node: ir.Node, step: Step, builder: TmFileBuilder) -> None:
    """HardSigmoid with another summand than 0.5."""
    builder.refuse_elements(Element.INT8)
    numbers = {"alpha": 0.2, "beta": 0.5}
    options = {name: node.attributes.get_float(name, each) for name, each in numbers.items()}
    builder.add(step, "HardSigmoid", [builder.value(step)], options)


def _of_one_image(step: Step, builder: TmFileBuilder) -> None:
    """A function whose kernel takes the lengths of one image, whatever the tensor has."""
    images, *_ = builder.image_shape(step)
    if images != 1:
        raise Unsupported(f"Tengine computes it for one image, not for {images}")
    builder.add(step, builder.operator(step), [builder.value(step)])


def _batch_normalization(node: ir.Node, step: Step, builder: TmFileBuilder) -> None:
    """BatchNormalization that no convolution holds, in float."""
    builder.refuse_elements(*_CODES)
    rank = len(builder.shape(builder.value(step)))
    if rank not in (3, 4) or node.attributes.get_int("training_mode"):
        raise Unsupported(f"its input has {rank} dimensions, or it is in training")
    options = {
        "rescale_factor": 1.0,
        "epsilon": node.attributes.get_float("epsilon", 1e-5),
        "caffe_flavor": 0,
    }
    constants = []
    for slot in (1, 2, 3, 4):
        array = _constant(node, slot).astype(np.float32)
        name = str(node.inputs[slot].name)  # type: ignore[union-attr]
        constants.append(builder.stored(Constant(name, slot, array, array), array))
    builder.add(step, "BatchNormalization", [builder.value(step), *constants], options)


def _pad(node: ir.Node, step: Step, builder: TmFileBuilder) -> None:
    """Pad of all axes with another number than 0."""
    pads = _constant(node, 1).reshape(-1).tolist()
    mode = node.attributes.get_string("mode", "constant")
    if mode != "constant" or input_value(node, 3) is not None:
        raise Unsupported("it mirrors, or pads some axes only")
    number = _constant(node, 2) if input_value(node, 2) is not None else np.zeros(1)
    rank = len(pads) // 2
    pairs = tuple(zip(pads[:rank], pads[rank:], strict=True))
    options = pad_options(builder, step, pairs, float(number.reshape(())))
    builder.add(step, "Pad", [builder.value(step)], options)


def _constant(node: ir.Node, slot: int) -> np.ndarray:
    value = input_value(node, slot)
    array = None if value is None else constant_array(value)
    if array is None:
        raise Unsupported(f"input {slot} is no constant")
    return array


_WRITERS: Mapping[str, Callable[[ir.Node, Step, TmFileBuilder], None]] = {
    "BatchNormalization": _batch_normalization,
    "HardSigmoid": _hard_sigmoid,
    "Mish": _mish,
    "Pad": _pad,
    "Softplus": _softplus,
}
