"""A graph of integer operations as an ONNX model: ConvInteger, MatMulInteger and plain operators.

Needs opset 18, IR 10. Every value has its type and shape; an open batch stays open.
"""

from __future__ import annotations

import onnx_ir as ir

from intact.errors import ExportError
from intact.formats.onnx_integer.operators import OnnxBuilder, write_node
from intact.graph.files.save import LARGEST_FILE
from intact.program import Program, Tensor
from intact.program.realize import IntegerGraph, realize

OPSET, IR_VERSION = 18, 10
PRODUCER = "intact"


def write_onnx_integer(program: Program) -> bytes:
    """Return a program as an ONNX model.

    Args:
        program: Floats stand at its ends alone, or nowhere.

    Raises:
        ExportError: Some steps cannot be written with integers; all of them are listed.
    """
    return integer_model(realize(program), program)


def integer_model(graph: IntegerGraph, program: Program, shown: tuple[str, ...] = ()) -> bytes:
    """Return a graph as an ONNX model.

    Args:
        graph: What `realize` made of the program.
        program: Named in the metadata: what codes at the ends stand for.
        shown: Names of values that are given too, behind the outputs.
    """
    builder = OnnxBuilder()
    for value in graph.inputs:
        builder.input_of(value)
    for node in graph.nodes:
        write_node(builder, node)
    made = {str(value.name): value for node in builder.nodes for value in node.outputs}
    outputs = [made[name] for name in (*(value.name for value in graph.outputs), *shown)]
    whole = builder.graph(outputs, opset=OPSET, name="integer")
    model = ir.Model(whole, ir_version=IR_VERSION, producer_name=PRODUCER)
    ends = {**program.inputs, **program.outputs}
    model.metadata_props.update({f"quantization.{n}": _text(t) for n, t in ends.items()})
    proto = ir.to_proto(model)
    if proto.ByteSize() > LARGEST_FILE:
        raise ExportError("the model takes more than 2 GiB", remedy="cut it in parts")
    return bytes(proto.SerializeToString(deterministic=True))


def _text(tensor: Tensor) -> str:
    """Describe the codes of an input or output; its type where it has none."""
    encoding = tensor.encoding
    if encoding is None:
        return str(tensor.dtype)
    scale, zero = encoding.scale.reshape(-1), encoding.zero_point.reshape(-1)
    return (
        f"{encoding.dtype} scale={scale.tolist()} zero_point={zero.tolist()} "
        f"min={encoding.quant_min} max={encoding.quant_max}"
    )
