"""The default method is the one that loses least; what loses much is said, with the remedy."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest

from intact import api
from intact.analyze.diagnose.deployed import products_in_float
from intact.analyze.diagnose.findings import CAUSES
from intact.calibrate.outputs import Errors, Powers
from intact.cli.entry import run
from intact.engines.exact_sums import saturates_pairs
from intact.results.result import Result
from intact.targets import Target
from tests.models import ModelBuilder
from tests.plans import HEADER, own_target


def peaks() -> onnx.ModelProto:
    """A net that looks for rare large values: whoever clips them loses the output."""
    b = ModelBuilder(seed=3)
    x = b.conv(b.input("image", ["N", 3, 16, 16]), 3, 8, kernel=3)
    x = b.conv(b.node("Exp", x), 8, 8, kernel=1)
    b.output(b.node("GlobalMaxPool", x, out="peak"), ["N", 8, 1, 1])
    return b.build()


def huge_range() -> onnx.ModelProto:
    """Sums of which most vanish beside a few, and a logarithm that makes them equal again."""
    b = ModelBuilder(seed=4)
    sizes = np.float32(10.0) ** -np.arange(12)[:, None, None, None]
    weight = np.random.default_rng(1).random((12, 3, 3, 3)) * sizes
    bands = b.constant(weight.astype(np.float32))
    x = b.node("Conv", b.input("image", ["N", 3, 16, 16]), bands, name="bands", pads=[1] * 4)
    x = b.node("Mul", x, x, name="squares")
    x = b.node("Log", b.node("Add", x, b.scalar(1e-20)))
    x = b.node("Conv", x, b.weight(4, 12, 3, 3), name="notes", pads=[1] * 4)
    b.output(x, ["N", 4, 16, 16])
    return b.build()


def images(count: int = 24) -> np.ndarray:
    return np.random.default_rng(5).standard_normal((count, 3, 16, 16)).astype(np.float32)


def test_the_default_is_min_max_where_clipping_loses_the_output() -> None:
    found = api.quantize(peaks(), {"image": images()}, target="onnxruntime", threads=1)
    assert found.plan.provenance.method == "minmax"
    assert found.loss is None


def test_a_given_method_is_taken_and_its_loss_is_said() -> None:
    found = api.quantize(
        peaks(), {"image": images()}, target="onnxruntime", method="average", threads=1
    )
    assert found.plan.provenance.method == "average"
    assert found.loss is not None
    assert found.loss.output == "peak"


def test_the_choice_does_not_depend_on_the_order_of_samples() -> None:
    data = images(40)
    plans = [
        api.quantize(peaks(), {"image": each}, target="onnxruntime", threads=threads).plan
        for each, threads in ((data, 1), (data[::-1].copy(), 2))
    ]
    assert plans[0].provenance == plans[1].provenance


def test_the_command_that_is_offered_regains_what_it_says(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    onnx.save(huge_range(), tmp_path / "model.onnx")
    np.savez(tmp_path / "calib.npz", image=images())
    out = tmp_path / "out"
    target = "onnxruntime-avx2" if saturates_pairs() else "onnxruntime"
    line = ["quantize", str(tmp_path / "model.onnx"), "-d", str(tmp_path / "calib.npz")]
    line += ["--target", target, "--quantize-heads"]
    paths = tmp_path / "model.onnx", tmp_path / "calib.npz"
    result = api.quantize(*paths, target=target, quantize_heads=True)
    loss = result.loss
    assert loss is not None
    first = result.findings[0]
    assert first.gain is not None
    assert loss.decibels < 15 < loss.decibels + first.gain
    kept = first.remedies[0].options["keep_float"]
    assert "bands" in kept
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["intact", *line, "-o", str(out)])
        assert run([*line, "-o", str(out)]) == 0
    printed = " ".join(capfd.readouterr().out.split())
    assert loss.gain(first) in printed
    assert first.cause in CAUSES
    assert f"warning {first.cause} at {first.node}: {first.evidence}" in printed
    assert (
        f"may regain some of it: {shlex.join(['intact', *line, '-o', str(out)])} --preset"
        in printed
    )
    command = shlex.split(printed.partition(f"{loss.gain(first)}: ")[2].partition(" warning ")[0])
    assert run(command[1:]) == 0
    mended = " ".join(capfd.readouterr().out.split())
    assert mended.startswith("cannot be told from these samples: the images of input 'image' look")
    assert "may regain" not in mended
    assert not any(Result.load(out).plan.decisions[name].quantized for name in kept)


def test_an_output_may_lose_by_chance_but_not_more() -> None:
    signal = np.full(16, 100.0)
    safe = Errors({"y": Powers(signal, np.full(16, 10.0))})
    regained = np.array([50.0, 1, 1, *[10] * 13])
    lost = np.array([50.0, *[10] * 15])
    assert not Errors({"y": Powers(signal, regained)}).loses(safe)
    assert Errors({"y": Powers(signal, lost)}).loses(safe)
    assert Errors({"y": Powers(signal, np.full(16, 12.0))}).loses(safe)
    assert not Errors({"y": Powers(signal, np.full(16, 10.5))}).loses(safe)


def test_few_samples_are_not_believed_where_one_of_them_decides() -> None:
    signal = np.full(8, 100.0)
    safe = Errors({"y": Powers(signal, np.full(8, 10.0))})
    one_decides = Errors({"y": Powers(signal, np.array([30.0, *[9] * 7]))})
    assert one_decides.is_unsure(safe)
    assert not Errors({"y": Powers(signal, np.full(8, 5.0))}).is_unsure(safe)
    assert not Errors({"y": Powers(signal, np.full(8, 20.0))}).is_unsure(safe)
    more = one_decides.joined(Errors({"y": Powers(np.full(56, 100.0), np.full(56, 9.0))}))
    assert not more.is_unsure(Errors({"y": Powers(np.full(64, 100.0), np.full(64, 10.0))}))


def test_an_output_of_another_shape_is_not_compared() -> None:
    signal = np.full(4, 100.0)
    same = Powers(signal, np.full(4, 1.0))
    other = Errors({"boxes": Powers(signal, np.array([1.0, np.nan, 1, 1])), "y": same})
    assert dict(other.decibels) == {"y": 20.0}
    assert not other.is_unsure(other)
    assert other.loses(Errors({"boxes": same, "y": same}))


@pytest.mark.parametrize("operator", ["Log", "Reciprocal"])
@pytest.mark.parametrize("target", ["tengine-u8", "integer-pow2"])
def test_an_output_that_becomes_infinite_is_said(target: str, operator: str) -> None:
    """What is small becomes 0 on the way to a function that is infinite there."""
    b = ModelBuilder(seed=3)
    x = b.conv(b.input("image", ["N", 3, 16, 16]), 3, 8, kernel=3)
    x = b.node("Abs", b.conv(b.node("Relu", x), 8, 4, kernel=3))
    x = b.node("Add", x, b.scalar(1e-3), name="sum")
    b.output(b.node(operator, x, out="y"), ["N", 4, 16, 16])
    data = {"image": images(16)}
    found = api.quantize(
        b.build(), data, target=target, method="minmax", quantize_heads=True, threads=1
    )
    loss = found.loss
    assert loss is not None
    assert "output 'y' is NaN or infinite on " in str(loss)
    assert 0 < loss.infinite <= loss.samples
    first = found.findings[0]
    assert bool(loss.gain(first)) == (operator == "Log")  # the other needs finer steps everywhere
    assert "(" not in loss.gain(first).partition("give")[2]


def test_an_output_that_becomes_infinite_loses_against_any_other() -> None:
    powers = Powers(np.full(4, 100.0), np.array([1.0, np.inf, 1, 1]))
    lost, poor = Errors({"y": powers}), Errors({"y": Powers(np.full(4, 100.0), np.full(4, 99.0))})
    assert dict(lost.decibels) == {"y": -100.0}
    assert lost.loses(poor)
    assert not poor.loses(lost)


def test_what_a_completed_model_loses_is_said(tmp_path: Path) -> None:
    """A plan that was read is made again from what was read, not from its graph."""
    data = {"image": images()}
    api.quantize(peaks(), data, method="average", output=tmp_path / "out", threads=1)
    read = api.read_quantized(tmp_path / "out" / "model.int8.onnx", data=data, threads=1)
    assert read.loss is not None
    assert read.loss.decibels < 15


def _narrow_target(folder: Path, op_type: str) -> Target:
    arithmetic = '[arithmetic]\naccumulator = { kind = "wrap", bits = 16 }'
    header = HEADER.replace("[arithmetic]", arithmetic)
    return own_target(folder, f'[[op]]\nops = ["{op_type}"]\n', header=header)


def test_sums_that_the_runtime_wraps_in_floats_are_the_cause(tmp_path: Path) -> None:
    """It has no integer kernel for what is written behind the products."""
    b = ModelBuilder()
    weights = np.random.default_rng(0).uniform(0.5, 1, (8, 3, 3, 3)).astype(np.float32)
    b.output(b.node("Conv", b.input("image", ["N", 3, 16, 16]), b.constant(weights), name="large"))
    data = {"image": np.random.default_rng(1).uniform(0, 1, (8, 3, 16, 16)).astype(np.float32)}
    result = api.quantize(b.build(), data, target=_narrow_target(tmp_path, "Conv"), threads=1)
    assert "large" in products_in_float(result)
    (first, *_) = api.diagnose(result, data).findings
    assert (first.cause, first.node) == ("accumulator_overflow", "large")


def test_sums_that_leave_the_accumulator_are_what_is_lost(tmp_path: Path) -> None:
    """The simulation wraps them, and no quantizer is at fault."""
    target = _narrow_target(tmp_path, "Gemm")
    b = ModelBuilder()
    weights = np.random.default_rng(0).uniform(0.5, 1, (8, 4)).astype(np.float32)
    large = b.node("Gemm", b.input("x", ["n", 8]), b.constant(weights), name="large")
    small = b.node("Gemm", large, b.constant(np.eye(4, dtype=np.float32)), name="small")
    b.output(small)
    data = {"x": np.random.default_rng(1).uniform(0, 1, (16, 8)).astype(np.float32)}
    found = api.quantize(b.build(), data, target=target, threads=1)
    loss = found.loss
    assert loss is not None
    first = found.findings[0]
    assert (first.cause, first.node, loss.node) == ("accumulator_overflow", "large", "large")
    assert first.remedies[0].options["keep_float"] == ["large"]
    assert first.gain is not None
    assert first.gain > 30
    assert api.diagnose(found, data).findings[0].cause == "accumulator_overflow"


@pytest.mark.parametrize("differs", [True, False])
@pytest.mark.parametrize("is_bare", [False, True], ids=["axes", "one number"])
def test_a_score_that_is_nearly_the_same_for_all_samples_is_lost_in_little_noise(
    *, differs: bool, is_bare: bool
) -> None:
    b = ModelBuilder(seed=6)
    x = b.input("image", [1 if is_bare else "N", 3, 16, 16])
    x = b.node("GlobalAveragePool", b.conv(x, 3, 8, kernel=3))
    weight = b.constant(np.full((1, 8, 1, 1), 2 if differs else 0.0002, np.float32))
    x = b.node("Conv", x, weight, b.constant(np.array([3], np.float32)))
    b.output(b.node("Squeeze", x) if is_bare else x, [] if is_bare else ["N", 1, 1, 1])
    brightness = np.linspace(-1, 1, 24, dtype=np.float32)[:, None, None, None]
    data = {"image": images() + 2 * brightness}
    loss = api.quantize(b.build(), data, target="onnxruntime", threads=1).loss
    assert (loss is None) is differs
    if loss is not None:
        assert loss.decibels > 20
        assert loss.is_drowned
        assert "more noise than samples differ by" in str(loss)
