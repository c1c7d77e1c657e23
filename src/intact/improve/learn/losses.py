"""Computes what training makes small: the distance to its teacher (in float) and to labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from intact.engines.session import FloatModel
from intact.errors import UsageError
from intact.improve.learn.module import QuantizedModule

_SUM_TOLERANCE = 1e-3
_SMALLEST = 1e-12


class Distillation:
    """The distance of outputs to the float model's, its teacher.

    Scores of classes (``[N, classes]``) are compared as distributions, by the Kullback-Leibler
    divergence (Hinton et al. 2015, "Distilling the Knowledge in a Neural Network", at temperature
    1), whether or not a Softmax stands behind them. Other outputs are compared by their squared
    error over the teacher's squares, and so are, beside the divergence, scores that only look like
    some: without labels they may be an embedding. Outputs of integers are left out.

    Args:
        teacher: The teacher's outputs for some batch, by which their kinds are told.
        has_labels: Whether the data has labels.

    Raises:
        UsageError: All are integers.
    """

    def __init__(self, teacher: Sequence[Tensor], *, has_labels: bool = False) -> None:
        self._has_labels = has_labels
        self._kinds = [_kind(each) for each in teacher]
        if all(kind == _INTEGERS for kind in self._kinds):
            raise UsageError(
                "the model has no output of real numbers, which training could make better",
                remedy="train the model without what makes its outputs integers",
            )

    @property
    def scores(self) -> int | None:
        """The index of the first output that scores classes; None where none does."""
        found = (k for k, kind in enumerate(self._kinds) if kind in (_SCORES, _PROBABILITIES))
        return next(found, None)

    def __call__(self, outputs: Sequence[Tensor], teacher: Sequence[Tensor]) -> Tensor:
        """Return the mean of the distances of all outputs, ``[]``."""
        found = [
            self._distance(kind, output.float(), target.float())
            for kind, output, target in zip(self._kinds, outputs, teacher, strict=True)
            if kind != _INTEGERS
        ]
        return torch.stack(found).mean()

    def _distance(self, kind: str, output: Tensor, teacher: Tensor) -> Tensor:
        if kind == _NUMBERS:
            return _relative_error(output, teacher)
        found, wanted = _logarithms(kind, output), _logarithms(kind, teacher)
        divergence = functional.kl_div(found, wanted, reduction="batchmean", log_target=True)
        if kind == _PROBABILITIES or self._has_labels:
            return divergence
        return divergence + _relative_error(output, teacher)

    def of_labels(self, outputs: Sequence[Tensor], labels: Tensor) -> Tensor:
        """Return the cross entropy of the labels, ``[]``; 0 where no output scores classes."""
        index = self.scores
        if index is None:
            return torch.zeros(())
        logarithms = _logarithms(self._kinds[index], outputs[index].float())
        return functional.nll_loss(logarithms, labels)


_INTEGERS, _NUMBERS, _SCORES, _PROBABILITIES = "integers", "numbers", "scores", "probabilities"


def _kind(output: Tensor) -> str:
    if not output.is_floating_point():
        return _INTEGERS
    if output.ndim != 2 or output.shape[1] < 2:
        return _NUMBERS
    sums = output.sum(1)
    sums_to_one = torch.allclose(sums, torch.ones_like(sums), atol=_SUM_TOLERANCE)
    return _PROBABILITIES if bool((output >= 0).all()) and sums_to_one else _SCORES


def _logarithms(kind: str, output: Tensor) -> Tensor:
    if kind == _PROBABILITIES:
        # A probability that is rounded to 0 has no logarithm.
        return torch.log(output.clamp_min(_SMALLEST))
    return functional.log_softmax(output, 1)


def _relative_error(output: Tensor, teacher: Tensor) -> Tensor:
    # A teacher that gives zeros must not divide by 0.
    power = teacher.square().mean().clamp_min(_SMALLEST)
    return functional.mse_loss(output, teacher) / power


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
