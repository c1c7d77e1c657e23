"""Parameters of a folded BatchNormalization, stored in the metadata of the node it was folded into.

Data-free methods (equalization, bias correction) read the distribution of a layer's output from
it: per channel, mean ``beta`` and standard deviation ``|gamma|`` (Nagel et al. 2019, "Data-Free
Quantization Through Weight Equalization and Bias Correction").
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.errors import ModelError
from intact.graph.ops import output_channels

METADATA_KEY = "intact.batch_norm"

_ARRAYS = ("gamma", "beta", "mean", "variance")


@dataclass(frozen=True, eq=False)
class BatchNorm:
    """Parameters of a BatchNormalization, float32 arrays of shape [channels].

    Attributes:
        gamma: Scale.
        beta: Shift.
        mean: Running mean of the input.
        variance: Running variance of the input.
        epsilon: Added to the variance.
    """

    gamma: npt.NDArray[np.float32]
    beta: npt.NDArray[np.float32]
    mean: npt.NDArray[np.float32]
    variance: npt.NDArray[np.float32]
    epsilon: float


def remember(node: ir.Node, batch_norm: BatchNorm) -> None:
    """Store a BatchNorm in a node's metadata; it replaces an earlier one."""
    fields: dict[str, str | float] = {"epsilon": batch_norm.epsilon}
    for name in _ARRAYS:
        array = np.asarray(getattr(batch_norm, name), dtype="<f4")
        fields[name] = base64.b64encode(array.tobytes()).decode("ascii")
    node.metadata_props[METADATA_KEY] = json.dumps(fields)


def recall(node: ir.Node) -> BatchNorm | None:
    """Read the BatchNorm that was folded into a node; None if there was none.

    Raises:
        ModelError: The node's metadata does not hold what `remember` writes.
    """
    text = node.metadata_props.get(METADATA_KEY)
    if text is None:
        return None
    try:
        fields = json.loads(text)
        arrays = {
            name: np.frombuffer(base64.b64decode(fields[name], validate=True), dtype="<f4")
            for name in _ARRAYS
        }
        sizes = {array.size for array in arrays.values()}
        if len(sizes) != 1 or output_channels(node) not in {None, *sizes}:
            raise ValueError("it has another number of channels than the node")
        return BatchNorm(**arrays, epsilon=float(fields["epsilon"]))
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise ModelError(
            f"node {node.name!r}: metadata {METADATA_KEY!r} cannot be read",
            remedy="normalize the original model again",
        ) from error
