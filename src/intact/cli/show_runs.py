"""What ``run`` and ``verify`` print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.markup import escape

from intact.cli.printing import console, decibels, new_table, print_json, say
from intact.execution import Run
from intact.verification import LayerComparison, OutputComparison, Verification

_WORST_LAYERS = 10
_SHOWN_NODES = 3


def run(found: Run, path: Path, *, as_json: bool) -> None:
    """Print what ``run`` wrote."""
    if as_json:
        print_json(
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
    say(f"[bold]{escape(str(path))}[/]")
    for name, array in found.outputs.items():
        say(f"{escape(name)}: {array.dtype} {list(array.shape)}")
    if found.tensors:
        say(f"and {len(found.tensors)} tensors between")
    if found.codes:
        say(f"[dim]{escape(', '.join(found.codes))}: taken as codes, so outputs are codes[/]")
    for name, reason in found.in_float.items():
        say(f"[yellow]in float[/] {escape(name)}: {escape(reason)}")
    overflows(found.overflows)


_OVERFLOW = ("overflows", "sums", "largest", "limit")


def overflows(found: Mapping[str, Sequence[int]]) -> None:
    """Say where sums left their accumulators, and by how much."""
    for name, (count, sums, largest, limit) in found.items():
        say(
            f"[yellow]overflow[/] {escape(name)}: {count:,} of {sums:,} sums left the "
            f"accumulator, the largest by a factor of {largest / limit:.3g} "
            f"({largest:,} where it holds {limit:,})"
        )


def verification(found: Verification, *, as_json: bool) -> None:
    """Print what ``verify`` compared."""
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    say(
        f"target {escape(found.target)}, run by {escape(found.runtime)} on "
        f"{escape(found.cpu.name)} ({found.cpu.instruction_set}), {found.samples} samples"
    )
    headings = ("compared", "values", "differ", "rate", "most")
    table = new_table("against the integer engine, in steps", ("",), numbers=headings)
    for name, layers in (
        ("by layer", found.layers),
        ("end to end", found.end_to_end),
        ("outputs", found.outputs),
        ("simulation, by layer", found.simulation),
    ):
        if layers:
            table.add_row(name, *_totals(layers))
    console().print(table)
    _worst(found.layers or found.simulation)
    for name, ratio in found.outputs_sqnr_db.items():
        say(f"output {escape(name)}: deployed against expected {decibels(ratio)}")
    _layouts(found.layers)
    if found.no_engine:
        say(f"[yellow]no integer engine for this plan: {escape(found.no_engine)}[/]")
    for name, reason in found.in_float.items():
        say(f"[yellow]in float[/] {escape(name)}: {escape(reason)}")
    _not_compared(found.not_compared)
    overflows({o.step: (o.overflows, o.sums, o.largest, o.limit) for o in found.overflows})
    for line in found.not_simulated if found.simulation else ():
        say(f"[dim]not simulated: {escape(line)}[/]")
    if found.float_nodes:
        named = [f"{name} ({op_type})" for name, op_type in found.float_nodes.items()]
        more = f", and {len(named) - _SHOWN_NODES} more" if len(named) > _SHOWN_NODES else ""
        say(
            f"[yellow]{len(named)} node(s) planned for integers run in float, for want of an "
            f"integer kernel in the runtime: {escape(', '.join(named[:_SHOWN_NODES]))}{more}[/]"
        )
    if found.cpu.saturates_pairs:
        say(
            "[yellow]this processor saturates pairs of products at 16 bits, so 8-bit weights can "
            "be off; a target with 7-bit weights avoids it[/]"
        )


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


def _layouts(layers: Sequence[LayerComparison]) -> None:
    """Say how recorded axes were taken to lie: a line for each way, not for each tensor."""
    taken: dict[str, list[str]] = {}
    for layer in layers:
        if layer.layout:
            taken.setdefault(layer.layout, []).append(layer.tensor)
    for layout, names in taken.items():
        more = f", and {len(names) - _SHOWN_NODES} more" if len(names) > _SHOWN_NODES else ""
        named = escape(", ".join(names[:_SHOWN_NODES]))
        say(f"[dim]recorded {escape(layout)}: {named}{more}[/]")


def _not_compared(tensors: Mapping[str, str]) -> None:
    for name, reason in list(tensors.items())[:_SHOWN_NODES]:
        say(f"[yellow]not compared[/] {escape(name)}: {escape(reason)}")
    if len(tensors) > _SHOWN_NODES:
        say(f"[yellow]not compared[/] {len(tensors) - _SHOWN_NODES} more")


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
