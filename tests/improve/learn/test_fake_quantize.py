"""Fake quantization in training: bits forward, the formulas of its sources backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

torch = pytest.importorskip("torch")

from intact.config import Rounding  # noqa: E402  torch may be missing
from intact.improve.learn import fake_quantize as module  # noqa: E402
from intact.improve.learn.fake_quantize import fake_quantize  # noqa: E402
from intact.numerics import affine  # noqa: E402
from intact.numerics.straight_through_kernel import _STRETCH  # noqa: E402

Array = npt.NDArray[np.float32]
LOW, HIGH = -4, 3
TINY = float(np.finfo(np.float32).smallest_subnormal)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def hard(dtype: Any = np.float32) -> npt.NDArray[np.floating]:
    """Ties and their neighbours, ends, both zeros, denormals, infinities, and random numbers."""
    scale = dtype(0.1)
    ties: Any = (np.arange(-20, 20) / 2).astype(dtype)
    near = np.concatenate([np.nextafter(ties, dtype(s)) for s in (-99, 99)] + [ties])
    odd: Any = np.array(
        [0.0, -0.0, TINY, -TINY, 1e-39, np.inf, -np.inf, 3e38, -3e38, 2**23 + 1], dtype
    )
    random: Any = np.random.default_rng(3).normal(0, 0.5, 4000).astype(dtype)
    return np.concatenate([near, near * scale, near / 4, odd, random])


def same_bits(one: npt.NDArray[np.floating], other: npt.NDArray[np.floating]) -> bool:
    return (
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )


def in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_bounds", lambda *_: None)


def refuse_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("compiled loops would do")

    monkeypatch.setattr(module, "_codes", refuse)


@pytest.mark.parametrize("scale", [1.0, 0.25, 0.1, 3e-39, 1e38])
@pytest.mark.parametrize("rounding", Rounding)
def test_bits_are_those_of_numpy_and_of_torch(
    rounding: Rounding, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = torch.from_numpy(hard())
    numbers = torch.tensor(scale), torch.tensor(-6.0), torch.tensor(1.0)
    with monkeypatch.context() as patch:
        refuse_torch(patch)
        found = fake_quantize(values, *numbers, *[rounding]).numpy()
    wanted = affine.fake_quantize(values.numpy(), scale, 2, -4, 3, rounding=rounding)
    assert same_bits(found, wanted)
    in_torch(monkeypatch)
    assert same_bits(fake_quantize(values, *numbers, *[rounding]).numpy(), wanted)


@pytest.mark.parametrize("rounding", Rounding)
def test_doubles_have_the_bits_of_torch(
    rounding: Rounding, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = torch.from_numpy(hard(np.float64))
    numbers = [torch.tensor(x, dtype=torch.float64) for x in (0.1, -6.0, 1.0)]
    with monkeypatch.context() as patch:
        refuse_torch(patch)
        found = fake_quantize(values, *numbers, *[rounding]).numpy()
    in_torch(monkeypatch)
    assert same_bits(found, fake_quantize(values, *numbers, *[rounding]).numpy())


def test_nan_stays_nan() -> None:
    found = fake_quantize(torch.tensor([1.0, np.nan]), *torch.tensor([0.5, -4.0, 3.0]))
    assert found[0] == 1
    assert torch.isnan(found[1])


@pytest.mark.parametrize(("shape", "axis"), [((4, 5, 2), 0), ((2, 3, 4, 5), 1), ((3, 7), 1)])
def test_channels_have_the_bits_of_numpy(shape: tuple[int, ...], axis: int) -> None:
    values = np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)
    scale = np.linspace(0.1, 0.4, shape[axis], dtype=np.float32)
    zero = np.arange(shape[axis]) % 3
    wanted = affine.fake_quantize(values, scale, zero, LOW, HIGH, axis=axis)
    spread = (-1, *(1,) * (len(shape) - 1 - axis))
    numbers = (
        torch.from_numpy(x.astype(np.float32)).reshape(spread)
        for x in (scale, LOW - zero, HIGH - zero)
    )
    assert same_bits(fake_quantize(torch.from_numpy(values), *numbers).numpy(), wanted)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_order_in_memory_is_kept(axis: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 1 if axis is None else (3, 4)[axis]
    shape = () if axis is None else (-1, *(1,) * (3 - axis))
    plain = torch.randn(3, 4, 5, 6)
    numbers = [
        torch.linspace(*ends, count).reshape(shape) for ends in ((0.1, 0.3), (-4, -3), (3, 4))
    ]
    wanted = fake_quantize(plain, *numbers)
    last = plain.to(memory_format=torch.channels_last).requires_grad_()
    found = fake_quantize(last, *numbers)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, wanted)
    found.sum().backward()  # a gradient without memory of its own
    in_torch(monkeypatch)
    other = plain.clone().requires_grad_()
    fake_quantize(other, *numbers).sum().backward()
    assert torch.equal(last.grad, other.grad)


def formulas(
    values: Array,
    gradient: Array,
    scale: Array,
    ends: tuple[Array, Array],
    *,
    within: bool,
    reach: float,
) -> tuple[Array, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return gradients to values, and by element to scale and zero point, as the table has them."""
    low, high = ends
    v = values / scale
    inside = (low - reach < v) & (v < high + reach)
    rounded = (np.rint(v) - v).astype(np.float64) if within else np.zeros(v.shape)
    by_scale = np.where(inside, rounded, np.where(v <= low, low, high))
    by_zero = np.where(inside, 0.0, -scale)
    exact = gradient.astype(np.float64)
    return np.where(inside, gradient, 0), exact * by_scale, exact * by_zero


