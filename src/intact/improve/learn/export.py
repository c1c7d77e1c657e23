"""Exports a ``torch.nn.Module`` to an ONNX model that tells where its weights were."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn

from intact.errors import ModelError
from intact.graph.origins import set_origins
from intact.improve.learn.origins import origins

_LONGEST_REASON = 300


def export_module(module: nn.Module, example: Mapping[str, Tensor] | Sequence[Tensor]) -> ir.Model:
    """Export a module as ``torch.onnx.export`` does, with any number of samples.

    Args:
        module: In any mode, on any device; it is exported as it evaluates, and not changed.
        example: A batch of its inputs, in order or by the names of the arguments of ``forward``.
            Samples lie along axis 0 of each tensor that has axes.

    Raises:
        ModelError: torch cannot export it: its ``forward`` branches on values, say.
    """
    wide = {n: _two(t) for n, t in example.items()} if isinstance(example, Mapping) else {}
    listed = () if isinstance(example, Mapping) else tuple(_two(each) for each in example)
    free = "batch"  # DYNAMIC would name the axis by a symbol of its own, such as s31
    dynamic: Any = {name: _free(t, free) for name, t in wide.items()}
    if listed:
        dynamic = tuple(_free(tensor, free) for tensor in listed)
    with _in_evaluation(_in_float32(module)) as evaluated, _quiet():
        try:
            program = torch.onnx.export(
                evaluated,
                listed,
                kwargs=wide or None,
                dynamo=True,
                dynamic_shapes=dynamic,
                optimize=False,  # it would fold BatchNormalizations and forget them
                verbose=False,
            )
        except Exception as error:  # torch raises its own classes, and whatever forward raises
            raise ModelError(
                f"torch cannot export {type(module).__name__}: {_reason(error)}",
                remedy="rewrite what it names (a branch on values with torch.where, say), or give "
                "an ONNX model",
            ) from error
    if program is None:
        raise ModelError(f"torch exports nothing of {type(module).__name__}")
    model: ir.Model = program.model
    set_origins(model, origins(model, _shapes(module)))
    return model


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the float tensors that `load_state_dict` takes."""
    state = {k: v for k, v in module.state_dict().items() if isinstance(v, Tensor)}
    return {name: tuple(t.shape) for name, t in state.items() if t.is_floating_point()}


def argument_names(module: nn.Module) -> list[str]:
    """Return the arguments of ``forward`` that have no default, or else the first."""
    parameters = inspect.signature(module.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [each for each in parameters if each.kind in kinds]
    needed = [each.name for each in named if each.default is inspect.Parameter.empty]
    return needed or [each.name for each in named[:1]]


def optional_names(module: nn.Module) -> list[str]:
    """Return the arguments of ``forward`` that have a default."""
    parameters = inspect.signature(module.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    empty = inspect.Parameter.empty
    return [each.name for each in parameters if each.kind in kinds and each.default is not empty]


def runs(module: nn.Module, example: Mapping[str, Tensor]) -> bool:
    """Tell whether a module computes with two samples of a batch."""
    inputs = {name: tensor.detach().cpu()[:2] for name, tensor in example.items() if tensor.ndim}
    inputs = {name: inputs.get(name, tensor) for name, tensor in example.items()}
    with _in_evaluation(_in_float32(module)) as evaluated, _quiet(), torch.no_grad():
        try:
            evaluated(**inputs)
        except Exception:  # whatever forward raises
            return False
    return True


def _in_float32(module: nn.Module) -> nn.Module:
    """Return a module whose weights are float32, which is what targets have."""
    # A copy only where it is needed: a module may be large.
    if any(each.dtype is not torch.float32 for each in module.parameters()):
        return copy.deepcopy(module).float()
    return module


def _two(tensor: Tensor) -> Tensor:
    """Return two samples or more: torch takes an axis of one for fixed."""
    tensor = tensor.detach().cpu()
    if tensor.ndim and len(tensor) == 1:
        return torch.cat([tensor, tensor])
    return tensor


def _free(tensor: Tensor, free: Any) -> dict[int, Any] | None:
    return {0: free} if tensor.ndim else None


def _reason(error: BaseException) -> str:
    """Return the innermost reason in one line: the outer ones give general advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    place = next((line for line in lines if line.startswith("File ")), "")
    text = f"{lines[0] if lines else type(error).__name__} {place}".strip()
    return text[:_LONGEST_REASON].rstrip(".")


@contextlib.contextmanager
def _in_evaluation(module: nn.Module) -> Iterator[nn.Module]:
    """Put a module and its parts into evaluation mode within, on the CPU."""
    modes = {each: each.training for each in module.modules()}
    tensors = (*module.parameters(), *module.buffers())
    device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    try:
        module.eval()
        if device.type != "cpu":
            # The exporter's example and the weights have to be on one device.
            module.cpu()
        yield module
    finally:
        if device.type != "cpu":
            module.to(device)
        # Each part on its own: parts of one module may be in different modes.
        for each, mode in modes.items():
            each.training = mode


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what torch prints and logs of an export to itself; errors are raised."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
