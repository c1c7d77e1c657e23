"""Attention between sequences."""

from __future__ import annotations

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from intact.errors import Unsupported
from intact.graph import input_value
from intact.improve.learn.operators.rules import Apply, operator
from intact.ops.operators import Attention


def _refuse_options(node: ir.Node) -> None:
    if any(input_value(node, slot) is not None for slot in (4, 5, 6)):
        raise Unsupported("training has no attention to keys and values of earlier runs")
    if len([value for value in node.outputs if value.name]) > 1:
        raise Unsupported("training has attention with one output only")
    if Attention.of(node).softcap:
        raise Unsupported("training has no attention with a softcap")


@operator("Attention")
def attention(node: ir.Node) -> Apply:
    """Attend to keys: all ``[N, heads, T, width]``, or ``[N, T, heads * width]``."""
    _refuse_options(node)
    options = Attention.of(node)
    is_causal, scale = bool(options.is_causal), options.scale
    heads = options.q_num_heads, options.kv_num_heads

    def split(x: Tensor, count: int) -> Tensor:
        return x if x.ndim == 4 else x.unflatten(-1, (count, -1)).transpose(1, 2)

    def apply(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = split(query, heads[0]), split(key, heads[1]), split(value, heads[1])
        repeats = q.shape[1] // k.shape[1]
        k, v = (x if repeats == 1 else x.repeat_interleave(repeats, 1) for x in (k, v))
        causal = is_causal
        if mask is not None and is_causal:
            seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
            both = mask & seen if mask.dtype is torch.bool else mask.masked_fill(~seen, -torch.inf)
            mask, causal = both, False
        result = F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale)
        return result if query.ndim == 4 else result.transpose(1, 2).flatten(2)

    return apply
