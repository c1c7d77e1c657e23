"""Each layer in float, in ncnn, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from intact.formats.ncnn.write import write_ncnn
from intact.plan import Overrides
from tests.formats.ncnn.cases import CASES, build_case, outputs_of
from tests.models import random_inputs, run_model
from tests.plans import planned

pytest.importorskip("ncnn")

PRODUCTS = ("Conv", "Gemm", "MatMul")


@pytest.mark.parametrize("name", CASES)
def test_a_float_layer_computes_what_onnx_says(name: str) -> None:
    model = build_case(name)
    kept = {node.op_type for node in model.graph.node if node.op_type in PRODUCTS}
    written = write_ncnn(planned(model, "ncnn", Overrides(keep_float=tuple(sorted(kept)))))
    feeds = random_inputs(model, batch=2)
    expected = run_model(model, feeds)
    for plain, tolerance in ((True, 2e-5), (False, 3e-3)):  # by default dense weights are float16
        found = outputs_of(written, feeds, plain=plain)
        for output, array in expected.items():
            assert found[output].size == array.size
            shaped = found[output].reshape(array.shape)
            np.testing.assert_allclose(shaped, array, rtol=tolerance, atol=tolerance)
