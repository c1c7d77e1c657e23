"""Only the policies that a tensor can have are accepted."""

from __future__ import annotations

from functools import reduce
from itertools import chain, combinations

import pytest

from intact.config import PerChannel, PerTensor, QuantPolicy, make_policy, parse_policy
from intact.errors import ConfigError

ALL = list(QuantPolicy)
SUBSETS = [
    reduce(lambda left, right: left | right, flags, QuantPolicy(0))
    for flags in chain.from_iterable(combinations(ALL, n) for n in range(len(ALL) + 1))
]


def possible(policy: QuantPolicy) -> bool:
    try:
        policy.check()
    except ConfigError:
        return False
    return True


def test_all_possible_policies_are_known() -> None:
    grains = ("PER_TENSOR", "PER_CHANNEL", "PER_BLOCK", "PER_ROW")
    kinds = (
        "LINEAR+SYMMETRICAL",
        "LINEAR+ASYMMETRICAL",
        "EXPONENTIAL+SYMMETRICAL",
        "LINEAR+SYMMETRICAL+POWER_OF_2",
        "LINEAR+ASYMMETRICAL+POWER_OF_2",
    )
    expected = {f"{grain}+{kind}" for grain in grains for kind in kinds}
    expected -= {f"{grain}+EXPONENTIAL+SYMMETRICAL" for grain in grains[2:]}  # no hardware has it
    assert {policy.spelled for policy in SUBSETS if possible(policy)} == expected


@pytest.mark.parametrize("policy", [p for p in SUBSETS if possible(p)], ids=lambda p: p.spelled)
def test_spelling_reads_back(policy: QuantPolicy) -> None:
    assert parse_policy(policy.spelled) is policy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("PER_TENSOR+PER_CHANNEL+LINEAR+SYMMETRICAL", "sets both PER_TENSOR and PER_CHANNEL"),
        ("PER_TENSOR+SYMMETRICAL", "sets neither LINEAR nor EXPONENTIAL"),
        ("PER_TENSOR+EXPONENTIAL+ASYMMETRICAL", "use SYMMETRICAL"),
        ("PER_TENSOR+EXPONENTIAL+SYMMETRICAL+POWER_OF_2", "drop POWER_OF_2"),
        ("PER_TENSOR+LINAER+SYMMETRICAL", "did you mean 'LINEAR'"),
        ("", "unknown policy ''"),
    ],
)
def test_refusals_say_why(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_policy(text)


def test_empty_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"policy \(empty\) sets neither"):
        QuantPolicy(0).check()


def test_make_policy() -> None:
    made = make_policy(PerChannel(1), symmetric=False, power_of_two=True)
    assert made.spelled == "PER_CHANNEL+LINEAR+ASYMMETRICAL+POWER_OF_2"
    made = make_policy(PerTensor(), symmetric=True, exponential=True)
    assert made.spelled == "PER_TENSOR+EXPONENTIAL+SYMMETRICAL"
    with pytest.raises(ConfigError, match="no offset"):
        make_policy(PerTensor(), symmetric=False, exponential=True)


def test_negative_axis_is_refused() -> None:
    with pytest.raises(ConfigError, match="axis is -1"):
        PerChannel(-1)
