"""Weights in blocks are learned as others are; scales may be negative, the last block short."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import intact
from intact.config import Grid, PerBlock, QuantState, Rounding, TensorQuantConfig, parse_policy
from intact.improve.learn.quantizers import Learning, Quantizer
from intact.plan import TensorEnd
from tests.block_nets import dense_net
from tests.improve.refine.test_rounding_blocks import LAYERS, mixed

pytestmark = pytest.mark.filterwarnings("ignore::intact.IntactWarning")  # of times


def config(*, symmetric: bool) -> TensorQuantConfig:
    """Blocks of 8 along 20 numbers: the last has 4."""
    kind = "SYMMETRICAL" if symmetric else "ASYMMETRICAL"
    grid = Grid(
        policy=parse_policy(f"PER_BLOCK+LINEAR+{kind}"),
        granularity=PerBlock(0, 8),
        rounding=Rounding.HALF_EVEN,
        bits=4,
        quant_min=-8 if symmetric else 0,
        quant_max=7 if symmetric else 15,
    )
    made = TensorQuantConfig.on_grid(grid)
    random = np.random.default_rng(0)
    sign = random.choice([-1, 1], (3, 5)) if symmetric else 1
    scale = (random.uniform(0.05, 0.3, (3, 5)) * sign).astype(np.float32)
    zero = np.zeros((3, 5), np.int64) if symmetric else random.integers(4, 12, (3, 5))
    made.set_params(scale, zero)
    made.transition(QuantState.ACTIVATED)
    return made


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("learning", [Learning.FIXED, Learning.LSQ])
@pytest.mark.parametrize("in_logarithms", [True, False])
def test_torch_quantizes_blocks_as_the_plan_does(
    symmetric: bool, learning: Learning, in_logarithms: bool
) -> None:
    made = config(symmetric=symmetric)
    weight = np.random.default_rng(1).normal(size=(20, 5)).astype(np.float32)
    quantizer = Quantizer(made, learning, in_logarithms=in_logarithms)
    found = quantizer(torch.tensor(weight)).detach().numpy()
    np.testing.assert_array_equal(found, made.fake_quantize(weight, inplace=False))
    params = quantizer.params()
    np.testing.assert_array_equal(params.scale, made.scale)
    np.testing.assert_array_equal(params.zero_point, made.offset)


def test_the_sign_of_a_scale_stays_and_its_size_is_learned() -> None:
    made = config(symmetric=True)
    weight = torch.tensor(np.random.default_rng(1).normal(size=(20, 5)).astype(np.float32))
    quantizer = Quantizer(made, Learning.LSQ)
    size = quantizer.size
    assert size is not None
    before = float((quantizer(weight) - weight).square().mean().detach())
    optimizer = torch.optim.Adam([size], lr=2e-3)
    for _ in range(50):
        optimizer.zero_grad()
        (quantizer(weight) - weight).square().mean().backward()
        optimizer.step()
    assert float((quantizer(weight) - weight).square().mean().detach()) < 0.95 * before
    assert made.scale is not None
    np.testing.assert_array_equal(np.sign(quantizer.params().scale), np.sign(made.scale))


@pytest.mark.parametrize("name", ["adaround", "reconstruct"])
def test_learned_rounding_of_blocks_is_what_the_runtime_computes(name: str, tmp_path: Path) -> None:
    data = mixed(256, 1)
    nearest = intact.quantize(dense_net(), data, block=32, preset="fast")
    made = intact.quantize(dense_net(), data, block=32, improve=[name + "{steps=400}"])
    (record,) = made.plan.provenance.improvements
    assert record.kept
    assert record.after > record.before + 0.5
    signs = set()
    for layer in LAYERS:
        one, two = (each.plan.configs[TensorEnd.input(layer, 1)] for each in (nearest, made))
        np.testing.assert_array_equal(one.scale, two.scale)
        signs |= set(np.sign(np.asarray(one.scale)).reshape(-1).tolist())
    assert signs == {-1.0, 1.0}
    made.save(tmp_path / "out")
    found = intact.verify(tmp_path / "out", mixed(16, 2))
    assert not any(each.mismatches for each in found.layers)
    assert not any(each.differs for each in found.float_layers)
