"""Lists the rewrite rules of onnxscript that normalization uses, two of them narrowed.

Not used are rules that need a newer opset (Slice pairs to Split), that match 1 + 1e-9 as 1 (no-op
rules have a tolerance; see `no_ops`), that can change results (Cast of Cast, Clip of Clip with
disjoint bounds), or that only rename a node (Flatten to Reshape).

Imported inside functions only: onnxscript takes about 0.2 s to import.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRule
from onnxscript.rewriter.rules import common
from onnxscript.rewriter.rules.common._fuse_pad_into_conv import NormalizePadFormatConv
from onnxscript.rewriter.rules.common._materialize_reshape_shape import MaterializeReshapeShape

from intact.ops.operators import Conv


class ExplicitPads(NormalizePadFormatConv):
    """Explicit Conv pads. The library's rule ignores dilations, so dilated convolutions are
    excluded.
    """

    def check(self, context: Any, conv: ir.Value, **others: Any) -> MatchResult:  # type: ignore[override]
        """Reject dilated convolutions, then run the library's check."""
        node = conv.producer()
        dilations = Conv.of(node).dilations if node is not None else ()
        if any(dilation != 1 for dilation in dilations):
            return MatchResult().fail("the convolution is dilated")
        return super().check(context, conv, **others)


class ConstantShape(MaterializeReshapeShape):
    """Constant Reshape targets.

    The library's rule sets allowzero, which opset 13 does not have, and stops at two open axes,
    where one of them may be the same as of what is reshaped.
    """

    def check(self, context: Any, data: ir.Value, shape: ir.Value) -> MatchResult:
        """Find the dimensions: -1 is computed, 0 is copied."""
        result = MatchResult()
        found = context.output_values[0].shape
        if ir.convenience.get_const_tensor(shape) is not None or found is None:
            return result.fail("the target is a constant, or not known")
        if 0 in found:
            return result.fail("a dimension is zero")
        self._new_dims = [n if isinstance(n, int) else -1 for n in found]
        if self._new_dims.count(-1) > 1 and data.shape is not None:
            for axis, (new, old) in enumerate(zip(found, data.shape, strict=False)):
                if isinstance(new, ir.SymbolicDim) and new.value is not None and new == old:
                    self._new_dims[axis] = 0
        if self._new_dims.count(-1) > 1:
            return result.fail("two axes are not known")
        return result

    def rewrite(self, op: Any, data: ir.Value, shape: ir.Value) -> Any:  # noqa: ARG002
        """Replace the computed shape by a constant."""
        target = ir.tensor(self._new_dims, dtype=ir.DataType.INT64)
        return op.Reshape(data, op.Constant(value=target))


def simplifying_rules() -> list[RewriteRule]:
    """Make new rule objects: they keep state about the last node."""
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
