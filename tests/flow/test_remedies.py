"""Commands of remedies: each that is offered is one that `quantize` takes."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest

import intact
from intact.analyze.diagnose.findings import Finding, Remedy
from intact.analyze.diagnose.quantizers import WIDEN
from intact.analyze.diagnose.weights import BEST, EQUALIZE
from intact.cli.application import app
from intact.cli.parameters import Command
from intact.flow.quantize import refuse_unlike
from intact.flow.remedies import with_command
from intact.recipe.options import QuantizeCommand

REMEDIES: Mapping[str, Remedy] = {
    "widen": WIDEN,
    "no tail": Remedy(
        {"method": "percentile", "method_options": {"percentile": 99.9}, "scales": None}
    ),
    "best": BEST,
    "equalize": EQUALIZE,
    "float": Remedy({"keep_float": ["a node/b:0", "--odd", "*"]}),
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
    # Those change nothing: heads decode in float, and 512 samples are read, where nothing is said.
    assert {name for name, text in offered.items() if not text} == {"heads", "samples"}


def test_a_pass_takes_the_place_of_a_preset() -> None:
    made_by = {"model": "m.onnx", "data": "d.npz", "preset": "fast"}
    found = with_command(Finding("clipping", "", 1.0, remedies=(EQUALIZE,)), made_by).remedy
    assert "--improve equalize" in found
    assert "--preset" not in found


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
