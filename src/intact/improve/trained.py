"""Declares the outcome of a training, as plain figures without torch."""

from __future__ import annotations

from pathlib import Path

import msgspec

LOG = ".train.jsonl"
"""What lies beside the folder of a result that was trained: the loss curve, a line an epoch."""


class Epoch(msgspec.Struct, frozen=True):
    """The figures of an epoch.

    Attributes:
        number: From 1; 0 is the plan before training.
        loss: Mean of the steps; None before training.
        held_out: Loss on the samples that are held out.
        accuracy: Percent of them that are right, or agree with the float model where there are no
            labels; None where no output scores classes.
        seconds: The seconds that it took.
    """

    number: int
    loss: float | None
    held_out: float
    accuracy: float | None
    seconds: float

    def __str__(self) -> str:
        """Write it in one line.

        >>> print(Epoch(3, 0.25, 0.125, 97.5, 1.2))
        epoch 3, loss 0.25000, held out 0.12500, 97.50 % right, 1 s
        """
        parts = [f"epoch {self.number}" if self.number else "before training"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.5f}")
        parts.append(f"held out {self.held_out:.5f}")
        if self.accuracy is not None:
            parts.append(f"{self.accuracy:.2f} % right")
        if self.number:
            parts.append(f"{self.seconds:.0f} s")
        return ", ".join(parts)


class Trained(msgspec.Struct):
    """The outcome of a training.

    Attributes:
        epochs: All of them, with the plan before training as the first.
        best: Number of the epoch whose parameters are kept: the least loss on what is held out.
        stopped: Why training ended before its last epoch; "" if it did not.
    """

    epochs: list[Epoch] = []
    best: int = 0
    stopped: str = ""


def read_epochs(path: Path) -> list[Epoch]:
    """Read a loss curve up to where a kill cut it."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            found.append(msgspec.json.decode(line, type=Epoch))
        except msgspec.DecodeError:
            # A kill cuts the last line.
            break
    return found
