"""Export random nets to every target and format, run them, and compare, for some minutes.

What is wrong is made small and printed, with the lines that show it again; the exit code is then
1. A run with the seed that it printed repeats it::

    python tools/fuzz_nets.py --minutes 60
    python tools/fuzz_nets.py --pair openvino/openvino --seed 4711
    python tools/fuzz_nets.py --pair openvino/openvino --generator grown --net 4711

There are two generators: `instructions` (tests/nets/nets.py) and `grown` (tests/nets/grown.py).
"""

from __future__ import annotations

import argparse
import faulthandler
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.nets.findings import (  # noqa: E402 - see above
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

PROGRESS = 100
"""Nets between two lines of progress."""


@dataclass(frozen=True)
class Generator(Generic[AnyNet]):
    """A generator of random nets.

    Attributes:
        net: A net of a seed, or None where the seed gives none that is worth trying.
        smaller: Nets that are simpler than one in some respect.
    """

    net: Callable[[int], AnyNet | None]
    smaller: Callable[[AnyNet], Iterable[AnyNet]]

    def tries(self, seed: int, pair: Pair) -> bool:
        """Check the net of a seed; print what is new, made small; tell whether there was any."""
        net = self.net(seed)
        if net is None:
            return False
        own = (each for each in check(net, pair) if not is_known(net, each))
        kinds: Counter[str] = Counter(each.kind for each in own)
        for kind in kinds:
            least = shrunk(net, pair, kind, self.smaller)
            for found in _of_kind(check(least, pair), kind):
                print(f"net {seed}: {found}")
            print(f"  {least}", flush=True)
        return bool(kinds)


def _usable(seed: int) -> Grown | None:
    net = grown_net(seed)
    return net if net.is_usable() else None


def _smaller(net: Grown) -> Iterator[Grown]:
    return (each for each in net.smaller() if each.is_usable())


GENERATORS: Mapping[str, Generator[Any]] = {
    "instructions": Generator(random_net, smaller),
    "grown": Generator(_usable, _smaller),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run for the time that was asked for; return 1 where something new was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--net", type=int, default=None, help="the seed of one net")
    parser.add_argument("--pair", action="append", help="TARGET/FORMAT; repeatable")
    parser.add_argument("--generator", action="append", choices=GENERATORS, help="repeatable")
    given = parser.parse_args(arguments)
    faulthandler.enable()  # a runtime that aborts tells nothing of itself
    chosen = [each for each in pairs() if given.pair is None or "/".join(each) in given.pair]
    if not chosen:
        parser.error(f"--pair: choose of {', '.join('/'.join(each) for each in pairs())}")
    generators = [GENERATORS[name] for name in given.generator or GENERATORS]
    if given.net is not None:
        return int(_tried(generators, given.net, chosen) > 0)
    first = secrets.randbelow(1 << 31) if given.seed is None else given.seed
    print(f"seed {first}", flush=True)
    return int(_campaign(generators, first, chosen, 60 * given.minutes) > 0)


def _campaign(
    generators: Sequence[Generator[Any]], first: int, chosen: Sequence[Pair], seconds: float
) -> int:
    """Try one net after another on all pairs; return how many had something new."""
    started, nets, found = time.monotonic(), 0, 0
    while not nets or time.monotonic() - started < seconds:
        found += _tried(generators, first + nets, chosen)
        nets += 1
        if nets % PROGRESS == 0:
            spent = time.monotonic() - started
            print(f"{spent:6.0f} s  {nets:7d} nets  {found:4d} findings", flush=True)
    print(f"{nets} nets on {len(chosen)} pairs of target and format, {found} findings")
    return found


def _tried(generators: Sequence[Generator[Any]], seed: int, chosen: Sequence[Pair]) -> int:
    return sum(generator.tries(seed, pair) for generator in generators for pair in chosen)


def _of_kind(found: Sequence[Finding], kind: str) -> list[Finding]:
    return [each for each in found if each.kind == kind]


if __name__ == "__main__":
    sys.exit(main())
