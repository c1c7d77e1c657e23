"""What a training came to: plain figures, without torch."""

from __future__ import annotations

import msgspec


class Epoch(msgspec.Struct, frozen=True):
    """What an epoch came to.

    Attributes:
        number: From 1; 0 is the plan before training.
        loss: Mean of the steps; None before training.
        held_out: Loss on the samples that are held out.
        accuracy: Percent of them that are right, or agree with the float model where there are no
            labels; None where no output scores classes.
        seconds: That it took.
    """

    number: int
    loss: float | None
    held_out: float
    accuracy: float | None
    seconds: float


class Trained(msgspec.Struct):
    """What training came to.

    Attributes:
        epochs: All of them, with the plan before training as the first.
        best: Number of the epoch whose parameters are kept: the least loss on what is held out.
        stopped: Why training ended before its last epoch; "" if it did not.
    """

    epochs: list[Epoch] = []
    best: int = 0
    stopped: str = ""
