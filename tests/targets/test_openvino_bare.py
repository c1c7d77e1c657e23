"""Convolutions and dense layers without a bias, against OpenVINO.

It multiplies their sums once, but those of dense layers with a scale for each channel where the
channels are not the second axis.

Ties are rare: each branch has some hundred thousand values, a few of which lie next to one.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from intact.engines.cpu import instruction_sets
from intact.formats.base.report import Verification
from intact.formats.openvino.verify import verify_openvino
from intact.formats.openvino.write import write_openvino
from intact.targets import InstructionSet
from tests.models import ModelBuilder
from tests.plans import Arrays, calibrate, planned

pytestmark = pytest.mark.runtime_fact("openvino")

WIDTH, SIZE = 16, 16


def weights(b: ModelBuilder, group: int, *, alike: bool = False) -> str:
    """Those of a 3x3 convolution: its channels differ in size or, if ``alike``, have one scale."""
    array = b.random.normal(size=(WIDTH, WIDTH // group, 3, 3))
    if alike:
        array = np.clip(array / 4, -1, 1)
        array[:, 0, 0, 0] = 1
    else:
        array *= np.exp(b.random.uniform(-1, 1, size=(WIDTH, 1, 1, 1)))
    return b.constant(array.astype(np.float32))


def network() -> onnx.ModelProto:
    """Branches: signed and unsigned sums, by channels and by one factor, and with residuals."""
    b = ModelBuilder()
    b.random = np.random.default_rng(5)
    x = b.node("Relu", b.input("image", ["batch", WIDTH, SIZE, SIZE]))
    signed = b.node("Conv", x, b.weight(WIDTH, WIDTH, 1, 1), b.weight(WIDTH))

    def conv(group: int = 1, *, alike: bool = False) -> str:
        return b.node("Conv", x, weights(b, group, alike=alike), group=group, pads=[1] * 4)

    zeros = b.constant(np.zeros(WIDTH, np.float32))
    with_zeros = b.node("Conv", x, weights(b, WIDTH), zeros, group=WIDTH, pads=[1] * 4)
    alike = b.node("Relu", conv(WIDTH, alike=True))
    ends = [conv(WIDTH), conv(4), b.node("Relu", conv()), alike, with_zeros]
    ends += [b.node("Add", conv(), each) for each in (x, signed)]
    for end in ends:
        b.output(b.node("Conv", end, b.weight(4, WIDTH, 1, 1), b.weight(4)))
    return b.build()


def images(count: int, seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    return {"image": random.normal(size=(count, WIDTH, SIZE, SIZE)).astype(np.float32)}


def dense(b: ModelBuilder, x: str, *, alike: bool = False, op_type: str = "MatMul") -> str:
    """A dense layer whose channels differ in size or, if ``alike``, have one scale."""
    array = b.random.normal(size=(WIDTH, WIDTH))
    array *= 1 if alike else np.exp(b.random.uniform(-1, 1, size=WIDTH))
    if alike:
        array = np.clip(array / 4, -1, 1)
        array[0] = 1
    return b.node(op_type, x, b.constant(array.astype(np.float32)))


def rows(rank: int) -> onnx.ModelProto:
    """Dense layers of rows ``[batch, 16]``, or of several a sample."""
    b = ModelBuilder()
    b.random = np.random.default_rng(6)
    x = b.input("image", ["batch", WIDTH, WIDTH] if rank == 3 else ["batch", WIDTH])
    ends = [dense(b, x), b.node("Relu", dense(b, x)), dense(b, x, alike=True)]
    if rank == 2:
        ends.append(dense(b, x, op_type="Gemm"))
    for end in ends:
        b.output(b.node("MatMul", end, b.weight(WIDTH, 4)))
    return b.build()


@pytest.mark.parametrize("rank", [2, 3])
def test_dense_layers_without_a_bias_have_the_bits_of_openvino(rank: int) -> None:
    def samples(count: int, seed: int) -> Arrays:
        shape = (count // WIDTH, WIDTH, WIDTH) if rank == 3 else (count, WIDTH)
        return {"image": np.random.default_rng(seed).normal(size=shape).astype(np.float32)}

    plan = calibrate(planned(rows(rank), "openvino-avx2"), samples(256, 5))
    check(verify_openvino(plan, write_openvino(plan), [samples(24_000, 2)]))


def test_sums_without_a_bias_have_the_bits_of_openvino() -> None:
    plan = calibrate(planned(network(), "openvino-avx2"), images(8, 0))
    check(verify_openvino(plan, write_openvino(plan), [images(48, 1)]))


def check(found: Verification) -> None:
    """No value differs; by one step at most where other kernels run than those measured."""
    values = sum(each.values for each in found.layers)
    assert values > 10**6
    differ = sum(each.mismatches for each in found.layers)
    if InstructionSet.AVX512_VNNI in instruction_sets():  # the kernels of AVX2 were measured
        assert differ < 1e-5 * values
        assert max(each.largest for each in found.layers) <= 1
    else:
        assert differ == 0
