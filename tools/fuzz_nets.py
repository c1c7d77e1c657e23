"""Export random nets to every target and format, run them, and compare, for some minutes.

What is wrong is made small and printed, with the lines that show it again; the exit code is then
1. All pairs of target and format get the same processor time: the next net is for the pair that had
least. A table at the end says how many nets each pair ran and for how many seconds::

    python tools/fuzz_nets.py --minutes 60
    python tools/fuzz_nets.py --minutes 60 --json totals.json
    python tools/fuzz_nets.py --pair openvino/openvino --seed 4711
    python tools/fuzz_nets.py --pair openvino/openvino --generator grown --net 4711

With `--json` the figures are kept in a file. A run that names the same file goes on where the last
one ended, so that short runs add up, to an hour for each pair say; a net at which a run died is
named by the next one.

There are two generators: `instructions` (tests/nets/nets.py) and `grown` (tests/nets/grown.py).
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Generic

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from intact._files import write_whole  # noqa: E402 - see above
from tests.nets.findings import (  # noqa: E402
    AnyNet,
    Finding,
    Pair,
    check,
    pairs,
    shrunk,
)
from tests.nets.grown import Grown, grown_net  # noqa: E402
from tests.nets.known import is_known  # noqa: E402
from tests.nets.nets import random_net, smaller  # noqa: E402

PROGRESS = 120
"""Seconds between two lines of progress."""
PARTS = 6
"""Parts of a net that are tried where the whole is refused."""
SUSPECT = 3
"""How many refused nets an operator is in, and in none that ran, until nets are tried without."""
WHOLE = 4
"""One net of so many is tried as a whole nevertheless."""


@dataclass(frozen=True)
class Generator(Generic[AnyNet]):
    """A generator of random nets.

    Attributes:
        net: A net of a seed.
        simpler: Nets that are simpler than one in some respect.
        usable: Whether a net is worth trying.
    """

    net: Callable[[int], AnyNet]
    simpler: Callable[[AnyNet], Iterable[AnyNet]]
    usable: Callable[[AnyNet], bool]

    def smaller(self, net: AnyNet) -> Iterator[AnyNet]:
        """Yield the nets worth trying that are simpler than one."""
        return filter(self.usable, self.simpler(net))

    def tries(self, seed: int, share: Share) -> None:
        """Check the net of a seed; print what is new, made small; count it all.

        Of a net that intact refuses for the pair a part is tried, until one is not.
        """
        for part in filter(self.usable, self._parts(self.net(seed), seed, share)):
            refusals, operators = share.refused, part.operators()
            found = check(part, share.pair, refused=share.refuse)
            if share.refused == refusals:
                share.nets += 1
                share.run |= operators
                self._tells(seed, part, found, share)
                return
            if not share.hopeful:
                return
            share.suspects.update(operators)

    def _parts(self, net: AnyNet, seed: int, share: Share) -> Iterator[AnyNet]:
        """Yield a net, and then parts of it that are less likely to be refused."""
        unlikely = share.unlikely() & net.operators()
        if not unlikely or seed % WHOLE == 0:
            yield net
        likely = net.without(unlikely)
        if unlikely:
            yield likely
        yield from islice(self.smaller(likely), PARTS)

    def _tells(self, seed: int, net: AnyNet, found: Sequence[Finding], share: Share) -> None:
        kinds = dict.fromkeys(each.kind for each in found if not is_known(net, each))
        share.found += bool(kinds)
        for kind in kinds:
            least = shrunk(net, share.pair, kind, self.smaller)
            for own in _of_kind(check(least, share.pair), kind):
                print(f"net {seed}: {own}")
            print(f"  {least}", flush=True)


@dataclass
class Share:
    """What one pair of target and format had so far.

    Attributes:
        pair: Target and format.
        next: How many seeds it is past the first one.
        nets: Nets that were run.
        refused: Nets and parts of nets that intact refused, which is not wrong.
        found: Nets with something new.
        seconds: Of a processor, also in child processes; a busy machine does not count. Making
            what is wrong smaller is included.
    """

    pair: Pair
    next: int = 0
    nets: int = 0
    refused: int = 0
    found: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.run: set[str] = set()
        """Operators of nets that were run."""
        self.suspects: Counter[str] = Counter()
        """Operators of nets that were refused."""
        self.hopeful = True
        """Whether parts of the net that was refused last may do."""

    def unlikely(self) -> set[str]:
        """Return the operators that intact seems to refuse for this pair."""
        return {name for name, count in self.suspects.items() if count >= SUSPECT} - self.run

    def refuse(self, hopeful: bool) -> None:
        """Count a refusal; parts of the net may do, or not."""
        self.refused += 1
        self.hopeful = hopeful


@dataclass
class Totals:
    """The figures of all pairs, in a file if there is one.

    Attributes:
        first: The seed of the first net.
        shares: By target and format, as on the command line.
        file: Where they are kept, or None.
    """

    first: int
    shares: dict[str, Share]
    file: Path | None

    @classmethod
    def read(cls, file: Path | None, seed: int | None) -> Totals:
        """Read the figures of a file, or begin new ones.

        Args:
            file: Where figures are kept, or None.
            seed: Of the first net; where None, that of the file, or a random one.
        """
        found: dict[str, Any] = {}
        if file is not None and file.exists():
            found = json.loads(file.read_text(encoding="utf-8"))
        first = found.get("seed", secrets.randbelow(1 << 31)) if seed is None else seed
        shares = {"/".join(pair): Share(pair) for pair in pairs()}
        for each in found.get("pairs", ()):
            pair = (each.pop("target"), each.pop("format"))
            if pair in pairs():
                shares["/".join(pair)] = Share(pair, **each)
        if found.get("trying"):
            print(f"died at {found['trying']}", flush=True)
        return cls(first, shares, file)

    def write(self, trying: str = "") -> None:
        """Keep the figures, and what is tried now: a runtime that aborts tells nothing."""
        if self.file is None:
            return
        rows = [
            {"target": share.pair[0], "format": share.pair[1], **asdict(share)}
            for share in self.shares.values()
        ]
        for row in rows:
            del row["pair"]
        text = json.dumps({"seed": self.first, "trying": trying, "pairs": rows}, indent=1)
        write_whole(self.file, f"{text}\n".encode())

    def table(self) -> Iterator[str]:
        """Yield the lines of a table of all pairs that had any time."""
        yield f"{'target/format':28} {'nets':>7} {'refused':>8} {'found':>6} {'seconds':>9}"
        for name, share in self.shares.items():
            if share.nets:
                yield (
                    f"{name:28} {share.nets:7d} {share.refused:8d} {share.found:6d}"
                    f" {share.seconds:9.1f}"
                )


GENERATORS: Mapping[str, Generator[Any]] = {
    "instructions": Generator(random_net, smaller, lambda net: bool(net.model().graph.node)),
    # Pairs of like speed are at the same seed: nets that were judged are remembered.
    "grown": Generator(grown_net, Grown.smaller, lru_cache(maxsize=64)(Grown.is_usable)),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run for the time that was asked for; return 1 where something new was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--net", type=int, default=None, help="the seed of one net")
    parser.add_argument("--pair", action="append", help="TARGET/FORMAT; repeatable")
    parser.add_argument("--generator", action="append", choices=GENERATORS, help="repeatable")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep figures there, go on there")
    given = parser.parse_args(arguments)
    faulthandler.enable()  # a runtime that aborts tells nothing of itself
    totals = Totals.read(given.json, given.seed)
    chosen = [share for name, share in totals.shares.items() if name in (given.pair or [name])]
    if not chosen:
        parser.error(f"--pair: choose of {', '.join(totals.shares)}")
    names = given.generator or list(GENERATORS)
    before = sum(share.found for share in chosen)
    if given.net is not None:
        for share in chosen:
            _try(names, given.net, share)
    else:
        print(f"seed {totals.first}", flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        try:
            _campaign(names, totals, chosen, 60 * given.minutes)
        finally:  # also where a user ends it
            totals.write()
            print("\n".join(totals.table()))
    return int(sum(share.found for share in chosen) > before)


def _campaign(names: Sequence[str], totals: Totals, chosen: Sequence[Share], limit: float) -> None:
    """Try nets for so many seconds, each on the pair that had the least time."""
    started = told = time.monotonic()
    while (now := time.monotonic()) - started < limit or not any(each.next for each in chosen):
        before = _processor_seconds()
        share = min(chosen, key=lambda each: each.seconds)
        seed = totals.first + share.next
        totals.write(f"{'/'.join(share.pair)} --net {seed}")
        share.next += 1
        _try(names, seed, share)
        share.seconds += _processor_seconds() - before
        if now - told > PROGRESS:
            told = now
            nets, found = (sum(getattr(each, k) for each in chosen) for k in ("nets", "found"))
            print(f"{now - started:6.0f} s  {nets:7d} nets  {found:4d} findings", flush=True)


def _processor_seconds() -> float:
    """Return the processor time of this process and of its children that ended."""
    return sum(os.times()[:4])


def _try(names: Sequence[str], seed: int, share: Share) -> None:
    for name in names:
        GENERATORS[name].tries(seed, share)


def _of_kind(found: Sequence[Finding], kind: str) -> list[Finding]:
    return [each for each in found if each.kind == kind]


if __name__ == "__main__":
    sys.exit(main())
