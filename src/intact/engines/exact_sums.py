"""Makes ONNX Runtime's 8-bit sums exact on processors that saturate pairs of products.

Before VNNI, x86 processors add two u8 * s8 products with saturation at 16 bits (``vpmaddubsw``).
ONNX Runtime has an option that stores constant int8 weights as uint8 instead, whose kernels are
slower and exact.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from intact.engines.session import make_session, run_session
from intact.graph.edit import Editor
from intact.ops.operators import QUANTIZERS, DequantizeLinear, MatMulInteger

OPTION = "session.x64quantprecision"

EXACT = f"{OPTION}=1"
"""What is printed beside the runtime's name."""


SATURATES = "this processor saturates pairs of 8-bit products at 16 bits"

_LENGTH = 8
_QUANTIZED = 0
_ZERO_POINT = 2


@cache
def saturates_pairs() -> bool:
    """Tell whether ONNX Runtime saturates pairs of u8 * s8 products on this machine.

    The runtime is asked, with a product of matrices that saturates: its kernels depend on the
    processor, on its version and on how it was built.
    """
    # 127 * 255 twice is above 2**15: any pair would saturate.
    weight = ir.Value(name="w", const_value=ir.Tensor(np.full((_LENGTH, 1), 127, np.int8)))
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.UINT8), shape=ir.Shape((1, _LENGTH)))
    product = ir.node(MatMulInteger.name, [x, weight])
    product.outputs[0].name, product.outputs[0].dtype = "y", ir.DataType.INT32
    graph = ir.Graph(
        [x], product.outputs, nodes=[product], initializers=[weight], opset_imports={"": 13}
    )
    session = make_session(ir.Model(graph, ir_version=8), threads=1)
    (found,) = run_session(session, {"x": np.full((1, _LENGTH), 255, np.uint8)})
    return int(found.item()) != 255 * 127 * _LENGTH


def exact_sums(model: ir.Model, options: ort.SessionOptions) -> ir.Model:
    """Set the options of a session so that it sums products exactly.

    Constants that are no weights of one node and products of two activations, u8 * s8, stay as
    they are.

    Args:
        model: What the session is made of; it is not touched.
        options: The options of the session; they are not touched where sums are exact anyway.

    Returns:
        The model to open: with the option the runtime refuses weights that nodes share, and zero
        points that weights share, because it adds the uint8 constant that it makes of one twice.
        They are copied.
    """
    if not saturates_pairs():
        return model
    options.add_session_config_entry(OPTION, "1")
    return _without_shared_weights(model)


def shares_weights(model: ir.Model) -> bool:
    """Tell whether ONNX Runtime refuses a model with the option.

    It does where nodes share a weight, and where weights share a zero point.
    """
    return any(len(_readers(value)) > 1 for value in model.graph.initializers.values())


def _without_shared_weights(model: ir.Model) -> ir.Model:
    """Give each node int8 weights of its own, and each weight a zero point of its own.

    Returns:
        A copy; the model itself where nothing is shared.
    """
    if not shares_weights(model):
        return model
    editor = Editor(model)
    for value in tuple(editor.model.graph.initializers.values()):
        # The first reader keeps the original: one copy less.
        for node, slot in _readers(value)[1:]:
            node.replace_input_with(slot, _copy(editor, value, node.inputs[slot]))
    return editor.finish()


def _readers(value: ir.Value) -> list[tuple[ir.Node, int]]:
    """Return the nodes and slots that read an int8 constant, or what dequantizes it.

    Those of a zero point are the nodes that dequantize constants with it: the runtime changes no
    zero point of activations.
    """
    if value.dtype is not ir.DataType.INT8:
        return []
    found: list[tuple[ir.Node, int]] = []
    for node, slot in value.uses():
        if node.op_type == DequantizeLinear.name and slot == _QUANTIZED:
            found += list(node.outputs[0].uses())
        elif node.op_type == DequantizeLinear.name and _dequantizes_constant(node):
            found.append((node, _ZERO_POINT))
        elif node.op_type not in QUANTIZERS:  # no zero point
            found.append((node, slot))
    return found


def _dequantizes_constant(node: ir.Node) -> bool:
    codes = node.inputs[_QUANTIZED]
    return codes is not None and codes.const_value is not None


def _copy(editor: Editor, weight: ir.Value, read: ir.Value | None) -> ir.Value:
    """Copy a constant, with the node that dequantizes it if it is that node's output."""
    dequantize = None if read is None else read.producer()
    if read is None or dequantize is None:
        return _copy_of_constant(editor, weight)
    # The zero points are stored as uint8 too.
    inputs = [
        each if each is None or each.const_value is None else _copy_of_constant(editor, each)
        for each in dequantize.inputs
    ]
    attributes = {name: attribute.value for name, attribute in dequantize.attributes.items()}
    kind, domain = read.dtype or ir.DataType.FLOAT, dequantize.domain
    name = str(read.name)
    return editor.node(DequantizeLinear, inputs, name, attributes, kind, read.shape, domain)


def _copy_of_constant(editor: Editor, value: ir.Value) -> ir.Value:
    if value.const_value is None:
        raise TypeError(f"{value.name!r} is no constant")
    return editor.initializer(str(value.name), value.const_value.numpy())
