"""Trained weights go back into the module that was exported, under its own names."""

from __future__ import annotations

import base64
import copy
import functools
import json
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import intact
from intact.errors import ModelError, UsageError
from intact.graph import Graph, load_model, normalize
from intact.graph.origins import METADATA_KEY, Origins, origins_of, packed, set_origins, unpacked
from intact.improve.learn.export import export_module
from intact.improve.learn.module import QuantizedModule
from intact.results.result import Result


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module], **options: Any) -> None:
        super().__init__()
        self.layer = kind(4, 3, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)[0]
        return found


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x, x, x)[0]
        return found


class Tied(nn.Module):
    """One weight for a layer and, turned, for another."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.weight) @ self.weight.T


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(2.5 * self.first(x))
        return found


class Positions(nn.Module):
    """Uses a part of one parameter, a buffer that is not saved, and a number in the code."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(1, length, 8))
        self.register_buffer("shift", torch.randn(8), persistent=False)
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x + self.positions[:, :3]) + torch.tensor([1.0, 2.0, 3.0, 4.0])
        return found


def conv_bn(affine: bool = True) -> nn.Module:
    norm = nn.BatchNorm2d(4, affine=affine)
    with torch.no_grad():
        norm.get_buffer("running_mean").uniform_(-1, 1)
        norm.get_buffer("running_var").uniform_(0.5, 2)
    return nn.Sequential(nn.Conv2d(3, 4, 1), norm, nn.ReLU())


SEQUENCE, IMAGE = (6, 3, 4), (6, 3, 4, 4)
GOING_BACK: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "attention": (Attention, (6, 3, 8)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (6, 3, 8)),
    "group norm": (lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4)), IMAGE),
    "lstm": (lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True), SEQUENCE),
    "gru": (lambda: Recurrent(nn.GRU), SEQUENCE),
    "rnn": (lambda: Recurrent(nn.RNN), SEQUENCE),
    "dense layers of sequences": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 2, bias=False)),
        SEQUENCE,
    ),
    "slopes": (lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.PReLU(4)), IMAGE),
    "batch norm": (conv_bn, IMAGE),
    "batch norm without parameters": (lambda: conv_bn(affine=False), IMAGE),
    "positions": (lambda: Positions(3), (6, 3, 8)),
}
STAYING: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "weight norm": (
        lambda: torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        (6, 4),
        "no tensor of its values",
    ),
    "tied": (Tied, (6, 4), "'weight'.*drawn apart"),
    "scaled": (Scaled, IMAGE, "first.weight.*folded into it"),
    "parts": (lambda: Positions(5), (6, 3, 8), "'positions'.*only parts"),
}


