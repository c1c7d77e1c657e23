"""The table of formats: names, and formats that other packages register."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import intact
from intact import demo
from intact.errors import ModelError, UsageError
from intact.formats.registry import FORMATS, chosen_formats, open_model
from intact.formats.scales import read_scales
from intact.recipe.declare import options_of
from intact.recipe.groups import FormatOptions
from intact.targets import load_target
from tests.models import MODELS

TOY = '''
"""A format: the integers of a plan, one file for all of a program."""

import json

import numpy as np

from intact.formats.base.comparison import stored_feeds
from intact.formats.base.format import (
    FloatSource, Format, Reader, Runtime, ScaleReader, WrittenFiles, Writer, read_files
)
from intact.plan.given_scales import GivenScale, ScaleTable
from intact.program.lower import lower

NAME = "model.toy"


class Writes(Writer):
    files = (NAME,)

    def write(self, plan, io):
        steps = [step.name for step in lower(plan).steps]
        return WrittenFiles({NAME: json.dumps(steps).encode()})

    def read(self, folder, plan):
        return WrittenFiles(read_files(folder, [NAME]))


class Reads(Reader):
    target = "tflite"

    def recognizes(self, path, head):
        return head == b"toymodel"

    def open(self, path):
        from intact.graph import load_model

        return FloatSource("onnxruntime", load_model(path.parent / "model.onnx"))

    def scales(self):
        return (ScaleReader(lambda data: data.startswith(b"toy"), parse),)


def parse(data, source, graph):
    return ScaleTable(source, {}, {})


class Runs(Runtime):
    def verify(self, deployed, batches):
        from intact.engines.integer.engine import IntegerEngine
        from intact.formats.base.verification import EngineBeside, compare

        deployed.require_unchanged(Writes().write(deployed.plan, "int8").files)
        program = lower(deployed.plan)
        runtime = IntegerEngine(program)
        shown = [t for step in program.steps for t in step.outputs if t.encoding is not None]

        def run(feeds):
            found = runtime.run(feeds, [tensor.name for tensor in shown])
            return found.outputs, found.tensors

        return compare(deployed.plan, "toy runtime", run, EngineBeside(program, shown), batches)


TOY = Format(Writes(), Reads(), Runs())
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package with a format, as pip would."""
    site = tmp_path / "site"
    info = site / "toy_format-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "toy_format.py").write_text(TOY)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-format\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[intact.formats]\ntoy = toy_format:TOY\nbroken = toy_format:MISSING\nodd = json:dumps\n"
    )
    monkeypatch.syspath_prepend(site)
    yield
    sys.modules.pop("toy_format", None)


@pytest.mark.usefixtures("toy")
def test_a_format_of_another_package_is_written_read_and_verified(tmp_path: Path) -> None:
    result = intact.quantize(
        demo.model_path(), demo.calibration_path(), samples=5, formats=["Toy", "onnx_qdq"]
    )
    result.save(tmp_path / "out")
    assert (tmp_path / "out" / "model.toy").read_bytes().startswith(b"[")
    found = intact.verify(tmp_path / "out", samples=4)
    assert (found.format, found.runtime) == ("toy", "toy runtime")
    assert len(found.layers) > 3
    assert sum(layer.mismatches for layer in (*found.layers, *found.end_to_end)) == 0
    assert [each.mismatches for each in found.outputs] == [0]
    exported = intact.export(tmp_path / "out", formats=["toy"])
    assert list(exported.exports) == ["toy"]


@pytest.mark.usefixtures("toy")
def test_files_of_a_format_of_another_package_are_read(tmp_path: Path) -> None:
    (tmp_path / "table").write_bytes(b"toy table")
    assert read_scales(tmp_path / "table").scales == {}
    (tmp_path / "model.onnx").write_bytes(MODELS["residual"].build(17).SerializeToString())
    (tmp_path / "model.t").write_bytes(b"toymodel and more")
    assert open_model(tmp_path / "model.t").target == "onnxruntime"


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(("name", "reason"), [("broken", "fails"), ("odd", "is no Format")])
def test_a_registration_that_is_wrong_is_refused(name: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"format '{name}' is registered as .* {reason}"):
        FORMATS[name]


def test_a_format_with_a_typing_error_is_guessed_by_its_name() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'tflite'\?$"):
        chosen_formats(load_target("tflite"), ["TFLit"])


def test_formats_asked_for_twice_are_written_once() -> None:
    found = chosen_formats(load_target("tflite-micro"), ["c", "C"])
    assert found == ("c",)


def test_the_help_names_every_format() -> None:
    described = options_of(FormatOptions)["formats"].help
    words = set(re.findall(r"\w+", described))
    assert set(FORMATS) <= words


def test_a_file_of_no_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(np.arange(64, dtype=np.uint8).tobytes()[1:])
    with pytest.raises(ModelError):
        open_model(path)
