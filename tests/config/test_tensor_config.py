"""Configs: states are kept, scales are shared, and nothing is written behind a dominator."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.config import (
    LEGAL_TRANSITIONS,
    MEANING,
    NEEDS_SCALE,
    PerChannel,
    PerRow,
    QuantState,
    Rounding,
    StateMeaning,
    TensorQuantConfig,
    copy_configs,
    make_policy,
    parse_policy,
)
from intact.errors import ConfigError

S = QuantState


def config(
    low: int = -127,
    high: int = 127,
    *,
    bits: int = 8,
    kind: str = "LINEAR+SYMMETRICAL",
    **rest: Any,
) -> TensorQuantConfig:
    grain = "PER_CHANNEL" if "granularity" in rest else "PER_TENSOR"
    return TensorQuantConfig(
        policy=parse_policy(f"{grain}+{kind}"), bits=bits, quant_min=low, quant_max=high, **rest
    )


# ---- construction -------------------------------------------------------------------------------


def test_attributes_of_the_document() -> None:
    made = config(
        0,
        255,
        kind="LINEAR+ASYMMETRICAL",
        rounding=Rounding.HALF_UP,
        scale=0.5,
        offset=7,
        observer="kl",
        detail={"note": [1]},
        inplace=True,
        state=S.ACTIVATED,
    )
    assert made.bits == 8
    assert (made.quant_min, made.quant_max) == (0, 255)
    assert made.rounding is Rounding.HALF_UP
    assert made.scale == 0.5
    assert made.offset == 7
    assert made.observer == "kl"
    assert made.detail == {"note": [1]}
    assert made.inplace
    assert made.dominator is made
    assert made.meaning is StateMeaning.QUANTIZES


def test_offset_without_scale_and_state_without_scale() -> None:
    with pytest.raises(ConfigError, match="without a scale"):
        config(offset=0)
    for state in NEEDS_SCALE:
        with pytest.raises(ConfigError, match="needs a scale"):
            config(state=state)


# ---- states -------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", list(S))
@pytest.mark.parametrize("after", list(S))
def test_transitions_follow_the_table(before: QuantState, after: QuantState) -> None:
    made = config(scale=1.0, state=before)
    if after is before or after in LEGAL_TRANSITIONS[before]:
        made.transition(after)
        assert made.state is after
        assert made.meaning is MEANING[after]
    else:
        with pytest.raises(ConfigError, match=f"from {before.name} to {after.name}"):
            made.transition(after)
        assert made.state is before


def test_activation_needs_a_scale() -> None:
    made = config()
    with pytest.raises(ConfigError, match="without a scale; set the scale first"):
        made.transition(S.ACTIVATED)
    made.set_params(0.5)
    made.transition(S.ACTIVATED)


@pytest.mark.parametrize("before", [state for state in S if state is not S.DEQUANTIZED])
def test_dequantized_remembers(before: QuantState) -> None:
    made = config(scale=1.0, state=before)
    made.transition(S.DEQUANTIZED)
    made.transition(S.DEQUANTIZED)
    with pytest.raises(ConfigError, match=r"call requantize\(\) first"):
        made.transition(S.BAKED)
    made.requantize()
    assert made.state is before
    with pytest.raises(ConfigError, match="not DEQUANTIZED"):
        made.requantize()


@pytest.mark.parametrize("state", [S.INITIAL, S.PASSIVE_INIT])
def test_arithmetic_is_refused_before_calibration(state: QuantState) -> None:
    made = config(scale=1.0, state=state)
    values = np.zeros(2, np.float32)
    for call in (made.quantize, made.fake_quantize):
        with pytest.raises(ConfigError, match=f"state {state.name} cannot be used"):
            call(values)
    with pytest.raises(ConfigError, match=f"state {state.name} cannot be used"):
        made.dequantize(np.zeros(2, np.int32))


def test_arithmetic_without_scale_is_refused() -> None:
    made = config(state=S.OVERLAPPED)
    with pytest.raises(ConfigError, match="OVERLAPPED has no scale"):
        made.quantize(np.zeros(2, np.float32))


def test_arithmetic() -> None:
    made = config(-128, 127, kind="LINEAR+ASYMMETRICAL", scale=0.5, offset=-3, state=S.ACTIVATED)
    values = np.array([0.0, 0.25, 0.75, -np.inf, np.inf], np.float32)
    codes = made.quantize(values)
    assert codes.tolist() == [-3, -3, -1, -128, 127]
    assert made.dequantize(codes).tolist() == [0.0, 0.0, 1.0, -62.5, 65.0]
    assert made.fake_quantize(values).tolist() == [0.0, 0.0, 1.0, -62.5, 65.0]


# ---- sharing ------------------------------------------------------------------------------------


def test_a_follower_reads_through_its_dominator_and_cannot_write() -> None:
    root, follower = config(scale=0.5), config(scale=0.25)
    root.dominate(follower)
    assert follower.dominator is root
    assert follower.scale == 0.5
    root.set_params(2.0)
    assert follower.scale == 2.0
    with pytest.raises(ConfigError, match="read-only; set them on the dominator"):
        follower.set_params(1.0)
    with pytest.raises(ConfigError, match="read-only; set them on the dominator"):
        follower.clear_params()


def test_dominating_by_a_follower_hangs_under_the_root() -> None:
    a, b, c = config(scale=0.5), config(), config()
    a.dominate(b)
    b.dominate(c)
    assert c.dominator is a
    assert set(a.group()) == set(c.group()) == {a, b, c}
    assert c.group()[0] is a


def test_circles_change_nothing() -> None:
    a, b = config(scale=0.5), config()
    a.dominate(b)
    b.dominate(a)
    a.dominate(a)
    assert a.dominator is b.dominator is a
    assert len(a.group()) == 2


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=30))
def test_union_find_against_sets(pairs: list[tuple[int, int]]) -> None:
    configs = [config(scale=float(2**i)) for i in range(8)]
    groups = [{i} for i in range(8)]
    roots = list(range(8))
    for left, right in pairs:
        configs[left].dominate(configs[right])
        if groups[left] is not groups[right]:
            root = roots[left]
            groups[left] |= groups[right]
            for member in groups[right]:
                groups[member] = groups[left]
            for member in groups[left]:
                roots[member] = root
    for i, made in enumerate(configs):
        assert made.dominator is configs[roots[i]]
        assert made.scale == 2.0 ** roots[i]
        assert {configs.index(member) for member in made.group()} == groups[i]


def test_other_grids_may_follow_only_when_overlapped() -> None:
    narrow = config(-7, 7, bits=4)
    with pytest.raises(ConfigError, match=r"4 bits -7\.\.7 cannot share the scale of one on 8"):
        config().dominate(narrow)
    narrow.transition(S.OVERLAPPED)
    config().dominate(narrow)


def test_an_overlapped_config_does_not_smuggle_in_its_followers() -> None:
    narrow, reader = config(-7, 7, bits=4), config(-7, 7, bits=4)
    narrow.dominate(reader)
    narrow.transition(S.OVERLAPPED)
    with pytest.raises(ConfigError, match="cannot share"):
        config().dominate(narrow)


def test_a_follower_on_another_grid_cannot_be_switched_on() -> None:
    root, narrow = config(scale=1.0), config(-7, 7, bits=4, state=S.OVERLAPPED)
    root.dominate(narrow)
    narrow.transition(S.DEACTIVATED)
    with pytest.raises(ConfigError, match="cannot share"):
        narrow.transition(S.ACTIVATED)


@pytest.mark.parametrize(
    "other",
    [
        config(kind="EXPONENTIAL+SYMMETRICAL", state=S.OVERLAPPED),
        config(granularity=PerChannel(0), state=S.OVERLAPPED),
    ],
    ids=["exponential", "per channel"],
)
def test_sharing_that_makes_no_sense(other: TensorQuantConfig) -> None:
    with pytest.raises(ConfigError, match="cannot share a scale"):
        config().dominate(other)


def test_clear_params() -> None:
    root, follower = config(scale=1.0), config()
    root.dominate(follower)
    follower.transition(S.ACTIVATED)
    with pytest.raises(ConfigError, match="ACTIVATED and needs its scale"):
        root.clear_params()
    follower.transition(S.DEQUANTIZED)  # would come back without a scale
    with pytest.raises(ConfigError, match="needs its scale"):
        root.clear_params()
    follower.requantize()
    follower.transition(S.INITIAL)
    root.clear_params()
    assert root.scale is None
    assert follower.offset is None


# ---- copies -------------------------------------------------------------------------------------


def test_copy_is_equal_and_independent() -> None:
    made = config(scale=0.5, observer="mse", detail={"a": 1}, state=S.ACTIVATED)
    twin = made.copy()
    twin.set_params(4.0)
    twin.detail["a"] = 2
    twin.transition(S.DEQUANTIZED)
    assert made.scale == 0.5
    assert made.detail == {"a": 1}
    assert made.state is S.ACTIVATED
    assert twin.same_grid(made)
    assert twin.observer == "mse"


def test_copy_of_a_follower_stands_alone_with_the_scale_it_read() -> None:
    root, follower = config(scale=0.5), config()
    root.dominate(follower)
    twin = follower.copy()
    assert twin.dominator is twin
    assert twin.scale == 0.5
    assert len(root.group()) == 2


def test_copy_of_a_dequantized_config_remembers() -> None:
    made = config(scale=0.5, state=S.ACTIVATED)
    made.transition(S.DEQUANTIZED)
    twin = made.copy()
    twin.requantize()
    assert twin.state is S.ACTIVATED


def test_copy_configs_keeps_ties() -> None:
    root, follower, outside = config(scale=0.5), config(), config(scale=2.0)
    lonely = config(-7, 7, bits=4, state=S.OVERLAPPED)
    root.dominate(follower)
    outside.dominate(lonely)
    twins = copy_configs({"a": follower, "b": root, "c": lonely, "again": root})
    assert twins["a"].dominator is twins["b"] is twins["again"]
    assert twins["c"].dominator is not outside
    assert twins["c"].scale == 2.0
    twins["b"].set_params(8.0)
    assert twins["a"].scale == 8.0
    assert root.scale == follower.scale == 0.5
    assert len(twins["b"].group()) == 2


def test_replace_makes_an_initial_config_on_another_grid() -> None:
    made = config(scale=0.5, observer="kl", detail={"a": 1}, state=S.ACTIVATED)
    other = made.replace(bits=4, quant_min=-7, quant_max=7, rounding=Rounding.HALF_UP)
    assert other.state is S.INITIAL
    assert other.scale is None
    assert (other.bits, other.quant_max, other.observer) == (4, 7, "kl")
    assert other.rounding is Rounding.HALF_UP
    assert made.rounding is Rounding.HALF_EVEN
    with pytest.raises(ConfigError, match="does not fit 4 bits"):
        made.replace(bits=4, quant_min=-8, quant_max=8)


@pytest.mark.parametrize("through", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_workers_get_configs_with_their_ties(through: Any) -> None:
    root, follower = config(scale=0.5), config()
    root.dominate(follower)
    new_root, new_follower = through((root, follower))
    assert new_follower.dominator is new_root
    assert new_follower.scale == 0.5


def test_repr_says_what_matters() -> None:
    made = config(scale=0.5, state=S.ACTIVATED)
    follower = config()
    made.dominate(follower)
    channels = config(granularity=PerChannel(0), scale=[1.0, 2.0])
    assert "ACTIVATED" in repr(made)
    assert "scale 0.5" in repr(made)
    assert "follows another" in repr(follower)
    assert "2 scales" in repr(channels)


def test_rows_have_no_scale_beforehand() -> None:
    settings: dict[str, Any] = {
        "policy": make_policy(PerRow(), symmetric=True),
        "granularity": PerRow(),
        "bits": 8,
        "quant_min": -127,
        "quant_max": 127,
    }
    running = TensorQuantConfig(**settings, state=S.DYNAMIC)
    assert running.params is None
    running.transition(S.DEACTIVATED)
    running.transition(S.DYNAMIC)
    with pytest.raises(ConfigError, match="computed while the model runs"):
        TensorQuantConfig(**settings, scale=1.0)
