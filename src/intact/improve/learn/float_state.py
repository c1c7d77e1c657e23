"""Returns what a module has learned, by the names that the float model had for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from intact.graph import bias_slot, output_channel_axis, weight_slot
from intact.graph.batch_norm import BatchNorm

if TYPE_CHECKING:
    from intact.improve.learn.module import QuantizedModule
import math
from collections.abc import Iterable

from intact.errors import ModelError, UsageError
from intact.graph import Graph
from intact.graph.origins import METADATA_KEY, Origins

_STUCK = "its BatchNormalization cannot be taken out again"


def float_state_dict(module: QuantizedModule, partial: bool = False) -> dict[str, Tensor]:
    """Return the trained weights by name; see `QuantizedModule.float_state_dict`."""
    graph = module.plan.graph
    found = {name: tensor.detach() for name, tensor in module.constants.learned().items()}
    back = None if graph.origins is None else WayBack(graph, graph.origins)
    for node in graph.nodes:
        kept = module.norm_of(str(node.name))
        folded = graph.batch_norms.get(str(node.name))
        norm = folded if kept is None else kept.parameters_now()
        if norm is None or not norm.names:
            continue
        layer: dict[str, Tensor] | None = found
        if kept is None:
            layer = _unfold(node, norm, found)
        if layer is not None:
            has_beta = back is None or back.has_tensor(norm.names[1], norm.beta.shape)
            found |= layer | (_move_bias(node, norm, layer) if has_beta else _norm_arrays(norm))
        elif back is not None:
            back.lose([n for n in _names(node) if n in found], node, _STUCK)
    if back is None:
        return found
    return back.tensors(found, partial)


def _names(node: ir.Node) -> list[str]:
    """Return the names of a layer's weight and bias, as far as it has them."""
    slots = (weight_slot(node), bias_slot(node))
    values = [None if slot is None else node.inputs[slot] for slot in slots]
    return [str(value.name) for value in values if value is not None]