def quantized(module: nn.Module, shape: tuple[int, ...]) -> tuple[Result, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(shape)
    return intact.quantize(module.eval(), x, threads=1), x


def trained(result: Any, x: Tensor, **options: Any) -> QuantizedModule:
    """A few steps, fast enough that the outputs move."""
    module: QuantizedModule = intact.to_torch(result, **options).train()
    optimizer = torch.optim.SGD(module.weight_parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        module(x).square().mean().backward()
        optimizer.step()
    module.eval().enable_quantizers(False)
    return module


def same_as_before(module: nn.Module, learned: QuantizedModule, x: Tensor) -> None:
    """Assert that a module computes what another has learned, once it has its weights."""
    copied = copy.deepcopy(module)
    state = learned.float_state_dict()
    assert not copied.load_state_dict(state, strict=False).unexpected_keys
    with torch.no_grad():
        torch.testing.assert_close(copied(x), learned(x), rtol=1e-5, atol=1e-5)
        assert not torch.allclose(copied(x), module(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", GOING_BACK)
def test_weights_go_back_where_they_came_from(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    make, shape = GOING_BACK[name]
    module = make()
    result, x = quantized(module, shape)
    learned = trained(result, x)
    same_as_before(module, learned, x)
    intact.from_torch(learned, output=tmp_path / "result")
    again = intact.to_torch(tmp_path / "result").eval()
    again.enable_quantizers(False)
    same_as_before(module, again, x)


def test_kept_batch_norms_go_back() -> None:
    torch.manual_seed(1)
    module = conv_bn()
    result, x = quantized(module, IMAGE)
    same_as_before(module, trained(result, x, batch_norm="live"), x)


@pytest.mark.parametrize("name", STAYING)
def test_what_cannot_go_back_is_named(name: str) -> None:
    torch.manual_seed(1)
    make, shape, reason = STAYING[name]
    module = make()
    result, x = quantized(module, shape)
    learned = trained(result, x)
    with pytest.raises(UsageError, match=reason) as caught:
        learned.float_state_dict()
    assert "partial=True" in str(caught.value)
    rest = learned.float_state_dict(partial=True)
    assert not copy.deepcopy(module).load_state_dict(rest, strict=False).unexpected_keys


def test_steps_of_a_loop_keep_one_weight() -> None:
    result, x = quantized(Recurrent(nn.RNN), SEQUENCE)
    learned = trained(result, x)
    names = [name for name in learned.constants.learned() if learned.constants[name].ndim == 2]
    parameters = {learned.constants.keys[name] for name in names}
    assert len(names) > len(parameters) == 2


def test_numbers_in_the_code_are_not_trained() -> None:
    result, x = quantized(Positions(3), (6, 3, 8))
    learned = trained(result, x)
    assert "layer.bias" in learned.constants.learned()
    assert all(t.numel() != 4 or n == "layer.bias" for n, t in learned.constants.learned().items())


def test_plain_networks_are_normalized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> Graph:
        raise AssertionError

    monkeypatch.setattr("intact.improve.learn.export.normalize", refuse)
    module = nn.Sequential(conv_bn(), nn.ReLU6(), nn.Flatten(), nn.Linear(64, 2))
    origins = origins_of(export_module(module.eval(), [torch.randn(IMAGE)]))
    assert origins is not None
    assert origins.shapes["3.weight"] == (2, 64)
    assert not origins.layouts


def test_without_marks_the_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> Graph:
        raise ModelError("it has no shapes")

    monkeypatch.setattr("intact.improve.learn.export.normalize", fail)
    result, x = quantized(nn.Sequential(nn.Linear(4, 4)), SEQUENCE)
    learned = trained(result, x)
    with pytest.raises(UsageError, match="no tensor of its values"):
        learned.float_state_dict()
    assert set(learned.float_state_dict(partial=True)) == {"0.bias"}


def test_what_is_returned_can_be_written_to() -> None:
    module = conv_bn()
    result, x = quantized(module, IMAGE)
    learned = trained(result, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of arrays that are read-only
        found = learned.float_state_dict()
    for tensor in found.values():
        tensor.zero_()


@functools.cache
def recurrent_model() -> Graph:
    return normalize(export_module(Recurrent(nn.GRU).eval(), [torch.randn(SEQUENCE)]))


def test_numbers_of_elements_are_stored_and_read() -> None:
    numbers = np.array([[5, 0], [3, 9]])
    np.testing.assert_array_equal(unpacked(packed(numbers), 4, 10), [5, 0, 3, 9])
    bomb = base64.b64encode(zlib.compress(bytes(10**7))).decode()
    cut = packed(numbers)[:-8]
    for text, count, size in [
        (packed(numbers), 4, 9),  # no such element
        (packed(np.array([-1, 2])), 2, 9),
        (packed(numbers), 3, 10),
        (packed(numbers), 5, 10),
        (bomb, 4, 10),
        (cut, 4, 10),
        ("AAAA", 4, 10),
        ("ä", 4, 10),
    ]:
        with pytest.raises(ValueError):
            unpacked(text, count, size)


@pytest.mark.parametrize(
    "stored",
    [
        "{",
        "[]",
        '{"shapes": {"w": [-1]}}',
        '{"shapes": {"w": [65536, 65536]}}',
        '{"shapes": {"w": ["2"]}}',
        '{"shapes": {"w": [2]}, "layouts": {"v": 3}}',
        '{"shapes": {"w": [2]}, "fixed": 3}',
        "[" * 100_000,
    ],
)
def test_damaged_metadata_is_refused(stored: str) -> None:
    model = recurrent_model().model.clone()
    model.metadata_props[METADATA_KEY] = stored
    with pytest.raises(ModelError, match="cannot be read"):
        origins_of(model)


def test_origins_are_in_the_float_model_and_a_damaged_layout_is_refused(tmp_path: Path) -> None:
    result, _ = quantized(nn.Sequential(nn.Linear(4, 4)), SEQUENCE)
    model = result.plan.graph.model
    stored = json.loads(model.metadata_props[METADATA_KEY])
    assert stored["layouts"]
    result.save(tmp_path / "whole")
    deployed = load_model(tmp_path / "whole" / "model.int8.onnx")
    assert METADATA_KEY not in deployed.metadata_props
    stored["layouts"] = dict.fromkeys(stored["layouts"], packed(np.arange(16) + 10**6))
    model.metadata_props[METADATA_KEY] = json.dumps(stored)
    result.save(tmp_path / "result")
    with pytest.raises(ModelError, match="cannot be read"):
        intact.to_torch(tmp_path / "result").float_state_dict()


def test_shapes_beyond_the_file_ask_for_no_memory() -> None:
    result, _ = quantized(nn.Sequential(nn.Linear(4, 4)), SEQUENCE)
    result.plan.graph.model.metadata_props[METADATA_KEY] = json.dumps({"shapes": {"w": [2**30]}})
    with pytest.raises(ModelError, match=f"declares {2**30} elements for 20"):
        intact.to_torch(result).float_state_dict()


def test_origins_are_stored_with_the_model(tmp_path: Path) -> None:
    graph = recurrent_model()
    graph.save(tmp_path / "model.onnx")
    assert Graph.load(tmp_path / "model.onnx").origins == graph.origins
    assert graph.origins is not None
    assert len(graph.origins.layouts) == 3
    model = load_model(tmp_path / "model.onnx")
    set_origins(model, Origins({"w": (2,)}))
    assert origins_of(model) == Origins({"w": (2,)})
