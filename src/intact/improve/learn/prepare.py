"""Prepares modules that are calibrated in the user's own loop, then trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from intact.calibrate.assign import Method, assign, required_tensors
from intact.calibrate.choice import choose
from intact.calibrate.collect import collect
from intact.calibrate.method import counted_bins
from intact.calibrate.outputs import FloatRuns
from intact.calibrate.statistics import Statistics
from intact.data.batching import Batch
from intact.data.sources import open_samples
from intact.errors import UsageError
from intact.improve.learn.batch_norm import Folding
from intact.improve.learn.module import QuantizedModule
from intact.improve.learn.quantizers import Learning
from intact.plan import QuantizedGraph

_BUFFER = 1 << 28
"""Bytes of inputs that wait before they are observed."""
_TRIED = 16
"""Samples on which threshold methods are compared."""


class PreparedModule(QuantizedModule):
    """A quantized module whose scales come from the batches that it is run on.

    It begins with quantizers off. `calibrate` lets it observe what it runs on, `quantize` sets the
    scales and switches the quantizers on. Parameters stay the same objects throughout.

    Args:
        plan: Without scales.
        example: A batch, from which quantizers have scales until they are calibrated.
        learning: What quantizers learn; see `QuantizedModule`.
        batch_norm: What becomes of BatchNormalizations; see there.
        methods: How scales follow from what was observed: the preferred one, and others to choose
            from; None for the target's.

    Raises:
        UsageError: A method reads samples twice.

    Attributes:
        is_calibrated: Whether the scales are those of what was observed.
    """

    def __init__(
        self,
        plan: QuantizedGraph,
        example: Batch,
        *,
        learning: Learning | str = Learning.LSQ,
        batch_norm: Folding | str = Folding.FOLDED,
        methods: Sequence[Method] | None = None,
    ) -> None:
        methods = methods or Method.candidates(plan.target, None, None, None)
        if counted_bins(methods):
            raise UsageError(
                f"method {methods[0].activations} reads the samples twice, and a module is run on "
                "them once",
                remedy="use kl_stepwise, which reads them once",
            )
        # The cheapest: these scales are only there until the module is calibrated.
        method = Method.of(plan.target, "minmax", "minmax")
        super().__init__(
            assign(plan, _collect(plan, [example]), method),
            learning=learning,
            batch_norm=batch_norm,
        )
        self._unscaled = plan
        self._methods = methods
        self._statistics: Statistics | None = None
        self._waiting: list[Batch] = []
        self._tried: list[tuple[Batch, int]] = []
        self._is_calibrating = False
        self.is_calibrated = False
        self.enable_quantizers(False)

    def calibrate(self) -> None:
        """Observe the batches that follow, with quantizers off."""
        self._is_calibrating = True
        self.enable_quantizers(False)

    def quantize(self) -> None:
        """Set the scales from what was observed since, and switch the quantizers on.

        Raises:
            UsageError: Nothing was observed.
        """
        self._observe()
        if self._statistics is None:
            raise UsageError(
                "there is nothing to calibrate on",
                remedy="intact.enable_calibration(module), and run it on some batches",
            )
        runs = FloatRuns(self._unscaled.graph, self._tried)
        plan = choose(self._unscaled, self._statistics, self._methods, runs, None).plan
        self._is_calibrating, self.is_calibrated = False, True
        self.rescale(plan)
        self.enable_quantizers(True)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Run a batch, and observe it while calibrating."""
        if self._is_calibrating:
            fed = self._name_inputs(inputs, named)
            self._waiting.append({name: _array(tensor) for name, tensor in fed.items()})
            if sum(array.nbytes for each in self._waiting for array in each.values()) > _BUFFER:
                self._observe()
        return super().forward(*inputs, **named)

    def _observe(self) -> None:
        """Add what waits to the statistics."""
        if not self._waiting:
            return
        found = _collect(self._unscaled, self._waiting)
        if self._statistics is None:
            self._statistics = found
        else:
            self._statistics.merge(found)
        # Of the first batch only: methods are compared on samples that are kept.
        if not self._tried:
            first = self._waiting[0]
            count = min(_TRIED, len(next(iter(first.values()))))
            self._tried = [({name: array[:count] for name, array in first.items()}, count)]
        self._waiting = []


def _array(tensor: Tensor) -> np.ndarray:
    plain = tensor.detach().cpu()
    # A copy, since a loop may fill its tensor again before the batch is observed.
    return np.array((plain.float() if plain.is_floating_point() else plain).numpy())


def _collect(plan: QuantizedGraph, batches: list[Batch]) -> Statistics:
    samples = open_samples(batches, plan.graph)
    names: dict[str, Any] = dict.fromkeys((*samples.specs, *required_tensors(plan)))
    return collect(plan.graph, samples, tuple(names))
