"""The wheel installs where nothing else is, and runs; the workflows that build and test it hold."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from intact import __version__
from intact._extras import DISTRIBUTION, install_hint

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))


def pip(*arguments: str | Path, python: Path | str = sys.executable) -> str:
    command = [str(python), "-m", "pip", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_installs_in_an_empty_environment_and_runs(tmp_path: Path) -> None:
    pip("wheel", "--no-deps", "--wheel-dir", tmp_path, REPOSITORY)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"{DISTRIBUTION.replace('-', '_')}-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as file:
        tops = {name.partition("/")[0] for name in file.namelist()}
    assert tops == {"intact", f"{DISTRIBUTION.replace('-', '_')}-{__version__}.dist-info"}
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "empty")], check=True)
    python = next(path for path in (tmp_path / "empty").glob("*/python*") if path.is_file())
    pip("install", "--no-compile", "-c", REPOSITORY / "constraints.txt", wheel, python=python)
    demo = [str(python.with_name("intact")), "demo"]
    done = subprocess.run(
        demo, cwd=tmp_path, capture_output=True, text=True, check=True, env={"HOME": str(tmp_path)}
    )
    assert "top-1" in done.stdout
    # What errors say to paste: the extra's packages alone, from what is installed.
    what = install_hint("search").partition('"')[2].rstrip('"')
    told = pip("install", "--dry-run", what, python=python)
    assert re.search(r"Would install .*optuna-", told)
    assert DISTRIBUTION not in told.partition("Would install")[2]


def test_the_name_is_said_once_and_every_hint_is_made_of_it() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert PROJECT["scripts"] == {"intact": "intact.cli:main"}
    others = re.compile(r"""pip install (?:-\S+ )*["']?intact(?![\w-])""")
    texts = [*(REPOSITORY / "docs").rglob("*.md"), *REPOSITORY.glob("*.md")]
    texts += [*(REPOSITORY / "src").rglob("*.py"), *(REPOSITORY / "examples").iterdir()]
    for path in texts:
        if path.is_file() and path.name != "CHANGELOG.md":
            assert not others.search(path.read_text("utf-8")), path


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_name_what_there_is_and_may_do_little(path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    text = path.read_text("utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    assert found["permissions"] == {"contents": "read"}
    assert "${{ secrets" not in text
    rules = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    for job in found["jobs"].values():
        assert job["timeout-minutes"] <= 120
        for step in job["steps"]:
            command = step.get("run", "")
            assert "${{" not in command  # what others name becomes no command
            for named in re.findall(r"\btests/[\w./]+|\.ci/run|constraints\.txt", command):
                assert (REPOSITORY / named).exists(), named
            assert set(re.findall(r"\bmake ([\w-]+)", command)) <= set(rules)
            for extras in re.findall(r"\.\[([\w,]+)\]", command):
                assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    everywhere = {"ubuntu-latest", "windows-latest", "macos-latest"}
    assert all(each in text for each in everywhere)
