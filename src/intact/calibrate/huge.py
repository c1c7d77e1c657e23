"""Finds channels and tokens hundreds of times larger than the others of their tensor.

Transformers keep such numbers in a few channels and in single tokens (registers, the first token),
and a convolution may have one channel of another unit than all others. On a scale that holds it,
the others have one step at most. Where layers behind read it with weights as much smaller, these
are rounded away too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.calibrate.outputs import FloatRuns
from intact.calibrate.statistics import Statistics
from intact.calibrate.tail import is_layer, products
from intact.engines.tensors import tensors_of
from intact.graph import Graph, constant_array, moves_values, weight_slot
from intact.ops.operators import Concat, is_a
from intact.plan import QuantizedGraph

HUGE = 256.0
"""Codes of 8 bits: what is smaller by more lies within one step."""
_WIDE_BITS = 16
"""Codes of these hold a huge place and the others side by side."""
_CHEAP = 0.5
"""Share of all multiplications that stay integers at least, or else little is left to gain."""
_FEWEST = 3
"""Channels or tokens of which a middle one can be told."""


class HugePart(msgspec.Struct, frozen=True):
    """A channel or token that takes the whole range of its tensor.

    Attributes:
        tensor: Name of the tensor.
        kind: ``"channel"`` or ``"token"``.
        index: Its number.
        reach: Its largest magnitude.
        usual: That of the middle one.
    """

    tensor: str
    kind: str
    index: int
    reach: float
    usual: float

    def __str__(self) -> str:
        """Say how large it is."""
        return (
            f"{self.kind} {self.index} of {self.tensor!r} reaches {self.reach:.4g}, half of the "
            f"{self.kind}s {self.usual:.4g}"
        )


def wide_tensors(plan: QuantizedGraph, statistics: Statistics) -> list[str]:
    """List the tensors of which half of the values are smaller than one step of 8 bits.

    Zeros do not count.
    """
    computed = {str(value.name) for node in plan.graph.nodes for value in node.outputs}
    found = []
    for name, each in statistics.tensors.items():
        reach = max(-each.minimum, each.maximum)
        if name not in computed or not 0 < reach < np.inf:
            continue
        values = each.distribution()
        sizes = np.maximum(np.abs(values.low), np.abs(values.high))
        order = np.argsort(sizes)
        order = order[sizes[order] > 0]
        counts = np.cumsum(values.count[order])
        if len(counts) and reach > HUGE * sizes[order][np.searchsorted(counts, counts[-1] / 2)]:
            found.append(name)
    return found


def huge_parts(
    graph: Graph, names: Sequence[str], runs: FloatRuns, least: float = HUGE
) -> list[HugePart]:
    """Find the channel or token of each tensor that is many times larger than half of them.

    Args:
        graph: The float model.
        names: The tensors.
        runs: Samples, of which the first batch is run.
        least: How many times.
    """
    by_name = {str(value.name): value for value in graph.values}
    # What is large in a join is one of its parts: `unlike_ranges` names that.
    names = [name for name in names if not _is_joined(by_name[name])]
    if not names or not runs.batches:
        return []
    feeds, count = runs.batches[0]
    arrays = tensors_of(graph, names, feeds)
    parts = (_largest(by_name[name], arrays[name][:count], least) for name in names)
    return [each for each in parts if each is not None]


def _largest(value: ir.Value, array: npt.NDArray[np.generic], least: float) -> HugePart | None:
    """Find the axis along which one place is largest beside the middle one."""
    sizes = np.abs(np.nan_to_num(np.asarray(array, np.float64)))
    found: list[tuple[float, HugePart]] = []
    axes = range(1, sizes.ndim) if sizes.ndim == 3 else range(1, min(sizes.ndim, 2))
    for axis in axes:
        each = sizes.max(axis=tuple(k for k in range(sizes.ndim) if k != axis))
        if len(each) < _FEWEST:
            continue
        usual = float(np.median(each[each > 0])) if (each > 0).any() else 0.0
        index = int(each.argmax())
        if not each[index] > least * usual > 0:
            continue
        is_token = sizes.ndim == 3 and axis == 1 and not _is_convolved(value)
        kind = "token" if is_token else "channel"
        part = HugePart(str(value.name), kind, index, float(each[index]), usual)
        found.append((float(each[index]) / usual, part))
    return max(found, key=lambda pair: pair[0], default=(0.0, None))[1]


def _is_joined(value: ir.Value) -> bool:
    """Tell whether a value is joined of several, and only moved since."""
    maker = value.producer()
    while maker is not None and moves_values(maker):
        data = maker.inputs[0]
        maker = None if data is None else data.producer()
    return is_a(maker, Concat)


def _is_convolved(value: ir.Value) -> bool:
    """Tell whether axis 1 is that of channels: a layer around has a kernel along the others."""
    maker = value.producer()
    for node in (*value.consumers(), *([] if maker is None else [maker])):
        slot = weight_slot(node)
        weight = None if slot is None else constant_array(node.inputs[slot])
        if weight is not None and weight.ndim >= 3:
            return True
    return False


def widened_places(graph: Graph, names: Iterable[str]) -> dict[str, int]:
    """Return the widths that give tensors 16 bits, by the places that ``--bits`` takes."""
    makers = (graph.value(name).producer() for name in names)
    return {f"{maker.name}.output": _WIDE_BITS for maker in makers if maker is not None}


def group_around(plan: QuantizedGraph, names: Iterable[str]) -> tuple[str, ...]:
    """Return the quantized nodes that write or read tensors, with what they are fused with.

    Values that are only moved are as huge behind.

    Returns:
        Their names; none where they are more than half of the network's multiplications.
    """
    tensors = set(names)
    group: dict[ir.Node, None] = {}
    for node in plan.graph.nodes:
        if moves_values(node) and node.inputs[0] is not None and node.inputs[0].name in tensors:
            tensors.update(str(value.name) for value in node.outputs)
        ends = (*node.inputs, *node.outputs)
        if any(value is not None and str(value.name) in tensors for value in ends):
            group[node] = None
    from intact.program.lower.chains import Points, chains  # with much else

    for chain in chains(plan, Points.of(plan)):
        if not group.keys().isdisjoint(chain):
            group |= dict.fromkeys(chain)
    layers = sum(products(node) for node in plan.graph.nodes)
    if layers and sum(products(node) for node in group if is_layer(node)) > _CHEAP * layers:
        return ()
    return tuple(str(node.name) for node in group if plan.is_quantized(node))
