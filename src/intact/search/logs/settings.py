"""Records the settings of a search: they must be the same to continue it from its log."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec

from intact import __version__
from intact.errors import SearchError, UsageError
from intact.graph import Graph
from intact.search.space import Space
from intact.search.trial import Goal
from intact.targets import Target, target_to_json
from intact.targets.blockwise import in_blocks

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Whole: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a search, which must be the same to continue it.

    Attributes:
        intact: Version of the package.
        model: Hash of the normalized model.
        target: Name of the target.
        target_hash: SHA-256 of its description.
        groups: SHA-256 of the search space: groups, their choices, the user's overrides.
        sampler: Name of the sampler.
        seed: Seed of the sampler.
        objective: Name of the objective.
        minimize: Name of the cost.
        min_score: Lowest accepted score; None for no limit.
        max_cost: Highest accepted cost; None for no limit.
        samples: Number of all samples.
        samples_hash: Hash of the samples.
        method: The threshold method.
        options: Other options that affect a search, by name.
    """

    intact: str
    model: str
    target: str
    target_hash: str
    groups: str
    sampler: str
    seed: Whole
    objective: str
    minimize: str
    min_score: float | None
    max_cost: float | None
    samples: Count
    samples_hash: str
    method: str
    options: dict[str, str] = {}

    @staticmethod
    def of(
        space: Space,
        *,
        sampler: str,
        seed: int,
        objective: str,
        minimize: str,
        goal: Goal,
        samples: int,
        samples_hash: str,
        method: str,
        options: Mapping[str, str] | None = None,
    ) -> LogSettings:
        """Make the settings of a search; the arguments are described at the attributes.

        Raises:
            UsageError: The seed has more than 64 bits.
        """
        if not -(2**63) <= seed < 2**63:
            raise UsageError(f"a seed of {seed}", remedy="give one of 64 bits")
        target = space.plan.target
        return LogSettings(
            intact=__version__,
            model=space.plan.graph.hash,
            target=target.name,
            target_hash=target_hash(target),
            groups=groups_hash(space),
            sampler=sampler,
            seed=seed,
            objective=objective,
            minimize=minimize,
            # JSON has no infinities; these limits allow everything, as None does.
            min_score=None if goal.min_score == -math.inf else goal.min_score,
            max_cost=None if goal.max_cost == math.inf else goal.max_cost,
            samples=samples,
            samples_hash=samples_hash,
            method=method,
            # Sorted, so that the same settings have the same line.
            options=dict(sorted((options or {}).items())),
        )

    @property
    def goal(self) -> Goal:
        """The goal of the search."""
        return Goal(self.min_score, self.max_cost)

    def refuse_unlike(self, expected: LogSettings, where: str) -> None:
        """Check that a search with other settings is not continued from this log.

        Args:
            expected: The settings of the new search.
            where: File and line, for the message.

        Raises:
            SearchError: A setting differs; the message has both values.
        """
        self._compare(expected, where, "give the same options, or another log file")

    def refuse_other(self, graph: Graph, target: Target, where: str) -> None:
        """Check that a logged strategy is not used for another model or target.

        Raises:
            SearchError: A setting differs; the message has both values.
        """
        expected = msgspec.structs.replace(
            self, model=graph.hash, target=target.name, target_hash=target_hash(target)
        )
        self._compare(expected, where, "give the model and the target of the search")

    def _compare(self, expected: LogSettings, where: str, remedy: str) -> None:
        for name, called in DIFFERENCES.items():
            theirs, ours = getattr(self, name), getattr(expected, name)
            if theirs != ours:
                raise SearchError(
                    f"{where}: the log belongs to another search: {called} is {_as_text(theirs)} "
                    f"there, {_as_text(ours)} here",
                    remedy=remedy,
                )


_BLOCKS = "blocks"
"""What logs call the option of weights in blocks."""


class BlockSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The weights in blocks that a search is asked for; its log has them among its options.

    Attributes:
        block: How many neighbours have a scale together; None without blocks.
        zero_points: Whether each block has a zero point.
        of_nodes: Sizes by node, of those that have another.
    """

    block: int | None = None
    zero_points: bool = False
    of_nodes: Mapping[str, int] = msgspec.field(default_factory=dict)

    @staticmethod
    def read(options: Mapping[str, str]) -> BlockSettings:
        """Read them out of the options of a log.

        Raises:
            SearchError: They cannot be read.
        """
        try:
            return msgspec.json.decode(options.get(_BLOCKS, "{}"), type=BlockSettings)
        except msgspec.DecodeError as error:
            raise SearchError(f"the log's blocks: {error}", remedy="search again") from error

    @property
    def options(self) -> dict[str, str]:
        """They as options of a log; none without blocks."""
        # Sorted, so that the same settings have the same line.
        text = msgspec.json.encode(self, order="sorted").decode()
        return {} if self.block is None else {_BLOCKS: text}

    def target(self, target: Target) -> Target:
        """Describe a target as it is searched: with weights in blocks, where they are asked for.

        Raises:
            UsageError: It has none of these blocks.
        """
        if self.block is not None:
            return in_blocks(target, self.block, zero_points=self.zero_points)
        if self.zero_points:
            raise UsageError(
                "--zero-points is for weights in blocks", remedy="give --block too, or leave it out"
            )
        return target


DIFFERENCES = {
    "intact": "intact's version",
    "model": "the model",
    "target": "the target",
    "target_hash": "the target's description",
    "sampler": "the sampler",
    "seed": "the seed",
    "objective": "the objective",
    "minimize": "the cost",
    "samples": "the number of samples",
    "samples_hash": "the samples' content",
    "method": "the calibration method",
    "options": "an option",
    "groups": "the search space",
    "min_score": "the lowest score",
    "max_cost": "the highest cost",
}
"""Names of the settings for messages, in the order of comparison.

The user's options come first: search space and limits follow from them.
"""

_LONGEST_SHOWN = 80


def groups_hash(space: Space) -> str:
    """Compute the SHA-256 of the groups of a space, their choices and the user's overrides."""
    asked = space.overrides
    groups = [
        [group.name, group.kind, list(map(str, group.ends)), group.owners, group.choices]
        for group in space.groups
    ]
    return _digest(
        [
            groups,
            # Sorted where the order that a user gave means nothing.
            sorted(asked.keep_float),
            sorted(asked.bits.items()),
            [asked.weight_bits, asked.activation_bits],
            sorted((str(end), bits) for end, bits in asked.widths.items()),
        ]
    )


def target_hash(target: Target) -> str:
    """Compute the SHA-256 of a target's description, independent of its file."""
    return _digest(target_to_json(target))


def _digest(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


def _as_text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        value = ", ".join(f"{name} {each}" for name, each in value.items()) or "none"
    text = str(value)
    if len(text) == 64:  # a hash
        return text[:12]
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
