"""The tensors of one batch, as they are counted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from intact.calibrate.observe.layout import Shape


@dataclass(frozen=True)
class Observed:
    """The tensors of one batch, one after the other in one array.

    Attributes:
        values: float32, flat.
        starts: Where each tensor begins, in the observer's order.
        elements: Elements of one sample of each tensor.
        samples: Real samples; a tensor holds ``samples * elements`` values.
        shapes: Shape of one sample of each tensor.
    """

    values: npt.NDArray[np.float32]
    starts: npt.NDArray[np.int64]
    elements: npt.NDArray[np.int64]
    samples: int
    shapes: tuple[Shape, ...]
