"""A command loads what it uses: counted in modules, which do not depend on the machine's load."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from intact import _lazy
from intact.demo import calibration_path, model_path
from intact.engines.exact_sums import saturates_pairs

MOST_MODULES = 270
"""Modules of the package that `intact quantize --target onnxruntime` may load."""

LOADED_BY_QUANTIZE = frozenset(
    ["google", "llvmlite", "ml_dtypes", "msgspec", "numpy", "onnx", "onnx_ir", "onnxruntime"]
)
"""The large packages that it takes to read, run, quantize and write a model."""
LOADED_BY_NO_COMMAND = frozenset(
    ["fast_sugiyama", "numba", "onnxscript", "optuna", "pandas", "ray", "scipy", "sympy", "torch"]
)
"""Large packages that are installed and that a plain command does without."""
PARTS_FOR_NOTHING = frozenset(
    ["argparse", "html", "numpy.ma", "numpy.random", "statistics", "tarfile"]
)
"""What packages load by and by, and what takes long for the little that a command wants of it."""
ROOMS_OF_OTHERS = (
    *("analyze.layers", "analyze.diagnose.diagnosis", "analyze.diagnose.preprocessing"),
    *("engines.integer", "engines.piecewise", "search", "flow.search"),
)
"""Rooms that quantizing does not enter, and what looks for causes where nothing is lost."""
OTHER_FORMATS = ("c", "encodings", "ncnn", "onnx_integer", "openvino", "tensorrt", "tflite", "tvm")

RUN = """
import sys
from intact.cli.entry import run
code = run(sys.argv[1:])
print("modules", *sorted(sys.modules), file=sys.stderr)
sys.exit(code)
"""


def modules_of(arguments: Sequence[str]) -> frozenset[str]:
    """Run a command in a process of its own; list the modules that it loaded.

    Modules that wait for their first use (see `intact._lazy`) have not been loaded: of sympy, only
    its parts count.
    """
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, check=True
    )
    listed = next(line for line in done.stderr.splitlines() if line.startswith("modules "))
    return frozenset(listed.split()[1:]) - {"sympy"}


def packages(modules: frozenset[str]) -> frozenset[str]:
    """Name the packages that modules belong to."""
    return frozenset(name.partition(".")[0] for name in modules)


@pytest.fixture(scope="module")
def quantize_modules(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    folder = tmp_path_factory.mktemp("startup")
    line = ["quantize", str(model_path()), "--data", str(calibration_path())]
    target = "onnxruntime-avx2" if saturates_pairs() else "onnxruntime"  # has nothing to warn of
    line += ["--target", target, "--output", str(folder / "out")]
    modules_of(line)  # the first run on a machine compiles loops, with numba
    return modules_of(line)


def test_quantize_loads_few_modules(quantize_modules: frozenset[str]) -> None:
    own = [name for name in quantize_modules if name.partition(".")[0] == "intact"]
    assert len(own) <= MOST_MODULES


def test_quantize_loads_no_other_heavy_package(quantize_modules: frozenset[str]) -> None:
    loaded = packages(quantize_modules)
    assert loaded >= LOADED_BY_QUANTIZE - {"google", "ml_dtypes"}
    assert loaded.isdisjoint(LOADED_BY_NO_COMMAND | {"rich"})  # nothing goes to a terminal
    assert not quantize_modules & PARTS_FOR_NOTHING


def test_quantize_loads_no_other_format_nor_verifier(quantize_modules: frozenset[str]) -> None:
    for name in OTHER_FORMATS:
        assert f"intact.formats.{name}.write" not in quantize_modules
        assert f"intact.formats.{name}.read" not in quantize_modules
    assert not [name for name in quantize_modules if name.endswith(".verify")]
    for room in ROOMS_OF_OTHERS:
        assert f"intact.{room}" not in quantize_modules


@pytest.mark.parametrize("line", [["--help"], ["quantize", "--help"], ["targets"]])
def test_help_and_targets_load_nothing_heavy(line: list[str]) -> None:
    loaded = packages(modules_of(line))
    assert loaded.isdisjoint(LOADED_BY_QUANTIZE - {"msgspec"})
    assert loaded.isdisjoint(LOADED_BY_NO_COMMAND)


@pytest.mark.parametrize("package", ["config", "graph", "program", "targets"])
def test_lazy_names_are_those_for_type_checkers(package: str) -> None:
    module = __import__(f"intact.{package}", fromlist=["__all__"])
    text = Path(str(module.__file__)).read_text("utf-8")
    static = text.partition("if TYPE_CHECKING:\n")[2].partition("else:\n")[0]
    named = {line.rpartition(" as ")[2] for line in static.splitlines() if " as " in line}
    assert named == set(module.__all__)
    for name in named:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


def test_deferred_module_loads_when_used(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text("import used\n\n\ndef value():\n    return used.VALUE\n")
    (tmp_path / "used.py").write_text("print('loading')\nVALUE = 3\n")
    code = (
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        "from intact._lazy import defer\ndefer('user', ['used'])\n"
        "before = len(sys.meta_path)\nimport user\nprint('imported')\nprint(user.value())\n"
        "print(before - len(sys.meta_path))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["imported", "loading", "3", "1"]


def test_defer_leaves_a_loaded_package_alone() -> None:
    before = list(sys.meta_path)
    _lazy.defer("pytest", ["sympy"])
    assert sys.meta_path == before


@pytest.mark.parametrize(
    "text", ["a", "[dim]", "\\[bold]x", "a[0]", "end\\", "[/]", "\\\\[red]", "[x [#] @", "[yellow"]
)
def test_lines_without_colours_are_those_of_rich(text: str) -> None:
    from rich import markup

    from intact.cli.markup import escape, without_tags

    assert escape(text) == markup.escape(text)
    line = f"[bold]{escape(text)}[/] and {escape(text)}"
    assert without_tags(line) == markup.render(line, emoji=False).plain
