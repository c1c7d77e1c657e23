"""Checks Tengine's files without Tengine, which has no package to install.

Each line of the tables is compared with the plan. The model file is read back, and the integer
engine runs what it holds beside the plan, layer by layer, with the arithmetic of Tengine's kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy.typing as npt

from intact.data.batching import cut, joined, sample_count
from intact.engines.integer import IntegerEngine
from intact.engines.limits import limits_of_simulation
from intact.formats.base.comparison import activations
from intact.formats.base.format import Feeds
from intact.formats.base.report import Verification
from intact.formats.base.verification import Arrays, EngineBeside, compare
from intact.formats.tengine.tables import write_tables
from intact.plan import QuantizedGraph
from intact.program import Tensor
from intact.program.lower import lower

_NO_RUNTIME = "engine (no Tengine here)"


def verify_tengine(
    plan: QuantizedGraph,
    files: Mapping[str, bytes],
    read_back: QuantizedGraph | None,
    batches: Iterable[Feeds],
    *,
    threads: int = 0,
) -> Verification:
    """Check the files of a plan, and run what the model file holds beside the plan.

    Args:
        plan: The plan.
        files: What was written from it, by name.
        read_back: The plan that the model file describes; None where only tables were written.
        batches: Inputs by name.
        threads: Threads of float islands; 0 lets their runtime choose.

    Raises:
        DataError: The model gives other shapes than the plan.
    """
    program = lower(plan)
    deployed = None if read_back is None else _Deployed(read_back, threads)
    known = {} if deployed is None else deployed.tensors
    tensors = {
        tensor.value: tensor
        for tensor in activations(program)
        if tensor.encoding is not None and tensor.value in known
    }

    def run(feeds: Feeds) -> tuple[Arrays, Arrays]:
        if deployed is None:
            return {}, {}
        results, codes = deployed.run(feeds, tensors)
        return results, {t.name: t.as_stored(codes[value]) for value, t in tensors.items()}

    reference = EngineBeside(program, tensors.values(), threads=threads)
    found = compare(plan, _NO_RUNTIME, run, reference, () if deployed is None else batches)
    found.rules = _tables(plan, files)
    found.not_simulated = limits_of_simulation(plan)
    return found


def _tables(plan: QuantizedGraph, files: Mapping[str, bytes]) -> dict[str, list[str]]:
    """Return for each table the lines that are not the plan's."""
    found = {}
    for name, wanted in write_tables(plan)[0].items():
        lines = files.get(name, b"").decode("utf-8", "replace").split("\n")
        # Line by line, in any order: the tool's readers look names up.
        expected = wanted.decode().split("\n")
        planned, present = set(expected), set(lines)
        odd = [line for line in lines if line not in planned]
        missing = [line for line in expected if line not in present]
        found[f"{name} holds the plan's scales"] = [line[:80] for line in (*odd, *missing)]
    return found


class _Deployed:
    """Runs a model file; one of a fixed batch takes one sample at a time."""

    def __init__(self, plan: QuantizedGraph, threads: int) -> None:
        program = lower(plan)
        self._engine = IntegerEngine(program, threads=threads)
        self._is_single = any(tensor.shape[:1] == (1,) for tensor in program.inputs.values())
        self.tensors: dict[str, Tensor] = {
            tensor.value: tensor
            for tensor in activations(program)
            if tensor.encoding is not None and tensor.value
        }

    def run(
        self, feeds: Feeds, values: Iterable[str]
    ) -> tuple[dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[Any]]]:
        """Return the outputs, and the codes of tensors by the model's names for them."""
        wanted = {value: self.tensors[value] for value in values}
        # Every file has a batch of one; it stays fixed on reading where a node mixes samples.
        size = 1 if self._is_single else sample_count(feeds)
        parts = []
        for rows in cut(feeds, size):
            found = self._engine.run(rows, [tensor.name for tensor in wanted.values()])
            codes = {v: t.as_in_model(found.tensors[t.name]) for v, t in wanted.items()}
            parts.append((found.outputs, codes))
        return joined([outputs for outputs, _ in parts]), joined([codes for _, codes in parts])
