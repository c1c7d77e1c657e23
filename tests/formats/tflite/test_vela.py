"""The Ethos-U targets: what Vela leaves to the processor is told, by tables and by Vela itself."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import onnx
import pytest

import intact
from intact.errors import ExportError
from intact.formats.tflite.vela import compiled, read_report, vela
from intact.targets import load_target
from tests.models import ModelBuilder

REPORT = """
Warning: no configuration
   NPU: Conv2D = a (outputs [1, 4, 4, 8])
   NPU: Relu6 = b, of two (outputs [1, 4, 4, 8])
Reason: Unsupported opType
   CPU: LogSoftmax = y
Network summary for model
"""


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    program = folder / "vela"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder))


def model() -> onnx.ModelProto:
    build = ModelBuilder()
    x = build.node("Relu", build.conv(build.input("x", ["n", 3, 8, 8]), 3, 4))
    x = build.node("Flatten", build.node("GlobalAveragePool", x))
    build.node("LogSoftmax", x, out="y", name="last", axis=-1)
    build.output("y", ["n", 4])
    return build.build()


def test_a_report_names_what_stays_on_the_processor() -> None:
    found = read_report(REPORT, "5.2.0", "ethos-u55-128")
    assert (found.operators, found.left) == (2, ("y (LogSoftmax)",))


@pytest.mark.parametrize("target", ["ethos-u", "ethos-u85"])
def test_operators_without_a_unit_are_told_and_stay_integers(target: str) -> None:
    data = {"x": np.random.default_rng(0).normal(size=(16, 3, 8, 8)).astype(np.float32)}
    made = intact.quantize(model(), data, target=target)
    compiler = load_target(target).compiler
    assert compiler is not None
    assert all(each.quantized for each in made.plan.decisions.values())
    (note,) = [each for each in made.plan.notes if compiler.accelerator in each.message]
    assert "1 node(s)" in note.message
    assert "last (LogSoftmax)" in note.message


@pytest.mark.skipif(os.name == "nt", reason="a script stands in for Vela")
def test_vela_is_asked_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert vela() is None
    assert compiled(b"", "ethos-u55-128") is None
    text = REPORT.replace("\n", "\\n")
    installed(tmp_path, monkeypatch, f"printf '{text}'")
    found = compiled(b"file", "ethos-u55-128")
    assert found is not None
    assert found.left == ("y (LogSoftmax)",)
    installed(tmp_path, monkeypatch, "echo 'Error: bad file' >&2; exit 1")
    with pytest.raises(ExportError, match="bad file"):
        compiled(b"file", "ethos-u55-128")
