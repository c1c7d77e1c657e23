"""What results of the public functions look like when they are printed."""

from __future__ import annotations

from pathlib import Path

import pytest

import intact
from intact import demo
from intact._text import Figures
from intact.cli import run
from intact.results.result import Result


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A result in a folder."""
    folder = tmp_path_factory.mktemp("text") / "out"
    return intact.quantize(demo.model_path(), demo.calibration_path(), samples=20, output=folder)


def test_figures_are_aligned() -> None:
    table = Figures("title", ("", "a", "long"), [("row", "1", "2"), ("r", "10", "3")], ["below"])
    assert str(table).splitlines() == [
        "title",
        "      a  long",
        "row   1     2",
        "r    10     3",
        "below",
    ]


def test_public_results_have_short_reprs(result: Result) -> None:
    data = demo.test_path()
    found = [
        result,
        result.plan,
        intact.evaluate(result, data, samples=20),
        intact.verify(result, samples=4),
        intact.inspect(demo.model_path()),
        intact.quant_loss(result, data, samples=4),
        intact.inspect_graph_statistic(result, data, samples=4),
        intact.execute(result, data, samples=4),
    ]
    for each in found:
        assert len(repr(each)) < 300, type(each)
        assert repr(each).startswith(f"{type(each).__name__}(")


def test_result_is_inspected_as_its_folder(result: Result) -> None:
    assert intact.inspect(result) == intact.inspect(result.folder or Path())


def test_evaluation_prints_as_the_command_does(
    result: Result, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = result.folder or Path()
    text = str(intact.evaluate(result, demo.test_path(), samples=40))
    arguments = ["evaluate", str(folder), "-d", str(demo.test_path()), "--samples", "40"]
    assert run(arguments) == 0
    printed = capfd.readouterr().out
    for line in text.splitlines():
        said = " ".join(line.partition("; latency")[0].split())  # times differ from call to call
        if not said.startswith("latency"):
            assert said in " ".join(printed.split())
