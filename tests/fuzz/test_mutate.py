"""Mutations depend on their seed alone, and often leave a file that is still of its format."""

from __future__ import annotations

import contextlib
import io
import json
import time
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import onnx
import pytest

from tests.fuzz.kinds import KINDS
from tests.fuzz.mutate.archive import mutate_archive
from tests.fuzz.mutate.proto import mutate_model
from tests.fuzz.mutate.raw import mutate_bytes
from tests.fuzz.mutate.text import mutate_text
from tests.fuzz.mutate.tree import mutate_json, mutate_toml
from tests.fuzz.seeds import convolution, sample_files

TOML = b'name = "x"\n[activation]\nbits = 8\nlevels = [1, 2.5, true]\n[[op]]\nops = ["Conv"]\n'
JSON = b'{"scale": [0.1, 2], "follows": {"end": "a", "state": null}, "bits": 8}'


LONGEST = 10_000
"""Bytes: longer cases take long to read by those who do not guard themselves."""


def load_toml(data: bytes) -> object:
    return tomllib.loads(data.decode())


def open_archive(data: bytes) -> None:
    zipfile.ZipFile(io.BytesIO(data)).close()


@pytest.mark.parametrize(
    ("mutate", "seed", "read", "share"),
    [
        (mutate_bytes, bytes(range(100)), len, 0.9),
        (mutate_model, convolution().SerializeToString(), onnx.ModelProto.FromString, 0.6),
        (mutate_archive, sample_files()[0], open_archive, 0.5),
        (mutate_text, TOML, load_toml, 0.1),
        (mutate_toml, TOML, load_toml, 0.4),
        (mutate_json, JSON, json.loads, 0.6),
    ],
)
def test_mutations(
    mutate: Callable[[bytes, bytes, Random], bytes],
    seed: bytes,
    read: Callable[[bytes], object],
    share: float,
) -> None:
    cases = [mutate(seed, seed, Random(number)) for number in range(100)]
    assert cases == [mutate(seed, seed, Random(number)) for number in range(100)]
    assert len({*cases, seed}) > 70
    readable = 0
    for case in cases:
        with contextlib.suppress(Exception):  # whatever the readers of others raise
            if len(case) <= LONGEST:
                read(case)
                readable += 1
    assert readable >= 100 * share


def test_a_kind_gives_other_files_for_another_number_or_seed(tmp_path: Path) -> None:
    kind = KINDS["toml"]
    seeds = kind.seeds(tmp_path)
    numbers = [(seed, index) for seed in (1, 2) for index in (0, 1)]
    cases = {each: kind.case(seeds, "toml", *each) for each in numbers}
    assert len(set(cases.values())) == 4
    assert kind.case(seeds, "toml", 2, 1) == cases[2, 1]


def test_archives_do_not_tell_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = sample_files()[0]
    cases = [mutate_archive(seed, seed, Random(number)) for number in range(50)]
    later = time.time() + 86400
    monkeypatch.setattr("time.time", lambda: later)
    monkeypatch.setattr("time.localtime", lambda *_: time.gmtime(later))
    assert cases == [mutate_archive(seed, seed, Random(number)) for number in range(50)]
