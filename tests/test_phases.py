"""A command accounts for the whole time that it takes."""

from __future__ import annotations

import cProfile
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from intact import inspect
from intact.cli import run
from intact.cli.phases import LOADING, OTHER, START, Phases, process_began
from intact.cli.printing import begun, observing
from intact.demo import calibration_path, model_path
from tests.models import ModelBuilder


class Ticks:
    """A clock that shows what it is told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_phases_follow_one_another_and_sum_to_the_whole_time() -> None:
    clock = Ticks()
    phases = Phases(-2.0, clock)
    for now, name in (
        (0.0, "reading"),
        (1.0, "writing"),
        (1.5, "reading"),
        (2.0, "reading (2 of 2)"),
        (4.0, OTHER),
    ):
        clock.now = now
        phases.begin(name)
    clock.now = 4.01
    seconds = phases.seconds()
    assert seconds == pytest.approx({START: 2, "reading": 3.5, "writing": 0.5, OTHER: 0.01})
    assert sum(seconds.values()) == pytest.approx(phases.elapsed)
    assert str(phases) == "6.0 s: start 2.0, reading 3.5, writing 0.5"


def test_what_waits_for_packages_is_called_once_they_are_loaded() -> None:
    called: list[int] = []
    phases = Phases(0.0, loaded=lambda: called.append(1))
    seen = []
    for name in (LOADING, "reading", LOADING, OTHER):
        phases.begin(name)
        seen.append(len(called))
    assert seen == [0, 1, 1, 1]


def test_start_of_python_counts() -> None:
    code = "import time; time.sleep(0.3); from intact.cli.phases import process_began as b; "
    code += "print(time.perf_counter() - b())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    if sys.platform == "linux":
        assert 0.3 < float(done.stdout) < 30


@pytest.mark.parametrize("text", ["", "1 (python) S", f"1 (a) b) S {'x ' * 30}", None])
def test_start_is_unknown_where_the_system_does_not_say(tmp_path: Path, text: str | None) -> None:
    stat = tmp_path / "stat"
    if text is not None:
        stat.write_text(text)
    assert process_began(stat) is None


def test_process_that_was_another_program_before_is_not_believed(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text(f"1 (sh) S {'0 ' * 30}")  # as old as the machine
    assert process_began(stat) is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phases") / "out"
    assert run([*lines_of(folder)[0], "--json"]) == 0
    return folder


def lines_of(folder: Path) -> list[list[str]]:
    data = ["--data", str(calibration_path()), "--samples", "16"]
    return [
        ["quantize", str(model_path()), *data, "--output", str(folder)],
        ["verify", str(folder), "--samples", "4"],
        ["evaluate", str(folder), *data],
        ["diagnose", str(folder), *data],
    ]


def test_phases_of_each_command_sum_to_its_time(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for line in lines_of(folder):
        before = time.perf_counter()
        assert run([*line, "--json"]) == 0
        wall = time.perf_counter() - before
        shown = json.loads(capfd.readouterr().out)
        phases = {each["name"]: each["seconds"] for each in shown["phases"]}
        assert next(iter(phases)) == START
        assert len(phases) >= 4
        assert wall - 0.5 < sum(phases.values()) <= wall
        assert "seconds" not in shown or shown["seconds"] <= sum(phases.values())


def test_terminals_get_one_dim_line_on_stderr(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    for line in lines_of(folder):
        assert run(line) == 0
        last = capfd.readouterr().err.splitlines()[-1]
        assert re.fullmatch(r".*\x1b\[2m\d+\.\d s: \w.* \d+\.\d\x1b\[0m", last), last


def test_a_phase_begins_without_the_count_of_the_one_before() -> None:
    bar = observing()
    task = bar.add_task("reading", total=None)
    bar.update(task, completed=64, total=64)
    begun(bar, task, "comparing")
    (shown,) = bar.tasks
    assert (shown.description, shown.completed, shown.total) == ("comparing", 0, None)


def test_inspecting_names_what_it_does() -> None:
    class Named(list[str]):
        def __call__(self, done: int, total: int | None) -> None: ...

        phase = list.append

    named = Named()
    inspect(model_path(), progress=named)
    assert named == ["reading the model", "simplifying the model", "planning"]


def test_reading_and_planning_are_phases_of_quantizing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    quantizing = [*lines_of(tmp_path / "out")[0], "--json"]
    assert run(quantizing) == 0
    names = [each["name"] for each in json.loads(capfd.readouterr().out)["phases"]]
    first = names.index("reading the model")
    assert names[first : first + 3] == ["reading the model", "simplifying the model", "planning"]


def _calls(model: onnx.ModelProto) -> int:
    """Count the functions that are called to inspect a model."""
    profile = cProfile.Profile()
    profile.runcall(inspect, model)
    return sum(entry.callcount for entry in profile.getstats())


def _wide(nodes: int) -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.input("x", ["n", 8])
    b.node("Sum", *(b.node("Relu", x) for _ in range(nodes)), out="y")
    b.output("y")
    return b.build()


def _long(nodes: int) -> onnx.ModelProto:
    b = ModelBuilder()
    last = b.input("x", ["n", 8])
    for at in range(nodes):
        last = b.node("Tanh" if at % 2 else "Abs", last)
    b.node("Relu", last, out="y")
    b.output("y")
    return b.build()


@pytest.mark.parametrize("shape", [_wide, _long])
def test_inspecting_takes_work_in_proportion_to_the_nodes(
    shape: Callable[[int], onnx.ModelProto],
) -> None:
    inspect(shape(10))  # loads packages
    assert _calls(shape(800)) < 5 * _calls(shape(200))


def test_elsewhere_there_is_no_line(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for line in lines_of(folder):
        assert run(line) == 0
        assert capfd.readouterr().err == ""


def test_no_file_of_a_result_has_times(folder: Path) -> None:
    for name in ("plan.json", "recipe.toml"):
        assert not re.search(r"seconds|\bphases\b *[=:\"]", (folder / name).read_text("utf-8"))
