"""Prints a verification: one table for everything, and what stands out in each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from intact._text import decibels, first_names
from intact.cli.markup import escape
from intact.cli.phases import with_phases
from intact.cli.printing import new_table, print_json, say, show_table
from intact.cli.show_runs import overflows
from intact.formats.base.comparison import LayerComparison, OutputComparison, Totals
from intact.formats.base.float_layers import FloatComparison
from intact.formats.base.processor import ProcessorFinding
from intact.formats.base.report import Verification

if TYPE_CHECKING:
    from intact.cli.tables import Table

_WORST_LAYERS = 10


def verifications(found: Sequence[Verification], *, as_json: bool) -> None:
    """Print what ``verify`` compared, a row for each deployed model."""
    if as_json:
        print_json(with_phases({"verified": msgspec.to_builtins(found)}))
        return
    show_table(_summary(found))
    for each in found:
        if len(found) > 1:
            say(f"[bold]{escape(_called(each))}[/]")
        _one(each, alone=len(found) == 1)


def _summary(found: Sequence[Verification]) -> Table:
    """Return the table: layers are compared alone, decisions and accuracy from end to end."""
    samples = max(each.samples for each in found)
    headings = ("compared", "values", "differ", "most", "agree %", "top-1 %")
    table = new_table(
        f"deployed against expected, {samples} samples", ("target", "runtime"), numbers=headings
    )
    for each in found:
        # Some runtimes give no tensors between: outputs are all that can be compared.
        layers = each.layers or each.outputs
        _, values, differ, _, most = _totals(layers) if layers else ("-",) * 5
        shown = _compared(each) if each.layers else "outputs" if layers else "-"
        agree = "-" if each.agreement is None else f"{each.agreement:.2f}"
        row = (shown, values, differ, most, agree, _accuracy(each))
        runtime = "not run" if each.refused else each.runtime
        table.add_row(escape(_called(each)), escape(runtime), *row)
    return table


def _compared(found: Verification) -> str:
    """Return how many of the plan's quantized tensors were compared alone."""
    return f"{found.ends_compared} of {found.ends}" if found.ends else str(len(found.layers))


def _accuracy(found: Verification) -> str:
    """Return the top-1 in the runtime, and the engine's where that is another."""
    if found.top1 is None:
        return "-"
    deployed, expected = found.top1
    return f"{deployed:.2f}" if deployed == expected else f"{deployed:.2f} ({expected:.2f})"


def _called(found: Verification) -> str:
    """Return what a row is of: the target, and the format where it is called otherwise."""
    if found.format in ("", found.target):
        return found.target
    return f"{found.target} ({found.format})"


def _one(found: Verification, *, alone: bool) -> None:
    """Print what one row leaves out."""
    if found.refused:
        say(f"[yellow]not run: {escape(found.refused)}[/]")
    if found.compared_nothing:
        say(f"[red]none of the {found.ends} quantized tensors could be compared: no proof[/]")
    if alone and not found.refused:
        say(f"[dim]on {escape(found.cpu.name)} ({found.cpu.instruction_set})[/]")
        show_table(_kinds(found))
    _worst(found.layers or found.simulation)
    _float_layers(found.float_layers)
    for name, ratio in found.outputs_sqnr_db.items():
        say(f"output {escape(name)}: deployed against expected {decibels(ratio)}")
    for rule, places in found.rules.items():
        kept = (
            "[green]kept[/]" if not places else f"[red]broken[/] by {escape(first_names(places))}"
        )
        say(f"rule {escape(rule)}: {kept}")
    if found.compiled:
        say(escape(found.compiled))
    _layouts(found.layers)
    if found.no_engine:
        say(f"[yellow]not compared with the integer engine: {escape(found.no_engine)}[/]")
    reasons: dict[str, list[str]] = {}
    for name, reason in found.in_float.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        say(f"[yellow]in float[/] {escape(first_names(names))}: {escape(reason)}")
    _not_compared(found.not_compared)
    overflows({o.step: (o.overflows, o.sums, o.largest, o.limit) for o in found.overflows})
    for line in found.not_simulated if found.simulation else ():
        say(f"[dim]not simulated: {escape(line)}[/]")
    for line in found.executed_otherwise():
        say(f"[yellow]{escape(line)}[/]")
    if found.processor is not None:
        _processor(found.processor)


def _processor(found: ProcessorFinding) -> None:
    """Print what this processor computes otherwise than the target describes."""
    _, values, differ, largest = Totals.of(found.outputs)
    say(
        f"[yellow]{escape(found.cause)}. Compared {escape(found.compared)}; without, {differ:,} of "
        f"{values:,} output values differ from the target's, by {largest:g} at most. "
        f"Remedy: {escape(found.remedy)}[/]"
    )


def _kinds(found: Verification) -> Table:
    """Return the table of one verification: by layer, end to end, outputs, simulation."""
    headings = ("compared", "values", "differ", "rate", "most")
    reference = "simulation" if found.no_engine else "integer engine"
    table = new_table(f"against the {reference}, in steps", ("",), numbers=headings)
    for name, layers in (
        ("by layer", found.layers),
        ("end to end", found.end_to_end),
        ("outputs", found.outputs),
        ("simulation, by layer", found.simulation),
    ):
        if layers:
            table.add_row(name, *_totals(layers))
    return table


def _worst(layers: Sequence[LayerComparison]) -> None:
    """Name the tensors with the most differences."""
    wrong = sorted((each for each in layers if each.mismatches), key=lambda each: -each.mismatches)
    for layer in wrong[:_WORST_LAYERS]:
        what = f" ({layer.operation})" if layer.operation else ""
        called = f"{layer.tensor}, " if layer.layout else ""  # as it was recorded
        say(
            f"  {escape(called + layer.end + what)}: {layer.mismatches} of {layer.values} differ, "
            f"by {layer.largest:g} at most"
        )


def _float_layers(layers: Sequence[FloatComparison]) -> None:
    """Say how far layers of floats are apart, each from the runtime's own inputs."""
    if not layers:
        return
    worst = max(layers, key=lambda each: each.relative)
    say(
        f"{len(layers)} layers of floats with stored integers: they differ by {worst.relative:.1e} "
        f"of their largest value at most ({escape(worst.end)})"
    )


def _layouts(layers: Sequence[LayerComparison]) -> None:
    """Say how recorded axes were taken to lie: a line for each way, not for each tensor."""
    taken: dict[str, list[str]] = {}
    for layer in layers:
        if layer.layout:
            taken.setdefault(layer.layout, []).append(layer.tensor)
    for layout, names in taken.items():
        say(f"[dim]recorded {escape(layout)}: {escape(first_names(names))}[/]")


def _not_compared(tensors: Mapping[str, str]) -> None:
    """Say why tensors were not compared: a line for each reason, not for each tensor."""
    reasons: dict[str, list[str]] = {}
    for name, reason in tensors.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        count = f"{len(names)} tensors, " if len(names) > 1 else ""
        say(f"[yellow]not compared[/] {count}{escape(first_names(names))}: {escape(reason)}")


def _totals(
    compared: Sequence[LayerComparison] | Sequence[OutputComparison],
) -> tuple[str, str, str, str, str]:
    tensors, values, differ, largest = Totals.of(compared)
    rate = f"{differ / max(values, 1):.2g}"
    return str(tensors), f"{values:,}", f"{differ:,}", rate, f"{largest:g}"
