"""What a plan loses too much of, where, and what keeping nodes in float would regain.

The quantizers are switched on one by one, in groups where there are many: what an output loses by
each alone tells where the loss comes from, since the noises of several nearly add. Nodes around
the worst are then kept in float in a plan of its own, which is simulated: the gain is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import onnx_ir as ir

from intact.calibrate.choice import MOST_DB, Choice, FloatRuns, Powers
from intact.engines.simulate import Simulator
from intact.errors import IntactError
from intact.plan import QuantizedGraph, QuantPoint

if TYPE_CHECKING:
    from intact.analyze.diagnose.findings import Finding
    from intact.analyze.diagnose.noise import Noise

LEAST_DB = 15.0
"""Signal to noise below which an output is said to be lost: 8 bits usually give 20 to 40 dB."""
_AGREEING = 0.95
"""Share of the decisions that a good result has in common with the float model."""
_CHANCE = 0.01
"""Probability of so few common decisions by chance, below which they are said to be too few."""
_FEWEST = 8
"""Samples at least, to say what an output tells apart."""
_SCORES = 16
"""Numbers of an output at most that is one of scores: more are seldom the same for all samples."""
_GROUPS = 32
"""Groups of quantizers that are switched on at most."""
_DIAGNOSED = 8
"""Samples at least on which the cause is looked for."""
_SHARES = (0.5, 0.9, 0.99)
"""Shares of the noise that the nodes kept in float are to be responsible for."""
_LEAST_GAIN_DB = 1.0
"""What keeping nodes in float must gain to be worth mentioning."""

Planner = Callable[[Sequence[str]], QuantizedGraph]
"""From names of nodes to a plan with scales that keeps them in float."""
Accepts = Callable[[QuantizedGraph], tuple[str, ...] | None]
"""Returns the options with which a plan is written, and runs in its runtime; None without any."""


class Loss(msgspec.Struct, frozen=True):
    """An output that loses much.

    Attributes:
        output: The output of the model that loses most.
        decibels: Its signal to quantization noise.
        samples: Number of samples.
        agreeing: For how many of them it has the float model's best class; None where it is not
            one of classes.
        infinite: For how many of them it is NaN or infinite where that of the float model is not.
        node: Where most of it is lost: the node whose result is quantized; "" if in weights alone.
        op_type: Its operator.
        keep_float: Nodes to keep in float; empty where that does not help.
        options: What the command needs beside that.
        regained: What the output has then, dB.
        cause: What it is lost by, as `intact diagnose` calls it; "" where no cause stands out.
        evidence: What was measured of the cause.
        is_drowned: Whether samples differ less in the output than noise changes it.
    """

    output: str
    decibels: float
    samples: int
    agreeing: int | None = None
    infinite: int = 0
    node: str = ""
    op_type: str = ""
    keep_float: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    regained: float = 0.0
    cause: str = ""
    evidence: str = ""
    is_drowned: bool = False

    def __str__(self) -> str:
        """Say what is lost, and where."""
        drowned = ", more noise than samples differ by" if self.is_drowned else ""
        place = f"; most is lost at {self.node!r} ({self.op_type})" if self.node else ""
        if self.infinite:
            return (
                f"output {self.output!r} is NaN or infinite on {self.infinite} of {self.samples} "
                f"sample(s), where that of the float model is not{place}"
            )
        agreeing = "" if self.agreeing is None else f", {self.agreeing} with the same best class"
        return (
            f"output {self.output!r} has {self.decibels:.1f} dB of signal to quantization noise "
            f"on {self.samples} sample(s){drowned}{agreeing}{place}"
        )

    @property
    def gain(self) -> str:
        """Say what keeping nodes in float gains; "" where it does not help."""
        if not self.keep_float:
            return ""
        gained = "" if self.infinite else f" ({self.regained - self.decibels:+.1f} dB)"
        return f"{len(self.keep_float)} node(s) kept in float give {self.regained:.1f} dB{gained}"


def find_loss(choice: Choice, planner: Planner, accepts: Accepts) -> Loss | None:
    """Look for what is at fault where an output of a plan loses much.

    Args:
        choice: The plan with its decibels.
        planner: Makes plans to compare with.
        accepts: With which options a plan is written and runs: what is offered must be.

    Returns:
        None if no output has less than 15 dB, or too few decisions in common with the float
        model's: so few that they would be by chance in one case of a hundred, if 95 % were; and
        samples differ more in each output of scores than noise changes it.
    """
    decibels, errors = choice.errors.decibels, choice.errors.outputs
    drowned = _drowned(choice)
    lost = [
        name
        for name in decibels
        if decibels[name] < LEAST_DB or _disagrees(errors[name]) or name in drowned
    ]
    output = min(lost, key=lambda name: decibels[name], default="")
    if not output:
        return None
    runs = choice.runs
    agrees = errors[output].agrees
    agreeing = int(agrees.sum()) if len(agrees) else None
    infinite = int(np.isinf(errors[output].noise).sum())
    found = Loss(
        output, decibels[output], len(runs), agreeing, infinite, is_drowned=output in drowned
    )
    simulator = Simulator(choice.plan.with_exact_sums(), threads=1, switched=True)
    cause = _first_cause(choice.plan, simulator, runs.first(_DIAGNOSED))
    if cause is not None:
        found = msgspec.structs.replace(found, cause=cause.cause, evidence=cause.evidence)
    groups = _by_noise(simulator, runs.first(1), output)
    if not groups:
        return found
    around = _Neighbours(choice.plan)
    worst = around.producer(groups[0].points[0])
    losing = around.ordered(_losing_sums(cause))
    if cause is not None and cause.node in losing:
        worst = choice.plan.graph.node(cause.node)
    best = msgspec.structs.replace(found, node=str(worst.name), op_type=worst.op_type)
    for names in (*([losing] if losing else []), *_sets(groups, around)):
        plan = _planned(planner, names)
        if plan is None:
            continue
        regained = _measured(plan, runs).get(output, math.inf)
        if regained >= MOST_DB or regained < max(found.decibels, best.regained) + _LEAST_GAIN_DB:
            continue  # nothing before the output is left quantized
        options = accepts(plan)
        if options is None:
            continue
        found_now = {"keep_float": names, "options": options, "regained": regained}
        best = msgspec.structs.replace(best, **found_now)
        if best.regained >= LEAST_DB:
            break
    return best


def _disagrees(powers: Powers) -> bool:
    """Tell whether fewer than 95 % of the decisions agree, by more than chance."""
    count, same = len(powers.agrees), int(powers.agrees.sum())
    at_most = (
        math.comb(count, k) * _AGREEING**k * (1 - _AGREEING) ** (count - k) for k in range(same + 1)
    )
    return count > 0 and sum(at_most) < _CHANCE


def _drowned(choice: Choice) -> set[str]:
    """Return the outputs of scores in which samples differ less than noise changes them.

    A score of opinions is about 3 for all samples: 17 dB may be all that tells them apart.
    """
    runs, found = choice.runs, set[str]()
    if len(runs) < _FEWEST:
        return found
    for name, powers in choice.errors.outputs.items():
        if len(powers.signal) != len(runs) or len(powers.agrees):
            continue
        parts = [
            outputs[name][:count]
            for (_, count), outputs in zip(runs.batches, runs.outputs(), strict=True)
        ]
        rows = np.concatenate([part.reshape(len(part), -1) for part in parts]).astype(np.float64)
        spread = float(np.square(rows - rows.mean(axis=0)).sum())
        if rows.shape[1] <= _SCORES and 0 < spread < float(powers.noise.sum()):
            found.add(name)
    return found


def _first_cause(plan: QuantizedGraph, simulator: Simulator, runs: FloatRuns) -> Finding | None:
    """Return what costs the outputs most; None where nothing stands out."""
    from intact.analyze.diagnose.diagnosis import plan_findings  # with much else

    return next(iter(plan_findings(plan, simulator, runs)), None)


def _losing_sums(cause: Finding | None) -> set[str]:
    """Return the nodes whose sums the target loses; none for another cause."""
    from intact.analyze.diagnose.arithmetic import OF_SUMS  # with much else

    if cause is None or cause.cause not in OF_SUMS:
        return set()
    kept = (name for each in cause.remedies for name in each.options.get("keep_float", ()))
    return {cause.node, *kept}


def _by_noise(simulator: Simulator, runs: FloatRuns, output: str) -> list[Noise]:
    """Return the groups of quantizers that cause noise, the worst first.

    The quantizers of the first group are in this order too.
    """
    from intact.analyze.diagnose.noise import ActivationNoise, grouped  # with much else

    powers = ActivationNoise(simulator, runs, output).powers
    groups = grouped(list(simulator.points.values()), powers, groups=_GROUPS)
    groups = sorted((g for g in groups if g.power > 0), key=lambda g: -g.power)
    if groups and len(groups[0].points) > 1:
        single = grouped(groups[0].points, powers, groups=len(groups[0].points))
        ranked = sorted(single, key=lambda each: -each.power)
        points = tuple(point for each in ranked for point in each.points)
        groups[0] = msgspec.structs.replace(groups[0], points=points)
    return groups


def _sets(groups: Sequence[Noise], around: _Neighbours) -> Iterator[tuple[str, ...]]:
    """Yield sets of nodes that are responsible for larger and larger shares of the noise."""
    finite = sum(group.power for group in groups if math.isfinite(group.power))
    most = max(finite, 1.0) / (1 - _SHARES[-1])  # of each that makes an output infinite by itself
    powers = [min(group.power, most) for group in groups]
    total = sum(powers)
    before: set[str] = set()
    for share in _SHARES:
        names: set[str] = set()
        done = 0.0
        for group, power in zip(groups, powers, strict=True):
            if done >= share * total:
                break
            done += power
            names.update(name for point in group.points for name in around.names(point))
        if names > before and len(names) < around.quantized:
            before = names
            yield around.ordered(names)


def _planned(planner: Planner, names: Sequence[str]) -> QuantizedGraph | None:
    """Plan with these nodes in float; None where a target has no such plan."""
    try:
        return planner(names)
    except IntactError:
        return None


def _measured(plan: QuantizedGraph, runs: FloatRuns) -> Mapping[str, float]:
    """Simulate a plan, and return the decibels of the outputs."""
    simulator = Simulator(plan, threads=1)
    (found,) = runs.errors(lambda feeds: simulator.run(feeds)[0])
    return found.decibels


class _Neighbours:
    """The quantized nodes around quantizers: a tensor stays float where all of them are."""

    def __init__(self, plan: QuantizedGraph) -> None:
        self._plan = plan
        self._order = [str(node.name) for node in plan.graph.nodes]
        from intact.program.lower.chains import Points, chains  # with much else

        self._chains = {node: chain for chain in chains(plan, Points.of(plan)) for node in chain}
        self.quantized = sum(decision.quantized for decision in plan.decisions.values())

    def producer(self, point: QuantPoint) -> ir.Node:
        """Return the node whose result is quantized: the head of its chain, or else a reader."""
        node = point.value.producer()
        if node is None:
            node = point.readers[0][0] if point.readers else self._plan.graph.node(point.end.node)
        return self._chains[node][0]

    def names(self, point: QuantPoint) -> Iterator[str]:
        """Yield the quantized nodes that write or read what is quantized."""
        writer = point.value.producer()
        readers = (node for node, _ in self._plan.graph.consumers(point.value))
        for node in (*([] if writer is None else [writer]), *readers):
            for each in self._chains[node]:
                if self._plan.is_quantized(each):
                    yield str(each.name)

    def ordered(self, names: set[str]) -> tuple[str, ...]:
        """Sort names of nodes as in the graph."""
        return tuple(name for name in self._order if name in names)
