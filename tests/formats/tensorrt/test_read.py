"""TensorRT's tables as scales: caches and ranges of others, and our own back again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import intact
from intact import demo
from intact.errors import DataError
from intact.formats.scales import read_scales
from intact.formats.tensorrt.read import parse_cache, parse_ranges
from intact.formats.tensorrt.write import (
    CACHE_FILE,
    RANGES_FILE,
    activation_scales,
    calibration_cache,
    clip_ranges,
    written_tables,
)
from intact.plan import QuantizedGraph
from intact.plan.given_scales import ScaleTable
from tests.models import MODELS
from tests.plans import calibrated

HEAD = b"TRT-7000-EntropyCalibration2\n"


def scales(table: ScaleTable) -> dict[str, float]:
    return {name: float(given.scale) for name, given in table.scales.items()}


def test_a_cache_that_tensorrt_wrote() -> None:
    table = parse_cache(
        HEAD + b"data: 3c010a14\nconv1: 3e000000\r\n\n"
        b"(Unnamed Layer* 48) [Constant]_output: 3bbecd26\n(Unnamed ITensor* 9): 3c4023ca\n"
        b"dead: 0\nlayer: with: colons: 3F800000\n",
        "cache",
    )
    # 3c010a14 by hand: exponent 120 - 127 = -7, mantissa 1 + 0x010a14 / 2^23.
    assert scales(table) == {
        "data": (1 + 0x010A14 / 2**23) / 128,
        "conv1": 0.125,
        "layer: with: colons": 1.0,
    }
    assert table.ignored == {"tensors that TensorRT named itself": 2, "scales of 0": 1}
    given = table["data"]
    assert (given.bits, given.signed, int(given.zero_point)) == (8, True, 0)


@pytest.mark.parametrize("kind", ["EntropyCalibration", "MinMaxCalibration", "LegacyCalibration"])
def test_other_calibrators_write_the_same(kind: str) -> None:
    data = f"TRT-100300-{kind}\nx: 3f800000".encode()
    assert scales(parse_cache(data, "cache")) == {"x": 1.0}


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"TRT-\nx: 3f800000\n", "its first line is 'TRT-'"),
        (b"TRT-8601-Entropy Calibration\n", "its first line is"),
        (HEAD + b"x 3f800000\n", "line 2: not 'tensor: scale'"),
        (HEAD + b"x: 3f8000000\n", "line 2: not 'tensor: scale'"),
        (HEAD + b"x: 3g800000\n", "line 2: not 'tensor: scale'"),
        (HEAD + b": 3f800000\n", "line 2: not 'tensor: scale'"),
        (HEAD + b"\nx: bf800000\n", "line 3: 'x': the scale -1.0 is not a positive finite"),
        (HEAD + b"x: 7f800000\n", "'x': the scale inf is not"),
        (HEAD + b"x: 7fc00000\n", "'x': the scale nan is not"),
        (HEAD + b"x: 3f800000\nx: 3f000000\n", "a second, different scale for 'x'"),
        (HEAD + b"\xff: 3f800000\n", "not a text file"),
        (HEAD, "contains no scales"),
        (HEAD + b"x: 3f800000\n" * (1 << 17), "131073 entries, at most 131072"),
    ],
)
def test_a_damaged_cache_is_named(data: bytes, told: str) -> None:
    with pytest.raises(DataError, match=r"^cache: ") as caught:
        parse_cache(data, "cache")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ranges_as_mqbench_writes_them() -> None:
    table = parse_ranges(
        b'{"tensorrt": {"blob_range": {"a": 63.5, "b": 127, "c": [-1.5, 254.0], "d": [-254, 0],'
        b' "e": 0.0}}}',
        "ranges",
    )
    assert scales(table) == {"a": 0.5, "b": 1.0, "c": 2.0, "d": 2.0}
    assert table.ignored == {"scales of 0": 1}


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ('{"tensorrt": 1}', "cannot be read as ranges"),
        ('{"tensorrt": {"blob_range": {"a": "1"}}}', "cannot be read as ranges"),
        ('{"tensorrt": {"blob_range": {"a": [1]}}}', "blob_range['a']: [1.0] is no range"),
        ('{"tensorrt": {"blob_range": {"a": [1, 2]}}}', "[1.0, 2.0] is no range around 0"),
        ('{"tensorrt": {"blob_range": {"a": [-1, 2, 3, 4]}}}', "is no range around 0"),
        ('{"tensorrt": {"blob_range": {"a": -1}}}', "is not a positive finite float32"),
        ('{"tensorrt": {"blob_range": {"a": 1e300}}}', "is not a positive finite float32"),
        ('{"tensorrt": {"blob_range": {}}}', "contains no scales"),
        ('{"tensorrt": {"blob_range": ' + "[" * 100_000, "cannot be read as"),
    ],
)
def test_damaged_ranges_are_named(document: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "ranges.json"
    path.write_text(document)
    with pytest.raises(DataError) as caught:
        read_scales(path)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_what_is_written_is_read_back(name: str, tmp_path: Path) -> None:
    plan = calibrated(MODELS[name].build(17), "tensorrt")
    wanted = {name: float(scale) for name, scale in activation_scales(plan).scales.items()}
    for file, content in written_tables(plan).items():
        (tmp_path / file).write_bytes(content)
        if wanted:
            assert scales(read_scales(tmp_path / file)) == wanted


def activation_bits(plan: QuantizedGraph) -> dict[str, bytes]:
    return {name: scale.tobytes() for name, scale in activation_scales(plan).scales.items()}


@pytest.mark.parametrize("file", [CACHE_FILE, RANGES_FILE])
def test_a_table_calibrates_another_plan(file: str, tmp_path: Path) -> None:
    """The whole way: written by one quantization, taken by the next instead of samples."""
    model, data = demo.model_path(), demo.calibration_path()
    first = intact.quantize(model, data, target="tensorrt", output=tmp_path / "a", threads=1)
    table = str(tmp_path / "a" / file)
    second = intact.quantize(model, scales=[table], target="tensorrt", threads=1)
    assert activation_bits(second.plan) == activation_bits(first.plan)
    assert written_tables(second.plan) == written_tables(first.plan)


def test_a_cache_of_another_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    path.write_bytes(HEAD + b"no_tensor: 3f800000\n")
    with pytest.raises(DataError, match="names are not tensors of the model"):
        intact.quantize(demo.model_path(), scales=[str(path)], target="tensorrt", threads=1)


def test_odd_names_and_scales_come_back_to_the_last_bit() -> None:
    values = np.random.default_rng(0).uniform(1e-6, 1e6, 1000).astype(np.float32)
    names = ["größe π 🙂", " ", "a: 3f800000", "tab\t", *(f"t{k}" for k in range(996))]
    given = dict(zip(names, values, strict=True))
    for table in (
        parse_cache(calibration_cache(given), "cache"),
        parse_ranges(clip_ranges(given), "ranges"),
    ):
        assert scales(table) == {name: float(value) for name, value in given.items()}
