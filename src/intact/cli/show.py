"""What the commands print: tables for people, JSON for scripts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from intact._text import first_names, kilobytes
from intact.cli import show_improvements
from intact.cli.markup import escape
from intact.cli.phases import is_quiet, with_phases
from intact.cli.printing import new_table, print_json, say, show_table
from intact.cli.show_notes import notes
from intact.errors import ExportError
from intact.recipe.declare import options_of
from intact.recipe.reading import ReadOptions
from intact.targets import target_to_json

if TYPE_CHECKING:
    from intact.analyze.diagnose.findings import Finding
    from intact.analyze.evaluation.figures import Evaluation
    from intact.analyze.verdict import Verdict
    from intact.errors import IntactError
    from intact.plan.batch_norms import BatchNormScale
    from intact.plan.inspection import Inspection
    from intact.plan.provenance import Provenance
    from intact.results.result import Result, Results
    from intact.targets import Target

_SHOWN_FILES = 5
_SHOWN_FINDINGS = 3


def results(
    found: Result | Results, *, seconds: float, as_json: bool, explain: bool = False
) -> None:
    """Print what ``quantize`` made: one result, or one for each target."""
    if is_quiet() and not as_json:
        return
    if not isinstance(found, Mapping):
        result(found, seconds=seconds, as_json=as_json, explain=explain)
    elif as_json:
        made = {name: json_of(each) for name, each in found.items()}
        print_json(
            with_phases({"results": made, "refused": _said(found.refused), "seconds": seconds})
        )
    else:
        for each in found.values():
            verdict(each.verdict)
            say_made(each)
            say(escape(_made_with(each.plan.provenance).removesuffix(", ")))
            _fastest(each)
            _improvements(each, explain=explain)
            _notes(each)
            _loss(each)
        folders = {each.folder.parent for each in found.values() if each.folder is not None}
        _refused("not written for", found.refused)
        of = f" of {len(found) + len(found.refused)}" if found.refused else ""
        say(escape(f"{len(found)}{of} targets, {seconds:.1f} s"))
        for folder in folders if any(map(_is_verifiable, found.values())) else ():
            say(f"[dim]next: intact verify {escape(to_paste(folder))}[/]")


def _said(errors: Mapping[str, IntactError]) -> dict[str, str]:
    return {name: error.with_flags for name, error in errors.items()}


def _refused(what: str, errors: Mapping[str, IntactError]) -> None:
    """Say for which targets something was not done, and why."""
    for name, error in errors.items():
        say(f"[red]{what} {escape(name)}:[/] {escape(error.with_flags)}")
        for line in error.unsaid if isinstance(error, ExportError) else ():
            say(f"  {escape(line)}")


def result(found: Result, *, seconds: float, as_json: bool, explain: bool = False) -> None:
    """Print what ``quantize`` made, how long it took and what may come next."""
    if as_json:
        print_json(with_phases({**json_of(found), "seconds": seconds}))
        return
    if is_quiet():
        return
    verdict(found.verdict)
    say_made(found)
    count = f"{_samples(found)} samples, " if _samples(found) else ""
    say(escape(f"{_made_with(found.plan.provenance)}{count}{seconds:.1f} s"))
    _fastest(found)
    _improvements(found, explain=explain)
    _notes(found)
    _loss(found)
    where = escape(to_paste(found.folder or Path()))
    say(f"[dim]next: intact evaluate {where} --data FILE{escape(reading(found))}[/]")
    if _is_verifiable(found):
        say(f"[dim]      intact verify {where}[/]")


def reading(found: Result) -> str:
    """Return the options by which other samples of a result are read, each behind a space."""
    if not any(f"\n{name} = " in found.recipe for name in options_of(ReadOptions)):
        return ""
    from intact.recipe.command_line import reading_words  # few samples are text

    return reading_words(found.recipe)


def _notes(found: Result) -> None:
    from intact.plan import NoteKind
    from intact.results.result import PLAN

    said = (NoteKind.SPEED,) if found.fastest is not None else ()
    told = [note for note in found.plan.notes if note.kind not in said]
    notes(told, all_in=f"in {(found.folder or Path()) / PLAN}")


def _is_verifiable(found: Result) -> bool:
    from intact.formats.registry import runnable

    return bool(runnable(found.exports))


def to_paste(folder: Path) -> str:
    """Write a folder for a command line; a name that begins with a dash is no option."""
    text = str(folder)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def json_of(found: Result) -> dict[str, object]:
    """Return what a script wants to know of a result."""
    decisions = found.plan.decisions.values()
    float_bytes, quantized_bytes = found.sizes()
    return {
        "folder": str(found.folder),
        "target": found.plan.target.name,
        "formats": list(found.exports),
        "provenance": found.plan.provenance.to_json(),
        "nodes": len(decisions),
        "quantized_nodes": sum(decision.quantized for decision in decisions),
        "float_bytes": float_bytes,
        "quantized_bytes": quantized_bytes,
        "samples": _samples(found),
        "notes": [msgspec.to_builtins(note) for note in found.plan.notes],
        "improvements": show_improvements.json_of(found),
        "verdict": msgspec.to_builtins(found.verdict),
        "loss": msgspec.to_builtins(found.loss),
        "findings": [each.to_json() for each in found.findings],
        "fastest": msgspec.to_builtins(found.fastest),
    }


def _fastest(found: Result) -> None:
    """Say what stays float because that is faster, and what it saves."""
    if found.fastest is not None:
        say(escape(str(found.fastest)))


def _improvements(found: Result, *, explain: bool) -> None:
    if explain:
        show_improvements.explained(found)
    else:
        show_improvements.in_short(found)


def verdict(found: Verdict | None) -> None:
    """Open with what to do, in one sentence."""
    if found is not None:
        style = {"good": "green", "unsure": "yellow"}.get(found.judgement, "red")
        say(f"[{style}]{escape(found.sentence)}[/]")


def _samples(found: Result) -> int:
    """Return how many samples were observed."""
    seen = found.statistics.tensors.values() if found.statistics is not None else ()
    return max((tensor.samples for tensor in seen), default=0)


def say_made(found: Result) -> None:
    """Say what was written, and how much of it computes with integers."""
    from intact.plan.topology import has_weights_only

    decisions = found.plan.decisions.values()
    quantized = sum(decision.quantized for decision in decisions)
    float_bytes, quantized_bytes = found.sizes()
    folder = found.folder or Path()
    stored = sum(has_weights_only(decision) for decision in decisions)
    kept = f", {stored} in float with stored weights" if stored else ""
    left = f" ({len(decisions) - quantized - stored} float: see `intact inspect`)"
    say(f"[bold]{escape(str(folder / found.deployed_file))}[/]")
    say(
        f"{quantized} of {len(decisions)} nodes planned as integer for "
        f"{escape(found.plan.target.name)}{kept}{'' if quantized == len(decisions) else left}, "
        f"{kilobytes(float_bytes)} -> {kilobytes(quantized_bytes)}"
    )


def _made_with(provenance: Provenance) -> str:
    """Say where the scales of a plan come from, each part followed by a comma."""
    from intact.plan.given_scales import GIVEN

    parts = []
    if provenance.source:
        by = f" (by {provenance.producer})" if provenance.producer else ""
        parts.append(f"scales of the {provenance.source}{by}")
    if provenance.scales:
        parts.append(f"scales of {provenance.scales}")
    if provenance.method not in ("", GIVEN):
        options = ", ".join(
            f"{name}={value!r}" for name, value in provenance.method_options.items()
        )
        if provenance.statistics or provenance.trained or provenance.source:
            parts.append(f"method {provenance.method}{f' ({options})' if options else ''}")
    if provenance.weight_method and provenance.method != GIVEN:
        parts.append(f"weights {provenance.weight_method}")
    return "".join(f"{part}, " for part in parts)


def inspection(found: Inspection, *, as_json: bool) -> None:
    """Print what ``inspect`` found."""
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    table = new_table(f"on {found.target}", ("node", "op", "computes", "why"))
    for row in found.nodes:
        weight = f", {row.weight_bits}-bit weight" if row.weight_bits else ""
        weight += f" in blocks of {row.block}" if row.block else ""
        running = ", quantized while running" if row.is_dynamic else ""
        integers = f"int{row.activation_bits}{running}{weight}"
        computes = integers if row.quantized else f"float{weight}"
        reason = f"fused into {row.fused_into}" if row.fused_into else row.reason
        style = "" if row.quantized else "yellow"
        table.add_row(escape(row.node), escape(row.op_type), computes, escape(reason), style=style)
    show_table(table)
    summary = new_table("by op", ("op",), numbers=("integer", "float"))
    for op_type, (integer, floats) in found.by_type.items():
        summary.add_row(escape(op_type), str(integer), str(floats))
    show_table(summary)
    folded = {name: each for name, each in found.given_nodes.items() if each.nodes != (name,)}
    if folded:
        gone = new_table("folded", ("node", "op", "into"))
        for name, each in folded.items():
            gone.add_row(escape(name), escape(each.op_type), escape(first_names(each.nodes) or "-"))
        show_table(gone)
    if found.batch_norms:
        _batch_norms(found.batch_norms)
    notes(found.notes, all_in="with --json")


def _batch_norms(found: Sequence[BatchNormScale]) -> None:
    """Print what BatchNormalizations multiply by: gamma / sqrt(variance + epsilon)."""
    numbers = ("scale", "bias", "largest at", "gamma", "variance", "mean", "dead", "noise")
    table = new_table("batch norms", ("node",), numbers=numbers)
    for row in found:
        table.add_row(
            escape(row.node),
            f"{row.least:.3g}..{row.largest:.3g}",
            f"{row.least_bias:.3g}..{row.largest_bias:.3g}",
            f"{row.index} of {row.channels}",
            *(f"{number:.3g}" for number in (row.gamma, row.variance, row.mean)),
            f"{len(row.dead)}{f' after {row.after}' if row.after else ''}",
            f"x{row.cost:.2g}",
            style="" if row.cost == 1 and not row.dead else "yellow",
        )
    show_table(table)


def _loss(found: Result) -> None:
    """Warn of what is lost and what is odd, with the command that regains it."""
    loss = found.loss
    if loss is not None:
        _warn(str(loss))
        first = next(iter(found.findings), None)
        gain = "" if first is None else loss.gain(first)
        if first is not None and gain:
            from intact.cli.long_commands import printed

            _warn(_told(first))
            options = first.remedies[0].options
            flags = [f"--keep-float={name}" for name in options["keep_float"]]
            flags += [f"--io={options['io']}"] if "io" in options else []
            again = printed(["intact", *sys.argv[1:], *flags], found.folder, "keep-float")
            _warn(f"{gain}: {again}")
            _findings(found, found.findings[1:])
        else:
            _findings(found, found.findings)
        if loss.node and (first is None or first.gain is None):
            _warn("of the nodes that were tried in float, none regain 1 dB of it")
        _improvable(found)
    else:
        _findings(found, found.findings)
    if found.folder is not None and (loss is not None or found.findings):
        why = shlex.join(["intact", "diagnose", str(found.folder)])
        _warn(f"why, and what else may mend it: {why}; to measure what that gains, add --try 300")


def _told(finding: Finding) -> str:
    place = f" at {finding.node}" if finding.node else ""
    return f"{finding.cause}{place}: {finding.evidence}"


def _improvable(found: Result) -> None:
    """Say that improvement passes may regain what is lost, if none were asked for."""
    from intact.analyze.diagnose.remedies import changed_options, options_that_made
    from intact.analyze.diagnose.weights import BEST

    made_by = options_that_made(found)
    if made_by is None or {"improve", "preset"} & made_by.keys():
        return
    if changed_options(BEST, made_by) is not None:
        again = shlex.join(["intact", *sys.argv[1:], "--preset", "best"])
        _warn(f"not measured, and longer: improvement passes may regain some of it: {again}")


def _warn(text: str) -> None:
    say(f"[yellow]warning[/] {escape(text)}")


def _findings(found: Result, findings: Sequence[Finding]) -> None:
    """Warn of what is odd, each with its remedy."""
    if not findings:
        return
    from intact.analyze.diagnose.rehearsal import Rehearsal
    from intact.analyze.diagnose.remedies import options_that_made, with_command
    from intact.cli.long_commands import remedy_of

    made_by, ran = options_that_made(found), found.plan.provenance.improve
    rehearsal = Rehearsal(found, made_by)
    for each in findings[:_SHOWN_FINDINGS]:
        finding = with_command(each, made_by, ran, rehearsal)
        _warn(_told(finding))
        if finding.remedy:
            _warn(f"{finding.cause}{_gain(finding)}: {remedy_of(finding, found.folder)}")


def _gain(finding: Finding) -> str:
    """Say what a remedy gains; of words in its place nothing is said.

    Nor is it of what is wrong with the float model: the evidence is what other steps make of it.
    """
    if finding.gain is not None:
        return f" ({finding.gain:+.1f} {finding.unit})"
    is_command = finding.remedy.startswith("intact ")
    return ", gain not measured" if is_command and finding.severity <= 1 else ""


def evaluation(found: Evaluation, *, as_json: bool) -> None:
    """Print what ``evaluate`` measured."""
    if as_json:
        print_json(with_phases(msgspec.to_builtins(found)))
        return
    verdict(found.verdict)
    figures = found.figures()
    name, *numbers = figures.headings
    table = new_table(escape(figures.title), (name,), numbers=numbers)
    for row in figures.rows:
        table.add_row(*map(escape, row))
    show_table(table)
    for line in figures.lines:
        say(escape(line))
    for line in found.warnings:
        say(f"[yellow]warning[/] {escape(line)}")
    if found.why_no_labels and not found.metrics:
        say(f"[dim]no accuracy without labels: {escape(found.why_no_labels)}[/]")
    _skipped(found.skipped)


def evaluations(
    found: Mapping[str, Evaluation], refused: Mapping[str, IntactError], *, as_json: bool
) -> None:
    """Print what ``evaluate`` measured of each target, by name."""
    if as_json:
        made = {name: msgspec.to_builtins(each) for name, each in found.items()}
        print_json(with_phases({"results": made, "refused": _said(refused)}))
        return
    for name, each in found.items():
        say(f"[bold]{escape(name)}[/]")
        evaluation(each, as_json=False)
    _refused("not evaluated:", refused)


def _skipped(files: Sequence[str]) -> None:
    """Say which files were left out, the first of them by name."""
    for line in files[:_SHOWN_FILES]:
        say(f"[yellow]skipped[/] {escape(line)}")
    if len(files) > _SHOWN_FILES:
        say(f"[yellow]skipped[/] {len(files) - _SHOWN_FILES} more")


def targets(found: Sequence[Target], *, as_json: bool) -> None:
    """Print the list of targets."""
    if as_json:
        print_json([{"name": target.name, "description": target.description} for target in found])
        return
    table = new_table(None, ("name", "description"))
    for item in found:
        table.add_row(escape(item.name), escape(item.description))
    show_table(table)


def target(found: Target, source: str, *, as_json: bool) -> None:
    """Print one target: the text of its file, or its resolved form as JSON."""
    if as_json:
        print_json(target_to_json(found))
    else:
        print(source, end="")  # noqa: T201  as it stands in the file, without markup
