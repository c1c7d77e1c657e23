"""Tries plans that may lose less than the target's rules give, and keeps the better one.

Three are tried: ties between tensors broken, decoding behind the last layers in float (`heads`),
and spectra in front of the net in float (`spectra`).

Each is tried on the samples that the scales were chosen on, and kept where it loses less.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from intact.calibrate.assign import required_tensors
from intact.calibrate.front import COMPRESSORS
from intact.calibrate.statistics import Statistics
from intact.calibrate.tail import SIGNS_OF_DECODING
from intact.data.progress import Progress, begin
from intact.formats.registry import expressible
from intact.graph import moves_values
from intact.plan import QuantizedGraph
from intact.results.job import Job, Scaled

if TYPE_CHECKING:
    from intact.placement.heads import Heads
    from intact.placement.spectra import Spectra

Rescale: TypeAlias = Callable[[Job], Scaled]
"""Gives the plan of a job its scales."""


class Alternatives(msgspec.Struct, frozen=True):
    """The plans to try for a job; None for each that its net gives no reason for.

    Attributes:
        untied: The plan with all ties broken that may be.
        heads: The nodes behind the last layers, and inputs that are read in parts.
        spectra: The nodes that lead to logarithms and roots.
    """

    untied: QuantizedGraph | None = None
    heads: Heads | None = None
    spectra: Spectra | None = None

    @staticmethod
    def of(job: Job, *, has_table: bool) -> Alternatives:
        """Find what there is to try.

        Args:
            job: What is made.
            has_table: Whether a table gives scales, which decide about ties.
        """
        # A look at the operators first: most nets have neither, and what tries them is slow to
        # import.
        types = {node.op_type for node in job.plan.graph.nodes}
        heads, spectra = None, None
        if job.floats_ends and (types & SIGNS_OF_DECODING or _moves_inputs(job.plan)):
            from intact.placement.heads import Heads  # with much else

            heads = Heads.of(job)
        if job.floats_ends and types & COMPRESSORS:
            from intact.placement.spectra import Spectra  # likewise

            spectra = Spectra.of(job)
        return Alternatives(None if has_table else _untie_all(job), heads, spectra)

    @property
    def tensors(self) -> list[str]:
        """Names of the tensors whose ranges have to be known to try them."""
        found = [] if self.untied is None else [*required_tensors(self.untied)]
        found += () if self.heads is None else self.heads.tensors
        found += () if self.spectra is None else self.spectra.front.tensors
        return found

    def choose(
        self,
        job: Job,
        scaled: Scaled,
        statistics: Statistics,
        rescale: Rescale,
        *,
        threads: int,
        progress: Progress | None,
    ) -> tuple[Job, Scaled]:
        """Try the alternatives one after the other; return the job and its plan that lost least.

        Args:
            job: What is made.
            scaled: Its plan with scales.
            statistics: The statistics of the tensors that the plan needs, and of `tensors`.
            rescale: Gives another plan its scales.
            threads: Threads of the runtime.
            progress: Is told what is done.
        """
        job, scaled = self._requantize(job, scaled, statistics, rescale)
        if scaled.choice is not None and (self.heads is not None or self.spectra is not None):
            begin(progress, f"choosing what stays float for {job.plan.target.name}")
        if scaled.choice is not None and self.heads is not None:
            # In this order, each on what the one before kept: what ties cost may be what a head
            # seemed to.
            heads = msgspec.structs.replace(self.heads, job=job)
            found = heads.decide(scaled.choice, statistics, scaled.given, threads)
            job, scaled = (job, scaled) if found is job else (found, rescale(found))
        if scaled.choice is not None and self.spectra is not None:
            spectra = msgspec.structs.replace(self.spectra, job=job)
            found = spectra.decide(scaled.choice, statistics, scaled.given)
            job, scaled = (job, scaled) if found is job else (found, rescale(found))
        return job, scaled

    def _requantize(
        self, job: Job, scaled: Scaled, statistics: Statistics, rescale: Rescale
    ) -> tuple[Job, Scaled]:
        """Requantize inputs of joins whose ranges are unlike, where that loses less."""
        choice = scaled.choice
        if self.untied is None or choice is None:
            return job, scaled
        from intact.calibrate.unlike import broken_ties, unlike  # few need it

        found = broken_ties(self.untied, statistics, choice, job.apart)
        # None gains with this method; with all of them broken another may be the best.
        found = found or frozenset(unlike(self.untied, statistics, choice.method))
        if not found:
            return job, scaled
        changed = job.requantizing(found)
        again = rescale(changed)
        if again.choice is None or not choice.is_worse_than(again.choice):
            return job, scaled
        return changed, again


def _moves_inputs(plan: QuantizedGraph) -> bool:
    """Tell whether nodes move values of an input: they may cut parts out of it."""
    readers = (node for value in plan.graph.inputs for node, _ in plan.graph.consumers(value))
    return any(map(moves_values, readers))


def _untie_all(job: Job) -> QuantizedGraph | None:
    """Return the plan of a job with all ties broken that may be; None where there are none."""
    if not expressible(job.deployment.formats).several_scales:
        return None
    from intact.calibrate.unlike import fully_untied  # few need it

    return fully_untied(job.plan, job.apart)
