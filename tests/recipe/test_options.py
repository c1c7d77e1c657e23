"""Each option is declared once: flags, signatures and checks follow from the declaration."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import click
import numpy as np
import pytest

import intact
from intact import Overrides, api, demo
from intact.cli import run
from intact.cli.entry import app
from intact.cli.parameters import ALL, Command
from intact.errors import IntactError, UsageError
from intact.recipe import options as declared
from intact.recipe import reports, runs
from intact.recipe.declare import Option, options_of

PUBLIC = {
    "quantize": declared.QuantizeOptions,
    "quantize_for": declared.QuantizeForOptions,
    "read_quantized": declared.ImportOptions,
    "export": declared.ExportOptions,
    "search_strategy": declared.SearchOptions,
    "replay_strategy": declared.ReplayOptions,
    "inspect": reports.InspectOptions,
    "evaluate": reports.EvaluateOptions,
    "quant_loss": reports.LayerOptions,
    "inspect_graph_statistic": reports.EdgeOptions,
    "execute": runs.ExecuteOptions,
    "verify": runs.VerifyOptions,
    "verify_all": runs.VerifyAllOptions,
    "convert_ranges": reports.ConvertRangesOptions,
}


def commands() -> dict[str, Command[Any]]:
    return {name: each for name, each in app.commands.items() if isinstance(each, Command)}


def declarations() -> list[Option]:
    return [each for command in commands().values() for each in options_of(command.recipe).values()]


@pytest.mark.parametrize("name", PUBLIC)
def test_signature_has_every_declared_option(name: str) -> None:
    signature = inspect.signature(getattr(intact, name)).parameters
    options = options_of(PUBLIC[name])
    assert list(signature) == list(options)
    doc = inspect.getdoc(getattr(intact, name)) or ""
    for each in options.values():
        assert f"    {each.name}: " in doc
        default = signature[each.name].default
        assert default is inspect.Parameter.empty if each.required else default == each.default


@pytest.mark.parametrize("name", commands())
def test_help_has_every_declared_option(name: str) -> None:
    command = commands()[name]
    context = click.Context(command)
    context.meta[ALL] = True
    text = command.get_help(context)
    for each in options_of(command.recipe).values():
        if each.flag or each.positional:
            assert (each.flag or each.kind.metavar) in text


def test_help_is_sentences() -> None:
    for each in declarations():
        assert each.help[0].isupper(), each
        assert each.help.endswith("."), each
        assert each.kind.expects, each


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": 3}, "target is 3; give the name of a target"),
        ({"preprocess": {"mean": [1]}}, r"preprocess is {'mean': \[1\]}; give a Preprocess"),
        ({"keep_float": "Gemm"}, "keep_float is 'Gemm'; give a list of nodes"),
        ({"overrides": {"keep_float": []}}, "give an Overrides"),
        ({"samples": "10"}, "samples is '10'; give a whole number, 1 or more"),
        ({"samples": 1.5}, "samples is 1.5; give a whole number"),
        ({"formats": "tflite"}, "formats is 'tflite'; give a list of formats"),
        ({"formats": [3]}, "give a list of formats"),
        ({"io": 8}, "io is 8; give int8 or float"),
        ({"method": ["kl"]}, "give the name of a threshold method"),
        ({"method_options": [("a", 1)]}, "give numbers by name"),
        ({"method_options": {"percentile": "high"}}, "give numbers by name"),
        ({"skip_bad": 1}, "skip_bad is 1; give true or false"),
        ({"in_place": None}, "in_place is None; give true or false"),
        ({"threads": -1}, "threads is -1; give 0 or more"),
        ({"max_memory": "much"}, "max_memory is 'much'; give bytes"),
        ({"mask": 3}, "mask is 3; give the name of an array"),
        ({"expand": "LayerNormalization"}, "give a list of operator types"),
        ({"scales": 3}, "give a file of scales"),
        ({"progress": "yes"}, "progress is 'yes'; give a function"),
        ({"output": 3}, "output is 3; give the path of a folder"),
        ({"mean": "1"}, "mean is '1'; give a number, or one a channel"),
        ({"bits": {"conv": 4.5}}, "give numbers by name, for instance {'conv1': 4}"),
        ({"state": {"out": 3}}, "give names by name, for instance {'stateN': 'state'}"),
        ({"state": "out=in"}, "give names by name"),
        ({"weight_bits": np.float32(4)}, "give a whole number"),
    ],
)
def test_wrong_type_from_python_is_an_error_in_words_of_python(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        api.quantize(demo.model_path(), demo.calibration_path(), **options)
    assert "--" not in str(caught.value)


@pytest.mark.parametrize("model", [3, None, b"model"])
def test_model_of_wrong_type_is_an_error(model: Any) -> None:
    with pytest.raises(UsageError, match="model is"):
        api.quantize(model, demo.calibration_path())


def test_unknown_keyword_is_a_type_error_with_the_nearest_name() -> None:
    function: Callable[..., Any] = api.quantize
    with pytest.raises(TypeError, match="keyword argument 'smaples'; did you mean 'samples'"):
        function(demo.model_path(), smaples=3)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ((), {}, r"quantize\(\): missing a required argument: 'model'"),
        (("m", "d", "t"), {}, r"quantize\(\): too many positional arguments"),
        (("m",), {"model": "m"}, r"quantize\(\): multiple values for argument 'model'"),
    ],
)
def test_calls_that_do_not_fit_are_type_errors_that_name_the_function(
    given: tuple[str, ...], options: dict[str, Any], message: str
) -> None:
    function: Callable[..., Any] = api.quantize
    with pytest.raises(TypeError, match=message):
        function(*given, **options)


def test_options_are_not_changed() -> None:
    options: Any = declared.QuantizeOptions("m")
    with pytest.raises(AttributeError, match="samples"):
        options.samples = 3
    assert options.samples == 512


def test_same_mistake_names_flag_on_the_command_line(capfd: pytest.CaptureFixture[str]) -> None:
    model, data = str(demo.model_path()), str(demo.calibration_path())
    assert run(["quantize", model, "-d", data, "-o", "out", "--samples", "0"]) == 2
    assert capfd.readouterr().err == "intact: --samples is '0'; give 1 or more\n"
    assert run(["quantize", model, "-d", data, "-o", "out", "--method-option", "x"]) == 2
    assert "--method-option is 'x'; write NAME=NUMBER" in capfd.readouterr().err
    assert run(["quantize", model, "-d", data, "-o", "out", "--state", "out="]) == 2
    assert "--state is 'out='; write OUT=IN, for instance stateN=state" in capfd.readouterr().err
    states = ["--state", "a=b", "--state", "a=c"]
    assert run(["quantize", model, "-d", data, "-o", "out", *states]) == 2
    assert "give a once" in capfd.readouterr().err


def test_errors_name_flags_for_the_command_line_and_arguments_for_python() -> None:
    error = IntactError("--method-option x", remedy="leave out --no-in-place or --max-memory")
    assert str(error) == "method_options x; leave out in_place=False or max_memory"
    assert error.with_flags == "--method-option x; leave out --no-in-place or --max-memory"


def test_names_are_read_without_regard_to_case() -> None:
    options = declared.QuantizeOptions(
        "m",
        method="KL",
        weight_method="MSE",
        formats=["TFLite"],
        io="INT8",
        order="RGB",
        resize="Bilinear",
        expand=["layernormalization", "HARDSIGMOID"],
        improve=["Equalize"],
    )
    assert (options.method, options.weight_method, options.io) == ("kl", "mse", "int8")
    assert (options.formats, options.order, options.resize) == (("tflite",), "rgb", "bilinear")
    assert (options.expand, options.improve) == (
        ("LayerNormalization", "HardSigmoid"),
        ("equalize",),
    )
    given: dict[str, Any] = {"method": "MinMax", "target": "OnnxRuntime", "formats": ["ONNX_QDQ"]}
    model, data = demo.model_path(), demo.calibration_path()
    result = api.quantize(model, data, samples=3, **given)
    plain = api.quantize(model, data, method="minmax", samples=3)
    assert result.plan.provenance == plain.plan.provenance
    assert result.recipe == plain.recipe


def test_widths_may_be_keywords_beside_overrides() -> None:
    def result(**options: Any) -> Any:
        return api.quantize(demo.model_path(), demo.calibration_path(), samples=3, **options)

    apart = result(keep_float=["Gemm"], weight_bits=4)
    joined = result(overrides=Overrides(("Gemm",)), weight_bits=4)
    assert apart.plan.decisions == joined.plan.decisions
    assert apart.recipe == joined.recipe
    assert 'keep_float = ["Gemm"]' in apart.recipe
