"""Lists the files of a result's folder: names, owners, and what may be written there.

::

    out/
    ├── model.onnx         the float model, normalized, with its weights
    ├── plan.json          every decision, scale and offset; names the others by hash
    ├── recipe.toml        the options, for `intact quantize --recipe out/recipe.toml`
    ├── preprocess.toml    what was done to the samples: `evaluate` and `verify` do it again
    ├── weights.npz        integers that do not follow from the float model, where there are any
    ├── statistics.npz     what calibration saw: other methods and targets need no second pass
    ├── report.html        its report, where one was written
    └── model.int8.onnx    the deployed model; or model.int8.tflite, or model.c with its headers
"""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path

from intact.errors import OutputError, PlanError
from intact.formats.registry import FORMATS, ONNX_QDQ, described
from intact.graph.files.regular import remedy_for_absent
from intact.plan.plan_file import SCALES, WEIGHTS
from intact.recipe.file import HEAD, RECIPE
from intact.results.exchange import is_staging, is_unfinished, probe, recover

MODEL, PLAN, STATISTICS = "model.onnx", "plan.json", "statistics.npz"
PREPROCESS, REPORT = "preprocess.toml", "report.html"
FILES = (MODEL, PLAN, STATISTICS, PREPROCESS, RECIPE, *FORMATS[ONNX_QDQ].writer.required)
"""What a calibrated result holds that is deployed as ONNX."""
ALWAYS = (PLAN, MODEL)
"""What every result has; the plan first: without it, this is some other folder."""
COMPANIONS = (
    "genai_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
)
"""What may lie beside a decoder, and goes with its result."""
_OWN = frozenset(
    {MODEL, f"{MODEL}.data", PLAN, STATISTICS, PREPROCESS, RECIPE, WEIGHTS, SCALES, *COMPANIONS}
)
REPORT_HEAD = b"<!doctype html><!-- intact report -->"
"""With what a report begins, so that a folder with one may be replaced."""
_PLAN_HEAD = b'"intact-plan"'


def results_in(folder: Path) -> list[Path]:
    """Return the results in a folder that holds one for each target; none for other folders.

    Raises:
        PlanError: There may be more: the exchange of its files was not finished.
    """
    # pathlib raises for a name that is too long.
    if not os.path.isdir(folder):  # noqa: PTH112
        return []
    if (folder / PLAN).is_file():
        return []
    refuse_unfinished(folder)
    return sorted(path.parent for path in folder.glob(f"*/{PLAN}"))


def report_in(folder: Path) -> Path:
    """Name the page in a result's folder, which may be named by the plan in it."""
    return (folder.parent if folder.name == PLAN and folder.is_file() else folder) / REPORT


def refuse_several(folder: Path) -> None:
    """Refuse a folder with a result for each target where one result is wanted.

    Raises:
        PlanError: With what to name instead.
    """
    inside = results_in(folder)
    if inside:
        names = ", ".join(str(path) for path in inside[:3])
        raise PlanError(
            f"{folder}: holds a result for each of {len(inside)} target(s)",
            remedy=f"name one of them: {names}{' ...' if len(inside) > 3 else ''}",
        )


def refuse_unfinished(folder: Path) -> None:
    """Refuse a folder whose files a process moves, or moved when it was killed.

    Raises:
        PlanError: With what finishes it: reading changes nothing.
    """
    with contextlib.suppress(OSError, ValueError):  # ValueError: a null byte in the path
        if is_unfinished(folder.resolve()):
            raise PlanError(
                f"{folder}: the exchange of its files was not finished",
                remedy="write it again: what writes a result there finishes that first",
            )


def no_result(folder: Path, missing: str = PLAN) -> PlanError:
    """Return the error of what should be the folder of a result, and lacks a file.

    Args:
        folder: As it was given: it may be a file, or not be there.
        missing: The first file that it lacks.
    """
    make = "make one: intact quantize {} --data DATA --output {}"
    named = shlex.quote(str(folder))
    if os.path.isfile(folder):  # noqa: PTH113 - pathlib raises for a name that is too long
        is_inside = (folder.parent / PLAN).is_file()
        return PlanError(
            f"{folder} is a file, and not the folder of a result",
            remedy=f"give {folder.parent}" if is_inside else make.format(named, "out"),
        )
    if not os.path.isdir(folder):  # noqa: PTH112 - likewise
        remedy = remedy_for_absent(folder, make.format("MODEL", named))
        return PlanError(f"{folder} does not exist", remedy=remedy)
    return PlanError(
        f"{folder}: no {missing} in it",
        remedy="give a folder that intact wrote, with all its files",
    )


def require_file(path: Path) -> None:
    """Refuse a folder that lacks a file of a result.

    Raises:
        PlanError: With what the folder is instead.
    """
    if path.name == PLAN:
        refuse_several(path.parent)
    if not os.path.isfile(path):  # noqa: PTH113 - pathlib raises for a name that is too long
        raise no_result(path.parent, path.name)


def check_output(folder: Path) -> None:
    """Refuse a folder that cannot be written, before any work is done for it.

    A folder that holds a result, and nothing else, may be replaced.

    Raises:
        OutputError: It is a file, holds files of others, or cannot be written.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{folder}: is a file", remedy="name a folder")
        recover(folder.resolve(), is_own)
        if folder.is_dir():
            _refuse_foreign(folder)
        probe(folder.resolve())
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise OutputError(
            f"{folder}: cannot be written ({getattr(error, 'strerror', None) or error})",
            remedy="name a folder that you may write",
        ) from error


def _refuse_foreign(folder: Path) -> None:
    present = sorted(path for path in folder.iterdir() if not is_staging(path))
    foreign = [path.name for path in present if not is_own(path)]
    files = [path.name for path in present if not path.is_dir() and not _is_recipe(path)]
    # Names alone are no proof: without a plan of ours any program may have written them.
    if files and not foreign and not _is_plan(folder / PLAN):
        foreign = files  # a model.onnx of the user's, say
    if foreign:
        raise OutputError(
            f"{folder}: holds files that intact did not write ({foreign[0]!r})",
            remedy="name a new or empty folder",
        )


def is_own(path: Path) -> bool:
    """Tell whether something in a folder is of a result's, or a result itself."""
    # A link to a folder is replaced as a link, and nothing behind it is looked at or removed.
    if not path.is_dir() or path.is_symlink():
        return _is_own_name(path.name) or _is_report(path)
    return _is_plan(path / PLAN) and all(
        (_is_own_name(each.name) and not each.is_dir()) or _is_report(each)
        for each in path.iterdir()
    )


def _is_own_name(name: str) -> bool:
    return name in _OWN or any(name in row.writer.files for _, row in described())


def _is_recipe(path: Path) -> bool:
    """Tell whether a file is a recipe that intact wrote."""
    return path.name == RECIPE and path.read_bytes()[:64].startswith(HEAD)


def _is_report(path: Path) -> bool:
    """Tell whether a file is a report that intact wrote."""
    if path.name != REPORT or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(REPORT_HEAD)) == REPORT_HEAD


def _is_plan(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        # The beginning tells enough: plans have many megabytes, and this is asked of every folder.
        return _PLAN_HEAD in file.read(64)


def file_bytes(path: Path) -> int:
    """Return the size of a model's file, with its data beside it."""
    data = path.with_name(f"{path.name}.data")
    return path.stat().st_size + (data.stat().st_size if data.exists() else 0)
