"""Models as graphs: reading, normalizing, asking.

`normalize` brings a model into one form, a `Graph`, which answers who makes and who reads what;
the functions of `intact.graph.ops` say what each input of a node is for.
"""

from __future__ import annotations

from intact.graph.batch_norm import BatchNorm
from intact.graph.files.load import load_model
from intact.graph.files.save import save_model
from intact.graph.graph import IMPLICIT_SLOT, Consumer, Graph
from intact.graph.normalize import normalize
from intact.graph.ops import (
    OPS,
    OpKind,
    OpSpec,
    Role,
    bias_slot,
    constant_array,
    data_slots,
    input_role,
    input_value,
    is_constant,
    moves_values,
    op_spec,
    output_channel_axis,
    output_channels,
    weight_slot,
)
from intact.graph.soi import shape_or_index_values

__all__ = [
    "IMPLICIT_SLOT",
    "OPS",
    "BatchNorm",
    "Consumer",
    "Graph",
    "OpKind",
    "OpSpec",
    "Role",
    "bias_slot",
    "constant_array",
    "data_slots",
    "input_role",
    "input_value",
    "is_constant",
    "load_model",
    "moves_values",
    "normalize",
    "op_spec",
    "output_channel_axis",
    "output_channels",
    "save_model",
    "shape_or_index_values",
    "weight_slot",
]
