"""Searches the fastest placement of a plan in int8 and float: solved, then measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from intact.data.batching import Batch
from intact.engines.cpu import detect_cpu
from intact.engines.latency import in_turn, lower_quartiles
from intact.errors import IntactError
from intact.formats.base.format import Deployed, Exported, Runtime
from intact.limits import MOST_DB, PLACEMENT_SECONDS, SAME_SPEED
from intact.ops.operators import Conv
from intact.placement.cache import KnownChoice, PieceTime, TimingCache, key_of
from intact.placement.costs import Profile, correct, measured_costs, signature, table_costs
from intact.placement.pieces import Costs, Pieces
from intact.plan import QuantizedGraph

_TOO_SHORT = 2e-5
"""Runs that take less are not timed: the call takes longer than the kernels."""
_MIXED = 3
"""Solutions that are built and profiled in turn; each corrects the costs of the next."""
_MOST_ROUNDS = 0.8
"""Part of the rounds in which a placement with fewer integers must be faster."""
_PRICES = tuple(np.logspace(-3, 4, 15))
"""Weights of noise in costs: from next to nothing to all in float."""
_PROFILED = (2, 10)
"""Runs of a profile, at least and at most."""

Kept = npt.NDArray[np.bool_]
Planner = Callable[[Sequence[str]], QuantizedGraph]
"""From names of nodes to a plan with scales that keeps them in float."""


class Fastest(msgspec.Struct, frozen=True):
    """What was found to be fastest.

    Attributes:
        runtime: The runtime with its version; empty where none is there to measure in.
        threads: Threads of the runtime; 0 is all cores.
        batch: Samples at once.
        kept_float: The nodes that stay float to be faster.
        milliseconds: Times of the float model, all that can be in integers, and the choice, by
            ``float``, ``integers`` and ``chosen``; empty where nothing was measured.
        predicted: Time of the choice from its parts, in milliseconds; 0 where not predicted.
        known: Whether it was taken from the cache.
        is_from_table: Whether it follows from the costs in the target's file.
        note: What a user should know besides.
    """

    runtime: str
    threads: int
    batch: int
    kept_float: tuple[str, ...] = ()
    milliseconds: dict[str, float] = {}
    predicted: float = 0.0
    known: bool = False
    is_from_table: bool = False
    note: str = ""

    def __str__(self) -> str:
        """Say what stays float, and what that saves."""
        if not self.milliseconds and not self.is_from_table:
            return f"--fastest changed nothing: {self.note}"
        count = len(self.kept_float)
        kept = f"{count} node(s) stay float" if count else "no node is faster in float"
        threads = f"{self.threads or 'all'} thread(s)"
        place = f"{self.runtime}, {threads}, batch {self.batch}" if self.runtime else "cost table"
        said = f"fastest ({place}): {kept}"
        if self.milliseconds:
            times = self.milliseconds
            said += f"; {times['chosen']:.3g} ms, {times['integers']:.3g} with all in integers"
            said += f", {times['float']:.3g} in float" if times["float"] else ""
        if self.known:
            said += " (known from before)"
        return f"{said}; {self.note}" if self.note else said


class _Solution(NamedTuple):
    """A placement with the costs that it follows from, and those outside all pieces if known."""

    kept: Kept
    costs: Costs | None = None
    outside: float | None = None


@dataclass(frozen=True)
class _Candidate:
    kept: Kept
    run: Callable[[], object] = field(repr=False)


@dataclass
class FastestSearch:
    """Looks for the fastest placement of one plan.

    Attributes:
        plan: A plan with scales, and as much in integers as can be.
        planner: Makes plans that keep nodes in float.
        write: Writes a plan in the format.
        runtime: The runtime of the format, which measures; None where none is there that is timed.
        feeds: A batch.
        batch: Its samples.
        threads: Threads of the runtime; 0 takes all cores.
        seconds: To spend, about.
        cache: What was measured before.
        io: How the written model takes and gives data.
        bound: The least signal to noise of an output, in dB; None for any.
        decibels: Measures that of a plan.
        noise: Measures the noise power of each node's quantizers in an output.
    """

    plan: QuantizedGraph
    planner: Planner
    write: Callable[[QuantizedGraph], Exported]
    runtime: Runtime | None
    feeds: Batch
    batch: int
    threads: int
    seconds: float
    cache: TimingCache
    io: str = ""
    bound: float | None = None
    decibels: Callable[[QuantizedGraph], float] = lambda _: MOST_DB
    noise: Callable[[], Mapping[str, float]] | None = None
    _plans: dict[bytes, QuantizedGraph] = field(default_factory=dict)
    _measured_decibels: dict[bytes, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Divide the plan, and bound the time."""
        self.seconds = min(max(self.seconds, PLACEMENT_SECONDS[0]), PLACEMENT_SECONDS[1])
        self._start = time.perf_counter()
        self._pieces = Pieces.of(self.plan)
        self._none = np.zeros(len(self._pieces.names), np.bool_)
        self._machine = (
            "" if self.runtime is None else self.runtime.name(),
            detect_cpu(),
            self.threads or os.cpu_count(),
        )

    def find(self) -> Fastest:
        """Measure, solve and choose."""
        runtime = str(self._machine[0])
        best = Fastest(runtime, self.threads, self.batch)
        if not self._pieces.names:
            return msgspec.structs.replace(best, note="nothing is in integers")
        if self.runtime is None:
            return self._by_table(best)
        key = self._choice_key()
        known = self.cache.choices.get(key)
        if known is not None and self._still_holds(known):
            return _fastest(best, known, known=True)
        found = self._measure()
        if isinstance(found, str):
            return self._add_note(best, found)  # nothing was timed
        self.cache.choices[key] = found
        failed = self.cache.save()
        note = ""
        if failed:
            note = f"times were not kept: {failed}"
        elif self.cache.damage:
            note = f"{self.cache.path} was ignored and is replaced: {self.cache.damage}"
        return self._add_note(_fastest(best, found), note)

    # ---- without a runtime --------------------------------------------------------------------

    def _by_table(self, best: Fastest) -> Fastest:
        costs = table_costs(self.plan, self._pieces, self.feeds)
        if costs is None:
            note = f"no runtime of {self.plan.target.name} is here, and its file has no [cost]"
            return self._add_note(msgspec.structs.replace(best, runtime=""), note)
        kept = costs.cheapest(self._pieces)
        if not self._is_accepted(kept):
            bounded = self._cheapest_in_bound(costs)
            kept = ~self._none if bounded is None else bounded
        names = self._pieces.nodes(kept)
        found = msgspec.structs.replace(best, runtime="", kept_float=names, is_from_table=True)
        return self._add_note(found)

    # ---- measured -----------------------------------------------------------------------------

    def _measure(self) -> KnownChoice | str:
        """Return the fastest of what was measured, or why nothing could be."""
        everything = ~self._none
        integers, floats = self._candidate(self._none), self._candidate(everything)
        if integers is None:
            return "the runtime does not run it"
        # Once before it is timed: the first run allocates what the later ones use.
        integers.run()
        if floats is not None:
            floats.run()
        first = min(in_turn([integers.run], seconds=0.1, rounds=1)[0])
        # What is timed then is the call, which both precisions pay.
        if first < _TOO_SHORT:
            return f"it is too small to be timed ({1e6 * first:.0f} microseconds)"
        candidates = [integers] if floats is None else [integers, floats]
        last: _Solution | None = None
        for solution in self._solutions(first):
            last = solution
            kept = solution.kept
            if any(np.array_equal(kept, each.kept) for each in candidates):
                continue
            made = self._candidate(kept)
            if made is not None:
                made.run()
                candidates.append(made)
        left = self.seconds - (time.perf_counter() - self._start)
        # Wholes are measured, not added up: kernels fuse, and caches are warm or cold, by what
        # stands beside them.
        rounds = in_turn([each.run for each in candidates], seconds=max(left, 0.4 * self.seconds))
        times = [1e3 * each for each in lower_quartiles(rounds)]
        at = self._best(candidates, rounds, floats=floats is not None)
        in_float = 0.0 if floats is None else times[1]
        predicted = self._predict(last, candidates[at].kept, times[0], in_float)
        names = self._pieces.nodes(candidates[at].kept)
        return KnownChoice(names, (in_float, times[0], times[at]), predicted)

    def _predict(
        self, last: _Solution | None, kept: Kept, integers: float, in_float: float
    ) -> float:
        """Predict the time of a placement from its parts, in milliseconds; 0 where none are known.

        What the parts add up to is scaled as it is for the two placements that are measured anyway:
        by that of all in integers and of all in float, as far as it is either.

        Args:
            last: The solution with the latest costs.
            kept: The placement.
            integers: Milliseconds of all in integers.
            in_float: The time of all in float; 0 where that was not measured.
        """
        if last is None or last.costs is None or last.outside is None:
            return 0.0
        all_integers, all_float, own = (
            last.costs.total(self._pieces, each) + last.outside
            for each in (self._none, ~self._none, kept)
        )
        if not all_integers or not all_float:
            return 0.0
        share = float(kept.mean()) if in_float else 0.0
        return own * ((1 - share) * integers / all_integers + share * in_float / all_float)

    def _best(
        self, candidates: Sequence[_Candidate], rounds: Sequence[Sequence[float]], *, floats: bool
    ) -> int:
        """Choose the fastest placement, with as many integers as can be, none slower than float.

        One with fewer integers must be faster by more than 2 %, and so in most rounds: what is
        faster by chance is so in half of them. Where none is within the bound, that with the
        fewest integers is taken; a note says so.

        Args:
            candidates: All in integers first; all in float second, where there is that.
            rounds: Their seconds.
            floats: Whether there is that.
        """
        times = lower_quartiles(rounds)
        # From all in integers on: a later one has to prove that leaving integers pays.
        order = sorted(range(len(candidates)), key=lambda at: int(candidates[at].kept.sum()))
        accepted = [at for at in order if self._is_accepted(candidates[at].kept)] or order[-1:]
        best = accepted[0]
        for at in accepted[1:]:
            wins = sum(each[at] < each[best] for each in rounds)
            if SAME_SPEED * times[at] < times[best] and wins >= _MOST_ROUNDS * len(rounds):
                best = at
        return 1 if floats and times[1] < times[best] else best

    def _is_accepted(self, kept: Kept) -> bool:
        if self.bound is None or kept.all():
            return True
        return self._decibels(kept) >= self.bound

    def _decibels(self, kept: Kept) -> float:
        key = kept.tobytes()
        if key not in self._measured_decibels:
            self._measured_decibels[key] = self.decibels(self._plan(kept))
        return self._measured_decibels[key]

    def _add_note(self, found: Fastest, note: str = "") -> Fastest:
        """Add a note, and that the bound is missed, where it is."""
        kept, missed = self._pieces.mark(found.kept_float), ""
        if not self._is_accepted(kept):
            missed = f"--min-sqnr {self.bound:g} is missed: it has {self._decibels(kept):.1f} dB"
        return msgspec.structs.replace(found, note="; ".join(filter(None, (missed, note))))

    def _still_holds(self, known: KnownChoice) -> bool:
        """Tell whether a choice of before is one for this plan, whose scales may be others."""
        names = set(known.kept_float)
        return names <= set(self._pieces.of_node) and self._is_accepted(self._pieces.mark(names))

    def _solutions(self, first: float) -> Iterator[_Solution]:
        """Yield placements of least cost."""
        if self.runtime is None or not self.runtime.is_profiled:
            yield from self._guesses()
            return
        runs = int(np.clip(0.1 * self.seconds / max(first, 1e-6), *_PROFILED))
        found = self._known_costs()
        outside: float | None = None
        if found is None:
            integers, floats = self._profile(self._none, runs), self._profile(~self._none, runs)
            if integers is None or floats is None:
                yield from self._guesses()
                return
            costs = measured_costs(self._pieces, floats, integers, self.feeds)
            self._keep_costs(costs)
            outside = integers.outside(self._pieces)
        else:
            costs = found
        tried: list[Kept] = [self._none, ~self._none]
        for _ in range(_MIXED):
            kept = costs.cheapest(self._pieces)
            yield _Solution(kept, costs, outside)
            # Half of the time is for the wholes, which decide.
            is_late = time.perf_counter() - self._start > 0.5 * self.seconds
            if any(np.array_equal(kept, each) for each in tried) or is_late:
                break
            tried.append(kept)
            mixed = self._profile(kept, runs)
            if mixed is None:
                break
            costs = correct(costs, self._pieces, mixed, kept)
        bounded = self._cheapest_in_bound(costs)
        if bounded is not None:
            yield _Solution(bounded, costs, outside)

    def _cheapest_in_bound(self, costs: Costs) -> Kept | None:
        """Return the cheapest placement within the bound, where there is one.

        Noises of several quantizers nearly add. So each piece in integers is charged for its own,
        at the lowest price (Lagrange multiplier) that buys the bound.
        """
        if self.bound is None or self.noise is None:
            return None
        of_node = self.noise()
        noise = np.array([sum(of_node.get(n, 0.0) for n in piece) for piece in self._pieces.names])
        if not noise.sum():
            return None
        # One unit of price makes all noise cost what the whole model costs: the prices around it
        # reach from next to nothing to all in float, whatever the costs are counted in.
        unit = max(costs.total(self._pieces, self._none), 1e-9) / noise.sum()
        low, high, found = 0, len(_PRICES) - 1, None
        # Noise falls as the price rises: the lowest price that keeps the bound is found by halving.
        while low <= high:
            middle = (low + high) // 2
            kept = costs.cheapest(self._pieces, noise * unit * _PRICES[middle])
            if self._is_accepted(kept):
                high, found = middle - 1, kept
            else:
                low = middle + 1
        return found

    def _guesses(self) -> Iterator[_Solution]:
        """Yield placements for runtimes that show no kernels: by the cost table, by operators."""
        costs = table_costs(self.plan, self._pieces, self.feeds)
        if costs is not None:
            yield _Solution(costs.cheapest(self._pieces))
            bounded = self._cheapest_in_bound(costs)
            if bounded is not None:
                yield _Solution(bounded)
        by_type: dict[str, list[int]] = {}
        for index, piece in enumerate(self._pieces.names):
            node = self.plan.graph.node(piece[0])
            kind = node.op_type
            if kind == Conv.name and Conv.of(node).group > 1:
                # Depthwise ones are bound by memory, others by arithmetic: their integer kernels
                # gain unlike.
                kind = "Conv of groups"
            by_type.setdefault(kind, []).append(index)
        if len(by_type) > 1:
            for members in sorted(by_type.values(), key=len, reverse=True)[:_MIXED]:
                kept = self._none.copy()
                kept[members] = True
                yield _Solution(kept)

    def _plan(self, kept: Kept) -> QuantizedGraph:
        key = kept.tobytes()
        if key not in self._plans:
            names = self._pieces.nodes(kept)
            self._plans[key] = self.planner(names) if names else self.plan
        return self._plans[key]

    def _deploy(self, kept: Kept) -> Deployed:
        plan = self._plan(kept)
        return Deployed(plan, self.write(plan), None, self.threads)

    def _candidate(self, kept: Kept) -> _Candidate | None:
        """Load a placement; None where the format or its runtime has no such."""
        if self.runtime is None:
            return None
        try:
            run = self.runtime.runner(self._deploy(kept))
            run(dict(self.feeds))
        except IntactError:
            return None
        return _Candidate(kept, lambda: run(dict(self.feeds)))

    def _profile(self, kept: Kept, runs: int) -> Profile | None:
        if self.runtime is None or not self.runtime.is_profiled:
            return None
        try:
            kernels = self.runtime.profile(self._deploy(kept), dict(self.feeds), runs)
        except IntactError:
            return None
        return Profile(kernels, self.plan)

    # ---- the cache ----------------------------------------------------------------------------

    def _shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(name, array.shape) for name, array in sorted(self.feeds.items())]

    def _choice_key(self) -> str:
        widths = [(end, config.bits, config.state) for end, config in self.plan.configs.items()]
        decided = [name for name, each in self.plan.decisions.items() if each.quantized]
        return key_of(
            *self._machine,
            self.plan.graph.hash,
            self.plan.target,
            self.io,
            decided,
            widths,
            self._shapes(),
            self.bound,
        )

    def _piece_keys(self) -> list[str]:
        common = (*self._machine, self._shapes())
        return [key_of(*common, signature(self.plan, piece)) for piece in self._pieces.names]

    def _known_costs(self) -> Costs | None:
        """Return the costs if every piece was measured before."""
        conversions = self.cache.conversions.get(key_of(*self._machine))
        times = [self.cache.pieces.get(key) for key in self._piece_keys()]
        known = [each for each in times if each is not None]
        if conversions is None or len(known) < len(times):
            return None
        sizes = {name: int(array.size) for name, array in self.feeds.items()}
        for piece, each in zip(self._pieces.names, known, strict=True):
            sizes[piece[-1]] = each.elements
        if any(tensor.source not in sizes for tensor in self._pieces.tensors):
            return None  # what always is float writes some of them
        return Costs(
            np.array([each.in_float for each in known]),
            np.array([each.in_integers for each in known]),
            *conversions,
            sizes,
        )

    def _keep_costs(self, costs: Costs) -> None:
        self.cache.conversions[key_of(*self._machine)] = (costs.quantize, costs.dequantize)
        for index, key in enumerate(self._piece_keys()):
            elements = max(costs.elements.get(n, 0) for n in self._pieces.names[index])
            self.cache.pieces[key] = PieceTime(
                float(costs.in_float[index]), float(costs.in_integers[index]), elements
            )


def _fastest(best: Fastest, choice: KnownChoice, *, known: bool = False) -> Fastest:
    in_float, integers, chosen = choice.milliseconds
    times = {"float": in_float, "integers": integers, "chosen": chosen}
    return msgspec.structs.replace(
        best,
        kept_float=choice.kept_float,
        milliseconds=times,
        predicted=choice.predicted,
        known=known,
    )
