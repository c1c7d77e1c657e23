"""Compares a module's fake-quantized values with the codes of the target's own arithmetic."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from intact.engines.integer.engine import IntegerEngine
from intact.plan import QuantizedGraph, TensorEnd
from intact.program import Array
from intact.program import Tensor as ProgramTensor
from intact.program.lower import lower

if TYPE_CHECKING:
    from intact.improve.learn.module import QuantizedModule


class TargetBits:
    """The integer engine behind a module: made again when parameters changed."""

    def __init__(self) -> None:
        self._made_of = b""
        self._engine: PlanEngine | None = None

    def codes(
        self, module: QuantizedModule, inputs: Mapping[str, Tensor]
    ) -> dict[TensorEnd, Tensor]:
        """Run the module's plan as it is trained by now.

        Args:
            module: Its parameters are written into a plan first, if they changed.
            inputs: The inputs by name.

        Returns:
            The integers of activations, int64 on the device of the inputs, by quantization point.
        """
        digest = _digest(module)
        if self._engine is None or digest != self._made_of:
            from intact.improve.learn.write_back import trained_plan

            self._engine, self._made_of = PlanEngine(trained_plan(module)), digest
        device = next((tensor.device for tensor in inputs.values()), torch.device("cpu"))
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in inputs.items()}
        found = self._engine.codes(arrays)
        return {end: torch.from_numpy(codes).to(device) for end, codes in found.items()}


def _digest(module: QuantizedModule) -> bytes:
    """Digest the numbers themselves: PyTorch counts no change that is made by way of ``data``."""
    found = hashlib.blake2b(digest_size=16)
    for tensor in module.state_dict().values():
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.digest()


class PlanEngine:
    """The integer engine of a plan, with its tensors by quantization point."""

    def __init__(self, plan: QuantizedGraph) -> None:
        program = lower(plan)
        self._plan = plan
        self._engine = IntegerEngine(program)
        self._tensors: dict[str, ProgramTensor] = {
            tensor.name: tensor
            for tensor in program.tensors()
            if tensor.end is not None and tensor.encoding is not None and not tensor.is_constant
        }

    def codes(self, inputs: Mapping[str, Array]) -> dict[TensorEnd, Array]:
        """Return the codes of every quantized activation for a batch, int64, as in the plan."""
        feeds = {
            name: array.astype(np.float32) if array.dtype.kind == "f" else array
            for name, array in inputs.items()
        }
        run = self._engine.run(feeds, self._tensors)
        found = {}
        for name, array in run.tensors.items():
            tensor = self._tensors[name]
            if tensor.end is not None:
                found[tensor.end] = self._as_planned(tensor, tensor.end, tensor.as_in_model(array))
        return found

    def _as_planned(self, tensor: ProgramTensor, end: TensorEnd, codes: Array) -> Array:
        """Return codes with the zero point of the plan: programs may store signed ones unsigned."""
        config, encoding = self._plan.configs[end], tensor.encoding
        if encoding is None or config.offset is None:
            return codes.astype(np.int64)
        shift = np.asarray(config.offset - encoding.zero_point.reshape(config.offset.shape))
        whole = codes.astype(np.int64)
        return np.ascontiguousarray(whole + int(shift) if shift.ndim == 0 else whole)


class Difference(NamedTuple):
    """How many codes of a tensor differ.

    Attributes:
        codes: How many elements differ.
        elements: How many there are.
        largest: By how many steps at most.
    """

    codes: int
    elements: int
    largest: int


def differing_codes(
    module: QuantizedModule, *inputs: Tensor, **named: Tensor
) -> dict[TensorEnd, Difference]:
    """Count codes of fake quantizers and the target that differ: `QuantizedModule.differing_codes`.

    Args:
        module: In any dtype.
        *inputs: A batch, as for the module.
        **named: Inputs by name.
    """
    # Taught: with the target's codes behind each layer, one difference is not counted in all later
    # ones.
    before, module.arithmetic = module.arithmetic, "target"
    try:
        with torch.no_grad(), module.observing() as simulated:
            module(*inputs, **named)
            exact = module.codes(*inputs, **named)
    finally:
        module.arithmetic = before
    found = {}
    for end, codes in exact.items():
        if end in simulated:
            off = (simulated[end].reshape(codes.shape) - codes).abs()
            largest = int(off.max()) if off.numel() else 0
            found[end] = Difference(int(torch.count_nonzero(off)), off.numel(), largest)
    return found
