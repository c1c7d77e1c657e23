"""Counts a result in figures, which terminal, notebook, ``--json`` and report show."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from intact._text import Figures, kilobytes
from intact.plan import Note
from intact.plan.gains import Improvement
from intact.plan.given_scales import GIVEN
from intact.plan.topology import has_weights_only

if TYPE_CHECKING:
    from intact.plan.provenance import Provenance
    from intact.results.result import Result

_SHOWN_NOTES = 5
"""Notes of the plan that a notebook shows."""


class TriedPass(NamedTuple):
    """An improvement pass that ran, and how long it took; seconds are not in the plan."""

    improvement: Improvement
    seconds: float

    @property
    def rolled_back(self) -> TriedPass:
        """The same for a pass that did not help."""
        return self._replace(improvement=msgspec.structs.replace(self.improvement, kept=False))


class PassFigures(msgspec.Struct, frozen=True):
    """What an improvement pass gained and cost.

    Attributes:
        name: Its name.
        kept: Whether its changes stayed.
        before_db: Signal to quantization noise of the outputs before, dB.
        after_db: The same after it.
        tried: Layers that it tried.
        helped: How many of these gained.
        seconds: How long it took.
    """

    name: str
    kept: bool
    before_db: float
    after_db: float
    tried: int
    helped: int
    seconds: float

    @staticmethod
    def of(tried: TriedPass) -> PassFigures:
        """Return the figures of a pass."""
        made = tried.improvement
        return PassFigures(
            made.name,
            made.kept,
            made.before,
            made.after,
            len(made.gains),
            sum(gain.kept for gain in made.gains),
            tried.seconds,
        )

    def __str__(self) -> str:
        """Write it as a line."""
        rolled = "" if self.kept else ", rolled back"
        change = f"{self.before_db:.1f} -> {self.after_db:.1f} dB"
        return f"{self.name}: {change}{rolled}, {self.seconds:.1f} s"


class ResultFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A result in figures.

    Attributes:
        folder: Where it is; ``None`` as a text while it is only in memory.
        target: Name of the target.
        formats: What it is deployed as, the best first.
        deployed: Name of the file that one deploys.
        provenance: Where the plan comes from, as JSON.
        made_with: The same in short, a phrase each.
        nodes: Number of nodes.
        quantized_nodes: How many of them compute with integers.
        stored_nodes: Those that compute in float with weights stored as integers.
        float16_nodes: Those that compute in float16.
        float_bytes: Size of the float model as it was given.
        quantized_bytes: Size of what is deployed.
        samples: That were observed.
        notes: What the plan says.
        improvements: What improvement passes gained and cost, where it was just made.
        verdict: What to do, as of `intact.analyze.verdict`; None where it is not known.
        loss: What is lost, where that is much, as JSON.
        findings: What is odd, worst first, as JSON.
        fastest: What was measured to place precision, as JSON.
    """

    folder: str
    target: str
    formats: tuple[str, ...]
    deployed: str
    provenance: Mapping[str, Any]
    made_with: tuple[str, ...]
    nodes: int
    quantized_nodes: int
    stored_nodes: int
    float_bytes: int
    quantized_bytes: int
    samples: int
    float16_nodes: int = 0
    notes: tuple[Note, ...] = ()
    improvements: tuple[PassFigures, ...] = ()
    verdict: Mapping[str, Any] | None = None
    loss: Mapping[str, Any] | None = None
    findings: tuple[Mapping[str, Any], ...] = ()
    fastest: Mapping[str, Any] | None = None

    @property
    def is_stored(self) -> bool:
        """Whether it is in a folder."""
        return self.folder != str(None)

    @property
    def where(self) -> str:
        """The folder, or that there is none."""
        return f"in {self.folder!r}" if self.is_stored else "in memory"

    @property
    def counted(self) -> str:
        """How many nodes compute with integers."""
        return f"{self.quantized_nodes} of {self.nodes} nodes"

    @property
    def sizes(self) -> str:
        """The size of the float model, and of what is deployed."""
        return f"{kilobytes(self.float_bytes)} -> {kilobytes(self.quantized_bytes)}"

    @property
    def sentence(self) -> str:
        """One sentence: how much computes with integers, and how large the files are."""
        left = self.nodes - self.quantized_nodes - self.stored_nodes
        kept = f", {self.stored_nodes} in float with stored weights" if self.stored_nodes else ""
        half = f", {self.float16_nodes} of them float16" if self.float16_nodes else ""
        has_floats = self.quantized_nodes < self.nodes
        why = f" ({left} float{half}: see `intact inspect`)" if has_floats else ""
        return f"{self.counted} planned as integer for {self.target}{kept}{why}, {self.sizes}"

    def __str__(self) -> str:
        """Name the target, the formats and the folder."""
        return (
            f"{self.target}: {self.counted} quantized, as {', '.join(self.formats)}, {self.where}"
        )

    def table(self, worries: list[str]) -> Figures:
        """Write it as a table of two columns, for a notebook.

        Args:
            worries: What was lost or odd, in words of Python.
        """
        rows = [
            ("target", self.target),
            ("deployed as", ", ".join(self.formats)),
            ("integer nodes", self.counted),
            ("size", self.sizes),
            ("made with", ", ".join(self.made_with)),
            ("folder", self.folder if self.is_stored else self.where),
        ]
        judged = [] if self.verdict is None else [str(self.verdict["sentence"])]
        notes = [str(note) for note in self.notes[:_SHOWN_NOTES]]
        if len(self.notes) > _SHOWN_NOTES:
            notes.append(f"{len(self.notes) - _SHOWN_NOTES} more notes")
        lines = [*judged, *(f"warning: {each}" for each in worries), *notes]
        return Figures("quantized model", ("", ""), rows, lines)

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def figures_of(result: Result) -> ResultFigures:
    """Return a result in figures."""
    plan = result.plan
    decisions = plan.decisions.values()
    float_bytes, quantized_bytes = result.sizes()
    return ResultFigures(
        folder=str(result.folder),
        target=plan.target.name,
        formats=tuple(result.exports),
        deployed=str((result.folder or Path()) / result.deployed_file),
        provenance=plan.provenance.to_json(),
        made_with=tuple(made_with(plan.provenance)),
        nodes=len(decisions),
        quantized_nodes=plan.quantized_nodes,
        stored_nodes=sum(has_weights_only(decision) for decision in decisions),
        float16_nodes=0 if plan.float16 is None else len(plan.float16.nodes),
        float_bytes=float_bytes,
        quantized_bytes=quantized_bytes,
        samples=0 if result.statistics is None else result.statistics.samples,
        notes=plan.notes,
        improvements=tuple(map(PassFigures.of, result.improvements)),
        verdict=msgspec.to_builtins(result.verdict),
        loss=msgspec.to_builtins(result.loss),
        findings=tuple(each.to_json() for each in result.findings),
        fastest=msgspec.to_builtins(result.fastest),
    )


def made_with(made: Provenance) -> list[str]:
    """Say in short what led to a plan: scales, methods, passes, a search, a training."""
    options = ", ".join(f"{name}={value!r}" for name, value in made.method_options.items())
    method = f"method {made.method}{f' ({options})' if options else ''}"
    # Scales that were all given follow from no method.
    is_chosen = made.method not in ("", GIVEN)
    is_of_data = made.statistics or made.trained or made.source
    by = f" (by {made.producer})" if made.producer else ""
    parts = [
        f"scales of the {made.source}{by}" if made.source else "",
        f"scales of {made.scales}" if made.scales else "",
        method if is_chosen and is_of_data else "",
        f"weights {made.weight_method}" if made.weight_method and made.method != GIVEN else "",
        *(each.name for each in made.improvements if each.kept),
        "searched" if made.search else "",
        "trained" if made.trained else "",
    ]
    return [part for part in parts if part]
