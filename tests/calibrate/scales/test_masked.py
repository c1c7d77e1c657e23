"""Constants of attention masks leave the codes to the scores, and still mask."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from intact.calibrate.scales import masked
from intact.calibrate.scales.masked import (
    ALONE,
    NEGLIGIBLE,
    MaskConstants,
    attention_values,
    softmax_factors,
    trim,
)
from intact.calibrate.statistics import TensorStatistics
from intact.engines.session import FloatModel
from intact.engines.simulate import Simulator
from intact.errors import CalibrationError
from intact.graph import normalize
from intact.numerics.distribution import Distribution
from intact.numerics.histogram import accumulate, new_workspace
from intact.numerics.levels import Levels, Scheme
from intact.numerics.metrics import sqnr_db
from intact.numerics.thresholds import METHODS
from intact.plan import NoteKind, QuantizedGraph
from intact.targets import Target, load_target
from tests.models import ModelBuilder
from tests.plans import HEADER, Arrays, calibrate, own_target, planned

LENGTH, WIDTH, HEADS = 12, 16, 2

# Everything that an attention mask is made of, in integers.
SIGNED = Levels(-127, 127, Scheme.SYMMETRIC)

ALL_INTEGER = """
[[op]]
ops = ["MatMul", "Add", "Sub", "Mul", "Where", "Neg"]
[[op]]
ops = ["Transpose", "Reshape", "Unsqueeze", "Expand"]
scales = "output_follows_input"
"""


def attention_block(mask: str, constant: float = -1e9) -> onnx.ModelProto:
    """Attention over padded sequences; a word names how the mask is made."""
    b = ModelBuilder(seed=3)
    x = b.input("tokens", ["batch", LENGTH, WIDTH])
    parts = []
    for _ in range(3):
        weight = b.random.normal(size=(WIDTH, WIDTH)) / 3  # larger than usual: distinct scores
        part = b.node("MatMul", x, b.constant(weight.astype(np.float32)))
        part = b.node("Reshape", part, b.ints(0, LENGTH, HEADS, WIDTH // HEADS))
        parts.append(b.node("Transpose", part, perm=[0, 2, 1, 3]))
    query, key, value = parts
    key = b.node("Transpose", key, perm=[0, 1, 3, 2])
    scores = b.node("MatMul", query, key, out="raw")
    scores = b.node("Mul", scores, b.scalar((WIDTH // HEADS) ** -0.5))
    scores = _masked(b, scores, mask, constant)
    y = b.node("MatMul", b.node("Softmax", scores, axis=-1, out="probabilities"), value)
    y = b.node("Reshape", b.node("Transpose", y, perm=[0, 2, 1, 3]), b.ints(0, LENGTH, WIDTH))
    b.node("MatMul", y, b.weight(WIDTH, WIDTH), out="y")
    b.output("y", ["batch", LENGTH, WIDTH])
    return b.build()


def _masked(b: ModelBuilder, scores: str, mask: str, constant: float) -> str:
    if mask == "none":
        return scores
    if mask == "input":
        added = b.input("added", ["batch", 1, 1, LENGTH])
        return b.node("Add", scores, added, out="sum")
    real = b.node("Unsqueeze", b.input("mask", ["batch", LENGTH]), b.ints(1, 2))
    if mask == "where":
        chosen = b.node("Cast", real, to=TensorProto.BOOL)
        return b.node("Where", chosen, scores, b.scalar(constant), out="sum")
    padded = b.node("Sub", b.scalar(1.0), real)
    if mask == "subtracted":
        return b.node("Sub", scores, b.node("Mul", padded, b.scalar(-constant)), out="sum")
    return b.node("Add", scores, b.node("Mul", padded, b.scalar(constant)), out="sum")


def samples(mask: str, constant: float = -1e9, *, count: int = 24) -> Arrays:
    random = np.random.default_rng(5)
    tokens = random.normal(size=(count, LENGTH, WIDTH)).astype(np.float32)
    real = np.arange(LENGTH) < random.integers(3, LENGTH + 1, (count, 1))
    if mask == "none":
        return {"tokens": tokens}
    if mask == "input":
        added = np.where(real, 0, np.float32(constant)).astype(np.float32)
        return {"tokens": tokens, "added": added[:, None, None]}
    return {"tokens": tokens, "mask": real.astype(np.float32)}


def quality(plan: QuantizedGraph, feeds: Arrays) -> float:
    expected = FloatModel(plan.graph, threads=1).run(feeds)["y"]
    return sqnr_db(expected, Simulator(plan, threads=1).run(feeds)[0]["y"])


@pytest.fixture(params=["onnxruntime", "all integer", "integer-pow2"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    if request.param == "all integer":
        return own_target(tmp_path, ALL_INTEGER, header=HEADER)
    return load_target(request.param)


CASES = [
    ("product", -1e9),
    ("product", -10000.0),
    ("product", -65504.0),
    ("product", float(np.finfo(np.float32).min)),
    ("where", -1e9),
    ("where", -np.inf),
    ("input", -1e9),
    ("input", -10000.0),
    ("subtracted", -1e9),
]


@pytest.mark.crossed
@pytest.mark.parametrize(("mask", "constant"), CASES)
def test_masked_attention_is_as_good_as_any(target: Target, mask: str, constant: float) -> None:
    model, feeds = attention_block(mask, constant), samples(mask, constant)
    plan = calibrate(planned(model, target), feeds)
    plain = calibrate(planned(attention_block("none"), target), samples("none"))
    assert quality(plan, feeds) > quality(plain, samples("none")) - 2


@pytest.mark.crossed
@pytest.mark.parametrize("method", [name for name in METHODS if not name.startswith("kl")])
def test_every_method_leaves_mask_constants_out(target: Target, method: str) -> None:
    feeds = samples("product")
    plan = calibrate(planned(attention_block("product"), target), feeds, method)
    plain = calibrate(planned(attention_block("none"), target), samples("none"), method)
    assert quality(plan, feeds) > quality(plain, samples("none")) - 2


@pytest.mark.parametrize(("mask", "constant"), CASES)
def test_they_would_destroy_it_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: str, constant: float
) -> None:
    model, feeds = attention_block(mask, constant), samples(mask, constant)
    structure = planned(model, own_target(tmp_path, ALL_INTEGER, header=HEADER))
    good = quality(calibrate(structure, feeds), feeds)
    monkeypatch.setattr(masked, "mask_factors", lambda _: {})
    if constant == -np.inf:
        with pytest.raises(CalibrationError, match=r"tensor '.+': no finite value"):
            calibrate(structure, feeds)
    else:
        assert quality(calibrate(structure, feeds), feeds) < good - 15


def test_a_note_names_the_tensors(tmp_path: Path) -> None:
    structure = planned(attention_block("product"), own_target(tmp_path, ALL_INTEGER))
    notes = [
        note.message
        for note in calibrate(structure, samples("product")).notes
        if note.kind is NoteKind.CALIBRATION
    ]
    assert any("hold mask constants" in each and "-1e+09" in each for each in notes)
    plain = calibrate(
        planned(attention_block("none"), own_target(tmp_path, ALL_INTEGER)), samples("none")
    )
    assert not any("mask constants" in str(note) for note in plain.notes)


def test_what_leads_to_a_softmax_is_known_with_its_factor() -> None:
    b = ModelBuilder()
    scores, rest = b.input("scores", ["n", 4, 4]), b.input("rest", ["n", 4, 4])
    positive = b.node("Neg", b.node("Mul", rest, b.scalar(2.0), out="twice"), out="negative")
    total = b.node("Sub", scores, b.node("Transpose", positive, perm=[0, 2, 1], out="turned"))
    scaled = b.node("Div", total, b.scalar(8.0), out="scaled")
    b.node("Softmax", scaled, axis=-1, out="y")
    b.node("Exp", rest, out="other")
    b.output("y")
    b.output("other")
    factors = softmax_factors(normalize(b.build()))
    assert factors.pop(b.nodes[0].input[1]) == 1 / 8  # the constant 2, as if it held a mask
    assert factors.pop("constant_3") == 1  # a divisor, which became a factor
    assert factors == {
        "scaled": 1,
        total: 1 / 8,
        "scores": 1 / 8,
        "turned": -1 / 8,
        "negative": -1 / 8,
        "twice": 1 / 8,
        "rest": 2 / 8,
    }


def masked_by(node: str, number: float) -> onnx.ModelProto:
    """A convolution, partly masked or joined with a constant, and what makes nothing of that."""
    b = ModelBuilder()
    x = b.node("Conv", b.input("x", [1, 3, 8, 8]), b.weight(4, 3, 1, 1))
    kept = b.constant(np.random.default_rng(0).random((1, 1, 8, 8)) > 0.3)
    if node in ("Max", "Min"):
        read = b.node(node, x, b.constant(np.float32(number)))
    elif node == "Concat":
        joined = b.node("Concat", x, b.constant(np.full((1, 4, 2, 8), number, "f4")), axis=2)
        read = b.node("MaxPool", joined, kernel_shape=[3, 3])
    elif node == "Pad":
        padded = b.node("Pad", x, b.ints(0, 0, 1, 1, 0, 0, 1, 1), b.constant(np.float32(number)))
        read = b.node("MaxPool", padded, kernel_shape=[3, 3])
    else:
        masked = b.node("Where", kept, x, b.constant(np.float32(number)))
        if node.startswith("Reduce"):
            read = b.node(node, masked, keepdims=1, axes=[3])
        else:
            read = b.node(node, masked)
    b.node("Conv", read, b.weight(4, 4, 1, 1), out="y")
    b.output("y")
    return b.build()


@pytest.mark.parametrize("number", [1e4, np.inf])
@pytest.mark.parametrize(
    "node", ["Relu", "ReduceMax", "ReduceMin", "Max", "Min", "Concat", "Pad", "Sigmoid", "Exp"]
)
@pytest.mark.parametrize("target", ["onnxruntime", "integer-pow2"])
def test_no_mask_widens_a_range_whose_reader_makes_nothing_of_it(
    target: str, node: str, number: float
) -> None:
    far = number if node in ("ReduceMin", "Min") else -number
    feeds = {"x": np.random.default_rng(5).normal(size=(8, 3, 8, 8)).astype(np.float32)}
    plan = calibrate(planned(masked_by(node, far), target), feeds)
    scales = [float(np.max(each.scale)) for each in plan.configs.values() if each.scale is not None]
    assert max(scales) < 20


def test_scores_differ_from_other_softmaxes() -> None:
    found = attention_values(normalize(attention_block("product")))
    assert {"sum", "probabilities", "mask"} <= found
    assert not found & {"tokens", "y"}
    b = ModelBuilder()
    classes = b.node("MatMul", b.input("x", ["n", 4, 4]), b.weight(4, 4), out="classes")
    b.node("Softmax", classes, axis=-1, out="y")
    b.output("y")
    assert not attention_values(normalize(b.build()))


def distribution(*values: float) -> Distribution:
    return Distribution.from_values(np.array(values, np.float32))


finite = st.floats(-2000, 2000, width=32)


@given(
    # The smallest denormals share a bin with 0.
    st.lists(finite, min_size=1).filter(lambda rest: max(map(abs, rest)) > 1e-37),
    st.lists(st.sampled_from([-4097.0, -10000.0, -65504.0, -1e9, -3.4e38]), min_size=1),
    st.sampled_from([1.0, 0.125, -1.0, -8.0]),
)
def test_the_rest_is_kept_and_a_masked_position_stays_below(
    rest: list[float], constants: list[float], factor: float
) -> None:
    side = np.sign(factor)
    trimmed = trim(distribution(*rest, *(side * each for each in constants)), factor)
    assert trimmed is not None
    assert not trimmed.is_alone
    kept = trimmed.distribution
    assert kept.total == len(rest)
    assert kept.minimum == pytest.approx(min(rest), rel=2**-7, abs=1e-38)
    assert kept.maximum == pytest.approx(max(rest), rel=2**-7, abs=1e-38)
    low, high = trimmed.widened(kept.minimum, kept.maximum, SIGNED)
    end = low if factor > 0 else high
    middle = np.sort(rest)[[(len(rest) - 1) // 2, len(rest) // 2]]
    below = (middle - end) * factor
    assert below.max() >= NEGLIGIBLE - 2**-6 * abs(middle * factor).max() - 1e-9


@pytest.mark.parametrize("values", [(-3.0, 4.0), (-9000.0, -4000.0, 5.0), (-1.0, 1e9)])
def test_what_is_no_mask_constant_is_kept(values: tuple[float, ...]) -> None:
    assert trim(distribution(*values), 1.0) is None


def test_what_stands_alone_gets_room_where_it_costs_nothing() -> None:
    constants = MaskConstants({"mask": 1.0, "positive": -0.5})
    found = constants.of_values("mask", np.array([0, -1e9], np.float32), 7)
    assert found.is_alone
    assert found.widened(0.0, 0.0, SIGNED) == (0.0, 0.0)
    assert constants.shared(7, 0.0, 0.0, SIGNED) == (-ALONE, 0.0)
    assert constants.shared(7, -3.0, 20.0, SIGNED) == (-20.0 - NEGLIGIBLE, 20.0)
    assert constants.shared(8, -3.0, 20.0, SIGNED) == (-3.0, 20.0)
    assert constants.of_values("positive", np.array([np.inf], np.float32), 9).is_alone
    assert constants.shared(9, 0.0, 0.0, SIGNED) == (0.0, 2 * ALONE)
    assert constants.shared(9, -3.0, 20.0, SIGNED) == (-3.0, 3.0 + 2 * NEGLIGIBLE)


def test_infinity_that_was_observed_counts_as_a_mask_constant() -> None:
    values = np.array([[0.5, 1.5, -np.inf, 2.5]], np.float32)
    statistics = TensorStatistics()
    statistics.add(accumulate(values, statistics.counts, new_workspace()))
    constants = MaskConstants({"scores": 1.0, "other": -1.0})
    found = constants.of_statistics("scores", statistics, 1)
    assert found.low == pytest.approx(1.5 - NEGLIGIBLE, rel=2**-6)
    assert constants.found == {"scores": -np.inf}
    assert constants.of_statistics("other", statistics, 1).low == 0.0
    assert constants.of_statistics("unknown", statistics, 1).low == 0.0
