"""Declares what a diagnosis says: findings, each with cause, evidence, remedy and gain.

For example the cause ``clipping``, the evidence that 2 % of a tensor's values lie out of its range,
and the remedy ``--method minmax``, which gains 6 dB.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from intact.errors import python_words

CAUSES: Mapping[str, str] = {
    "preprocessing": "the samples are not prepared as the model wants them",
    "labels": "the labels are numbered otherwise than the model's classes",
    "calibration_samples": "the calibration samples are too few, or unlike the others",
    "clipping": "values lie outside the range of the codes",
    "rounding": "the steps of the codes are too wide for what the layer computes",
    "outlier_channel": "one channel is much larger than the others that share its scale",
    "huge_channel": "one channel is hundreds of times larger than half of the others",
    "huge_token": "one token is hundreds of times larger than half of the others",
    "heavy_tail": "a few values are much larger than all others",
    "unlike_ranges": "tensors of unlike size share a scale",
    "per_tensor_weights": "channels of unlike size share the scale of a weight",
    "dead_channel": "a channel is constant, or smaller than half a step",
    "batch_norm_scale": "a BatchNormalization multiplies some channels by a huge factor",
    "bias_overflow": "a bias does not fit its integers",
    "accumulator_overflow": "sums of products do not fit the accumulator",
    "pair_saturation": "sums of two products saturate in 16 bits on this instruction set",
    "power_of_two": "scales that are powers of two are wider than needed",
    "attention_mask": "a mask of huge negative numbers takes the whole range",
    "float_fallback": "the runtime computes a layer in float",
    "slower_than_float": "the quantized model takes longer than the float model",
}
"""The causes, by name, each with what it means."""

SIMULATION, RUN = "simulated", "run"
"""How the gain of a remedy was measured."""


class Remedy(msgspec.Struct, frozen=True):
    """What may mend a cause: options that differ from those that made the result.

    Attributes:
        options: Values by the name of the option of `quantize`; None takes the default.
        text: What is to be done where no option mends it; "" otherwise.
        measured: How its gain was measured, as in `Finding`; "" if it was not.
    """

    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    text: str = ""
    measured: str = ""


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong.

    Attributes:
        cause: A key of `CAUSES`.
        evidence: What was measured, in one line with its figures.
        severity: The part of the loss that it explains, from 0 to 1; above 1 where the float model
            itself is wrong.
        node: The node at fault; "" if it concerns the whole model.
        tensor: The tensor; "" if it concerns none.
        remedies: What may mend it, the most promising first.
        remedy: The command that mends it, or what to do where no command does.
        gain: What the remedy regains; None if that is not known.
        measured: How the gain was measured: ``"simulated"`` in a plan without improvement passes,
            or ``"run"``, by its command; "" if it was not.
        unit: Unit of the gain: ``"dB"`` of the outputs' signal to noise, ``"points"`` of accuracy
            or of agreement, or ``"times"`` as fast.
    """

    cause: str
    evidence: str
    severity: float
    node: str = ""
    tensor: str = ""
    remedies: tuple[Remedy, ...] = ()
    remedy: str = ""
    gain: float | None = None
    measured: str = ""
    unit: str = "dB"

    @property
    def place(self) -> str:
        """The cause, and where."""
        return f"{self.cause} at {self.node}" if self.node else self.cause

    def __str__(self) -> str:
        """Write what was measured, and where."""
        return f"{self.place}: {self.evidence}"

    @property
    def gained(self) -> str:
        """What the remedy regains, with its unit; "" where that is not known."""
        return "" if self.gain is None else f"{self.gain:+.1f} {self.unit}"

    def as_warning(self) -> str:
        """Write it with its first remedy, in the words of Python."""
        remedy = python_words(self.remedy)
        first = next(iter(self.remedies), None)
        if not remedy and first is not None:
            options = ", ".join(f"{name}={value!r}" for name, value in first.options.items())
            remedy = f"quantize with {options}" if options else python_words(first.text)
        return f"{self}; {remedy}" if remedy else str(self)

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values; numbers that are not finite become None."""
        gain = self.gain if self.gain is not None and math.isfinite(self.gain) else None
        return {
            "cause": self.cause,
            "node": self.node,
            "tensor": self.tensor,
            "evidence": self.evidence,
            "severity": self.severity if math.isfinite(self.severity) else None,
            "remedy": self.remedy,
            "gain": gain,
            "measured": self.measured,
            "unit": self.unit,
        }
