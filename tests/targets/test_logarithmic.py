"""Logarithmic levels in a target's file: steps an octave, and what they exclude."""

from __future__ import annotations

from pathlib import Path

import pytest

from intact.errors import TargetError
from intact.plan.schemes import config_from_scheme
from intact.targets import Target, load_target


def loaded(folder: Path, text: str) -> Target:
    path = folder / "own.toml"
    path.write_text(f'format = 2\nname = "own"\n{text}', encoding="utf-8")
    return load_target(path)


def test_steps_reach_the_grid(tmp_path: Path) -> None:
    text = 'extends = "nnie"\n[activation]\nbits = 4\nsteps_per_octave = 2\n'
    target = loaded(tmp_path, text)
    grid = config_from_scheme(target.activation, None).grid
    assert (grid.quant_min, grid.quant_max, grid.steps_per_octave) == (-7, 7, 2)
    assert target.is_logarithmic
    assert config_from_scheme(target.weight, None).grid.steps_per_octave == 16


def test_steps_of_some_operators_and_linear_ones(tmp_path: Path) -> None:
    text = (
        'extends = "onnxruntime"\nformats = ["onnx_levels"]\n[[op]]\nops = ["Gemm"]\n'
        'weight = { spacing = "exponential", dtype = "int8", steps_per_octave = 3 }\n'
    )
    target = loaded(tmp_path, text)
    rule = target.rules[-1]
    assert target.weight_scheme(rule).steps_per_octave == 3
    assert target.is_logarithmic
    assert not load_target("onnxruntime").is_logarithmic
    linear = loaded(
        tmp_path,
        'extends = "nnie"\n[[op]]\nops = ["Add"]\nactivation = { spacing = "linear" }\n',
    )
    assert linear.activation_scheme(linear.rules[-1]).steps_per_octave is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'extends = "onnxruntime"\n[weight]\nsteps_per_octave = 8\n',
            "steps_per_octave has no effect with linear spacing",
        ),
        ('extends = "nnie"\n[weight]\nsteps_per_octave = 0\n', "use 1 to 1024"),
        ('extends = "nnie"\n[weight]\nsteps_per_octave = 1025\n', "use 1 to 1024"),
        (
            'extends = "nnie"\n[calibration]\nmethod = "kl"\nfallback = "aciq"\n',
            "fallback 'aciq' is not defined for logarithmic levels",
        ),
        (
            'extends = "nnie"\n[calibration]\nweight_method = "power2_range"\n',
            "weight_method 'power2_range' is not defined for logarithmic levels",
        ),
    ],
)
def test_what_has_no_effect_or_no_meaning_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(TargetError, match=message):
        loaded(tmp_path, text)
