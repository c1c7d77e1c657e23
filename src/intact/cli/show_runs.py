"""What ``run`` prints, and what it shares with ``verify``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from intact.cli.markup import escape
from intact.cli.printing import is_quiet, print_json, say
from intact.results.execution import Run


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
    if is_quiet():
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
