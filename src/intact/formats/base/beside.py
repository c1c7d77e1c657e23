"""The integer engine beside a runtime: every layer alone, and end to end.

Layer by layer means teacher-forced: each step of the engine reads the runtime's own integers, so a
difference is that layer's and no other's. End to end is counted apart, because a rare difference
of one step grows through the layers behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy.typing as npt

from intact.engines.integer.engine import IntegerEngine
from intact.formats.base.comparison import LayerComparison, as_held, comparisons
from intact.program import Array, Program, Tensor


class EngineBeside:
    """The integer engine, fed with what a runtime computed.

    Args:
        program: What the runtime was given, lowered.
        tensors: Those that the runtime shows.
        threads: Threads of float islands; 0 lets their runtime choose.

    Attributes:
        engine: The engine.
    """

    def __init__(self, program: Program, tensors: Iterable[Tensor], *, threads: int = 0) -> None:
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self.engine = IntegerEngine(program, threads=threads)
        self._layers = comparisons(program, list(self._tensors.values()))
        self._end_to_end = comparisons(program, list(self._tensors.values()))

    @property
    def engines(self) -> tuple[IntegerEngine, ...]:
        """The engine, for what it counted."""
        return (self.engine,)

    @property
    def layers(self) -> list[LayerComparison]:
        """Each tensor, computed from the runtime's own."""
        return list(self._layers.values())

    @property
    def end_to_end(self) -> list[LayerComparison]:
        """The same tensors, computed from the engine's own."""
        return list(self._end_to_end.values())

    def add(
        self, feeds: Mapping[str, npt.NDArray[Any]], deployed: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Compare one batch.

        Args:
            feeds: The program's inputs.
            deployed: What the runtime computed, by the names of the program's tensors, as those
                are stored.

        Returns:
            The engine's outputs, end to end.
        """
        forced = {name: as_held(array, self._tensors[name]) for name, array in deployed.items()}
        taught = self.engine.run(feeds, forced, forced)
        before = sum(each.mismatches for each in self.layers)
        for name, array in taught.tensors.items():
            self._layers[name].add(deployed[name], array)
        own = taught
        if sum(each.mismatches for each in self.layers) > before:
            own = self.engine.run(feeds, forced)
        # Else the engine, fed by itself, computes from the same numbers: they are what it gave.
        for name, array in own.tensors.items():
            self._end_to_end[name].add(deployed[name], array)
        return own.outputs
