"""What the commands print: tables for people, JSON for scripts."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from intact.calibrate.collect import Progress as Report
from intact.evaluation import Evaluation
from intact.execution import Run
from intact.plan import Note
from intact.plan.given_scales import GIVEN
from intact.plan.inspection import Inspection
from intact.result import Result
from intact.targets import Target, target_to_json
from intact.verification import LayerComparison, OutputComparison, Verification

_WORST_LAYERS = 10
_SHOWN_FILES = 5
_LITTLE_IN_COMMON = 3.0  # dB: half of the power is noise
_SHOWN_NODES = 3
_NO_TERMINAL = 1000  # columns: other programs get each row whole, on one line


@contextmanager
def progress(what: str, *, quiet: bool, at_most: int | None = None) -> Iterator[Report]:
    """Show samples done and time left on stderr while the block runs, if that is a terminal.

    Args:
        what: What is being done.
        quiet: Show nothing.
        at_most: Samples that there can be, where their number is not known.
    """
    screen = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    hidden = quiet or not screen.is_terminal
    # What a function of the user's prints is not part of the result.
    aside = redirect_stdout(sys.stderr)
    with aside, Progress(*columns, console=screen, transient=True, disable=hidden) as bar:
        task = bar.add_task(what, total=None)

        def report(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=at_most if total is None else total)

        yield report


def result(found: Result, *, seconds: float, as_json: bool) -> None:
    """Print what ``quantize`` made, how long it took and what may come next."""
    decisions = found.plan.decisions.values()
    quantized = sum(decision.quantized for decision in decisions)
    float_bytes, quantized_bytes = found.sizes()
    seen = found.statistics.tensors.values() if found.statistics is not None else ()
    samples = max((tensor.samples for tensor in seen), default=0)
    if as_json:
        _print_json(
            {
                "folder": str(found.folder),
                "target": found.plan.target.name,
                "formats": [name.value for name in found.exports],
                "provenance": found.plan.provenance,
                "nodes": len(decisions),
                "quantized_nodes": quantized,
                "float_bytes": float_bytes,
                "quantized_bytes": quantized_bytes,
                "samples": samples,
                "seconds": seconds,
                "notes": [msgspec.to_builtins(note) for note in found.plan.notes],
            }
        )
        return
    folder = found.folder or Path()
    left = f" ({len(decisions) - quantized} float: see `intact inspect`)"
    _line(f"[bold]{escape(str(folder / found.deployed_file))}[/]")
    _line(
        f"{quantized} of {len(decisions)} nodes planned as integer for "
        f"{escape(found.plan.target.name)}{'' if quantized == len(decisions) else left}, "
        f"{_kilobytes(float_bytes)} -> {_kilobytes(quantized_bytes)}"
    )
    count = f"{samples} samples, " if samples else ""
    _line(escape(f"{_made_with(found.plan.provenance)}{count}{seconds:.1f} s"))
    _notes(found.plan.notes)
    where = escape(shlex.quote(str(folder)))
    _line(f"[dim]next: intact evaluate {where} --data FILE[/]")
    _line(f"[dim]      intact verify {where}[/]")


def _made_with(provenance: Mapping[str, str]) -> str:
    """Return where the scales of a plan come from, each part followed by a comma."""
    parts = []
    if "source" in provenance:
        by = provenance.get("producer", "")
        parts.append(f"scales of the {provenance['source']}{f' (by {by})' if by else ''}")
    if "scales" in provenance:
        parts.append(f"scales of {provenance['scales']}")
    if provenance.get("method", GIVEN) != GIVEN:
        options = provenance.get("method_options", "")
        parts.append(f"method {provenance['method']}{f' ({options})' if options else ''}")
        parts.append(f"weights {provenance['weight_method']}")
    return "".join(f"{part}, " for part in parts)


def inspection(found: Inspection, *, as_json: bool) -> None:
    """Print what ``inspect`` found."""
    if as_json:
        _print_json(msgspec.to_builtins(found))
        return
    table = _table(f"on {found.target}", ("node", "op", "computes", "why"))
    for row in found.nodes:
        computes = "float"
        if row.quantized:
            weight = f", {row.weight_bits}-bit weight" if row.weight_bits else ""
            computes = f"int{row.activation_bits}{weight}"
        reason = f"fused into {row.fused_into}" if row.fused_into else row.reason
        style = "" if row.quantized else "yellow"
        table.add_row(escape(row.node), escape(row.op_type), computes, escape(reason), style=style)
    _console().print(table)
    summary = _table("by op", ("op",), numbers=("integer", "float"))
    for op_type, (integer, floats) in found.by_type.items():
        summary.add_row(escape(op_type), str(integer), str(floats))
    _console().print(summary)
    _notes(found.notes)


def _notes(notes: Sequence[Note]) -> None:
    for note in notes:
        _line(f"[yellow]note[/] {escape(str(note))}")


def evaluation(found: Evaluation, *, as_json: bool) -> None:
    """Print what ``evaluate`` measured."""
    if as_json:
        _print_json(msgspec.to_builtins(found))
        return
    title = f"{found.samples} samples, quantized model run by {escape(found.runtime)}"
    if found.latency_ms is not None:
        title += f"; latency of {found.latency_batch} at once"
    table = _table(title, ("",), numbers=("float", "quantized", "change"))
    if found.accuracy is not None:
        points = found.accuracy.difference
        interval = f"{points.difference:+.2f} [{points.low:+.2f}, {points.high:+.2f}]"
        table.add_row("top-1 %", *(f"{value:.2f}" for value in found.accuracy.top1), interval)
        if found.accuracy.top_k is not None:
            before, after = found.accuracy.top_k
            table.add_row(
                f"top-{found.accuracy.k} %",
                f"{before:.2f}",
                f"{after:.2f}",
                f"{after - before:+.2f}",
            )
    table.add_row(
        "size",
        *(_kilobytes(size) for size in found.bytes),
        _times(found.bytes[0] / found.bytes[1], "smaller", "larger"),
    )
    if found.latency_ms is not None and found.speedup is not None:
        table.add_row(
            "latency",
            *(f"{ms:.2f} ms" for ms in found.latency_ms),
            _times(found.speedup, "faster", "slower"),
        )
    for name, (before, after) in found.metrics.items():
        table.add_row(escape(name), f"{before:.4g}", f"{after:.4g}", f"{after - before:+.4g}")
    _console().print(table)
    agree = "" if found.agreement is None else f", agreement {found.agreement:.2f} %"
    _line(
        f"output {escape(found.output)}: {_decibels(found.sqnr_db)}, "
        f"cosine {found.cosine:.5f}{agree}"
    )
    if found.sqnr_db < _LITTLE_IN_COMMON:
        _line(
            "[yellow]the outputs have little in common: is the data preprocessed as the model "
            "wants it (--mean, --scale, --preprocess)?[/]"
        )
    for name, error in found.outputs.items():
        if name != found.output:
            _line(f"output {escape(name)}: {_decibels(error.sqnr_db)}, cosine {error.cosine:.5f}")
    if found.why_no_labels and not found.metrics:
        _line(f"[dim]no accuracy without labels: {escape(found.why_no_labels)}[/]")
    _skipped(found.skipped)


def _skipped(files: Sequence[str]) -> None:
    """Say which files were left out, the first of them by name."""
    for line in files[:_SHOWN_FILES]:
        _line(f"[yellow]skipped[/] {escape(line)}")
    if len(files) > _SHOWN_FILES:
        _line(f"[yellow]skipped[/] {len(files) - _SHOWN_FILES} more")


def run(found: Run, path: Path, *, as_json: bool) -> None:
    """Print what ``run`` wrote."""
    if as_json:
        _print_json(
            {
                "file": str(path),
                "samples": found.samples,
                "codes": found.codes,
                "arrays": {
                    name: {"dtype": str(array.dtype), "shape": array.shape}
                    for name, array in {**found.tensors, **found.outputs}.items()
                },
                "in_float": dict(found.in_float),
                "overflows": {
                    name: dict(zip(_OVERFLOW, numbers, strict=True))
                    for name, numbers in found.overflows.items()
                },
            }
        )
        return
    _line(f"[bold]{escape(str(path))}[/]")
    for name, array in found.outputs.items():
        _line(f"{escape(name)}: {array.dtype} {list(array.shape)}")
    if found.tensors:
        _line(f"and {len(found.tensors)} tensors between")
    if found.codes:
        _line(f"[dim]{escape(', '.join(found.codes))}: taken as codes, so outputs are codes[/]")
    for name, reason in found.in_float.items():
        _line(f"[yellow]in float[/] {escape(name)}: {escape(reason)}")
    overflows(found.overflows)


_OVERFLOW = ("overflows", "sums", "largest", "limit")


def overflows(found: Mapping[str, Sequence[int]]) -> None:
    """Say where sums left their accumulators, and by how much."""
    for name, (count, sums, largest, limit) in found.items():
        _line(
            f"[yellow]overflow[/] {escape(name)}: {count:,} of {sums:,} sums left the "
            f"accumulator, the largest by a factor of {largest / limit:.3g} "
            f"({largest:,} where it holds {limit:,})"
        )


def verification(found: Verification, *, as_json: bool) -> None:
    """Print what ``verify`` compared."""
    if as_json:
        _print_json(msgspec.to_builtins(found))
        return
    _line(
        f"target {escape(found.target)}, run by {escape(found.runtime)} on "
        f"{escape(found.cpu.name)} ({found.cpu.instruction_set}), {found.samples} samples"
    )
    headings = ("compared", "values", "differ", "rate", "most")
    table = _table("against the integer engine, in steps", ("",), numbers=headings)
    for name, layers in (
        ("by layer", found.layers),
        ("end to end", found.end_to_end),
        ("outputs", found.outputs),
        ("simulation, by layer", found.simulation),
    ):
        if layers:
            table.add_row(name, *_totals(layers))
    _console().print(table)
    _worst(found.layers or found.simulation)
    for name, decibels in found.outputs_sqnr_db.items():
        _line(f"output {escape(name)}: deployed against expected {_decibels(decibels)}")
    for layer in found.layers:
        if layer.layout:
            _line(f"[dim]{escape(layer.end)}: recorded {escape(layer.layout)}[/]")
    if found.no_engine:
        _line(f"[yellow]no integer engine for this plan: {escape(found.no_engine)}[/]")
    for name, reason in found.in_float.items():
        _line(f"[yellow]in float[/] {escape(name)}: {escape(reason)}")
    _not_compared(found.not_compared)
    overflows({o.step: (o.overflows, o.sums, o.largest, o.limit) for o in found.overflows})
    for line in found.not_simulated if found.simulation else ():
        _line(f"[dim]not simulated: {escape(line)}[/]")
    if found.float_nodes:
        named = [f"{name} ({op_type})" for name, op_type in found.float_nodes.items()]
        more = f", and {len(named) - _SHOWN_NODES} more" if len(named) > _SHOWN_NODES else ""
        _line(
            f"[yellow]{len(named)} node(s) planned for integers run in float, for want of an "
            f"integer kernel in the runtime: {escape(', '.join(named[:_SHOWN_NODES]))}{more}[/]"
        )
    if found.cpu.saturates_pairs:
        _line(
            "[yellow]this processor saturates pairs of products at 16 bits, so 8-bit weights can "
            "be off; a target with 7-bit weights avoids it[/]"
        )


def _worst(layers: Sequence[LayerComparison]) -> None:
    """Name the tensors with the most differences."""
    wrong = sorted((each for each in layers if each.mismatches), key=lambda each: -each.mismatches)
    for layer in wrong[:_WORST_LAYERS]:
        what = f" ({layer.operation})" if layer.operation else ""
        _line(
            f"  {escape(layer.end)}{escape(what)}: {layer.mismatches} of {layer.values} differ, "
            f"by {layer.largest:g} at most"
        )


def _not_compared(tensors: Mapping[str, str]) -> None:
    for name, reason in list(tensors.items())[:_SHOWN_NODES]:
        _line(f"[yellow]not compared[/] {escape(name)}: {escape(reason)}")
    if len(tensors) > _SHOWN_NODES:
        _line(f"[yellow]not compared[/] {len(tensors) - _SHOWN_NODES} more")


def targets(found: Sequence[Target], *, as_json: bool) -> None:
    """Print the list of targets."""
    if as_json:
        _print_json([{"name": target.name, "description": target.description} for target in found])
        return
    table = _table(None, ("name", "description"))
    for item in found:
        table.add_row(escape(item.name), escape(item.description))
    _console().print(table)


def target(found: Target, source: str, *, as_json: bool) -> None:
    """Print one target: the text of its file, or its resolved form as JSON."""
    if as_json:
        _print_json(target_to_json(found))
    else:
        print(source, end="")  # noqa: T201  as it stands in the file, without markup


def _totals(
    compared: Sequence[LayerComparison] | Sequence[OutputComparison],
) -> tuple[str, str, str, str, str]:
    values = sum(each.values for each in compared)
    mismatches = sum(each.mismatches for each in compared)
    largest = max((each.largest for each in compared), default=0)
    return (
        str(len(compared)),
        f"{values:,}",
        f"{mismatches:,}",
        f"{mismatches / max(values, 1):.2g}",
        f"{largest:g}",
    )


def _times(ratio: float, better: str, worse: str) -> str:
    return f"{ratio:.2f} x {better}" if ratio >= 1 else f"{1 / ratio:.2f} x {worse}"


def _decibels(decibels: float) -> str:
    return "identical" if decibels == math.inf else f"SQNR {decibels:.1f} dB"


def _table(title: str | None, texts: Sequence[str], numbers: Sequence[str] = ()) -> Table:
    """Return an empty table that stays readable on narrow terminals: texts fold, numbers do not."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in texts:
        table.add_column(heading, overflow="fold", no_wrap=not heading)
    for heading in numbers:
        table.add_column(heading, justify="right", overflow="fold")
    return table


def _line(text: str) -> None:
    """Print one line of markup, however narrow the terminal: paths and names stay whole."""
    _console().print(text, soft_wrap=True, highlight=False)


def _console() -> Console:
    """Return the console, as wide as the terminal, or as any table where there is none."""
    return Console(width=None if sys.stdout.isatty() else _NO_TERMINAL)


def _kilobytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def _print_json(value: Any) -> None:
    print(msgspec.json.format(msgspec.json.encode(value)).decode())  # noqa: T201
