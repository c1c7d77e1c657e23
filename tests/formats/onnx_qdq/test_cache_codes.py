"""Caches some of whose channels have two codes, and caches of several widths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import intact
from benchmarks.text_nets import DecoderSizes, decoder, random_weights
from intact.config import Grid, PerChannel, QuantState, Rounding, TensorQuantConfig, parse_policy
from intact.engines.piecewise.streams import config_key, quantizer_of
from intact.errors import ConfigError, UsageError
from intact.formats.onnx_qdq.cache_codes import CachePort, SecondCodes, cache_ports
from intact.graph.key_basis import Steps
from intact.program.program import Encoding
from intact.results.result import Result
from tests.texts import saved

pytestmark = pytest.mark.filterwarnings("ignore::intact.IntactWarning")  # of times

SIZES = DecoderSizes(vocabulary=50, hidden=64, layers=2, heads=4, key_heads=2, inner=24, longest=64)
IDS = np.random.default_rng(0).integers(4, 50, (8, 12))
NODE = "/model/layers.1/attn/GroupQueryAttention"
SIZE = 8


def config_of(steps: Steps) -> TensorQuantConfig:
    low, high = steps.codes
    channels = steps.channel_codes(SIZE)
    grid = Grid(
        policy=parse_policy("PER_CHANNEL+LINEAR+SYMMETRICAL"),
        granularity=PerChannel(2),
        rounding=Rounding.HALF_EVEN,
        bits=steps.bits,
        quant_min=low,
        quant_max=high,
        channel_codes=channels,
    )
    config = TensorQuantConfig.on_grid(grid)
    highest = np.array(channels)[:, 1]
    config.set_params((high + 0.5) / (highest + 0.5), np.zeros(highest.size, np.int64))
    config.transition(QuantState.ACTIVATED)
    return config


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(any),
    st.sampled_from([3, 4, 6]),
    st.integers(0, 1000),
)
def test_two_codes_of_a_channel_are_one_finer_code(twice: list[int], bits: int, seed: int) -> None:
    """They stand for what the plan says."""
    second = SecondCodes(Steps(bits, tuple(twice), ()), SIZE)
    rng = np.random.default_rng(seed)
    low, high = second.steps.codes
    keys = (rng.normal(size=(1, 40, SIZE * len(twice))) * high / 2).astype(np.float32)
    keys[0, 0], keys[0, 1] = 3 * high, 3 * low  # beyond the range
    codes = np.clip(np.rint(second.kept(keys)), low, high)
    floats = second.floats(codes)
    config = config_of(second.steps)
    np.testing.assert_array_equal(floats, config.dequantize(second.joined(codes)))
    # Next to a tie the plan may take the neighbour: it divides, where the file subtracts first.
    planned = config.quantize(keys)
    apart = np.abs(planned - second.joined(codes))
    steps = keys / np.asarray(config.scale)
    is_tie = np.abs(np.abs(steps - np.floor(steps)) - 0.5) < 1e-3
    assert not apart[~is_tie].any()
    assert apart.max() <= 1
    again = np.clip(np.rint(second.kept(floats)), low, high)
    np.testing.assert_array_equal(second.joined(again), second.joined(codes))


def test_a_number_between_two_codes_has_two_spellings() -> None:
    """Of 1.5 the runtime keeps 2 and -8, and 1 and 7 of what these stand for: the same."""
    second = SecondCodes(Steps(4, (1,), ()), SIZE)
    keys = np.zeros((1, 1, SIZE), np.float32)
    keys[..., 0] = 1.5
    codes = np.clip(np.rint(second.kept(keys)), -8, 7)
    assert codes[0, 0, [0, 7]].tolist() == [2, -8]
    again = np.clip(np.rint(second.kept(second.floats(codes))), -8, 7)
    assert again[0, 0, [0, 7]].tolist() == [1, 7]
    np.testing.assert_array_equal(second.joined(again), second.joined(codes))


def test_ranges_of_channels_are_those_of_every_engine() -> None:
    """Of the piecewise simulation too; a channel that is not kept is 0."""
    config = config_of(Steps(4, (2,), ()))
    data = np.random.default_rng(1).normal(size=(1, 50, SIZE)).astype(np.float32) * 6
    found = config.fake_quantize(data, inplace=False)
    np.testing.assert_array_equal(quantizer_of(config)(data), found)
    assert not found[..., 6:].any()
    params = config.params
    assert params is not None
    errors, inside = np.abs(found - data), np.abs(data) < 7.5
    assert errors[..., :2][inside[..., :2]].max() <= 0.501 * params.scale[0]
    assert 0.4 < errors[..., 2:6][inside[..., 2:6]].max() <= 0.5
    assert np.abs(found).max() == pytest.approx(128 / 15)
    other = config_of(Steps(4, (3,), ()))
    assert config_key(other) != config_key(config)
    codes = [(-128, 112), (-8, 7)]
    encodings = [
        Encoding(params.scale, params.zero_point, -128, 112, 2, channel_codes=(*each,))
        for each in ((codes[0], codes[1]), (codes[1], codes[0]))
    ]
    assert not encodings[0].same_as(encodings[1])
    with pytest.raises(ConfigError, match=r"scale has shape \[3\], for 8 channels"):
        config.grid.check_params(np.ones(3), None)
    assert config.grid.value_range(params) == pytest.approx((-128 / 15, 112 / 15))


@pytest.mark.parametrize("bits", [4, 8])
def test_caches_of_two_codes_come_back(bits: int) -> None:
    second = SecondCodes(Steps(bits, (1, 2), ()), 6)
    rng = np.random.default_rng(bits)
    low, high = second.steps.codes
    codes = rng.integers(low, high + 1, (2, 2, 5, 6)).astype(np.float32)
    port = CachePort(np.ones((1, 2, 1, 6), np.float32), bits, second)
    floats = port.to_floats(CachePort(port.scale, bits).to_codes(codes))
    assert not floats[:, 0, :, 5:].any()  # the channels that are not kept
    assert not floats[:, 1, :, 4:].any()
    again = port.to_floats(port.to_codes(floats))
    np.testing.assert_allclose(again, floats, atol=1e-4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(decoder(SIZES, random_weights(SIZES), "builder"), tmp_path_factory.mktemp("d"))


def quantized(model: Path, **options: Any) -> Result:
    return intact.quantize(
        model, IDS, context=12, cache_bits=4, activations="float", preset="fast", **options
    )


def test_one_layer_may_have_another_width(model: Path, tmp_path: Path) -> None:
    result = quantized(model, bits={NODE: 8})
    ports = cache_ports(result.exported.model)
    assert {port.bits for name, port in ports.items() if ".1." in name} == {8}
    assert {port.bits for name, port in ports.items() if ".0." in name} == {4}
    notes = [note.message for note in result.plan.notes]
    assert any("hold codes of 4 bits (2 of them) and 8 bits (2 of them): 96 bytes" in n
               for n in notes)  # fmt: skip
    result.save(tmp_path / "out")
    rows = [row for row in intact.inspect(tmp_path / "out").nodes if row.cache_bits]
    assert [row.cache_bits for row in rows] == [4, 8]
    found = intact.verify(tmp_path / "out", IDS, context=12)
    assert not any(each.mismatches for each in found.layers)


@pytest.mark.parametrize(
    ("place", "bits", "said"),
    [
        (NODE, 6, "its cache stays float: target onnxruntime has none of 6 bits; give 4 or 8"),
        (f"{NODE}.output", 8, "nothing is quantized there"),
    ],
)
def test_widths_that_no_cache_can_have(model: Path, place: str, bits: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        quantized(model, bits={place: bits})


@pytest.mark.parametrize("width", [-1, 0, 4, 5000])
def test_what_only_looks_like_second_codes_is_none(width: int) -> None:
    """A file of anyone: factors of 1, or another width."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, 2, 8]))
    lost = ir.node("Sub", [x, x])
    factors = np.ones(8, np.float32) if width == 4 else np.full(8, 15, np.float32)
    constant = ir.Value(name="factors", const_value=ir.tensor(factors))
    product = ir.node("Mul", [lost.outputs[0], constant])
    attributes = {"kv_num_heads": 1, "kv_cache_bit_width": width}
    node = ir.node("GroupQueryAttention", [x, product.outputs[0]], attributes)
    assert SecondCodes.written(node, np.ones((1, 1, 1, 8), np.float32)) is None
