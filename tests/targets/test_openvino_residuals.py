"""Convolutions that add a residual, against OpenVINO: in place, or by an operation of its own.

Ties are rare: each network has many layers of few channels, and images enough for some.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from intact.engines.cpu import instruction_sets
from intact.formats.openvino.verify import verify_openvino
from intact.formats.openvino.write import write_openvino
from intact.program.lower import lower
from intact.program.operations import Convolution
from intact.targets import InstructionSet
from tests.models import ModelBuilder
from tests.plans import Arrays, calibrate, planned

pytestmark = pytest.mark.runtime_fact("openvino")

WIDTH = 16
WINDOWS = ((3, 1), (1, 1), (3, 4), (1, 4), (3, 16), (1, 16))
"""Kernel and groups."""


def _start(b: ModelBuilder) -> str:
    return b.node("Relu", b.conv(b.input("image", ["batch", 3, 12, 12]), 3, WIDTH))


def _conv(b: ModelBuilder, x: str, kernel: int, group: int = 1) -> str:
    weight = b.weight(WIDTH, WIDTH // group, kernel, kernel)
    return b.node("Conv", x, weight, b.weight(WIDTH), group=group, pads=[kernel // 2] * 4)


def _end(b: ModelBuilder, x: str) -> onnx.ModelProto:
    b.output(b.node("Conv", x, b.weight(8, WIDTH, 1, 1)), ["batch", 8, 12, 12])
    return b.build()


def in_place(seed: int) -> onnx.ModelProto:
    """Nothing needs a residual after the sum."""
    b = ModelBuilder()
    b.random = np.random.default_rng(seed)
    x = _start(b)
    for kernel, group in WINDOWS:
        inner = b.node("Relu", _conv(b, x, 3))
        x = b.node("Relu", b.node("Add", _conv(b, inner, kernel, group), x))
    return _end(b, x)


def kept(seed: int) -> onnx.ModelProto:
    """Each is the data of the convolution; signed ones, then unsigned ones."""
    b = ModelBuilder()
    b.random = np.random.default_rng(seed)
    x = _conv(b, _start(b), 1)
    for kernel, group in WINDOWS:
        x = b.node("Add", _conv(b, x, kernel, group), x)
    for kernel, group in WINDOWS:
        x = b.node("Relu", b.node("Add", _conv(b, x, kernel, group), x))
    return _end(b, x)


def signed_in_place(seed: int) -> onnx.ModelProto:
    """A residual that nothing but the sum reads is signed on every processor."""
    b = ModelBuilder()
    b.random = np.random.default_rng(seed)
    x = _start(b)
    for kernel, group in WINDOWS:
        x = b.node("Add", _conv(b, x, kernel, group), _conv(b, x, 3))
    return _end(b, x)


NETWORKS: dict[Callable[[int], onnx.ModelProto], tuple[set[bool], tuple[int, ...]]] = {
    # and whether residuals are kept, and seeds
    in_place: ({False}, (4, 9)),
    kept: ({True}, (2, 7)),
    signed_in_place: ({False}, (0, 1)),
}
LIMITS = {
    "": InstructionSet.AVX2,
    "AVX512_CORE_VNNI": InstructionSet.AVX512_VNNI,
    "AVX2": InstructionSet.AVX2,
}


def images(count: int, seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    return {"image": 3 * random.normal(size=(count, 3, 12, 12)).astype(np.float32)}


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("network", NETWORKS)
def test_residual_sums_have_the_bits_of_openvino(
    network: Callable[[int], onnx.ModelProto], limit: str
) -> None:
    if LIMITS[limit] not in instruction_sets():
        pytest.skip(f"this processor has no {LIMITS[limit]}")
    ways, seeds = NETWORKS[network]
    for seed in seeds if limit != "AVX2" else seeds[:1]:
        plan = calibrate(planned(network(seed), "openvino"), images(16, seed))
        added = [
            step.operation.keeps_residual
            for step in lower(plan).steps
            if isinstance(step.operation, Convolution) and len(step.inputs) > 3
        ]
        assert set(added) == ways
        assert len(added) >= len(WINDOWS)
        batches = [images(48, seed + 100)]
        found = verify_openvino(plan, write_openvino(plan), batches, instructions=limit)
        assert {each.end: each.mismatches for each in found.layers if each.mismatches} == {}
        assert [each.mismatches for each in found.outputs] == [0]
