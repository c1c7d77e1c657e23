"""Makes the configs of weights that float nodes store as integers, for smaller files.

A Gather of embeddings computes in float, but its table may be stored as int8 and dequantized when
it is read (weight-only quantization). The config of such a weight is marked: ``detail["stored"]``
is True (`STORED`). No activation flows there whose range calibration could see, so its scale
follows from the constant alone.
"""

from __future__ import annotations

import onnx_ir as ir

from intact.config import PerBlock, TensorQuantConfig
from intact.graph.ops import input_value
from intact.graph.stored_weights import block_axes, stored_weight_axes
from intact.ops.operators import Gather
from intact.plan.schemes import config_from_scheme
from intact.targets import Target, TensorScheme

STORED = "stored"
"""The mark of a stored weight: a key of the detail of its config."""
CACHED = "cached"
"""Another key: the mark of what is appended to a decoder's caches as codes, see `plan.caches`."""
CACHES_ONLY = "caches only: "
"""How the reason begins that a plan gives for a node that is float but for its caches."""


def stored_config(scheme: TensorScheme, axis: int, bits: int | None) -> TensorQuantConfig:
    """Make the INITIAL config of a stored weight; FP32 for a float scheme.

    Args:
        scheme: The target's scheme for it.
        axis: Along which scales differ, if they do; or along which blocks lie.
        bits: A width that replaces the scheme's.
    """
    config = config_from_scheme(scheme, axis, bits)
    if not scheme.is_float:
        # In the detail and not by state: the end quantizes as others do, and plan files keep
        # details.
        config.detail[STORED] = True
    return config


def stored_axes(node: ir.Node, scheme: TensorScheme, target: Target) -> dict[int, int]:
    """Return the input slots of constants that a scheme can store, with the axes of its scales.

    ``{0: 0}`` for a Gather whose table has one scale for each row.
    """
    if scheme.block is None:
        return stored_weight_axes(node)
    axes = block_axes(node)
    return {slot: axis for slot, axis in axes.items() if not _misfit(node, slot, scheme, target)}


def why_not_stored(node: ir.Node, scheme: TensorScheme, target: Target) -> str:
    """Say why a float node has no constant that a scheme can store; "" where the rule says it."""
    if scheme.block is None:
        return ""
    found = (_misfit(node, slot, scheme, target) for slot in block_axes(node))
    missing = "it has no constant matrix of float32 as its table or as its right factor"
    return next((each for each in found if each), missing)


def _misfit(node: ir.Node, slot: int, scheme: TensorScheme, target: Target) -> str:
    """Say why the rows of a constant cannot be parted into blocks; "" where they can."""
    length, size = _length(node, slot, block_axes(node)[slot]), scheme.block or 1
    # A table's blocks lie along the rows that are looked up, a matrix's along what is summed.
    what = f"it has {length} numbers in a row" if node.op_type == Gather.name else ""
    what = what or f"it has {length} factors in a sum"
    if length < size:
        return f"{what}, which is less than a block of {size}"
    if length % size and target.blocks is not None and not target.blocks.ragged:
        return f"{what}, which is no multiple of a block of {size}"
    return ""


def _length(node: ir.Node, slot: int, axis: int) -> int:
    value = input_value(node, slot)
    tensor = None if value is None else value.const_value
    return 0 if tensor is None else int(tensor.shape.numpy()[axis])


def is_cached(config: TensorQuantConfig) -> bool:
    """Tell whether what an end reads is appended to a cache, as codes."""
    return config.detail.get(CACHED) is True


def is_in_blocks(config: TensorQuantConfig) -> bool:
    """Tell whether an end is a weight whose blocks have scales of their own."""
    return isinstance(config.granularity, PerBlock)


def is_stored(config: TensorQuantConfig) -> bool:
    """Tell whether an end is a weight of a float node that is stored as integers."""
    return config.detail.get(STORED) is True
