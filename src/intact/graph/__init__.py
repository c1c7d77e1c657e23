"""Models as graphs: reading, normalizing, queries.

`normalize` converts a model to a canonical `Graph` with producers and consumers of each value; the
functions of `intact.graph.ops` give the role of each input of a node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intact._lazy import lazy

if TYPE_CHECKING:
    from intact.graph.batch_norm import BatchNorm as BatchNorm
    from intact.graph.files.load import load_model as load_model
    from intact.graph.files.save import save_model as save_model
    from intact.graph.graph import IMPLICIT_SLOT as IMPLICIT_SLOT
    from intact.graph.graph import Consumer as Consumer
    from intact.graph.graph import Graph as Graph
    from intact.graph.normalization import normalize as normalize
    from intact.graph.ops import OPS as OPS
    from intact.graph.ops import OpKind as OpKind
    from intact.graph.ops import OpSpec as OpSpec
    from intact.graph.ops import Role as Role
    from intact.graph.ops import bias_slot as bias_slot
    from intact.graph.ops import constant_array as constant_array
    from intact.graph.ops import data_slots as data_slots
    from intact.graph.ops import facts as facts
    from intact.graph.ops import input_role as input_role
    from intact.graph.ops import input_value as input_value
    from intact.graph.ops import is_constant as is_constant
    from intact.graph.ops import is_even_average as is_even_average
    from intact.graph.ops import moves_values as moves_values
    from intact.graph.ops import op_spec as op_spec
    from intact.graph.ops import output_channel_axis as output_channel_axis
    from intact.graph.ops import output_channels as output_channels
    from intact.graph.ops import weight_scale_axis as weight_scale_axis
    from intact.graph.ops import weight_slot as weight_slot
else:
    __getattr__, __all__ = lazy(
        __name__,
        {
            "batch_norm": "BatchNorm",
            "files.load": "load_model",
            "files.save": "save_model",
            "graph": "IMPLICIT_SLOT Consumer Graph",
            "normalization": "normalize",
            "ops": (
                "OPS OpKind OpSpec Role bias_slot constant_array data_slots facts input_role "
                "input_value is_constant is_even_average moves_values op_spec output_channel_axis "
                "output_channels "
                "weight_scale_axis weight_slot"
            ),
        },
    )