@pytest.mark.parametrize(("within", "reach"), [(True, 0.0), (True, 0.5), (False, 0.0)])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_gradients_are_those_of_the_formulas(
    axis: int | None, compiled: bool, within: bool, reach: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(1)
    values = (random.integers(-20, 20, (6, 5, 7)) / 4).astype(np.float32)  # many at the ends
    values += random.choice([0, 0.03], values.shape).astype(np.float32)
    gradient = random.normal(0, 1, values.shape).astype(np.float32)
    shape = [1, 1, 1]
    if axis is not None:
        shape[axis] = values.shape[axis]
    scale = random.choice([0.5, 0.25, 1], shape).astype(np.float32)
    zero = random.integers(-1, 2, shape).astype(np.float32)
    if not compiled:
        in_torch(monkeypatch)
    given = torch.from_numpy(values).requires_grad_()
    scales, zeros = (torch.from_numpy(x).requires_grad_() for x in (scale, zero))
    result = fake_quantize(
        given, scales, LOW - zeros, HIGH - zeros.detach(), within=within, reach=reach
    )
    result.backward(torch.from_numpy(gradient))
    ends = LOW - zero, HIGH - zero
    assert any((values / scale == end).sum() > 3 for end in ends)
    to_value, to_scale, to_zero = formulas(
        values, gradient, scale, ends, within=within, reach=reach
    )
    axes = tuple(k for k in range(3) if k != axis)
    assert np.array_equal(given.grad.numpy(), to_value)
    np.testing.assert_allclose(
        scales.grad.numpy(), to_scale.sum(axes, keepdims=True), rtol=1e-5, atol=1e-4
    )
    np.testing.assert_allclose(
        zeros.grad.numpy(), to_zero.sum(axes, keepdims=True), rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("compiled", [True, False])
def test_a_fixed_scale_passes_gradients_between_the_ends(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        in_torch(monkeypatch)
    value = torch.tensor([-np.inf, -2.1, -2.0, -1.9, 0.3, 1.4, 1.5, np.nan], requires_grad=True)
    result = fake_quantize(value, *torch.tensor([0.5, -4.0, 3.0]))
    kept = [each.numel() * each.itemsize for each in result.grad_fn.saved_tensors]
    result.backward(torch.full((8,), 3.0))
    assert value.grad.tolist() == [0, 0, 0, 3, 3, 3, 0, 0]
    assert sum(kept) == 8  # a byte an element


@pytest.mark.parametrize("rounding", Rounding)
def test_gradients_to_learned_scales_round_as_the_values(
    rounding: Rounding, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = torch.from_numpy(hard()).clamp(-9, 9)
    found = []
    for _ in range(2):
        given = values.clone().requires_grad_()
        scale = torch.tensor(0.25, requires_grad=True)
        fake_quantize(
            given, scale, torch.tensor(-6.0), torch.tensor(1.0), rounding
        ).square().sum().backward()
        found.append((given.grad, scale.grad))
        in_torch(monkeypatch)
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1].item() == pytest.approx(found[1][1].item(), rel=1e-5)


@pytest.mark.parametrize("values", [[9.0, 2.0], [-9.0, -7.0, -3.0]])
def test_gradients_of_clipped_values_are_those_of_differences(values: list[float]) -> None:
    """Clipped values are ``end * scale``, which is smooth in the scale and in the zero point."""
    given = torch.tensor(values, dtype=torch.float64)
    numbers = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.5, 1.0)]

    def total(scale: Any, zero: Any) -> Any:
        return fake_quantize(given, scale, LOW - zero, HIGH - zero.detach()).sum()

    wanted = torch.autograd.grad(total(*numbers), numbers)
    for index, gradient in enumerate(wanted):
        near = [
            [n.detach() + s * 1e-4 * (i == index) for i, n in enumerate(numbers)] for s in (1, -1)
        ]
        difference = (total(*near[0]) - total(*near[1])).item() / 2e-4
        assert gradient.item() == pytest.approx(difference, rel=1e-6)


def test_sums_do_not_depend_on_threads(threads: None) -> None:
    value = torch.randn(5 * _STRETCH + 17)
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        scale, zero = torch.tensor(0.1, requires_grad=True), torch.tensor(0.0, requires_grad=True)
        given = value.clone().requires_grad_()
        result = fake_quantize(given, scale, LOW - zero, HIGH - zero.detach())
        (result * value).sum().backward()
        found.append(
            [x.detach().numpy().tobytes() for x in (result, given.grad, scale.grad, zero.grad)]
        )
    assert found[0] == found[1] == found[2]


def test_gradients_have_gradients() -> None:
    """Those of squared results by hand: twice the mask, for values between the ends."""
    value = torch.tensor([0.3, 9.0], requires_grad=True)
    scale = torch.tensor(0.5, requires_grad=True)
    result = fake_quantize(value, scale, *torch.tensor([-4.0, 3.0]))
    (first,) = torch.autograd.grad(result.square().sum(), value, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), value)
    assert first.tolist() == [1.0, 0.0]
    assert second.tolist() == [2.0, 0.0]


@pytest.mark.parametrize("case", ["half", "gaps", "expanded", "empty", "divided"])
def test_what_loops_do_not_take_is_left_to_torch(case: str) -> None:
    value = torch.linspace(-3, 3, 60).reshape(6, 10)
    value = {
        "half": value.bfloat16(),
        "gaps": value[:, ::2],
        "expanded": value[:, :1].expand(6, 3),
        "empty": value[:0],
        "divided": value,
    }[case]
    numbers = torch.tensor([0.5, -4.0, 3.0]).to(value.dtype)
    divided = torch.float64 if case == "divided" else None
    found = fake_quantize(value, *numbers, divided_in=divided)
    assert found.shape == value.shape
    assert torch.equal(found, torch.clamp(torch.round(value / 0.5), -4, 3) * 0.5)


def test_torch_may_compile_it() -> None:
    compiled = torch.compile(fake_quantize, backend="eager")
    value, numbers = torch.randn(50), torch.tensor([0.1, -4.0, 3.0])
    assert torch.equal(compiled(value, *numbers), fake_quantize(value, *numbers))
