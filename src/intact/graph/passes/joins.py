"""Joins operators that exporters write out as several, for targets that have them as one.

``x * Sigmoid(x)``, for example, is Swish.

One row of ``JOINS`` for each operator; each rule says in its docstring what is found, and what of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from intact.errors import ModelError
from intact.graph.builder import Attribute
from intact.graph.edit import Editor
from intact.graph.files.opset import convert_opset
from intact.graph.given_nodes import note_given_nodes
from intact.graph.graph import Graph
from intact.graph.ops import constant_array, function_options, input_value
from intact.graph.passes import library
from intact.graph.passes.join_gelu import approximations
from intact.graph.passes.names import make_names_unique
from intact.graph.passes.pattern import (
    CLOSE,
    Bindings,
    Pattern,
    behind,
    constant,
    either,
    is_near,
    op,
    search,
    value,
)
from intact.ops import functions
from intact.ops.operators import (
    Clip,
    Declared,
    Expand,
    Identity,
    LayerNormalization,
    Max,
    Reduce,
    ReduceMax,
    ReduceMean,
    ReduceSum,
    Relu,
    Reshape,
    Softmax,
    Squeeze,
    Transpose,
    Unsqueeze,
    types_of,
)


@dataclass(frozen=True)
class Match:
    """A formula that was found.

    Attributes:
        data: What it is computed from.
        last: The node that gives its result.
        constants: Further inputs of the operator.
        attributes: The operator's attributes.
        order: How the axes of the data are brought for the operator, which works along the last;
            empty where they lie so.
    """

    data: ir.Value
    last: ir.Node
    constants: tuple[np.ndarray, ...] = ()
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    order: tuple[int, ...] = ()


Finder = Callable[[Graph], Iterator[Match]]
"""Yields what is found in a graph."""


@dataclass(frozen=True)
class Joining:
    """An operator that is recognized.

    Attributes:
        op_type: Its type.
        since: The opset that it is in.
        rules: Find the ways to write it out.
    """

    op_type: str
    since: int
    rules: tuple[Finder, ...]

    def matches(self, graph: Graph) -> Iterator[Match]:
        """Yield what fits: float32, of which the constants add no axes to the data."""
        for find in self.rules:
            for match in find(graph):
                before, after = match.data.shape, match.last.outputs[0].shape
                if before is None or after is None or len(before) != len(after):
                    continue
                if match.data.dtype is ir.DataType.FLOAT:
                    yield match


def join(graph: Graph, joined: Joining) -> Graph:
    """Replace every written-out operator of a type by that operator.

    The opset is raised if needed. A graph without a match is returned unchanged, as is one that
    cannot be converted to that opset.
    """
    # Asked before anything is copied, as most graphs have none.
    if not any(True for _ in joined.matches(graph)):
        return graph
    given = graph.model
    if graph.opset < joined.since:
        try:
            graph = _at_opset(graph, joined.since)
        except ModelError:
            return graph
    editor = Editor(graph.model)
    # A list, because joining changes what is searched.
    for match in list(joined.matches(graph)):
        name = str(match.last.name)
        old = editor.nodes_by_name[name].outputs[0]
        data = _brought(editor, editor.value(str(match.data.name)), match.order)
        inputs = [data, *(editor.initializer(f"{name}_constant", each) for each in match.constants)]
        kind = joined.op_type.lower()
        result = editor.node(
            joined.op_type, inputs, f"{name}_{kind}", match.attributes, shape=data.shape
        )
        # The inverse of a permutation is what sorts it.
        result = _brought(editor, result, tuple(int(k) for k in np.argsort(match.order)))
        written, kind_of, shape = str(old.name), old.type, old.shape
        old.replace_all_uses_with(result, replace_graph_outputs=True)
        old.name = None
        result.name, result.type, result.shape = written, kind_of, shape
        editor.rebind(written, result)
    _remove_unread(editor.model.graph)
    return Graph(note_given_nodes(given, editor.finish()))


def _brought(editor: Editor, value: ir.Value, order: tuple[int, ...]) -> ir.Value:
    """Bring axes into another order; none given leaves them."""
    if not order or value.shape is None:
        return value
    shape = ir.Shape([value.shape[k] for k in order])
    return editor.node(Transpose, [value], f"{value.name}_axes", {"perm": order}, shape=shape)


def _at_opset(graph: Graph, opset: int) -> Graph:
    """Convert a graph to a newer opset.

    The converter writes attributes that became inputs (the axes of a ReduceMean) as Constant nodes
    without names: they become initializers, as normalization leaves all constants.
    """
    model = convert_opset(graph.model, opset)
    library.lift_constants(model)
    make_names_unique(model)
    return Graph(model)


def _remove_unread(graph: ir.Graph) -> None:
    """Remove nodes whose results are unused."""
    # From the end, so that what only a removed node has read goes too.
    for node in reversed(tuple(graph)):
        read = any(value.uses() or value.is_graph_output() for value in node.outputs)
        if not read:
            graph.remove(node, safe=True)


def _rule(pattern: Pattern) -> Callable[[Callable[[Bindings, ir.Node], Match]], Finder]:
    """Decorate what makes a `Match` of what a pattern finds, and of its last node."""

    def rule(made_of: Callable[[Bindings, ir.Node], Match]) -> Finder:
        def find(graph: Graph) -> Iterator[Match]:
            for found in search(graph.nodes, pattern):
                yield made_of(found, found.node(pattern))

        find.__doc__ = made_of.__doc__
        return find

    return rule


_X = value()
"""What a formula is computed from."""


def _part(whole: Pattern, share: float) -> Pattern:
    """Return the pattern of a share of a value, as a product or as a quotient."""
    return either(whole * share, whole / (1.0 / share))


# ---- HardSwish ---------------------------------------------------------------------------------


def _is_gate(node: ir.Node) -> bool:
    slope, offset = function_options(node)
    return math.isclose(float(slope), 1 / 6, rel_tol=CLOSE) and offset == 0.5


_CLIPPED = op(Clip, _X + 3.0, 0.0, 6.0)


@_rule(
    either(
        _part(_X * _CLIPPED, 1 / 6),
        _X * op(functions.hard_sigmoid, _X).where(_is_gate),
        _X * _part(_CLIPPED, 1 / 6),
        _part(_X, 1 / 6) * _CLIPPED,
    )
)
def _hard_swish(found: Bindings, last: ir.Node) -> Match:
    """``x * clip(x + 3, 0, 6) / 6``, of any of the three a sixth -> ``HardSwish(x)``."""
    return Match(found.value(_X), last)


# ---- Gelu --------------------------------------------------------------------------------------

_TWICE = (op(functions.erf, _part(_X, math.sqrt(0.5))).sole + 1.0).sole


@_rule(
    either(
        _part(_X, 0.5) * _TWICE,
        (_X * _TWICE).sole * 0.5,
        _X * (_TWICE * 0.5).sole,
    )
)
def _gelu(found: Bindings, last: ir.Node) -> Match:
    """``x * (1 + erf(x / sqrt 2)) / 2``, of any of the three the half -> ``Gelu(x)``.

    So exporters write it below opset 20.
    """
    return Match(found.value(_X), last)


def _approximate_gelu(graph: Graph) -> Iterator[Match]:
    """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`` -> ``Gelu(x)``, approximated.

    Not as a pattern: libraries multiply it out in as many ways as there are.
    """
    for data, last in approximations(graph.nodes):
        yield Match(data, last, attributes={"approximate": "tanh"})


# ---- Softmax -----------------------------------------------------------------------------------


def _axis(node: ir.Node) -> int | None:
    """Return the only axis of a reduction, counted from the first; None where there are others."""
    given, rank = constant_array(input_value(node, 1)), _rank(node.inputs[0])
    axes = Reduce.of(node).axes if given is None else given.reshape(-1).tolist()
    return axes[0] % rank if len(axes) == 1 and rank else None


def _rank(value: ir.Value | None) -> int:
    """Return the number of axes; 0 where it is not known."""
    return 0 if value is None or value.shape is None else len(value.shape)


def _reduces_last(node: ir.Node) -> bool:
    return _axis(node) == _rank(node.inputs[0]) - 1


def _keeps_axis(node: ir.Node) -> bool:
    return Reduce.of(node).keepdims != 0


def _reduction(operator: Declared, data: Pattern) -> Pattern:
    return op(operator, data, constant(optional=True))


def _kept(operator: Declared, data: Pattern) -> Pattern:
    """Return the pattern of a reduction of the last axis, which stays with length 1."""
    reduced = _reduction(operator, data).where(_reduces_last)
    short = reduced.where(lambda node: not _keeps_axis(node))
    again = op(types_of(Reshape, Unsqueeze), short, constant(optional=True)).where(_gives_axis_back)
    return either(reduced.where(_keeps_axis), again)


def _gives_axis_back(node: ir.Node) -> bool:
    # A Reshape may do more than give back the axis that was reduced.
    reduced = None if node.inputs[0] is None else node.inputs[0].producer()
    data = None if reduced is None else reduced.inputs[0]
    kept = () if data is None else (*(data.shape or ()),)[:-1]
    return (*(node.outputs[0].shape or ()),) == (*kept, 1)


_POWERS = op(functions.exp, _X - _kept(ReduceMax, _X))


@_rule(_POWERS / _kept(ReduceSum, _POWERS))
def _softmax(found: Bindings, last: ir.Node) -> Match:
    """``exp(x - max(x)) / sum(exp(x - max(x)))`` -> ``Softmax(x)``, along the last axis."""
    return Match(found.value(_X), last, attributes={"axis": -1})


# ---- LayerNormalization ------------------------------------------------------------------------

_SCALE, _EARLY_SCALE, _BIAS = constant(), constant(), constant()
_EPSILON = constant(lambda array: array.size == 1)
_REDUCTIONS = types_of(ReduceMean, ReduceSum)
_VIEWS = types_of(Expand, Identity, Reshape, Squeeze, Unsqueeze)


def _along(found: Bindings) -> tuple[int, int]:
    """Return the axis that all reductions of a match run over, and its length.

    The length is 0 where it is not known, or the axes are several.
    """
    reductions = [each for each in found if each.op_types and each.op_types <= _REDUCTIONS]
    axes, shape = {_axis(found.node(each)) for each in reductions}, found.value(_X).shape
    axis = axes.pop() if len(axes) == 1 else None
    length = None if axis is None or shape is None else shape[axis]
    return axis or 0, length if isinstance(length, int) else 0


def _is_along(row: Pattern) -> Callable[[Bindings], bool]:
    """Tell whether a constant has a number for each place along the axis, or one for all."""

    def is_so(found: Bindings) -> bool:
        array, rank, (axis, length) = found.array(row), _rank(found.value(_X)), _along(found)
        if array.dtype != np.float32 or array.ndim > rank:
            return False
        wanted = [length if k == axis else 1 for k in range(rank)]
        return array.size == 1 or [1] * (rank - array.ndim) + list(array.shape) == wanted

    return is_so


def _affine(normed: Pattern) -> Pattern:
    """Return the pattern of what is normed, perhaps times a scale, perhaps plus a bias."""
    normed = normed.given(lambda found: _along(found)[1] > 0)
    scaled = either((normed.sole * _SCALE).given(_is_along(_SCALE)), normed)
    return either((scaled.sole + _BIAS).given(_is_along(_BIAS)), scaled)


def _view(pattern: Pattern) -> Pattern:
    """Return the pattern of a value, perhaps given another shape."""
    return behind(_is_view, pattern)


def _is_view(node: ir.Node) -> bool:
    # An Expand may repeat values; only one that keeps their number is a view.
    is_meant = node.domain == "" and node.op_type in _VIEWS
    return is_meant and _size(node.inputs[0]) == _size(node.outputs[0])


def _size(value: ir.Value | None) -> tuple[int, int] | None:
    """Return the product of the known lengths, and how many are open."""
    if value is None or value.shape is None:
        return None
    known = [n for n in value.shape if isinstance(n, int)]
    return math.prod(known), len(value.shape) - len(known)


def _mean(data: Pattern) -> Pattern:
    """Return the pattern of a mean over one axis, also as a sum times ``1 / n``."""
    total, part = _reduction(ReduceSum, data), constant()

    def is_share(found: Bindings) -> bool:
        _, length = _along(found)
        return length > 0 and is_near(found.array(part), 1.0 / length)

    return either(_reduction(ReduceMean, data), (_view(total) * part).given(is_share))


def _has_axis(kept: Pattern) -> Callable[[Bindings], bool]:
    """Tell whether a value has the lengths of the data, with 1 along the axis of the means."""

    def is_so(found: Bindings) -> bool:
        own, (axis, _) = found.value(kept).shape, _along(found)
        wanted = [1 if k == axis else n for k, n in enumerate(found.value(_X).shape or ())]
        if own is None or len(own) != len(wanted):
            return False
        # Open lengths have other names behind a reduction or Reshape.
        pairs = zip(own, wanted, strict=True)
        return all(a == b or not (isinstance(a, int) or isinstance(b, int)) for a, b in pairs)

    return is_so


def _by_mean() -> Pattern:
    def mean(data: Pattern) -> Pattern:
        return _reduction(ReduceMean, data).where(_reduces_last).where(_keeps_axis)

    centred = _X - mean(_X)
    return centred / op(functions.sqrt, mean(centred * centred) + _EPSILON)


def _by_moments() -> Pattern:
    first, again = _view(_mean(_X)), _view(_mean(_X))
    difference = _view(_mean(_X * _X)) - _view(first * first)
    # Rounding may bring the difference below 0, which exports prevent.
    limited = op(Relu, _view(difference)), op(Max, _view(difference), 0.0)
    total = _view(either(*limited, difference)) + _EPSILON
    inverse = op(functions.reciprocal, op(functions.sqrt, total).sole).sole
    scaled = (inverse * _EARLY_SCALE).given(_is_along(_EARLY_SCALE)).sole
    product = (_X - again) * either(inverse, scaled)
    return product.given(_has_axis(total)).given(_has_axis(again))


@_rule(either(_affine(_by_mean()), _affine(_by_moments())))
def _layer_norm(found: Bindings, last: ir.Node) -> Match:
    """Two forms, with scale and bias along the axis where they follow -> ``LayerNormalization(x)``.

    1. ``(x - mean) / sqrt(mean((x - mean)^2) + epsilon)``, along the last axis.
    2. ``(x - mean) * (1 / sqrt(max(0, mean(x^2) - mean^2) + epsilon))``, along any axis, with the
       scale at either factor. So exports of Flax have it, with means as sums times ``1 / n`` that
       lose their axis and get it back.
    """
    (axis, length), rank = _along(found), _rank(found.value(_X))
    scale = np.ones(length, np.float32)
    for each in (_EARLY_SCALE, _SCALE):
        scale = scale * found.array(each).reshape(-1) if each in found else scale
    bias = [np.resize(found.array(_BIAS), length)] if _BIAS in found else []
    attributes = {"axis": -1, "epsilon": found.array(_EPSILON).item()}
    order = (*(k for k in range(rank) if k != axis), axis)
    moved = () if order == tuple(range(rank)) else order
    return Match(found.value(_X), last, (scale, *bias), attributes, moved)


JOINS: dict[str, Joining] = {
    each.op_type: each
    for each in (
        Joining(functions.gelu.name, 20, (_gelu, _approximate_gelu)),
        Joining(functions.hard_swish.name, 14, (_hard_swish,)),
        Joining(LayerNormalization.name, 17, (_layer_norm,)),
        Joining(Softmax.name, 11, (_softmax,)),
    )
}
"""What is recognized, by operator type."""
