"""Files for Tengine against its published quantization, recomputed from the model and the data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import intact
from intact.errors import CalibrationError
from intact.formats.tengine.format import MODEL_FILE
from intact.formats.tengine.tables import BIASES_FILE, WEIGHTS_FILE
from intact.formats.tengine.tmfile.codec import open_tmfile
from intact.formats.tengine.tmfile.file import FileTensor
from intact.numerics.threshold_kl import least_divergent
from intact.numerics.threshold_kl_counted import bins_to_keep
from intact.results.result import Result
from tests.formats.tengine import published
from tests.models import ModelBuilder
from tests.plans import files_of

Floats = npt.NDArray[np.float32]
LAYERS = {
    "conv1": ("image", "w1", "b1"),
    "conv2": ("pool1", "w2", "b2"),
    "dense": ("flat", "w3", "b3"),
}
"""By node: what it reads, its weight and its bias."""


def sixteenths(shape: tuple[int, ...], most: int, seed: int) -> Floats:
    """Numbers of which any sum of products is exact, in every order."""
    drawn = np.random.default_rng(seed).normal(size=shape) * most / 3
    return (np.clip(np.rint(drawn), -most, most) / 16).astype(np.float32)


def network() -> onnx.ModelProto:
    """Convolutions with Relu of their own and behind an Add, a pool, a classifier.

    The first convolution has a channel without weights, and one without bias too.
    """
    b = ModelBuilder()
    first = sixteenths((6, 3, 3, 3), 40, 1)
    first[2] = first[4] = 0
    bias = sixteenths((6,), 60, 2) - 4
    bias[4] = 0
    x = b.input("image", ["batch", 3, 8, 8])
    x = b.node(
        "Conv", x, b.constant(first, "w1"), b.constant(bias, "b1"),
        name="conv1", out="c1", pads=[1, 1, 1, 1],
    )  # fmt: skip
    x = b.node("Relu", x, name="relu1", out="r1")
    x = b.node("MaxPool", x, name="pool", out="pool1", kernel_shape=[2, 2], strides=[2, 2])
    y = b.node(
        "Conv", x, b.constant(sixteenths((6, 6, 3, 3), 20, 3), "w2"),
        b.constant(sixteenths((6,), 60, 4) - 6, "b2"), name="conv2", out="c2", pads=[1, 1, 1, 1],
    )  # fmt: skip
    x = b.node("Relu", b.node("Add", x, y, name="add", out="sum"), name="relu2", out="r2")
    x = b.node("Flatten", x, name="flatten", out="flat")
    x = b.node(
        "Gemm", x, b.constant(sixteenths((5, 96), 20, 5), "w3"),
        b.constant(sixteenths((5,), 60, 6), "b3"), name="dense", out="logits", transB=1,
    )  # fmt: skip
    b.node("Softmax", x, name="softmax", out="shares", axis=-1)
    b.output("shares", ["batch", 5])
    return b.build()


MODEL = network()
DATA = {"image": sixteenths((12, 3, 8, 8), 48, 7)}
FOUND = published.activations(MODEL, DATA)
SCALES = {name: published.minmax(values) for name, values in FOUND.items()}


def quantized(target: str = "tengine", **options: object) -> Result:
    return intact.quantize(MODEL, DATA, target=target, **options)  # type: ignore[arg-type]


def effective() -> dict[str, np.float32]:
    fixed = published.softmaxes(MODEL)
    read = {n: published.decimals(1 / 127 if n in fixed else s) for n, s in SCALES.items()}
    return published.passed(MODEL, read)


def tensors(result: Result) -> dict[str, FileTensor]:
    file = open_tmfile(files_of(result, "tengine")[MODEL_FILE])
    return {tensor.name: tensor for tensor in file.tensors}


def scale_of(tensor: FileTensor) -> Floats:
    assert tensor.quantization is not None
    return tensor.quantization.scale


def test_the_table_is_that_before_operators_in_place() -> None:
    written = files_of(quantized(), "tengine")["table_minmax.scale"].decode()
    assert written == published.table(MODEL, SCALES)
    assert SCALES["c1"] != SCALES["r1"]  # otherwise this shows nothing
    assert SCALES["sum"] != SCALES["r2"]


def test_the_file_has_the_scales_after_operators_in_place() -> None:
    result, wanted = quantized(formats=["tengine", "tengine_effective"]), effective()
    assert wanted["c1"] == wanted["r1"] != published.decimals(SCALES["c1"])
    assert wanted["pool1"] == published.decimals(SCALES["pool1"])  # two read it
    found = {n: t for n, t in tensors(result).items() if n in wanted}
    assert len(found) == len(wanted) - 1  # what is between the first Conv and its Relu is not there
    for name, tensor in found.items():
        assert scale_of(tensor).tolist() == [wanted[name]], name
    table = files_of(result, "tengine_effective")["table_effective.scale"].decode()
    assert table == "".join(f"{name} {scale:f} 0\n" for name, scale in wanted.items())


@pytest.mark.parametrize("target", ["tengine", "tengine-tool"])
def test_weights_and_biases(target: str) -> None:
    result, values, read = quantized(target), published.constants(MODEL), effective()
    found, kept = tensors(result), target == "tengine"
    for data, weight, bias in LAYERS.values():
        scales, codes = published.quantized_weight(values[weight])
        dead = [scale == 0 for scale in scales]
        assert any(dead) is (weight == "w1")
        own = scale_of(found[weight])  # of a channel of zeros it is free: the tool writes 0
        used = [own[k] if scale == 0 and kept else scale for k, scale in enumerate(scales)]
        bias_scales, bias_codes = published.quantized_bias(values[bias], used, read[data])
        assert found[weight].data.tolist() == codes.tolist()  # type: ignore[union-attr]
        assert scale_of(found[weight]).tolist() == used
        assert found[bias].data.tolist() == bias_codes  # type: ignore[union-attr]
        assert scale_of(found[bias]).tolist() == bias_scales
        for file, name, each in ((WEIGHTS_FILE, weight, used), (BIASES_FILE, bias, bias_scales)):
            assert published.line(name, each).encode() in files_of(result, "tengine")[file]


@pytest.mark.parametrize("target", ["tengine", "tengine-tool"])
def test_channels_without_weights_are_noted(target: str) -> None:
    result = quantized(target)
    notes = [str(note) for note in result.plan.notes if "weights of 0 only" in note.message]
    assert any(note.startswith("2 output channel(s) of 1 layer(s)") for note in notes)
    lost = [note for note in notes if "does not add their bias" in note]
    assert len(lost) == (target == "tengine-tool")  # of two channels one has a bias
    assert all(note.startswith("conv1: 1 output channel(s)") for note in lost)
    assert any("--target tengine-tool" in note for note in notes) is (target == "tengine")


def test_a_file_with_scales_of_0_is_read_and_written_again(tmp_path_factory: object) -> None:
    assert isinstance(tmp_path_factory, pytest.TempPathFactory)
    folder = tmp_path_factory.mktemp("read")
    result = quantized("tengine-tool")
    result.save(folder)
    for data in (None, DATA):
        again = intact.read_quantized(folder / MODEL_FILE, data)
        assert files_of(again, "tengine")[MODEL_FILE] == files_of(result, "tengine")[MODEL_FILE]
    given = [folder / "table_minmax.scale", folder / WEIGHTS_FILE]
    again = intact.quantize(MODEL, target="tengine-tool", scales=given)
    assert scale_of(tensors(again)["w1"]).tolist()[2] == 0
    assert tensors(again)["b1"].data.tolist()[2] == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("improve", [[], ["weight-scales"]])
def test_what_is_lost_is_simulated(improve: list[str]) -> None:
    """The engine adds no bias where the file has none."""
    result = quantized("tengine-tool", improve=improve)
    assert tensors(result)["b1"].data.tolist()[2] == 0  # type: ignore[union-attr]
    weight = result.plan.input_config(result.plan.graph.node("conv1"), 1)
    assert weight.scale is not None
    assert (weight.scale > 0).all()
    verification = intact.verify(result, DATA)
    assert verification.layers
    assert not any(layer.mismatches for layer in verification.layers)


def test_aciq() -> None:
    scales = {name: published.aciq(values) for name, values in FOUND.items()}
    written = files_of(quantized(method="aciq"), "tengine")["table_aciq.scale"].decode()
    assert written == published.table(MODEL, scales)


def tries(kept: int) -> list[int]:
    """Some of the thresholds that the tool tries, with the neighbours of one."""
    near = range(kept - 3, kept + 4)
    return [*range(published.GROUPS, published.BINS, 16), *near]


def test_kl_keeps_the_bin_of_least_divergence() -> None:
    shares = published.shares_of(published.histogram(FOUND["c1"]))
    kept = int(least_divergent(np.array(shares), published.GROUPS))
    divergences = {each: published.divergence(shares, each) for each in tries(kept)}
    assert divergences[kept] == pytest.approx(min(divergences.values()), rel=1e-9)
    assert divergences[kept] < divergences[published.BINS - 16]


LAPLACE = np.random.default_rng(8).laplace(size=(200, 3, 8, 8)).astype(np.float32)


@pytest.mark.parametrize(("name", "image"), [("image", LAPLACE), ("c1", DATA["image"])])
def test_kl(name: str, image: Floats) -> None:
    """The bin of least divergence, of the histogram that one pass over the samples leaves.

    The tool counts in a second pass, when it knows the largest value: its choice is near.
    """
    result = intact.quantize(MODEL, {"image": image}, target="tengine", method="kl")
    written = files_of(result, "tengine")["table_kl.scale"].decode()
    found = {line.split()[0]: float(line.split()[1]) for line in written.splitlines()}
    assert list(found) == list(FOUND)
    assert found["shares"] == 0.007874
    values = published.activations(MODEL, {"image": image})[name]
    step = float(published.absmax(values)) / published.BINS / published.CODES
    kept = round(found[name] / step - 0.5)
    assert found[name] == pytest.approx(published.kl_scale(kept, values), abs=6e-7)
    shares = published.shares_of(published.spread_histogram(values))
    tried = [each for each in tries(kept) if each < published.BINS]
    divergences = {each: published.divergence(shares, each) for each in tried}
    assert divergences[kept] == pytest.approx(min(divergences.values()), rel=1e-6)
    tools = np.array(published.shares_of(published.histogram(values)))
    assert kept == pytest.approx(least_divergent(tools, published.GROUPS), rel=0.25)


@given(st.lists(st.integers(0, 40) | st.just(0), min_size=20, max_size=40), st.integers(0, 1))
@settings(max_examples=60, deadline=None)
def test_kl_of_the_tool_searches_as_its_loops_do(counts: list[int], half: int) -> None:
    if sum(counts[1:]):
        groups = (8, 16)[half]
        assert bins_to_keep(np.array(counts), groups) == published.threshold_bin(counts, groups)


@pytest.mark.parametrize("max_memory", [None, 6_000_000])
def test_kl_of_the_tools_target_is_the_tools(max_memory: int | None) -> None:
    """All tensors, to the last decimal: samples are read twice, as the tool does."""
    result = quantized("tengine-tool", method="kl", max_memory=max_memory)

    def choose(counts: Sequence[int]) -> int:
        return bins_to_keep(np.array(counts), published.GROUPS)

    wanted = {name: published.kl_of_tool(values, choose) for name, values in FOUND.items()}
    written = files_of(result, "tengine")["table_kl.scale"].decode()
    assert written == published.table(MODEL, wanted)
    assert wanted["c1"] < SCALES["c1"]
    one_pass = quantized("tengine", method="kl")
    assert files_of(one_pass, "tengine")["table_kl.scale"].decode() != written


def test_kl_of_the_tools_target_needs_samples_twice() -> None:
    with pytest.raises(CalibrationError, match=r"read 2 times.*use kl_stepwise, which reads"):
        intact.quantize(MODEL, iter([DATA]), target="tengine-tool", method="kl")
    again = intact.quantize(MODEL, iter([DATA]), target="tengine-tool", method="kl_stepwise")
    assert "table_kl_stepwise.scale" in files_of(again, "tengine")


def test_eq() -> None:
    """Layer after layer, on what the earlier ones give with their new scales."""
    found, values = (
        tensors(quantized(improve=["weight-scales{check=0}"])),
        published.constants(MODEL),
    )
    read = effective()

    def first(result: Floats) -> Floats:
        return published.requantized(np.maximum(result, 0), read["r1"])

    def second(result: Floats) -> Floats:
        return published.requantized(result, read["c2"])

    x = published.requantized(DATA["image"], read["image"])
    w, b = values["w1"], values["b1"]
    chosen = assert_best(
        found["w1"], w, published.zoomed_cosines(x, FOUND["r1"], w, b, read["image"], first)
    )
    weight, bias = (
        published.fake_weight(w, chosen),
        published.fake_bias(b, chosen, read["image"]),
    )
    x = published.pooled(first(published.convolution(x, weight, bias)))
    w, b = values["w2"], values["b2"]
    assert_best(
        found["w2"], w, published.zoomed_cosines(x, FOUND["c2"], w, b, read["pool1"], second)
    )


def assert_best(
    tensor: FileTensor, weight: Floats, cosines: list[dict[float, float]]
) -> list[np.float32]:
    """Each channel has the zoom of the best cosine; some have another than 1."""
    scales, zooms = published.quantized_weight(weight)[0], []
    found = [np.float32(scale) for scale in scale_of(tensor)]
    for scale, written, tried in zip(scales, found, cosines, strict=True):
        if scale:  # in the others there is nothing to search
            zooms.append(min(tried, key=lambda each: abs(each - float(written / scale))))
            assert float(written / scale) == pytest.approx(zooms[-1], rel=1e-5)
            assert tried[zooms[-1]] >= max(tried.values()) - 1e-7
    assert set(zooms) - {1.0}
    return found
