"""Plans as modules of torch, and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intact.flow import torch_modules as flow
from intact.results.result import Result

if TYPE_CHECKING:
    from intact.improve.learn.module import QuantizedModule
    from intact.improve.learn.prepare import PreparedModule
    from intact.recipe.groups import ModelSource, TargetSource


def to_torch(
    result: Result | str | Path, *, quantizers: str = "lsq", batch_norm: str = "folded"
) -> QuantizedModule:
    """Make a ``torch.nn.Module`` that computes the plan of a result, to be trained.

    Weights and biases are parameters; fake quantizers stand where the plan quantizes, and ends that
    share a scale share one. In ``module.eval().double()`` every quantized tensor has the codes that
    the target's arithmetic gives.

    Args:
        result: A result, or its folder.
        quantizers: What they learn: lsq (scales), lsq+ (and zero points), pact (thresholds) or
            fixed (nothing).
        batch_norm: What becomes of folded BatchNormalizations: folded, frozen, batch, corrected or
            live.

    Raises:
        MissingExtraError: torch is not installed.
        ExportError: The model has operators that cannot be trained; it names them all.
        IntactError: The folder or a name is wrong.
    """
    return flow.to_torch(result, quantizers=quantizers, batch_norm=batch_norm)


def from_torch(
    module: Any,
    result: Result | str | Path | None = None,
    *,
    formats: Sequence[str] | None = None,
    output: str | Path | None = None,
) -> Result:
    """Write what a module has learned into a result: weights, biases and scales.

    Args:
        module: From `to_torch` or `prepare`; one that is wrapped for several processes or compiled
            will do.
        result: From which preprocessing and formats are taken over; left out, what the module was
            made of.
        formats: Formats to write; left out, these.
        output: Folder for the result; left out, it is kept in memory.

    Raises:
        IntactError: The module is of another result, a parameter is not finite, or a format cannot
            express the plan.
    """
    return flow.from_torch(module, result, formats=formats, output=output)


def prepare(
    model: ModelSource,
    target: TargetSource = "onnxruntime",
    example: Any = None,
    *,
    quantizers: str = "lsq",
    batch_norm: str = "folded",
    weight_bits: int | None = None,
    activation_bits: int | None = None,
    keep_float: Sequence[str] = (),
    method: str | None = None,
    weight_method: str | None = None,
    formats: Sequence[str] | None = None,
) -> PreparedModule:
    """Make a module with fake quantizers as a target wants them, to calibrate and train in loops.

    Then: `enable_calibration`, run some batches, `enable_quantization`, train, `deploy`.

    Python warnings (``UserWarning``) tell what the target cannot hold: what is not written for it,
    and which nodes compute in float.

    Args:
        model: A ``torch.nn.Module``, or an ONNX model.
        target: The hardware (see ``intact targets``).
        example: A batch of inputs: a tensor, a tuple or a dict.
        quantizers: What they learn, as in `to_torch`.
        batch_norm: What becomes of folded BatchNormalizations, as in `to_torch`.
        weight_bits: Bits of all weights, 2 to 16; left out, the target's.
        activation_bits: Bits of all activations, 2 to 16; left out, the target's.
        keep_float: Nodes or operator types to keep in float.
        method: Threshold method of activations; left out, the target's.
        weight_method: Threshold method of weights; left out, the target's.
        formats: Formats to deploy as; left out, the best of the target. What they cannot express is
            told here, and not after the training.

    Raises:
        IntactError: torch is missing, or cannot export the module; or the target or a format cannot
            take it.
    """
    from intact.plan import Overrides

    overrides = Overrides(
        weight_bits=weight_bits, activation_bits=activation_bits, keep_float=tuple(keep_float)
    )
    return flow.prepare(
        model,
        target,
        example,
        overrides,
        quantizers=quantizers,
        batch_norm=batch_norm,
        formats=formats,
        method=method,
        weight_method=weight_method,
    )


def enable_calibration(module: PreparedModule) -> None:
    """Let a prepared module observe the batches that it is run on next, in float."""
    flow.require_prepared(module).calibrate()


def enable_quantization(module: PreparedModule) -> None:
    """Set the scales of a prepared module from what it observed, and quantize from here on.

    Raises:
        UsageError: It has observed nothing.
    """
    flow.require_prepared(module).quantize()


def deploy(
    module: Any, output: str | Path | None = None, *, formats: Sequence[str] | None = None
) -> Result:
    """Write a trained module for its target: `from_torch` by another name.

    Args:
        module: A prepared module after `enable_quantization`.
        output: Folder for the result; left out, it is kept in memory.
        formats: Formats to write; left out, those that it was prepared for.

    Raises:
        IntactError: It was never calibrated, or a format cannot express the plan.
    """
    return flow.from_torch(module, None, formats=formats, output=output)
