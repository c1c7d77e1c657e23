"""Constants that are added to codes, against OpenVINO: many of their sums lie on ties."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from intact.engines.cpu import instruction_sets
from intact.formats.openvino.intermediate import intermediate_files
from intact.formats.openvino.verify import verify_openvino
from intact.formats.openvino.write import write_openvino
from intact.targets import InstructionSet
from tests.models import ModelBuilder
from tests.plans import Arrays, calibrate, planned

pytestmark = pytest.mark.runtime_fact("openvino")

CHANNELS, HEIGHT, WIDTH = 4, 32, 4
SHAPES = {
    "number": (1,),
    "channels": (CHANNELS, 1, 1),
    "rows": (HEIGHT, 1),
    "every": (CHANNELS, HEIGHT, WIDTH),
}
BRANCHES = 4


def network(shape: tuple[int, ...], *, signed: bool, seed: int) -> onnx.ModelProto:
    """Sums ``clip(x + c, 0, top)`` whose constants are half a step of the result beside a code.

    The sums' sources are read twice, so that no kernel before takes the sum in.
    """
    b = ModelBuilder()
    b.random = np.random.default_rng(seed)
    image = b.input("image", ["batch", CHANNELS, HEIGHT, WIDTH])
    for branch in range(BRANCHES):
        size, top = np.exp(b.random.uniform(-2, 2, 2))
        weight = size * b.random.normal(size=(CHANNELS, CHANNELS, 1, 1))
        bias = np.full(CHANNELS, 0 if signed else size / 2)
        x = b.node("Conv", image, *(b.constant(each.astype(np.float32)) for each in (weight, bias)))
        x = b.clip(x, -size if signed else 0, size)
        halves = (b.random.integers(0, 255, shape) + 0.5) / 255
        constant = b.constant((top * (halves if branch % 2 else np.full(shape, 0.5))).astype("f4"))
        operands = (x, constant) if branch % 3 else (constant, x)
        y = b.clip(b.node("Add", *operands, name=f"sum{branch}"), 0, top)
        b.output(b.conv(b.node("Mul", x, y), CHANNELS, 2, kernel=1))
    return b.build()


def images(count: int, seed: int) -> Arrays:
    shape = (count, CHANNELS, HEIGHT, WIDTH)
    return {"image": np.random.default_rng(seed).normal(size=shape).astype(np.float32)}


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("kind", SHAPES)
def test_added_constants_have_the_bits_of_openvino(kind: str, *, signed: bool) -> None:
    check(kind, signed=signed, own_files=True)


@pytest.mark.parametrize("kind", ["number", "channels"])
def test_the_onnx_model_has_the_same_bits(kind: str) -> None:
    check(kind, signed=True, own_files=False)


def check(kind: str, *, signed: bool, own_files: bool) -> None:
    """Compare the sums, in OpenVINO's own files or the ONNX model."""
    model = network(SHAPES[kind], signed=signed, seed=len(kind))
    plan = calibrate(planned(model, "openvino-avx2"), images(8, 0))
    written = write_openvino(plan)
    if own_files:
        written.ir_files = intermediate_files(written.model)
    found = verify_openvino(plan, written, [images(16, 1)])
    sums = [each for each in found.layers if each.end.startswith("Clip")]
    values, differ = (sum(getattr(e, key) for e in sums) for key in ("values", "mismatches"))
    assert values > 30_000
    if InstructionSet.AVX512_VNNI in instruction_sets():  # only the kernels of AVX2 were measured
        assert differ < 0.01 * values
    else:
        assert differ == 0
