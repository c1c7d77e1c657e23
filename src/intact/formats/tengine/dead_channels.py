"""Output channels whose weights are all 0, as Tengine's tool writes them and as intact does.

The tool's min-max scale of such a channel is 0, hence also the bias's, and the codes of both are
0: what the bias adds is lost [tengine]. A plan gives the channel some scale and keeps its bias,
unless its target says ``dead_channels = "zero"``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from intact.plan import Note, NoteKind, QuantizedGraph
from intact.plan.dead_channels import nodes_with_dead_channels
from intact.targets import DeadChannels


def zero_scales(plan: QuantizedGraph) -> dict[str, npt.NDArray[np.bool_]]:
    """Return the channels whose scales are written as 0, by the name of the node."""
    if plan.target.bias.dead_channels is DeadChannels.KEEP:
        return {}
    return {str(node.name): dead for node, dead in nodes_with_dead_channels(plan)}


def dead_channel_notes(plan: QuantizedGraph) -> Iterator[Note]:
    """Say how many channels have no weights, and what is written of them."""
    found = [(str(node.name), int(dead.sum())) for node, dead in nodes_with_dead_channels(plan)]
    if not found:
        return
    count = sum(number for _, number in found)
    dead = f"{count} output channel(s) of {len(found)} layer(s) have weights of 0 only"
    first = f"(first: {found[0][0]!r})"
    if plan.target.bias.dead_channels is DeadChannels.ZERO:
        message, remedy = f"{dead}: their scales and biases are written as 0 {first}", ""
    else:
        message = (
            f"{dead}: they keep their bias, where Tengine's own tool writes scales and biases of 0 "
            f"{first}"
        )
        remedy = "--target tengine-tool writes what the tool does"
    yield Note(NoteKind.EXPORT, "", message, remedy)
