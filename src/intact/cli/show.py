"""Prints the results of commands: tables for people, JSON for scripts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from intact._text import first_names
from intact.cli.markup import escape
from intact.cli.phases import is_quiet, with_phases
from intact.cli.printing import new_table, print_json, say, show_table
from intact.cli.show_notes import notes
from intact.errors import ExportError
from intact.recipe.declare import options_of
from intact.recipe.samples import ReadOptions
from intact.targets import target_to_json

if TYPE_CHECKING:
    from intact.analyze.diagnose.findings import Finding
    from intact.analyze.evaluation.figures import Evaluation
    from intact.analyze.report.figures import Report
    from intact.analyze.verdict import Verdict
    from intact.errors import IntactError
    from intact.plan.batch_norms import BatchNormScale
    from intact.plan.gains import Improvement
    from intact.plan.inspection import Inspection
    from intact.results.figures import ResultFigures
    from intact.results.result import Result, Results
    from intact.targets import Target

_SHOWN_FILES = 5
_SHOWN_FINDINGS = 3
_SHOWN_LAYERS = 5
"""Layers of a pass that ``--explain`` lists, those that gained most."""


def results(
    found: Result | Results, *, seconds: float, as_json: bool, explain: bool = False
) -> None:
    """Print what ``quantize`` made: one result, or one for each target."""
    if is_quiet() and not as_json:
        return
    if not isinstance(found, Mapping):
        result(found, seconds=seconds, as_json=as_json, explain=explain)
    elif as_json:
        made = {name: each.figures().to_json() for name, each in found.items()}
        print_json(
            with_phases({"results": made, "refused": _said(found.refused), "seconds": seconds})
        )
    else:
        for each in found.values():
            _made(each, (), explain=explain)
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
        print_json(with_phases({**found.figures().to_json(), "seconds": seconds}))
        return
    if is_quiet():
        return
    samples = found.figures().samples
    _made(
        found, [*([f"{samples} samples"] if samples else []), f"{seconds:.1f} s"], explain=explain
    )
    where = escape(to_paste(found.folder or Path()))
    say(f"[dim]next: intact evaluate {where} --data FILE{escape(reading(found))}[/]")
    if _is_verifiable(found):
        say(f"[dim]      intact verify {where}[/]")


def _made(found: Result, more: Sequence[str], *, explain: bool) -> None:
    """Say what a result is: its verdict, what was written and how, what is lost or odd."""
    figures = found.figures()
    verdict(found.verdict)
    say_made(figures)
    say(escape(", ".join([*figures.made_with, *more])))
    _fastest(found)
    _improvements(found, explain=explain)
    _notes(found)
    _loss(found)


def reading(found: Result) -> str:
    """Return the options by which other samples of a result are read, each behind a space."""
    if not any(f"\n{name} = " in found.recipe for name in options_of(ReadOptions)):
        return ""
    from intact.recipe.commands import reading_words  # few samples are text

    return reading_words(found.recipe)


def _notes(found: Result) -> None:
    from intact.plan import NoteKind
    from intact.results.folder import PLAN

    # `_fastest` has said in one line what these notes say of each node.
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


def _fastest(found: Result) -> None:
    """Say what stays float because that is faster, and what it saves."""
    if found.fastest is not None:
        say(escape(str(found.fastest)))


def _improvements(found: Result, *, explain: bool) -> None:
    """Print what each pass did, in a line or in tables."""
    if explain:
        _explained(found)
        return
    for each in found.figures().improvements:
        say(escape(str(each)))


def _explained(found: Result) -> None:
    """Print a table of the passes, and of the layers that gained most by each."""
    if not found.improvements:
        say("no improvement pass was run: plain calibration (see --preset and --improve)")
        return
    table = new_table(
        "improvement passes", ("pass", "is"), ("before dB", "after dB", "layers", "helped", "s")
    )
    for each in found.figures().improvements:
        table.add_row(
            escape(each.name),
            "kept" if each.kept else "rolled back",
            f"{each.before_db:.1f}",
            f"{each.after_db:.1f}",
            str(each.tried or ""),
            str(each.helped) if each.tried else "",
            f"{each.seconds:.1f}",
        )
    show_table(table)
    for tried in found.improvements:
        _gains(tried.improvement)
    say("dB: signal to quantization noise, of the outputs on calibration samples and of layers on")
    say("samples that the pass did not fit")


def _gains(improvement: Improvement) -> None:
    kept = [each for each in improvement.gains if each.kept]
    if not kept:
        return
    table = new_table(
        escape(f"{improvement.name}: what gained most"), ("layer",), ("before dB", "after dB")
    )
    for each in sorted(kept, key=lambda each: each.before - each.after)[:_SHOWN_LAYERS]:
        table.add_row(escape(each.node), f"{each.before:.1f}", f"{each.after:.1f}")
    show_table(table)


def verdict(found: Verdict | None) -> None:
    """Open with what to do, in one sentence."""
    if found is not None:
        style = {"good": "green", "unsure": "yellow"}.get(found.judgement, "red")
        say(f"[{style}]{escape(found.sentence)}[/]")


def say_made(found: ResultFigures) -> None:
    """Say what was written, and how much of it computes with integers."""
    say(f"[bold]{escape(found.deployed)}[/]")
    say(escape(found.sentence))


def inspection(found: Inspection, *, as_json: bool) -> None:
    """Print what ``inspect`` found."""
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    table = new_table(f"on {found.target}", ("node", "op", "computes", "why"))
    for row in found.nodes:
        weight = f", {row.weight_bits}-bit weight" if row.weight_bits else ""
        weight += f" in blocks of {row.block}" if row.block else ""
        cache = f", {row.cache_bits}-bit cache" if row.cache_bits else ""
        running = ", quantized while running" if row.is_dynamic else ""
        integers = f"int{row.activation_bits}{running}{weight}"
        in_float = "float16" if row.is_float16 else "float"
        computes = integers if row.quantized else f"{in_float}{weight}{cache}"
        reason = f"fused into {row.fused_into}" if row.fused_into else row.reason
        style = "" if row.quantized else "yellow"
        table.add_row(escape(row.node), escape(row.op_type), computes, escape(reason), style=style)
    show_table(table)
    summary = new_table("by op", ("op",), numbers=("integer", "float"))
    for op_type, (integer, floats) in found.by_type.items():
        summary.add_row(escape(op_type), str(integer), str(floats))
    show_table(summary)
    # A node that is one node still, under its own name, stands in the table above.
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

            _warn(str(first))
            options = first.remedies[0].options
            # With a sign of equality, because a node's name may begin with a dash.
            flags = [f"--keep-float={name}" for name in options["keep_float"]]
            flags += [f"--io={options['io']}"] if "io" in options else []
            again = printed(["intact", *sys.argv[1:], *flags], found.folder, "keep-float")
            _warn(f"{gain}: {again}")
            # The first was told with its gain, and is not told again.
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


def _improvable(found: Result) -> None:
    """Say that improvement passes may regain what is lost, if none were asked for."""
    from intact.analyze.diagnose.remedies import changed_options, options_that_made
    from intact.analyze.diagnose.weights import BEST

    made_by = options_that_made(found)
    # Who has chosen passes, or a preset without them, needs no advice about them.
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
        _warn(str(finding))
        if finding.remedy:
            _warn(f"{finding.cause}{_gain(finding)}: {remedy_of(finding, found.folder)}")


def _gain(finding: Finding) -> str:
    """Say what a remedy gains; of words in its place nothing is said.

    Nor is it of what is wrong with the float model: the evidence is what other steps make of it.
    """
    if finding.gain is not None:
        return f" ({finding.gained})"
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


def next_diagnosis(found: Evaluation, result: str, data: str) -> None:
    """Print the command that tells why a result loses, if it does."""
    if found.verdict is not None and found.verdict.judgement == "loses":
        command = shlex.join(["intact", "diagnose", result, "--data", data])
        say(f"[dim]next: {escape(command)}[/]")


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


def report(found: Report, path: str | Path, *, as_json: bool) -> None:
    """Print where the page is; or everything that it shows."""
    if as_json:
        print_json(with_phases({"page": str(path), **msgspec.json.decode(found.encode())}))
        return
    say(f"[bold]{escape(str(path))}[/]")
    for table, what in found.written.items():
        say(f"[bold]{escape(table)}[/]: {escape(what)}")
    for part, reason in found.left_out.items():
        say(f"[yellow]without {part}[/]: {escape(reason)}")


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
