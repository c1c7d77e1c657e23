"""Keeps ONNX Runtime from computing otherwise than the plan says.

Its optimizer looks for patterns between DequantizeLinear and QuantizeLinear. Measured with
onnxruntime 1.32 over 60 kinds of nodes:

- The float weight and bias of a Conv, ConvTranspose or Gemm are quantized, with one scale for the
  whole weight (its `WeightBiasQuantization`), whether or not the result is an output of the model
  too. A MatMul becomes a Gemm where a bias is added behind.
- Sums, products, means and Softmax get kernels that compute with codes. They round in another
  order than the floats do (some of a million values differ by a step; of Softmax, 12 %). Those of
  Sigmoid, LeakyRelu, Concat and Where tabulate the same floats: nothing differs. That of a MatMul
  of two activations needs no QuantizeLinear.
- Two pairs in a row become one with a third scale; not where anything is between them.
- A MatMul of codes that gives floats becomes a float Gemm with the Add behind it (its
  `MatMulAddFusion`), whose weights are dequantized at every run. It looks for an Add only, so a
  constant is subtracted with its sign turned: the same floats, and the integer kernel stays.

The first leaves alone what has a bias that is no plain constant: a DequantizeLinear that yields
exactly the same floats costs nothing. Elsewhere a maximum with the lowest number stands in front
of the QuantizeLinear, or of what a MatMul reads. It changes no number, and nothing is moved through
it, nor fused across.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph import (
    constant_array,
    facts,
    input_value,
    is_constant,
    moves_values,
    output_channels,
)
from intact.graph.edit import Editor
from intact.ops.operators import (
    BIASED,
    Add,
    AveragePool,
    BatchNormalization,
    DequantizeLinear,
    Div,
    GlobalAveragePool,
    MatMul,
    Mul,
    Pow,
    QuantizeLinear,
    ReduceMean,
    Softmax,
    Sub,
    is_a,
    types_of,
)
from intact.plan import QuantizedGraph

_OF_ACTIVATIONS = types_of(Add, Mul)
"""What it has kernels of codes for, where all that they read are codes."""
_OF_ONE = types_of(AveragePool, GlobalAveragePool, Pow, ReduceMean, Softmax)
"""The same, of one input; a power becomes products, and a mean over an image a pooling."""
_FUSED = types_of(Add, BatchNormalization, Div, Mul, Sub)
"""What it computes in the product before, where all else that it reads are constants."""
_SINCE_OPSET = 13
"""From here on a DequantizeLinear has a scale for each element of a bias."""
_BIAS = 2


def keep_as_planned(plan: QuantizedGraph, editor: Editor) -> None:
    """Keep floats and pairs from the runtime's optimizer.

    Nothing to do for targets whose runtimes keep floats by themselves.

    Args:
        plan: The plan.
        editor: The written model, with its pairs in place; it is changed.
    """
    if plan.target.keeps_floats:
        return
    floats = {name for name, decision in plan.decisions.items() if not decision.quantized}
    for product in [n for n in editor.model.graph if is_a(n, MatMul)]:
        is_kept = str(product.name) in floats
        if is_kept and all(map(_reads_codes, product.inputs)):
            _keep(editor, product, 1)  # its kernel needs no quantizer behind
        elif not is_kept and (added := _added(product, floats)) is not None:
            _keep_apart(editor, product, added)
    for quantize in [n for n in editor.model.graph if n.op_type == QuantizeLinear.name]:
        node, is_fused = _origin(quantize)
        is_taken = (
            node is not None and str(node.name) in floats and _is_taken(node, is_fused=is_fused)
        )
        # The bias first, as it costs nothing at run time; the maximum is one pass over a tensor.
        if node is not None and is_taken and node.op_type in BIASED and _shield(editor, node):
            continue
        if is_taken or _becomes_one(quantize):
            _keep(editor, quantize, 0)


def _added(product: ir.Node, floats: Collection[str]) -> ir.Node | None:
    """Return the float Add that a MatMul of codes becomes a float Gemm with."""
    if not _has_one_reader(product):
        return None
    (reader,) = (use.node for use in product.outputs[0].uses())
    if not is_a(reader, Add) or str(reader.name) not in floats:
        return None
    return reader


def _keep_apart(editor: Editor, product: ir.Node, added: ir.Node) -> None:
    """Let an Add give the same floats in a form that no product is joined with."""
    slot = int(added.inputs[0] is product.outputs[0])
    other = added.inputs[slot]
    array = constant_array(other)
    if other is None or array is None:
        # What is computed has no sign to be turned beforehand: the product is read through a
        # maximum.
        _keep(editor, added, 1 - slot)
        return
    name = f"{other.name}_negative"
    added.op_type = Sub.name
    added.replace_input_with(0, product.outputs[0])
    added.replace_input_with(1, editor.initializer(name, ir.Tensor(-array)))


def _origin(quantize: ir.Node) -> tuple[ir.Node | None, bool]:
    """Return what makes the numbers, behind clamps, moves and what may be fused; and if that is."""
    value, is_fused = quantize.inputs[0], False
    while value is not None:
        node = value.producer()
        if node is None or node.domain != "":
            return node, is_fused
        if node.op_type in _FUSED:
            read = [each for each in node.inputs if each is not None and not is_constant(each)]
            # The runtime fuses what else is constant; with two computed operands it is a node of
            # its own.
            if len(read) != 1:
                return node, is_fused
            value, is_fused = read[0], True
        elif facts(node).clamps or moves_values(node):
            value = node.inputs[0]
        else:
            return node, is_fused
    return None, is_fused


def _is_taken(node: ir.Node, *, is_fused: bool) -> bool:
    """Tell whether the runtime would compute a float node in front of a quantizer with codes."""
    weight = input_value(node, 1)
    if node.domain != "":
        return False
    if node.op_type in BIASED or (is_a(node, MatMul) and is_constant(weight)):
        is_product = node.op_type in BIASED or is_fused
        # A computed weight, or one of half precision, is left alone by the runtime.
        known = is_constant(weight) and weight is not None and weight.dtype is ir.DataType.FLOAT
        return is_product and known and _reads_codes(node.inputs[0])
    if node.op_type in _OF_ONE:
        return _reads_codes(node.inputs[0])
    return node.op_type in _OF_ACTIVATIONS and all(map(_reads_codes, node.inputs))


def _reads_codes(value: ir.Value | None) -> bool:
    producer = None if value is None else value.producer()
    if producer is None:
        return False
    if moves_values(producer):  # the runtime pulls the DequantizeLinear through
        return _reads_codes(producer.inputs[0])
    return producer.op_type == DequantizeLinear.name


def _becomes_one(quantize: ir.Node) -> bool:
    """Tell whether the runtime joins a pair with the one in front of it, to another scale."""
    dequantize = _maker(quantize)
    if dequantize is None or dequantize.op_type != DequantizeLinear.name:
        return False
    before = _maker(dequantize)
    if before is None or before.op_type != QuantizeLinear.name:
        return False
    if not (_has_one_reader(before) and _has_one_reader(dequantize)):
        return False
    # Equal pairs are joined too, and that changes nothing.
    both = zip(_parameters(dequantize), _parameters(quantize), strict=True)
    return any(o is None or t is None or not np.array_equal(o, t) for o, t in both)


def _maker(node: ir.Node) -> ir.Node | None:
    value = node.inputs[0]
    return None if value is None else value.producer()


def _parameters(node: ir.Node) -> list[npt.NDArray[np.generic] | None]:
    """Return the scale and the zero point."""
    return [constant_array(node.inputs[slot]) for slot in (1, 2)]


def _has_one_reader(node: ir.Node) -> bool:
    return len(node.outputs[0].uses()) == 1 and not node.outputs[0].is_graph_output()


def _keep(editor: Editor, node: ir.Node, slot: int) -> None:
    """Let a node read a maximum of what it reads and the lowest number."""
    value = node.inputs[slot]
    if value is not None:
        node.replace_input_with(slot, editor.kept(value))


def _shield(editor: Editor, product: ir.Node) -> bool:
    """Let a product read its bias through a DequantizeLinear; False where that cannot be."""
    if editor.model.opset_imports[""] < _SINCE_OPSET:
        return False
    bias = input_value(product, _BIAS)
    # A product without a bias is taken as well; one of zeros, which is no plain constant, shields
    # it.
    zeros = np.zeros(output_channels(product) or 0, np.float32)
    array = zeros if bias is None else constant_array(bias)
    if bias is not None and array is None:
        return True  # the runtime leaves it alone
    if array is None or array.ndim != 1 or not np.isfinite(array).all():
        return False
    name = str(product.outputs[0].name if bias is None else bias.name)
    codes, scale = _exact_codes(array)
    value = editor.node(
        DequantizeLinear,
        [
            editor.initializer(f"{name}_sign", codes),
            editor.initializer(f"{name}_magnitude", scale),
        ],
        f"{name}_kept_float",
        {"axis": 0},
        shape=ir.Shape(array.shape),
    )
    product.resize_inputs(3)
    product.replace_input_with(_BIAS, value)
    return True


def _exact_codes(
    array: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Write floats as integers times positive scales, to the last bit: sign times magnitude."""
    # A sign times a magnitude is exact for every float; a common scale would round.
    codes = np.sign(array).astype(np.int32)
    return codes, np.where(codes == 0, 1, np.abs(array)).astype(np.float32)