def _move_bias(node: ir.Node, norm: BatchNorm, layer: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Move a layer's bias into the normalization behind it: the layer may have had none."""
    bias = node.inputs[bias_slot(node) or 0]
    own = layer.get("" if bias is None else str(bias.name))
    if own is None or bias is None:
        return _norm_arrays(norm)
    beta = norm.beta + own.cpu().double().numpy() * norm.ratio
    moved = msgspec.structs.replace(norm, beta=beta.astype(np.float32))
    return {str(bias.name): torch.zeros_like(own), **_norm_arrays(moved)}


def _unfold(
    node: ir.Node, norm: BatchNorm, learned: Mapping[str, Tensor]
) -> dict[str, Tensor] | None:
    """Divide a normalization out of a layer's weights and bias; None where that cannot be."""
    axis, names = output_channel_axis(node), _names(node)
    is_invertible = bool(np.isfinite(norm.ratio).all() and (norm.ratio != 0).all())
    if axis is None or not is_invertible or len(names) < 2 or not learned.keys() >= {*names}:
        return None
    ratio = torch.from_numpy(norm.ratio)
    shape = [1] * learned[names[0]].ndim
    shape[axis] = -1
    # In float64, so that what was folded and is divided out again comes back as it was.
    layer = learned[names[0]].cpu().double() / ratio.reshape(shape)
    own = (learned[names[1]].cpu().double() - torch.from_numpy(norm.offset)) / ratio
    return {names[0]: layer.float(), names[1]: own.float()}


def _norm_arrays(norm: BatchNorm) -> dict[str, Tensor]:
    arrays = (norm.gamma, norm.beta, norm.mean, norm.variance)
    return {name: torch.tensor(a) for name, a in zip(norm.names, arrays, strict=False)}


_MOST_NAMED = 3
_UNUSED, _FEW = 16, 1 << 20
"""How many times the elements of a graph its module may have, and how many at least."""
_NO_HOME = "the module has no tensor of its values"
_CHANGED = "another constant of the module is folded into it"
_PARTS = "the model has only parts of that tensor"
_APART = "the module has one tensor for several, which training has drawn apart"


class WayBack:
    """Puts the elements of constants where they were in the module.

    Args:
        graph: Whose constants they are.
        origins: Where its constants come from.

    Raises:
        ModelError: They declare tensors that are larger by far than the graph.
    """

    def __init__(self, graph: Graph, origins: Origins) -> None:
        _refuse_larger(graph, origins)
        self._graph, self._origins = graph, origins
        self._values = torch.zeros(origins.size)
        self._known, self._learned, self._apart = (
            torch.zeros(origins.size, dtype=torch.bool) for _ in range(3)
        )
        self._lost: dict[str, str] = {}

    def has_tensor(self, name: str, shape: tuple[int, ...]) -> bool:
        """Tell whether the module has a tensor of that name and shape."""
        return self._origins.shapes.get(name) == shape

    def lose(self, names: Iterable[str], node: ir.Node, why: str) -> None:
        """Note that constants which a node reads cannot go back."""
        self._lost |= {name: f"{name!r} of node {node.name!r} ({why})" for name in names}

    def tensors(self, found: Mapping[str, Tensor], partial: bool) -> dict[str, Tensor]:
        """Return the module's tensors that training could change, on the CPU.

        Args:
            found: Constants, and parameters of BatchNormalizations that were folded, by name.
            partial: Leave out what cannot go back.

        Raises:
            UsageError: Something cannot go back, and it is not to be left out.
        """
        for name, tensor in found.items():
            if name not in self._lost:
                self._take(name, tensor)
        # Behind the trained ones, with which they have to agree.
        self._take_others(found)
        whole = {}
        for name, start in self._origins.starts.items():
            shape = self._origins.shapes[name]
            part = slice(start, start + math.prod(shape))
            if not self._learned[part].any():
                continue
            if self._apart[part].any():
                self._lost[name] = f"{name!r} ({_APART})"
            elif not self._known[part].all():
                self._lost[name] = f"{name!r} ({_PARTS})"
            else:
                # A copy: the slice would hold the elements of the whole module.
                whole[name] = self._values[part].reshape(shape).clone()
        if self._lost and not partial:
            self._refuse()
        return whole

    def _take(self, name: str, tensor: Tensor) -> None:
        """Take a constant that was trained, or a parameter of a BatchNormalization."""
        indices = self._origins.indices(name, tuple(tensor.shape))
        if indices is None:
            # Exporters add biases and factors that modules do without: neutral ones lose nothing.
            if not _is_neutral(tensor):
                self._lose_constant(name)
            return
        self._put(torch.from_numpy(indices), tensor.reshape(-1).cpu().float(), learned=True)

    def _take_others(self, found: Mapping[str, Tensor]) -> None:
        """Take what was not trained: parts of trained tensors, and what has to agree with them."""
        for value in self._graph.model.graph.initializers.values():
            name, array = str(value.name), self._graph.constant(value)
            readers = [str(node.name) for node, _ in self._graph.consumers(value)]
            is_folded = any(each in self._graph.batch_norms for each in readers)
            if array is None or name in found or is_folded or not self._graph.is_float(value):
                continue
            indices = self._origins.indices(name, array.shape)
            if indices is not None:
                values = torch.tensor(array).reshape(-1).float()
                self._put(torch.from_numpy(indices), values, learned=False)

    def _put(self, indices: Tensor, values: Tensor, *, learned: bool) -> None:
        apart = self._known[indices] & (self._values[indices] != values)
        self._values[indices] = values
        apart |= self._values[indices] != values  # an element that the constant has twice
        self._apart[indices[apart]] = True
        self._known[indices] = True
        if learned:
            self._learned[indices] = True

    def _lose_constant(self, name: str) -> None:
        why = _CHANGED if name in self._origins.changed else _NO_HOME
        values = {str(value.name): value for value in self._graph.values}
        readers = self._graph.consumers(values[name]) if name in values else ()
        if readers:
            self.lose([name], readers[0][0], why)
        else:
            self._lost[name] = f"{name!r} ({why})"

    def _refuse(self) -> None:
        first = list(self._lost.values())[:_MOST_NAMED]
        more = len(self._lost) - len(first)
        raise UsageError(
            "the module that was exported cannot take back what was trained: "
            + ", ".join(first)
            + (f" and {more} more" if more else ""),
            remedy="take the result itself (intact.from_torch), or what it can take: "
            "float_state_dict(partial=True)",
        )


def _refuse_larger(graph: Graph, origins: Origins) -> None:
    """Refuse a file that asks for memory which its own size does not justify."""
    tensors = (value.const_value for value in graph.model.graph.initializers.values())
    stored = sum(tensor.size for tensor in tensors if tensor is not None)
    if origins.size > _UNUSED * stored + _FEW:
        raise ModelError(
            f"the model's metadata {METADATA_KEY!r} declares {origins.size} elements for {stored}",
            remedy="remove that entry, or quantize the module again",
        )


def _is_neutral(tensor: Tensor) -> bool:
    """Tell whether a tensor is a bias of zeros or a factor of ones, which modules do without."""
    return bool((tensor == 0).all()) or bool((tensor == 1).all())
