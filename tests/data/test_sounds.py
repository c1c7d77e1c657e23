"""Wave files become what models of sounds take."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto

from intact.data.batching import Batch
from intact.data.feeding import Feeding
from intact.data.sounds import read_sound
from intact.data.sources import Reading, has_image_steps, open_samples
from intact.errors import DataError, IntactError
from intact.graph import Graph, normalize
from tests.models import ModelBuilder

WAVE = np.array([0.0, 0.5, -0.5, 0.25, -1.0, 0.125], np.float32)


def wav(
    samples: npt.NDArray[np.float32] = WAVE,
    *,
    kind: int = 1,
    bits: int = 16,
    rate: int = 8000,
    channels: int = 1,
    extensible: bool = False,
) -> bytes:
    """Return the content of a file, with a chunk of odd length that says nothing."""
    if kind == 3:
        data = samples.astype(f"<f{bits // 8}").tobytes()
    elif bits == 8:
        data = (samples * 128 + 128).astype(np.uint8).tobytes()
    else:
        codes = (samples * 2.0 ** (bits - 1)).astype("<i4")
        data = b"".join(code.tobytes()[: bits // 8] for code in codes)
    width = channels * bits // 8
    code = 0xFFFE if extensible else kind
    header = struct.pack("<HHIIHH", code, channels, rate, rate * width, width, bits)
    if extensible:
        header += struct.pack("<HHIH", 22, bits, 0, kind) + b"\x00\x00\x00\x00\x10\x00" + bytes(8)
    parts = ((b"fmt ", header), (b"LIST", b"odd"), (b"data", data))
    body = b"".join(
        name + struct.pack("<I", len(part)) + part + b"\x00" * (len(part) % 2)
        for name, part in parts
    )
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WAVE" + body


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(("kind", "bits"), [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)])
def test_numbers_are_those_that_were_written(
    tmp_path: Path, kind: int, bits: int, extensible: bool
) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(wav(kind=kind, bits=bits, extensible=extensible))
    found = read_sound(path)
    assert found.rate == 8000
    assert found.samples.dtype == np.float32
    assert found.samples.tolist() == WAVE.tolist()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no .wav file"),
        (b"RIFF\x04\x00\x00\x00WAVE", "a part is missing"),
        (wav()[:30], "a part is missing"),
        (wav(kind=6, bits=8), "kind 6 with 8 bits"),
        (wav(bits=16, channels=2), "2 channels, the model takes one; mix them down"),
        (wav(bits=16)[:-3] + b"\x00", None),  # cut off: what is there
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, said: str | None) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    if said is None:
        assert len(read_sound(path).samples) == len(WAVE) - 1
        return
    with pytest.raises(DataError, match=said):
        read_sound(path)


def model(
    shape: list[int | str], dtype: int = TensorProto.FLOAT, **others: list[int | str]
) -> Graph:
    b = ModelBuilder()
    x = b.node("Cast", b.input("sound", shape, dtype), to=TensorProto.FLOAT)
    for name, sizes in others.items():
        number = b.node("Cast", b.input(name, sizes, TensorProto.INT64), to=TensorProto.FLOAT)
        x = b.node("Add", x, number)
    b.node("Relu", x, out="y")
    b.output("y", shape)
    return normalize(b.build())


def folder(path: Path) -> Path:
    (path / "more").mkdir()
    for name, count in (("b.wav", 6), ("a.WAV", 6), ("more/c.wav", 6)):
        (path / name).write_bytes(wav(WAVE[:count] * np.float32(1 / (1 + ord(name[0]) % 2))))
    (path / "notes.txt").write_text("no sound", encoding="utf-8")
    return path


def read(source: Any, graph: Graph, rate: int | None = 8000, **how: Any) -> list[Batch]:
    samples = open_samples(source, graph, reading=Reading(sample_rate=rate), **how)
    batches = [batch for batch, _ in samples.batches(1)]
    assert samples.count == len(batches)
    return batches


@pytest.mark.parametrize(
    "shape", [["batch", "samples"], [1, "samples"], ["batch", 1, "samples"], ["samples"]]
)
def test_a_folder_gives_each_sound_as_the_input_has_it(
    tmp_path: Path, shape: list[int | str]
) -> None:
    found = read(folder(tmp_path), model(shape))
    expected = [1] * (len(shape) - 1) + [len(WAVE)]
    assert [list(batch["sound"].shape) for batch in found] == [expected] * 3
    assert [float(batch["sound"].min()) for batch in found] == [-0.5, -1.0, -0.5]  # a, b, more/c
    assert not has_image_steps(tmp_path)


def test_a_fixed_length_gives_the_pieces_of_a_sound(tmp_path: Path) -> None:
    found = read(folder(tmp_path), model([1, 2]), limit=None)
    assert len(found) == 9
    assert [batch["sound"][0].tolist() for batch in found[3:6]] == WAVE.reshape(3, 2).tolist()
    assert len(read(tmp_path, model([1, 2]), limit=4)) == 4


def test_rates_and_lengths_are_filled_in(tmp_path: Path) -> None:
    (batch,) = read(folder(tmp_path) / "b.wav", model([1, "n"], sr=[], sound_length=[1]))
    assert batch["sr"] == 8000
    assert batch["sound_length"].tolist() == [6]


def test_integers_are_those_of_16_bits(tmp_path: Path) -> None:
    (batch,) = read(folder(tmp_path) / "b.wav", model(["batch", "n"], TensorProto.INT16))
    assert batch["sound"].tolist() == [(WAVE * 32768).astype(int).tolist()]


@pytest.mark.parametrize(
    ("shape", "rate", "others", "said"),
    [
        (["batch", "n"], None, {}, "give --sample-rate, which is 8000 in a.WAV"),
        (["batch", "n"], 16000, {}, "has 8000 samples a second, and --sample-rate is 16000"),
        ([1, 7], 8000, {}, "a.WAV: 6 samples, the model takes 7 at least; take it out"),
        (["batch", 3, "n"], 8000, {}, "one input [batch, samples]"),
        (["batch", "n"], 8000, {"other": []}, "takes sound [?, ?], other []"),
    ],
)
def test_what_does_not_fit_is_one_line_with_its_remedy(
    tmp_path: Path, shape: list[int | str], rate: int | None, others: Any, said: str
) -> None:
    with pytest.raises(IntactError) as caught:
        read(folder(tmp_path), model(shape, **others), rate)
    assert said in caught.value.with_flags


def test_states_keep_the_order_of_a_sound(tmp_path: Path) -> None:
    b = ModelBuilder()
    x, state = b.input("sound", [1, 2]), b.input("state", [1, 2])
    b.node("Add", x, state, out="y")
    b.node("Mul", x, state, out="next")
    for name in ("y", "next"):
        b.output(name, [1, 2])
    found = read(
        folder(tmp_path) / "b.wav",
        normalize(b.build()),
        limit=2,
        feeding=Feeding(states={"next": "state"}),
    )
    assert [batch["sound"][0].tolist() for batch in found] == WAVE[:4].reshape(2, 2).tolist()
