"""Declares a result: a quantized model with all that led to it, in memory or as a folder."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from intact._files import without_links
from intact._lazy import Module
from intact.calibrate.statistics import Statistics
from intact.data.preprocess import Preprocess, preprocess_to_toml, read_preprocess
from intact.data.stream import Samples
from intact.errors import IntactError, PlanError
from intact.formats.base.format import Exported, WrittenFiles
from intact.formats.onnx_qdq.write import QdqModel
from intact.formats.registry import FORMATS, ONNX_QDQ, exported_in
from intact.graph import Graph, save_model
from intact.graph.files.save import given_bytes
from intact.plan import Note, NoteKind, QuantizedGraph, load_plan, save_plan
from intact.recipe.file import RECIPE
from intact.results.exchange import replacing
from intact.results.figures import ResultFigures, TriedPass, figures_of
from intact.results.folder import (
    ALWAYS,
    COMPANIONS,
    MODEL,
    PLAN,
    PREPROCESS,
    STATISTICS,
    check_output,
    file_bytes,
    is_own,
    refuse_unfinished,
    require_file,
)

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
    improvements: tuple[TriedPass, ...] = ()
    fastest: Fastest | None = None
    trained: Trained | None = None

    def __post_init__(self) -> None:
        """Let the plan name the preprocessing, as it names the other files."""
        self.plan = _naming(self.plan, preprocess_to_toml(self.preprocess))

    def figures(self) -> ResultFigures:
        """Return what is shown of it, on terminals, in notebooks, as JSON and in reports."""
        return figures_of(self)

    def __repr__(self) -> str:
        """Name the target, the formats and the folder."""
        worries = "".join(f"\nwarning: {each}" for each in self.worries())
        return f"Result({self.figures()}){worries}"

    def worries(self) -> list[str]:
        """Tell what was lost or odd when it was made, worst first, each with what mends it."""
        loss = [] if self.loss is None else [str(self.loss)]
        return [*loss, *(each.as_warning() for each in self.findings)]

    def _repr_html_(self) -> str:
        """Summarize it as a table, for a notebook."""
        return self.figures().table(self.worries()).to_html()

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
        # A folder whose exchange was not finished looks damaged: the remedy is to finish it, which
        # the error of the single file would not say.
        except IntactError:
            refuse_unfinished(folder)
            raise

    @staticmethod
    def _read(folder: Path) -> Result:
        for name in ALWAYS:
            require_file(folder / name)
        # The plan refuses a model of another hash: nothing else ties the two files together.
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
        """Name of the file that one deploys, or of the first of several."""
        name, exported = next(iter(self.exports.items()))
        if named := getattr(exported, "deployed_file", ""):
            return str(named)
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
        with replacing(folder.resolve(), is_own) as partial:
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
        return float_bytes, file_bytes(self.folder / self.deployed_file)


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
    with replacing(folder.resolve(), is_own) as partial:
        if recipe:
            (partial / RECIPE).write_bytes(recipe.encode())
        for name, result in results.items():
            (partial / name).mkdir()
            result._write(partial / name)
    for name, result in results.items():
        result.folder = folder / name


def _statistics(path: Path, plan: QuantizedGraph) -> Statistics | None:
    """Read the statistics that a plan was calibrated with, if it was."""
    expected = plan.provenance.statistics
    if not expected:
        return None
    require_file(path)
    statistics = Statistics.load(path)
    # The folder may have been put together by hand, or by somebody who wants it to mislead.
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
    require_file(path)
    found = read_preprocess(path)
    if hashlib.sha256(preprocess_to_toml(found)).hexdigest() != expected:
        raise PlanError(
            f"{path}: not the preprocessing of this plan",
            remedy="give other steps as a file of their own, with --preprocess",
        )
    return found


# Copies what lies beside a decoder that runs it: ``genai_config.json``, the tokenizer.
#
# The configuration is that of ONNX Runtime's generative API.
#
# A result has copies of them, and the configuration names the model that was written. It needs no
# more: the runtime takes the types and sizes of caches from the model (onnxruntime-genai 0.18,
# run with caches of 8 and 4 bits). The files may be anyone's: no link is followed, and what they
# name is not opened.

CONFIG = "genai_config.json"
_LARGEST_CONFIG = 1 << 20
_LARGEST = 1 << 28
_MODEL, _DECODER, _FILE = "model", "decoder", "filename"


class _UnusableError(Exception):
    """A file is not taken along, for this reason."""


class Companions(msgspec.Struct, frozen=True):
    """Files that lie beside a model.

    Attributes:
        config: What ``genai_config.json`` says; None without it.
        files: The other files, by their names.
        left: Why some are left out.
    """

    config: dict[str, Any] | None = None
    files: dict[str, bytes] = {}
    left: tuple[str, ...] = ()

    @staticmethod
    def read(folder: Path, names: Iterable[str], model: str | None) -> Companions:
        """Read what lies in a folder.

        Args:
            folder: The folder.
            names: The files that are taken along.
            model: Name of the model that they must be about; None for any.
        """
        config, files, left = None, dict[str, bytes](), list[str]()
        for name in names:
            try:
                if name == CONFIG:
                    config = _config(folder, model)
                elif (content := _content(folder / name, _LARGEST)) is not None:
                    files[name] = content
            except _UnusableError as reason:
                left.append(f"{name} beside the model: {reason}")
        return Companions(config, files, tuple(left))

    @property
    def notes(self) -> tuple[Note, ...]:
        """What a user should know of those that are left out."""
        return tuple(Note(NoteKind.EXPORT, "", f"left out: {each}") for each in self.left)

    def write(self, folder: Path, deployed: str) -> None:
        """Write the files into a result's folder.

        Args:
            folder: The folder.
            deployed: Name of the model that runs.
        """
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        if self.config is not None:
            model = self.config[_MODEL]
            config = {
                **self.config,
                _MODEL: {**model, _DECODER: {**model[_DECODER], _FILE: deployed}},
            }
            text = json.dumps(config, indent=4, ensure_ascii=False) + "\n"
            (folder / CONFIG).write_text(text, encoding="utf-8")


def _content(path: Path, largest: int) -> bytes | None:
    """Read a file; None where there is none."""
    try:
        # The file is opened first and examined by its descriptor: a check by its name could be of
        # another.
        descriptor = without_links(str(path), os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # ELOOP: it is a link
        if path.is_symlink():
            raise _UnusableError("it is a link, which is not followed; copy the file") from error
        raise _UnusableError(f"it cannot be read ({getattr(error, 'strerror', error)})") from error
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        # A pipe or a device would be read for ever.
        if not stat.S_ISREG(found.st_mode):
            raise _UnusableError("it is no file")
        if found.st_size > largest:
            raise _UnusableError(f"it is larger than {largest >> 20} MiB")
        # At most so much, because the file may grow after its size was read.
        return file.read(largest)


def _config(folder: Path, model: str | None) -> dict[str, Any] | None:
    """Read the configuration of a model that is one decoder.

    Args:
        folder: Where it lies.
        model: Name of the model that it must be about; None for any.
    """
    content = _content(folder / CONFIG, _LARGEST_CONFIG)
    if content is None:
        return None
    try:
        found = json.loads(content)
        decoder = found[_MODEL][_DECODER]
        name = decoder.get(_FILE, model)
        parts = "pipeline" in decoder
    # Valid JSON of any shape may stand there, nested as deeply as its author likes.
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise _UnusableError("it is not what ONNX Runtime's generative API reads") from error
    if parts:
        raise _UnusableError("its decoder is a pipeline of several models")
    if model is not None and name != model:
        raise _UnusableError(f"it is about {name!r}, not {model!r}"[:200])
    return dict(found)
