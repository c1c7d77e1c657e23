"""The folder that a quantization leaves: everything can be done again from it.

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

A quantized model that was only read leaves no statistics.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from intact._lazy import Module
from intact._text import Figures, kilobytes
from intact.calibrate.statistics import Statistics
from intact.data.preprocess import Preprocess, preprocess_to_toml, read_preprocess
from intact.data.stream import Samples
from intact.errors import IntactError, OutputError, PlanError, python_words
from intact.formats.base.format import Exported, WrittenFiles
from intact.formats.onnx_qdq.write import QdqModel
from intact.formats.registry import FORMATS, ONNX_QDQ, described, exported_in
from intact.graph import Graph, save_model
from intact.graph.files.regular import remedy_for_absent
from intact.graph.files.save import given_bytes
from intact.plan import QuantizedGraph, load_plan, save_plan
from intact.plan.gains import Improvement
from intact.plan.plan_file import SCALES, WEIGHTS
from intact.recipe.file import HEAD, RECIPE
from intact.results.exchange import is_staging, is_unfinished, probe, recover, replacing

MODEL, PLAN, STATISTICS = "model.onnx", "plan.json", "statistics.npz"
PREPROCESS, REPORT = "preprocess.toml", "report.html"
FILES = (MODEL, PLAN, STATISTICS, PREPROCESS, RECIPE, *FORMATS[ONNX_QDQ].writer.required)
"""What a calibrated result holds that is deployed as ONNX."""
_ALWAYS = (PLAN, MODEL)  # the plan first: without it, this is some other folder
_OWN = frozenset({MODEL, f"{MODEL}.data", PLAN, STATISTICS, PREPROCESS, RECIPE, WEIGHTS, SCALES})
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
REPORT_HEAD = b"<!doctype html><!-- intact report -->"
"""With what a report begins, so that a folder with one may be replaced."""
_PLAN_HEAD = b'"intact-plan"'

_SHOWN_NOTES = 5
_NOTEBOOK = Module("intact.analyze.report.notebook")
"""The one door to a room above, for a method that notebooks call."""

if TYPE_CHECKING:
    from intact.analyze.diagnose.findings import Finding
    from intact.analyze.diagnose.loss import Loss
    from intact.analyze.report.notebook import ReportPage
    from intact.analyze.verdict import Verdict
    from intact.improve.trained import Trained
    from intact.placement.choice import Fastest
    from intact.recipe.groups import DataSource
    from intact.results.companions import Companions


class Tried(NamedTuple):
    """What a pass did, and how long it took; seconds are not in the plan."""

    improvement: Improvement
    seconds: float

    @property
    def rolled_back(self) -> Tried:
        """The same for a pass that did not help."""
        return self._replace(improvement=msgspec.structs.replace(self.improvement, kept=False))


@dataclass
class Result:
    """A quantized model with all that led to it.

    Attributes:
        plan: The decisions; ``plan.graph`` is the float model.
        statistics: What calibration saw; None where nothing was calibrated.
        exports: The deployed models by format, best first.
        preprocess: What was done to the samples before the model saw them.
        folder: Where it is stored; None while it is only in memory.
        recipe: The options that made it, as TOML; empty where they are not known.
        companions: What lies beside a decoder and runs it; None where there is nothing.
        loss: What calibration found to be lost, where that is much. It is not stored: decibels
            differ a little between machines, and the files do not.
        verdict: What to do, in one sentence, by what calibration measured; not stored either.
        findings: What the checks found that every calibration makes, worst first; likewise not
            stored.
        improvements: What improvement passes did, with seconds, where this result was just made;
            the plan keeps what they gained.
        fastest: What was measured to place precision, where that was asked for. Not stored, but for
            the nodes: times differ.
        trained: How training went, where this result was just trained. It is not stored either.
    """

    plan: QuantizedGraph
    statistics: Statistics | None
    exports: dict[str, Exported]
    preprocess: Preprocess = field(default_factory=Preprocess)
    folder: Path | None = None
    recipe: str = ""
    companions: Companions | None = None
    loss: Loss | None = None
    verdict: Verdict | None = None
    findings: tuple[Finding, ...] = ()
    improvements: tuple[Tried, ...] = ()
    fastest: Fastest | None = None
    trained: Trained | None = None

    def __post_init__(self) -> None:
        """Let the plan name the preprocessing, as it names the other files."""
        self.plan = _naming(self.plan, preprocess_to_toml(self.preprocess))

    def __repr__(self) -> str:
        """Name the target, the formats and the folder."""
        quantized = sum(decision.quantized for decision in self.plan.decisions.values())
        where = "in memory" if self.folder is None else f"in {str(self.folder)!r}"
        worries = "".join(f"\nwarning: {each}" for each in self.worries())
        return (
            f"Result({self.plan.target.name}: {quantized} of {len(self.plan.decisions)} nodes "
            f"quantized, as {', '.join(self.exports)}, {where}){worries}"
        )

    def worries(self) -> list[str]:
        """Tell what was lost or odd when it was made, worst first, each with what mends it."""
        loss = [] if self.loss is None else [str(self.loss)]
        return [*loss, *map(_worry, self.findings)]

    def _repr_html_(self) -> str:
        """Summarize it as a table, for a notebook."""
        plan = self.plan
        quantized = sum(decision.quantized for decision in plan.decisions.values())
        before, after = self.sizes()
        made = plan.provenance
        rows = [
            ("target", plan.target.name),
            ("deployed as", ", ".join(self.exports)),
            ("integer nodes", f"{quantized} of {len(plan.decisions)}"),
            ("size", f"{kilobytes(after)}; float {kilobytes(before)}"),
            ("method", ", ".join(part for part in (made.method, *made.improve) if part)),
            ("folder", "in memory" if self.folder is None else str(self.folder)),
        ]
        notes = [str(note) for note in plan.notes[:_SHOWN_NOTES]]
        if len(plan.notes) > _SHOWN_NOTES:
            notes.append(f"{len(plan.notes) - _SHOWN_NOTES} more notes")
        judged = [] if self.verdict is None else [str(self.verdict)]
        worries = [f"warning: {each}" for each in self.worries()]
        return Figures("quantized model", ("", ""), rows, [*judged, *worries, *notes]).to_html()

    def report(self, data: DataSource | None = None, **options: Any) -> ReportPage:
        """Report on it as one page; a notebook shows it.

        Args:
            data: Samples, as `intact.report` takes them.
            **options: Further options of `intact.report`.

        Returns:
            The page. Where the result is in a folder, it is also written there.

        Raises:
            MissingExtraError: The extra ``report`` is not installed.
            IntactError: The data is wrong, or the page cannot be written.
        """
        make: Any = _NOTEBOOK.report_page
        page: ReportPage = make(self, data, options)
        return page

    @staticmethod
    def load(folder: str | Path) -> Result:
        """Read a folder that ``save`` wrote, named by itself or by the plan in it.

        Raises:
            PlanError: It is no such folder, or a file does not belong to the plan.
            IntactError: A file is damaged.
        """
        folder = Path(folder)
        if folder.name == PLAN and folder.is_file():
            folder = folder.parent
        try:
            return Result._read(folder)
        except IntactError:
            _refuse_unfinished(folder)
            raise

    @staticmethod
    def _read(folder: Path) -> Result:
        for name in _ALWAYS:
            _require(folder / name)
        plan = load_plan(folder / PLAN, Graph.load(folder / MODEL))
        statistics = _statistics(folder / STATISTICS, plan)
        exports = exported_in(folder, plan)
        preprocess = _preprocess(folder / PREPROCESS, plan)
        companions = _companions(folder, None)
        recipe = _recipe(folder / RECIPE)
        return Result(plan, statistics, exports, preprocess, folder, recipe, companions)

    @property
    def exported(self) -> QdqModel:
        """The deployed ONNX model.

        Raises:
            PlanError: It was deployed in other formats only.
        """
        found = self.exports.get(ONNX_QDQ)
        if not isinstance(found, QdqModel):
            raise PlanError(
                f"there is no ONNX model in this result, but {', '.join(self.exports)}",
                remedy="quantize with --format onnx_qdq",
            )
        return found

    @property
    def deployed_file(self) -> str:
        """Name of the file that one deploys: the first that its format wrote."""
        name, exported = next(iter(self.exports.items()))
        files = FORMATS[name].writer.files
        if isinstance(exported, WrittenFiles):
            return next((each for each in files if each in exported.files), files[0])
        return files[0]

    def save(self, folder: str | Path) -> None:
        """Write the folder: whole, or not at all.

        Raises:
            OutputError: It cannot be written, or holds something that intact did not write.
        """
        folder = Path(folder)
        check_output(folder)
        with replacing(folder.resolve(), _is_own) as partial:
            self._write(partial)
        self.folder = folder

    def _write(self, folder: Path) -> None:
        """Write the files into a folder that is empty."""
        save_model(self.plan.graph.model, folder / MODEL)
        (folder / PREPROCESS).write_bytes(preprocess_to_toml(self.preprocess))
        save_plan(self.plan, folder / PLAN)
        if self.recipe:
            (folder / RECIPE).write_bytes(self.recipe.encode())
        if self.statistics is not None:
            (folder / STATISTICS).write_bytes(self.statistics.to_bytes())
        for exported in self.exports.values():
            exported.save(folder)
        if ONNX_QDQ in self.exports and self.companions is not None:
            self.companions.write(folder, self.deployed_file)

    def draw_samples(self, count: int) -> Samples:
        """Draw inputs as calibration saw them, or else evenly from the ranges of the plan.

        Raises:
            DataError: An input was not observed and is not quantized either.
        """
        from intact.calibrate.synthetic import drawn_samples

        return drawn_samples(self.plan, self.statistics, count)

    def sizes(self) -> tuple[int, int]:
        """Return the bytes of the float model, as it was given, and of the first deployed one."""
        name, exported = next(iter(self.exports.items()))
        float_bytes = given_bytes(self.plan.graph.model)
        if self.folder is None or name != ONNX_QDQ:
            return float_bytes, exported.nbytes()
        return float_bytes, _file_bytes(self.folder / self.deployed_file)


def _worry(finding: Finding) -> str:
    """Write a finding with its first remedy, in the words of Python."""
    remedy = python_words(finding.remedy)
    first = next(iter(finding.remedies), None)
    if not remedy and first is not None:
        options = ", ".join(f"{name}={value!r}" for name, value in first.options.items())
        remedy = f"quantize with {options}" if options else python_words(first.text)
    place = f" at {finding.node}" if finding.node else ""
    said = f"{finding.cause}{place}: {finding.evidence}"
    return f"{said}; {remedy}" if remedy else said


class Results(dict[str, Result]):
    """Results by the names of their targets.

    Attributes:
        refused: Why there is none for a target that was asked for, by its name.
    """

    def __init__(self, made: Mapping[str, Result], refused: Mapping[str, IntactError]) -> None:
        super().__init__(made)
        self.refused = dict(refused)

    def worries(self) -> list[str]:
        """Tell what was lost or odd, and which targets refused, by the names of the targets."""
        refused = [f"{name}: refused: {error}" for name, error in self.refused.items()]
        found = [f"{name}: {each}" for name, made in self.items() for each in made.worries()]
        return [*refused, *found]


def save_several(results: Mapping[str, Result], folder: Path, recipe: str = "") -> None:
    """Write a folder that has one for each result: whole, or not at all.

    Args:
        results: By the names of their folders.
        folder: May hold results already; they are replaced.
        recipe: The options that made all of them.

    Raises:
        OutputError: As `Result.save`.
    """
    check_output(folder)
    with replacing(folder.resolve(), _is_own) as partial:
        if recipe:
            (partial / RECIPE).write_bytes(recipe.encode())
        for name, result in results.items():
            (partial / name).mkdir()
            result._write(partial / name)
    for name, result in results.items():
        result.folder = folder / name


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
    _refuse_unfinished(folder)
    return sorted(path.parent for path in folder.glob(f"*/{PLAN}"))


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


def _refuse_unfinished(folder: Path) -> None:
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


def _no_result(folder: Path, missing: str) -> PlanError:
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


def _require(path: Path) -> None:
    if path.name == PLAN:
        refuse_several(path.parent)
    if not os.path.isfile(path):  # noqa: PTH113 - pathlib raises for a name that is too long
        raise _no_result(path.parent, path.name)


def _statistics(path: Path, plan: QuantizedGraph) -> Statistics | None:
    """Read the statistics that a plan was calibrated with, if it was."""
    expected = plan.provenance.statistics
    if not expected:
        return None
    _require(path)
    statistics = Statistics.load(path)
    if statistics.hash() != expected:
        raise PlanError(f"{path}: not the statistics of this plan", remedy="quantize again")
    return statistics


def companions_of(model: object) -> Companions | None:
    """Read what lies beside a model that is a file; None where nothing does."""
    if not isinstance(model, str | os.PathLike) or not Path(model).is_file():
        return None
    return _companions(Path(model).parent, Path(model).name)


def _companions(folder: Path, model: str | None) -> Companions | None:
    """Read what a folder has of them, for a model of this name; None is for any."""
    if not any(os.path.lexists(folder / name) for name in COMPANIONS):
        return None
    from intact.results.companions import Companions  # which few models have

    return Companions.read(folder, COMPANIONS, model)


def _recipe(path: Path) -> str:
    """Read the options that made a result; none where another program wrote the file."""
    try:
        return path.read_text("utf-8") if path.is_file() else ""
    except ValueError:
        return ""


def _naming(plan: QuantizedGraph, steps: bytes) -> QuantizedGraph:
    """Return the plan with the preprocessing, and the hash of its file that lies beside it."""
    named = plan.provenance.preprocessed(hashlib.sha256(steps).hexdigest())
    return replace(plan, provenance=named, preprocessing=steps.decode())


def _preprocess(path: Path, plan: QuantizedGraph) -> Preprocess:
    """Read what was done to the samples: nothing where the plan names no file."""
    expected = plan.provenance.preprocess
    if not expected:
        return Preprocess()
    _require(path)
    found = read_preprocess(path)
    if hashlib.sha256(preprocess_to_toml(found)).hexdigest() != expected:
        raise PlanError(
            f"{path}: not the preprocessing of this plan",
            remedy="give other steps as a file of their own, with --preprocess",
        )
    return found


def check_output(folder: Path) -> None:
    """Refuse a folder that cannot be written, before any work is done for it.

    A folder that holds a result, and nothing else, may be replaced.

    Raises:
        OutputError: It is a file, holds files of others, or cannot be written.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{folder}: is a file", remedy="name a folder")
        recover(folder.resolve(), _is_own)
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
    foreign = [path.name for path in present if not _is_own(path)]
    files = [path.name for path in present if not path.is_dir() and not _is_recipe(path)]
    if files and not foreign and not _is_plan(folder / PLAN):
        foreign = files  # a model.onnx of the user's, say
    if foreign:
        raise OutputError(
            f"{folder}: holds files that intact did not write ({foreign[0]!r})",
            remedy="name a new or empty folder",
        )


def _is_own(path: Path) -> bool:
    """Tell whether something in a folder is of a result's, or a result itself."""
    if not path.is_dir() or path.is_symlink():
        return _is_own_name(path.name) or _is_report(path)
    return _is_plan(path / PLAN) and all(
        (_is_own_name(each.name) and not each.is_dir()) or _is_report(each)
        for each in path.iterdir()
    )


def _is_own_name(name: str) -> bool:
    return (
        name in _OWN
        or name in COMPANIONS
        or any(name in row.writer.files for _, row in described())
    )


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
        return _PLAN_HEAD in file.read(64)


def _file_bytes(path: Path) -> int:
    data = path.with_name(f"{path.name}.data")
    return path.stat().st_size + (data.stat().st_size if data.exists() else 0)
