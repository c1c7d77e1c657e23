"""The state tables are complete and say what PPQ practises."""

from __future__ import annotations

import pytest

from intact.config import LEGAL_TRANSITIONS, MEANING, NEEDS_SCALE, QuantState, StateMeaning

S = QuantState


def test_twelve_states_each_with_a_meaning_and_transitions() -> None:
    assert len(QuantState) == 12
    assert set(MEANING) == set(LEGAL_TRANSITIONS) == set(QuantState)


def test_meanings() -> None:
    by_meaning = {
        meaning: {state for state, m in MEANING.items() if m is meaning} for meaning in StateMeaning
    }
    assert by_meaning == {
        StateMeaning.REFUSED: {S.INITIAL, S.PASSIVE_INIT},
        StateMeaning.QUANTIZES: {S.ACTIVATED, S.PASSIVE},
        StateMeaning.QUANTIZES_RUNNING: {S.DYNAMIC},
        StateMeaning.BAKED: {S.BAKED, S.PASSIVE_BAKED},
        StateMeaning.GOVERNED: {S.OVERLAPPED},
        StateMeaning.PASSES: {S.DEACTIVATED, S.DEQUANTIZED, S.FP32, S.SOI},
    }


def test_states_that_use_a_scale_need_one() -> None:
    using = {StateMeaning.QUANTIZES, StateMeaning.BAKED}
    assert {state for state in S if MEANING[state] in using} == NEEDS_SCALE


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (S.INITIAL, S.ACTIVATED),
        (S.INITIAL, S.OVERLAPPED),
        (S.INITIAL, S.FP32),
        (S.INITIAL, S.SOI),
        (S.INITIAL, S.PASSIVE),
        (S.INITIAL, S.PASSIVE_INIT),
        (S.ACTIVATED, S.INITIAL),
        (S.ACTIVATED, S.BAKED),
        (S.ACTIVATED, S.OVERLAPPED),
        (S.ACTIVATED, S.PASSIVE),
        (S.PASSIVE_INIT, S.PASSIVE),
        (S.PASSIVE, S.PASSIVE_BAKED),
    ],
)
def test_transitions_practised_by_ppq(before: QuantState, after: QuantState) -> None:
    assert after in LEGAL_TRANSITIONS[before]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (S.INITIAL, S.BAKED),
        (S.PASSIVE_INIT, S.PASSIVE_BAKED),
        (S.BAKED, S.ACTIVATED),
        (S.PASSIVE_BAKED, S.PASSIVE),
        (S.SOI, S.ACTIVATED),
        (S.FP32, S.ACTIVATED),
        (S.OVERLAPPED, S.ACTIVATED),
        (S.PASSIVE, S.BAKED),
    ],
)
def test_transitions_that_must_not_exist(before: QuantState, after: QuantState) -> None:
    assert after not in LEGAL_TRANSITIONS[before]


def test_dequantized_is_reached_from_all_and_left_only_by_requantize() -> None:
    for state in S:
        assert (S.DEQUANTIZED in LEGAL_TRANSITIONS[state]) == (state is not S.DEQUANTIZED)
    assert LEGAL_TRANSITIONS[S.DEQUANTIZED] == frozenset()
