"""Which instructions oneDNN uses, and what their kernels compute."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.engines.cpu import SATURATING, instruction_sets
from intact.formats.openvino import process
from intact.formats.openvino.process import instructions_in_use
from intact.formats.openvino.run import ExecutedNode
from intact.formats.openvino.verify import verify_openvino
from intact.formats.openvino.write import write_openvino
from intact.program.arithmetic.ends import EndsGrid, ends_codes
from intact.targets import Arithmetic, InstructionSet, load_target
from tests.models import ModelBuilder
from tests.plans import calibrate, planned
from tests.program.one_step import int8, uint8

AMX, VNNI, AVX512 = InstructionSet.AMX, InstructionSet.AVX512_VNNI, InstructionSet.AVX512
AVX_VNNI, AVX2 = InstructionSet.AVX_VNNI, InstructionSet.AVX2


@pytest.mark.parametrize(
    ("sets", "limit", "expected"),
    [
        ((AMX, VNNI, AVX_VNNI, AVX512, AVX2), "", AMX),
        ((AMX, VNNI, AVX_VNNI, AVX512, AVX2), "DEFAULT", AMX),
        ((AMX, VNNI, AVX_VNNI, AVX512, AVX2), "AVX512_CORE_AMX", AMX),
        ((AMX, VNNI, AVX_VNNI, AVX512, AVX2), "AVX512_CORE_FP16", VNNI),
        ((AMX, VNNI, AVX_VNNI, AVX512, AVX2), "avx512_core_vnni", VNNI),
        ((AMX, VNNI, AVX_VNNI, AVX512, AVX2), "AVX512_CORE", AVX512),
        ((AMX, VNNI, AVX_VNNI, AVX512, AVX2), "AVX2_VNNI", AVX_VNNI),
        ((AMX, VNNI, AVX_VNNI, AVX512, AVX2), "AVX2", AVX2),
        ((AMX, VNNI, AVX_VNNI, AVX512, AVX2), "SSE41", None),
        ((AVX2,), "AVX512_CORE_AMX", AVX2),
        ((VNNI, AVX512, AVX2), "", VNNI),
        ((), "AVX2", None),
    ],
)
def test_the_best_instructions_that_the_limit_leaves_are_used(
    monkeypatch: pytest.MonkeyPatch,
    sets: tuple[InstructionSet, ...],
    limit: str,
    expected: InstructionSet | None,
) -> None:
    monkeypatch.setattr(process, "instruction_sets", lambda: sets)
    assert instructions_in_use(limit) is expected


def test_each_set_has_the_arithmetic_of_its_kernels() -> None:
    target = load_target("openvino")
    conv = {each: target.on(each).arithmetic_for("Conv") for each in (None, AMX, VNNI, AVX2)}
    assert conv[None] == conv[AMX] == target.arithmetic_for("Conv")
    assert [conv[each].unsigned_inputs for each in (AMX, VNNI, AVX2)] == [False, True, True]
    assert not target.on(VNNI).arithmetic_for("ConvTranspose").unsigned_inputs
    assert conv[AVX2] == load_target("openvino-avx2").arithmetic_for("Conv")
    blocks = [
        pairs.block
        for each in (AVX512, AVX2)
        if (pairs := target.on(each).arithmetic_for("Conv").pairs)
    ]
    assert blocks == [1, 4]
    for op_type in ("Add", "Mul", "AveragePool", "Gemm"):
        assert target.on(VNNI).arithmetic_for(op_type) == target.arithmetic_for(op_type)
    assert not target.saturates_pairs
    assert target.on(AVX2).saturates_pairs


def test_codes_that_a_kernel_of_floats_reads_are_not_computed_with() -> None:
    kernels = ("brgconv_avx512_I8", "jit_gemm_I8", "brgconv_avx2_f32")
    nodes = [ExecutedNode(frozenset(), "Deconvolution", "i8", kernel) for kernel in kernels]
    assert [node.in_integers for node in nodes] == [True, True, False]


def rounded_sum(real: np.float32, factor: np.float32, offset: np.float32) -> int:
    """``rint(fma(real, factor, offset))`` in exact numbers, rounded to float32 once."""
    exact = Fraction(float(real)) * Fraction(float(factor)) + Fraction(float(offset))
    nearest = np.float32(float(exact))  # a neighbour at most one rounding away
    around = [np.nextafter(nearest, np.float32(side)) for side in (-np.inf, np.inf)]
    errors = [
        (abs(Fraction(float(each)) - exact), int(each.view(np.int32)) & 1, each)
        for each in (nearest, *around)
    ]
    return round(Fraction(float(min(errors)[2])))  # halves go to even


@given(
    st.floats(2**-10, 2**10, width=32),
    st.lists(st.integers(-140_000, 140_000), min_size=1, max_size=40),
    st.integers(-2, 2),
)
@settings(max_examples=200, deadline=None)
def test_the_offset_of_signed_codes_is_added_as_the_kernels_do(
    scale: float, thousandths: list[int], ulps: int
) -> None:
    arithmetic = load_target("openvino").arithmetic_for("Conv")
    reals = np.array(thousandths, np.float32) * np.float32(scale / 1000)
    ties = (np.array(thousandths, np.float32) // 1000 + np.float32(0.5)) * np.float32(scale)
    for _ in range(abs(ulps)):
        ties = np.nextafter(ties, np.float32(np.inf if ulps > 0 else -np.inf))
    numbers = np.concatenate([reals, ties])
    for encoding, lowest in ((int8(scale), -128), (uint8(scale, 128), 0)):
        grid = EndsGrid.from_encoding(arithmetic, encoding)
        assert grid.first == 0
        found = ends_codes(numbers, arithmetic, encoding, (lowest, lowest + 255))
        want = [rounded_sum(n, grid.factor[0], grid.offset[0]) for n in numbers]
        assert found.tolist() == np.clip(want, lowest, lowest + 255).tolist()


def test_both_offsets_are_one_code_apart_next_to_some_ties() -> None:
    arithmetic: Arithmetic = load_target("openvino").arithmetic_for("Conv")
    random = np.random.default_rng(0)
    different = 0
    for scale in random.uniform(0.01, 0.1, 40).astype(np.float32):
        codes = np.arange(-127, 127, dtype=np.float32)
        ties = ((codes + np.float32(0.5)) * scale).astype(np.float32)
        first = ends_codes(ties, arithmetic, int8(float(scale)), (-128, 127)).astype(int)
        second = ends_codes(ties, arithmetic, uint8(float(scale), 128), (0, 255)).astype(int) - 128
        assert np.abs(first - second).max() <= 1
        different += int((first != second).sum())
    assert 0 < different < 40 * 254


LIMITS = {
    "": AVX2,
    "AVX512_CORE_VNNI": VNNI,
    "AVX512_CORE": AVX512,
    "AVX2_VNNI": AVX_VNNI,
    "AVX2": AVX2,
}
"""Values of the variable, and what a processor must have for them."""


def every_kind_of_kernel() -> onnx.ModelProto:
    """Convolutions of three kinds, residuals in place and kept, a pooling, a dense layer."""
    b = ModelBuilder()
    x = b.node("Relu", b.conv(b.input("image", ["batch", 3, 12, 12]), 3, 16))
    x = b.node("Add", b.conv(x, 16, 16), b.conv(x, 16, 16, kernel=1))
    x = b.node("Add", b.conv(x, 16, 16, kernel=1), x)
    x = b.node("Relu", b.node("Add", b.conv(b.node("Relu", b.conv(x, 16, 16)), 16, 16), x))
    x = b.node("PRelu", b.conv(x, 16, 16, group=16), b.weight(16, 1, 1))
    x = b.node("Flatten", b.node("GlobalAveragePool", b.conv(x, 16, 16)))
    b.node("Gemm", x, b.weight(16, 4), b.weight(4), out="y")
    b.output("y")
    return b.build()


@pytest.mark.sampled(3)
@pytest.mark.runtime_fact("openvino")
@pytest.mark.parametrize("limit", LIMITS)
def test_each_set_of_instructions_has_the_bits_of_the_engine(limit: str) -> None:
    if LIMITS[limit] not in instruction_sets():
        pytest.skip(f"this processor has no {LIMITS[limit]}")
    saturates = instructions_in_use(limit) in SATURATING
    model = every_kind_of_kernel()
    images = {"image": 3 * np.random.default_rng(0).normal(size=(24, 3, 12, 12))}
    feeds = {name: array.astype(np.float32) for name, array in images.items()}
    plan = calibrate(planned(model, "openvino-avx2" if saturates else "openvino"), feeds)
    found = verify_openvino(plan, write_openvino(plan), [feeds], instructions=limit)
    assert len(found.layers) > 4
    assert {each.end: each.mismatches for each in found.layers if each.mismatches} == {}
