"""Large constants that are transposed before a product become its weights, without a copy."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.graph.passes.gemm import turn_weights
from tests.models import ModelBuilder


@pytest.mark.parametrize("shared", [False, True])
def test_the_right_factor_of_a_product_is_turned(shared: bool) -> None:
    b = ModelBuilder()
    weight = b.weight(6, 4, name="table")
    b.node("Transpose", weight, out="turned", perm=[1, 0])
    b.node("MatMul", b.input("x", ["n", 4]), "turned", out="y")
    b.output("y")
    if shared:  # something else reads the transpose, which then stays
        b.node("Relu", "turned", out="z")
        b.output("z")
    model = ir.from_proto(b.build())
    assert turn_weights(model) == (0 if shared else 1)
    if shared:
        return
    (product,) = model.graph
    value = product.inputs[1]
    assert value is not None
    assert isinstance(value.const_value, ir.LazyTensor)
    table = model.graph.initializers["table"].const_value
    assert table is not None
    np.testing.assert_array_equal(value.const_value.numpy(), table.numpy().T)
