"""Parameters of a folded BatchNormalization, stored in the metadata of the node it was folded into.

Those of a node's output are what data-free methods read; one that was folded into the layer behind
it is that of the node's input, and only remembered.

Data-free methods (equalization, bias correction) read the distribution of a layer's output from
it: per channel, mean ``beta`` and standard deviation ``|gamma|`` (Nagel et al. 2019, "Data-Free
Quantization Through Weight Equalization and Bias Correction").
"""

from __future__ import annotations

import base64
import binascii
import json

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.errors import ModelError
from intact.graph.ops import output_channels

METADATA_KEY = "intact.batch_norm"
INPUT_KEY = "intact.input_batch_norm"
"""The entry of the BatchNormalization that was in front of the node."""

STILL = 1e-3
"""Part of the largest deviation at or below which a channel is taken for a constant."""

_ARRAYS = ("gamma", "beta", "mean", "variance")


class BatchNorm(msgspec.Struct, frozen=True, eq=False):
    """Parameters of a BatchNormalization, float32 arrays of shape [channels].

    Attributes:
        gamma: Scale.
        beta: Shift.
        mean: Running mean of the input.
        variance: Running variance of the input.
        epsilon: Added to the variance.
        names: What the model that was read called them, in this order; empty where it had others.
    """

    gamma: npt.NDArray[np.float32]
    beta: npt.NDArray[np.float32]
    mean: npt.NDArray[np.float32]
    variance: npt.NDArray[np.float32]
    epsilon: float
    names: tuple[str, ...] = ()

    @property
    def ratio(self) -> npt.NDArray[np.float64]:
        """What the input is multiplied by, ``[channels]``; not finite for impossible parameters."""
        with np.errstate(all="ignore"):
            deviation = np.sqrt(self.variance.astype(np.float64) + self.epsilon)
            return np.asarray(self.gamma.astype(np.float64) / deviation)

    @property
    def offset(self) -> npt.NDArray[np.float64]:
        """What is added then, ``[channels]``."""
        with np.errstate(all="ignore"):
            return np.asarray(self.beta.astype(np.float64) - self.mean * self.ratio)


def remember(node: ir.Node, batch_norm: BatchNorm, key: str = METADATA_KEY) -> None:
    """Store a BatchNorm in a node's metadata; it replaces an earlier one.

    Args:
        node: The node that it was folded into, or the last of those that it became.
        batch_norm: Its parameters.
        key: `METADATA_KEY` if the node's output is that of the BatchNorm, `INPUT_KEY` if its input
            was.
    """
    fields: dict[str, str | float | list[str]] = {"epsilon": batch_norm.epsilon}
    if batch_norm.names:
        fields["names"] = list(batch_norm.names)
    for name in _ARRAYS:
        array = np.asarray(getattr(batch_norm, name), dtype="<f4")
        fields[name] = base64.b64encode(array.tobytes()).decode("ascii")
    node.metadata_props[key] = json.dumps(fields)


def recall(node: ir.Node, key: str = METADATA_KEY) -> BatchNorm | None:
    """Read the BatchNorm that was folded into a node; None if there was none.

    Raises:
        ModelError: The node's metadata does not hold what `remember` writes.
    """
    text = node.metadata_props.get(key)
    if text is None:
        return None
    try:
        fields = json.loads(text)
        arrays = {
            # Without `validate` foreign characters would be skipped, not refused.
            name: np.frombuffer(base64.b64decode(fields[name], validate=True), dtype="<f4")
            for name in _ARRAYS
        }
        sizes = {array.size for array in arrays.values()}
        # What stood in front has the channels of the input, which the weight need not tell.
        channels = output_channels(node) if key == METADATA_KEY else None
        if len(sizes) != 1 or channels not in {None, *sizes}:
            raise ValueError("it has another number of channels than the node")
        names = tuple(str(name) for name in fields.get("names", ()))
        if len(names) not in (0, len(_ARRAYS)):
            raise ValueError("it names other arrays")
        return BatchNorm(**arrays, epsilon=float(fields["epsilon"]), names=names)
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise ModelError(
            f"node {node.name!r}: metadata {key!r} cannot be read",
            remedy="normalize the original model again",
        ) from error
