"""What the commands print: tables for people, JSON for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from intact.calibrate.collect import Progress as Report
from intact.evaluation import Evaluation
from intact.plan import Note
from intact.plan.inspection import Inspection
from intact.result import QUANTIZED, Result
from intact.targets import Target, target_to_json
from intact.verification import LayerComparison, Verification

console = Console()
_WORST_LAYERS = 10


@contextmanager
def progress(what: str, *, quiet: bool) -> Iterator[Report]:
    """Show samples done and time left on stderr while the block runs."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet) as bar:
        task = bar.add_task(what, total=None)

        def report(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total)

        yield report


def result(found: Result, *, as_json: bool) -> None:
    """Print what ``quantize`` made."""
    decisions = found.plan.decisions.values()
    quantized = sum(decision.quantized for decision in decisions)
    float_bytes, quantized_bytes = found.sizes()
    if as_json:
        _print_json(
            {
                "folder": str(found.folder),
                "target": found.plan.target.name,
                "provenance": found.plan.provenance,
                "nodes": len(decisions),
                "quantized_nodes": quantized,
                "float_bytes": float_bytes,
                "quantized_bytes": quantized_bytes,
                "notes": [msgspec.to_builtins(note) for note in found.plan.notes],
            }
        )
        return
    name = escape(str(found.folder / QUANTIZED)) if found.folder else "the model"
    method = found.plan.provenance["method"]
    console.print(
        f"[bold]{name}[/]  {quantized} of {len(decisions)} nodes integer on "
        f"{escape(found.plan.target.name)}, method {method}, "
        f"{_kilobytes(float_bytes)} -> {_kilobytes(quantized_bytes)}"
    )
    _notes(found.plan.notes)


def inspection(found: Inspection, *, as_json: bool) -> None:
    """Print what ``inspect`` found."""
    if as_json:
        _print_json(msgspec.to_builtins(found))
        return
    table = Table(title=f"on {found.target}", title_justify="left")
    for heading in ("node", "op", "computes", "why"):
        table.add_column(heading, overflow="fold")
    for row in found.nodes:
        computes = "float"
        if row.quantized:
            weight = f", {row.weight_bits}-bit weight" if row.weight_bits else ""
            computes = f"int{row.activation_bits}{weight}"
        reason = f"fused into {row.fused_into}" if row.fused_into else row.reason
        style = "" if row.quantized else "yellow"
        table.add_row(escape(row.node), escape(row.op_type), computes, escape(reason), style=style)
    console.print(table)
    summary = Table(title="by op", title_justify="left")
    for heading in ("op", "integer", "float"):
        summary.add_column(heading, justify="left" if heading == "op" else "right")
    for op_type, (integer, floats) in found.by_type.items():
        summary.add_row(escape(op_type), str(integer), str(floats))
    console.print(summary)


def evaluation(found: Evaluation, *, as_json: bool) -> None:
    """Print what ``evaluate`` measured."""
    if as_json:
        _print_json(msgspec.to_builtins(found))
        return
    table = Table(title=f"{found.samples} samples", title_justify="left")
    for heading in ("", "float", "quantized", "change"):
        table.add_column(heading, justify="left" if not heading else "right")
    if found.accuracy is not None:
        points = found.accuracy.difference
        interval = f"{points.difference:+.2f} [{points.low:+.2f}, {points.high:+.2f}] points"
        table.add_row("top-1 %", *(f"{value:.2f}" for value in found.accuracy.top1), interval)
        if found.accuracy.top5 is not None:
            float5, quantized5 = found.accuracy.top5
            table.add_row(
                "top-5 %",
                f"{float5:.2f}",
                f"{quantized5:.2f}",
                f"{quantized5 - float5:+.2f} points",
            )
    table.add_row(
        "size",
        *(_kilobytes(size) for size in found.bytes),
        f"{found.bytes[0] / found.bytes[1]:.2f} x smaller",
    )
    batch = f"latency, batch {found.latency_batch}"
    table.add_row(
        batch, *(f"{ms:.2f} ms" for ms in found.latency_ms), f"{found.speedup:.2f} x faster"
    )
    console.print(table)
    agree = "" if found.agreement is None else f", agreement {found.agreement:.2f} %"
    console.print(
        f"output {escape(found.output)}: SQNR {found.sqnr_db:.1f} dB, "
        f"cosine {found.cosine:.5f}{agree}"
    )


def verification(found: Verification, *, as_json: bool) -> None:
    """Print what ``verify`` compared."""
    if as_json:
        _print_json(msgspec.to_builtins(found))
        return
    console.print(
        f"{found.runtime} on {escape(found.cpu.name)} ({found.cpu.instruction_set}), "
        f"{found.samples} samples"
    )
    table = Table(title="against the simulation", title_justify="left")
    for heading in ("", "layers", "values", "mismatches", "rate", "largest step"):
        table.add_column(heading, justify="left" if not heading else "right")
    table.add_row("each layer, fed with the runtime's integers", *_totals(found.layers))
    table.add_row("end to end", *_totals(found.end_to_end))
    console.print(table)
    worst = sorted(
        (layer for layer in found.layers if layer.mismatches), key=lambda layer: -layer.mismatches
    )
    for layer in worst[:_WORST_LAYERS]:
        console.print(
            f"  {escape(layer.end)}: {layer.mismatches} of {layer.values} differ, "
            f"by {layer.largest} at most"
        )
    for name, decibels in found.outputs_sqnr_db.items():
        console.print(
            f"output {escape(name)}: SQNR of deployed against simulated {decibels:.1f} dB"
        )
    for name, op_type in found.float_nodes.items():
        console.print(
            f"[yellow]{escape(name)} ({op_type}) was planned for integers and runs in float[/]"
        )
    if found.cpu.saturates_pairs:
        console.print(
            "[yellow]this processor saturates pairs of products at 16 bits, so 8-bit weights can "
            "be off; a target with 7-bit weights avoids it[/]"
        )


def targets(found: Sequence[Target], *, as_json: bool) -> None:
    """Print the list of targets."""
    if as_json:
        _print_json([{"name": target.name, "description": target.description} for target in found])
        return
    table = Table("name", "description", box=None)
    for item in found:
        table.add_row(escape(item.name), escape(item.description))
    console.print(table)


def target(found: Target, source: str, *, as_json: bool) -> None:
    """Print one target: the text of its file, or its resolved form as JSON."""
    if as_json:
        _print_json(target_to_json(found))
    else:
        print(source, end="")  # noqa: T201  as it stands in the file, without markup


def _totals(layers: Sequence[LayerComparison]) -> tuple[str, str, str, str, str]:
    values = sum(layer.values for layer in layers)
    mismatches = sum(layer.mismatches for layer in layers)
    largest = max((layer.largest for layer in layers), default=0)
    return (
        str(len(layers)),
        f"{values:,}",
        f"{mismatches:,}",
        f"{mismatches / max(values, 1):.2e}",
        str(largest),
    )


def _notes(notes: Sequence[Note]) -> None:
    for note in notes:
        console.print(f"[yellow]note[/] {escape(str(note))}")


def _kilobytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def _print_json(value: Any) -> None:
    print(msgspec.json.format(msgspec.json.encode(value)).decode())  # noqa: T201
