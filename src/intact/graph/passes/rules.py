"""The rewrite rules of onnxscript that normalization uses, two of them narrowed.

Left out, after reading them, are rules that need a newer opset (Slice pairs to Split), that take
1 + 1e-9 for 1 (no-op rules match with a tolerance; ours are in `no_ops`), that can change results
(Cast of Cast, Clip of Clip with disjoint bounds), or that only rename a node (Flatten to Reshape).

Imported inside functions only: onnxscript takes about 0.2 s to import.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRule
from onnxscript.rewriter.rules import common
from onnxscript.rewriter.rules.common._fuse_pad_into_conv import NormalizePadFormatConv
from onnxscript.rewriter.rules.common._materialize_reshape_shape import MaterializeReshapeShape


class ExplicitPads(NormalizePadFormatConv):
    """Conv pads in numbers. The library's rule forgets dilations; it is right without them."""

    def check(self, context: Any, conv: ir.Value, **others: Any) -> MatchResult:  # type: ignore[override]
        """Refuse dilated convolutions, then ask the library's check."""
        node = conv.producer()
        dilations = node.attributes.get_ints("dilations", []) if node is not None else []
        if any(dilation != 1 for dilation in dilations):
            return MatchResult().fail("the convolution is dilated")
        return super().check(context, conv, **others)


class ConstantShape(MaterializeReshapeShape):
    """Known Reshape targets. The library's rule sets allowzero, which opset 13 does not have."""

    def check(self, context: Any, data: ir.Value, shape: ir.Value) -> MatchResult:
        """Ask the library's check, then refuse dimensions of zero."""
        result = super().check(context, data, shape)
        if result and 0 in self._new_dims:
            return MatchResult().fail("a dimension is zero")
        return result

    def rewrite(self, op: Any, data: ir.Value, shape: ir.Value) -> Any:  # noqa: ARG002
        """Read a constant instead of the computed shape."""
        target = ir.tensor(self._new_dims, dtype=ir.DataType.INT64)
        return op.Reshape(data, op.Constant(value=target))


def simplifying_rules() -> list[RewriteRule]:
    """Return the rules, freshly made: they keep notes about the node they last looked at."""
    narrowed: list[Any] = [ConstantShape, ExplicitPads]
    return [
        *(each.rule() for each in narrowed),
        common.fuse_pad_into_conv_rule,
        common.no_op_expand_rule,
        common.no_op_transpose_rule,
        common.transpose_transpose_rule,
        common.unsqueeze_unsqueeze_rule,
        common.reshape_reshape_rule,
        common.collapse_slice_rule,
        common.collapse_slice2_rule,
    ]
