"""The rectified sigmoid, and weights between two levels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from intact.improve.learn.block_learning import SoftWeight, beta_at, inverse, rectified_sigmoid


def soft_weight(weight: Tensor, codes: Tensor, scale: float = 0.25) -> SoftWeight:
    numbers = (torch.tensor(each) for each in (scale, -7.0, 7.0))
    step, low, high = numbers
    return SoftWeight(weight, step, codes, low, high)


def test_the_inverse_is_one() -> None:
    share = torch.linspace(0, 1, 33, dtype=torch.float64)
    torch.testing.assert_close(rectified_sigmoid(inverse(share)), share)


def test_soft_levels_begin_at_the_float_weight() -> None:
    weight = torch.randn(200, generator=torch.Generator().manual_seed(0)).clamp(-1.7, 1.7)
    soft = soft_weight(weight, torch.round(weight / 0.25))
    torch.testing.assert_close(soft(), weight, rtol=0, atol=0.25 * 1e-3)
    torch.testing.assert_close(soft.hard(), torch.round(weight / 0.25) * 0.25)


def test_whole_levels_are_the_codes() -> None:
    weight = torch.tensor([0.1, -0.1, 0.6, 5.0, -5.0])
    soft = soft_weight(weight, torch.round(weight / 0.25).clamp(-7, 7))
    with torch.no_grad():
        soft.v.copy_(torch.tensor([9.0, -9.0, 9.0, 9.0, -9.0]))
    assert (soft.hard() / 0.25).tolist() == [1.0, -1.0, 3.0, 7.0, -7.0]
    torch.testing.assert_close(soft(), soft.hard())
    assert float(soft.regulariser(2.0).detach()) == pytest.approx(0.0, abs=1e-6)


def test_what_a_plan_rounded_further_away_can_be_reached() -> None:
    weight = torch.tensor([0.3, 0.3, 0.3])  # 1.2 steps
    codes = torch.tensor([-1.0, 4.0, 1.0])
    soft = soft_weight(weight, codes)
    for v, wanted in ((-9.0, [-1.0, 3.0, 1.0]), (9.0, [0.0, 4.0, 2.0])):
        with torch.no_grad():
            soft.v.fill_(v)
        assert (soft.hard() / 0.25).tolist() == wanted
    fresh = soft_weight(weight, codes)
    fresh().sum().backward()
    assert fresh.v.grad is not None
    assert bool((fresh.v.grad != 0).all())


def test_the_exponent_falls() -> None:
    assert beta_at(0.0) == 20.0
    assert beta_at(1.0) == 2.0
    assert beta_at(0.5) == pytest.approx(11.0)
