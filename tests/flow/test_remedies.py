"""Commands of remedies: each that is offered is one that `quantize` takes."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import pytest

import intact
from intact import api
from intact.analyze.diagnose.diagnosis import decibels_on, first_runs
from intact.analyze.diagnose.findings import Finding, Remedy
from intact.analyze.diagnose.quantizers import WIDEN
from intact.analyze.diagnose.rehearsal import Rehearsal
from intact.analyze.diagnose.remedies import options_that_made, with_command
from intact.analyze.diagnose.weights import BEST, EQUALIZE
from intact.calibrate.collect import collect
from intact.calibrate.statistics import Statistics
from intact.cli.entry import app
from intact.cli.parameters import Command
from intact.data.sources import open_samples
from intact.errors import IntactError
from intact.graph import Graph
from intact.plan import QuantizedGraph
from intact.recipe.options import QuantizeCommand
from intact.results.request import refuse_unlike
from intact.results.result import Result
from tests.models import ModelBuilder

REMEDIES: Mapping[str, Remedy] = {
    "widen": WIDEN,
    "no tail": Remedy(
        {"method": "percentile", "method_options": {"percentile": 99.9}, "scales": None}
    ),
    "best": BEST,
    "equalize": EQUALIZE,
    "float": Remedy({"keep_float": ["a node/b:0", "--odd", "*"]}),
    "ends": Remedy({"keep_float": ["conv2"], "io": "float"}),
    "bits": Remedy({"bits": {"conv2": 4}}),
    "weights": Remedy({"weight_bits": 7, "bits": None}),
    "closer": Remedy({"weight_method": "minmax", "scales": None}),
    "few": Remedy({"weight_bits": 4, "preset": "best", "improve": None}),
    "activations": Remedy({"activation_bits": 8, "bits": None}),
    "target": Remedy({"target": "onnxruntime-avx2"}),
    "other runtime": Remedy({"target": "ncnn"}),
    "samples": Remedy({"samples": 512}),
    "data": Remedy({"data": "other.npz", "samples": None}),
    "heads": Remedy({"quantize_heads": None}),
    "fastest": Remedy({"fastest": True}),
    "steps": Remedy({"normalize": "imagenet", "mean": None, "scale": None, "std": None}),
    "numbers": Remedy({"mean": (0.5,), "scale": (2.0,), "order": "bgr", "preprocess": None}),
}
"""Of each kind, by the options that it sets."""
MADE_BY: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "fast": {"preset": "fast"},
    "best": {"preset": "best"},
    "improved": {"improve": ("rounding",)},
    "method": {"method": "kl", "method_options": {"bins": 4096.0}},
    "fastest": {"fastest": True, "fastest_batch": 4},
    "tflite": {"target": "tflite", "formats": ("tflite",), "io": "float"},
    "float ends": {"target": "vta", "formats": ("c",), "io": "float"},
    "narrow": {"bits": {"conv2": 3}, "keep_float": ("Gemm",), "quantize_heads": True},
    "steps": {"mean": (0.4,), "std": (0.2,)},
    "no data": {"data": None, "data_free": 32},
}


def accepted(line: str) -> Mapping[str, Any]:
    """Read a command with the parser of the command line, and check what it gives together."""
    program, command, *words = shlex.split(line)
    assert (program, command) == ("intact", "quantize")
    found = app.get_command(click.Context(app), command)
    assert isinstance(found, Command)
    with found.make_context(command, words) as context:
        given = found.given(context)
    assert isinstance(given.options, QuantizeCommand)
    target = given.options.target or "onnxruntime"
    assert isinstance(target, str)
    refuse_unlike(given.options, target)
    return given.values


@pytest.mark.parametrize("made", MADE_BY)
@pytest.mark.parametrize("name", REMEDIES)
def test_a_command_that_is_offered_is_taken(name: str, made: str) -> None:
    made_by = {"model": "m.onnx", "data": "d.npz", **MADE_BY[made]}
    remedy = REMEDIES[name]
    found = with_command(Finding("clipping", "", 1.0, remedies=(remedy,)), made_by).remedy
    if not found:
        return
    values = accepted(found)
    kept = {name: value for name, value in remedy.options.items() if value is not None}
    for option, value in kept.items():
        given = values[option]
        assert set(value) <= set(given) if isinstance(value, list | dict) else given == value


def test_most_remedies_can_be_offered() -> None:
    made_by = {"model": "m.onnx", "data": "d.npz", "target": "onnxruntime"}
    offered = {
        name: with_command(Finding("clipping", "", 1.0, remedies=(each,)), made_by).remedy
        for name, each in REMEDIES.items()
    }
    # Heads decode in float, and 512 samples are read, where nothing is said; ONNX has floats at its
    # ends.
    assert {name for name, text in offered.items() if not text} == {"heads", "samples", "ends"}


def test_a_pass_takes_the_place_of_a_preset() -> None:
    made_by = {"model": "m.onnx", "data": "d.npz", "preset": "fast"}
    found = with_command(Finding("clipping", "", 1.0, remedies=(EQUALIZE,)), made_by).remedy
    assert "--improve equalize" in found
    assert "--preset" not in found


def test_a_pass_is_added_to_those_that_a_preset_ran() -> None:
    made_by = {"model": "m.onnx", "data": "d.npz", "preset": "best"}
    finding = Finding("clipping", "", 1.0, remedies=(EQUALIZE,))
    found = with_command(finding, made_by, ("smooth", "rounding")).remedy
    assert "--improve smooth --improve rounding --improve equalize" in found
    assert accepted(found)["improve"] == ("smooth", "rounding", "equalize")
    assert not with_command(finding, made_by, ("equalize", "rounding")).remedy


def _peaks(folder: Path, **options: Any) -> Path:
    """Quantize a net whose output is its rare large values."""
    b = ModelBuilder(seed=3)
    x = b.node("Exp", b.conv(b.input("image", ["N", 3, 16, 16]), 3, 8, kernel=3), name="exp")
    x = b.node("GlobalMaxPool", b.conv(x, 8, 8, kernel=1), out="peak", name="most")
    b.output(x, ["N", 8, 1, 1])
    onnx.save(b.build(), folder / "model.onnx")
    images = np.random.default_rng(5).standard_normal((24, 3, 16, 16)).astype(np.float32)
    np.savez(folder / "calib.npz", image=images)
    paths = folder / "model.onnx", folder / "calib.npz"
    api.quantize(*paths, output=folder / "out", threads=1, **options)
    return folder / "out"


class _Simulated:
    """Simulates plans on what a result was calibrated on."""

    def __init__(self, result: Result, folder: Path) -> None:
        samples = open_samples(folder / "calib.npz", result.plan.graph)
        self._runs, self._samples = first_runs(result.plan, samples, threads=1), samples

    def decibels(self, plan: QuantizedGraph) -> float:
        return min(decibels_on(plan, self._runs).values())

    def observe(self, graph: Graph, tensors: Sequence[str]) -> Statistics:
        return collect(graph, self._samples, tensors, threads=1)


def _offered(folder: Path, remedies: Sequence[Remedy], *, simulates: bool = True) -> Finding:
    result = Result.load(folder / "out")
    trial = _Simulated(result, folder) if simulates else None
    made_by = options_that_made(result)
    finding = Finding("clipping", "", 1.0, remedies=tuple(remedies))
    return with_command(finding, made_by, (), Rehearsal(result, made_by, trial))


CLIP = Remedy({"method": "percentile", "method_options": {"percentile": 90.0}, "scales": None})
ODD = Remedy({"activation_bits": 12, "bits": None})
"""tflite has no such codes, which is seen when the model is planned."""


def test_a_remedy_that_hurts_gives_way_to_one_that_helps(tmp_path: Path) -> None:
    _peaks(tmp_path, method="percentile", method_options={"percentile": 99})
    found = _offered(tmp_path, [CLIP, WIDEN, BEST])
    assert "--method minmax" in found.remedy
    assert (found.measured, found.gain is not None and found.gain > 3) == ("simulated", True)
    only = _offered(tmp_path, [CLIP])
    assert (only.remedy, only.gain, only.measured) == ("", None, "")
    assert "--preset best" in (unknown := _offered(tmp_path, [CLIP, BEST])).remedy
    assert (unknown.gain, unknown.measured) == (None, "")


@pytest.mark.parametrize("simulates", [True, False])
def test_a_remedy_that_the_target_refuses_is_not_offered(simulates: bool, tmp_path: Path) -> None:
    _peaks(tmp_path, target="tflite")
    with pytest.raises(IntactError):
        api.quantize(
            tmp_path / "model.onnx", tmp_path / "calib.npz", target="tflite", activation_bits=12
        )
    assert not _offered(tmp_path, [ODD], simulates=simulates).remedy
    kept = Remedy({"keep_float": ["exp"]})
    found = _offered(tmp_path, [ODD, kept, BEST], simulates=simulates)
    assert "activation-bits" not in found.remedy
    assert found.remedy


def test_nodes_at_the_ends_are_kept_in_float_with_floats_at_the_ends(tmp_path: Path) -> None:
    _peaks(tmp_path, target="tflite")
    found = _offered(tmp_path, [Remedy({"keep_float": ["most"]})], simulates=False)
    values = accepted(found.remedy)
    assert (values["keep_float"], values["io"]) == (("most",), "float")
    given = {name: values[name] for name in ("target", "keep_float", "io")}
    paths = tmp_path / "model.onnx", tmp_path / "calib.npz"
    assert not api.quantize(*paths, threads=1, **given).plan.decisions["most"].quantized
    with pytest.raises(IntactError, match="no integers at the ends"):
        api.quantize(*paths, threads=1, **{**given, "io": "int8"})


def test_what_would_be_refused_gives_way_to_the_next() -> None:
    wrong = Remedy({"method": "aciq", "method_options": {"bins": 3.0}})
    made_by = {"model": "m.onnx", "data": "d.npz"}
    found = with_command(Finding("clipping", "", 1.0, remedies=(wrong, BEST)), made_by).remedy
    assert "--preset best" in found


def test_all_options_that_remedies_set_are_tested() -> None:
    tested = {option for remedy in REMEDIES.values() for option in remedy.options}
    found: set[str] = set()
    for path in Path(intact.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Remedy":
                given = [each.value for each in node.keywords if each.arg == "options"]
                for table in (each for each in given if isinstance(each, ast.Dict)):
                    found |= {str(k.value) for k in table.keys if isinstance(k, ast.Constant)}
    assert {"method", "keep_float", "bits"} <= found <= tested
