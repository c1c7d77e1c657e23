"""Runs the float model as a teacher: what the outputs should be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from intact.engines.session import FloatModel
from intact.errors import UsageError
from intact.improve.learn.module import QuantizedModule

Teacher: TypeAlias = Callable[[Mapping[str, Tensor]], tuple[Tensor, ...]]
"""From a batch of inputs by name to the float model's outputs, in its order."""


def teacher_of(module: QuantizedModule, threads: int = 0) -> Teacher:
    """Return the teacher of a module that is not trained yet, which runs beside it.

    Args:
        module: On the CPU it is taught by ONNX Runtime, which is the fastest there; elsewhere by a
            module without quantizers.
        threads: ONNX Runtime's threads; 0 for all cores.
    """
    if device_of(module).type == "cpu":
        return _runtime(module, threads)
    return by_weights(module)


def by_weights(module: QuantizedModule) -> Teacher:
    """Return a teacher with the weights that a module's plan has in float, where the module is."""
    # A module of its own: the weights of the one that is trained move.
    twin = QuantizedModule(module.plan).to(device_of(module)).eval()
    twin.enable_quantizers(False)

    def taught(inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        with torch.no_grad():
            result = twin(**inputs)
        return result if isinstance(result, tuple) else (result,)

    return taught


def _runtime(module: QuantizedModule, threads: int) -> Teacher:
    runtime = FloatModel(module.plan.graph, threads=threads)

    def taught(inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        found = runtime.run({name: tensor.numpy() for name, tensor in inputs.items()})
        return tuple(torch.from_numpy(found[name].copy()) for name in runtime.outputs)

    return taught


def device_of(module: QuantizedModule) -> torch.device:
    """Return where the parameters of a module lie."""
    return next((each.device for each in module.parameters()), torch.device("cpu"))


def named_device(name: str) -> torch.device:
    """Return the device that is called so; ``auto`` is a GPU where torch finds one.

    Raises:
        UsageError: torch knows none of that name, or has none here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:  # no such name; built without it
        reason = str(error).splitlines()[0]
        raise UsageError(f"--device {name!r}: {reason}", remedy="give cpu or cuda") from error
    return device
