"""Expands Einsum into Transpose, Reshape, MatMul, Mul and ReduceSum.

``bij,bjk->bik`` is a MatMul, for example, and ``ij->ji`` a Transpose.

Letters of both operands and of the result are leading axes of a MatMul, those of both operands
alone are summed by it; what only one operand has and the result has not is summed beforehand.
Source: the ONNX operator specification, Einsum.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.graph.edit import Editor
from intact.graph.ops import constant_array
from intact.graph.passes.composite import Composite, Length, axes_of
from intact.ops.operators import Equal, Mul, Range, ReduceSum, Squeeze, Where

_TERM = re.compile(r"([A-Za-z]*)(\.\.\.)?([A-Za-z]*)")


@dataclass(frozen=True)
class _Operand:
    """A value and the letter of each of its axes, all different."""

    value: ir.Value
    letters: tuple[str, ...]


def expand_einsum(editor: Editor, node: ir.Node) -> None:
    """Expand an Einsum of any number of operands, two at a time from the left.

    A node whose operands have unknown ranks, or whose equation is not of the specification, stays.
    """
    values = [value for value in node.inputs if value is not None]
    equation = node.attributes.get_string("equation", "") or ""
    terms = _letters(equation, [axes_of(value) for value in values])
    if terms is None:
        return
    written = Composite(editor, node)
    *given, result = terms
    operands = [
        _diagonal(written, value, letters) for value, letters in zip(values, given, strict=True)
    ]
    whole = operands.pop(0)
    while operands:
        right = operands.pop(0)
        # A letter that a later operand has must not be summed yet.
        later = {letter for each in operands for letter in each.letters}
        whole = _join(written, whole, right, later | set(result))
    whole = _sum(written, whole, set(result))
    order = [whole.letters.index(letter) for letter in result]
    written.put(written.transpose(whole.value, order))


def _letters(
    equation: str, shapes: Sequence[Sequence[object] | None]
) -> list[tuple[str, ...]] | None:
    """Return the letters of each operand and of the result; those of an ellipsis are numbers.

    They are counted from its end, since its axes broadcast.
    """
    text = equation.replace(" ", "")
    given, arrow, wanted = text.partition("->")
    terms = [_TERM.fullmatch(each) for each in given.split(",")]
    if len(terms) != len(shapes):
        return None
    found, most = [], 0
    for term, shape in zip(terms, shapes, strict=True):
        if term is None or shape is None:
            return None
        before, dots, after = term.groups()
        width = len(shape) - len(before) - len(after)
        if width < 0 or (width and not dots):
            return None
        most = max(most, width)
        found.append((*before, *_dots(width), *after))
    if arrow:
        term = _TERM.fullmatch(wanted)
        if term is None:
            return None
        result = (*term[1], *(_dots(most) if term[2] else ()), *term[3])
    else:
        every = [letter for each in found for letter in each]
        once = sorted(c for c in set(every) if every.count(c) == 1 and not c.isdigit())
        result = (*_dots(most), *once)
    known = {letter for each in found for letter in each}
    if len(set(result)) < len(result) or not set(result) <= known:
        return None
    return [*found, result]


def _dots(width: int) -> tuple[str, ...]:
    return tuple(str(k) for k in range(width, 0, -1))


def _diagonal(written: Composite, value: ir.Value, letters: tuple[str, ...]) -> _Operand:
    """Take the diagonal of axes with the same letter: the others are zeroed and summed."""
    for letter in dict.fromkeys(letters):
        while letters.count(letter) > 1:
            first = letters.index(letter)
            second = letters.index(letter, first + 1)
            value = _mask(written, value, first, second)
            value = written.reduce(ReduceSum, value, [second], keep=False)
            letters = letters[:second] + letters[second + 1 :]
    return _Operand(value, letters)


def _mask(written: Composite, value: ir.Value, first: int, second: int) -> ir.Value:
    """Zero what does not lie on the diagonal of two axes."""
    shape = axes_of(value) or []
    length = next((n for n in (shape[first], shape[second]) if isinstance(n, int)), None)
    around = [1] * len(shape)
    if length is not None:
        around[first] = around[second] = length
        unit = written.constant(np.eye(length).reshape(around), value)
        return written(Mul, value, unit, shape=shape)
    size = written.length(value, first)
    ends = written.integers(0), size if isinstance(size, ir.Value) else written.integers(size)
    zero, end = (written(Squeeze, each, shape=[]) for each in ends)
    one = written.constant(np.array(1, np.int64))
    count = written(Range, zero, end, one, shape=[None])
    sides = []
    for axis in (first, second):
        around = [1] * len(shape)
        around[axis] = -1
        sides.append(written.reshape(count, around))
    same = written(Equal, *sides, dtype=ir.DataType.BOOL)
    return written(Where, same, value, written.constant(np.array(0), value), dtype=value.dtype)


def _sum(written: Composite, operand: _Operand, kept: set[str]) -> _Operand:
    """Sum the axes of letters that nothing else has."""
    axes = [k for k, letter in enumerate(operand.letters) if letter not in kept]
    if not axes:
        return operand
    value = written.reduce(ReduceSum, operand.value, axes, keep=False)
    return _Operand(value, tuple(letter for letter in operand.letters if letter in kept))


def _join(written: Composite, left: _Operand, right: _Operand, kept: set[str]) -> _Operand:
    """Multiply two operands and sum the letters that are not kept."""
    left = _sum(written, left, kept | set(right.letters))
    right = _sum(written, right, kept | set(left.letters))
    both = [letter for letter in left.letters if letter in right.letters]
    summed = [letter for letter in both if letter not in kept]
    # 1. A MatMul does not broadcast what it sums.
    if any(_is_stretched(letter, left, right) for letter in summed):
        return _sum(written, _multiply(written, left, right), kept)
    # 2. Nothing is summed: an element-wise product.
    if not summed:
        return _multiply(written, left, right)
    # 3. A MatMul. A constant goes to the right, where it is the weight of a dense layer.
    leading = [letter for letter in both if letter in kept]
    if not leading and _is_constant(left) and not _is_constant(right):
        left, right = right, left
    return _contract(written, left, right, leading, summed)


def _is_constant(operand: _Operand) -> bool:
    return constant_array(operand.value) is not None


def _is_stretched(letter: str, left: _Operand, right: _Operand) -> bool:
    """Tell whether an axis may have a length of 1 on one side only."""
    lengths = [(axes_of(each.value) or [])[each.letters.index(letter)] for each in (left, right)]
    return 1 in lengths and lengths[0] != lengths[1]


def _multiply(written: Composite, left: _Operand, right: _Operand) -> _Operand:
    """Multiply element by element, the axes of both in one order."""
    letters = (*left.letters, *(c for c in right.letters if c not in left.letters))
    values = [_spread(written, each, letters) for each in (left, right)]
    return _Operand(written(Mul, *values), letters)


def _spread(written: Composite, operand: _Operand, letters: Sequence[str]) -> ir.Value:
    """Bring the axes of an operand into an order, with 1 for letters that it lacks."""
    own = [letter for letter in letters if letter in operand.letters]
    value = written.transpose(operand.value, [operand.letters.index(c) for c in own])
    first = next((k for k, letter in enumerate(letters) if letter in own), len(letters))
    if list(letters[first:]) == own:
        return value  # broadcasting adds axes in front
    lengths = [written.length(value, own.index(c)) if c in own else 1 for c in letters]
    return written.reshape(value, lengths)


def _contract(
    written: Composite,
    left: _Operand,
    right: _Operand,
    leading: Sequence[str],
    summed: Sequence[str],
) -> _Operand:
    """Multiply matrices: ``[leading, own, summed]`` by ``[leading, summed, own]``."""
    rows = [c for c in left.letters if c not in (*leading, *summed)]
    columns = [c for c in right.letters if c not in (*leading, *summed)]
    is_dense = not leading and _is_constant(right)  # rows of a dense layer stay axes of their own
    groups = [[c] for c in rows] if is_dense and rows else [rows]
    first = _matrix(written, left, leading, [*groups, summed])
    second = _matrix(written, right, leading, [summed, columns])
    result = written.matmul(first, second)
    lengths: list[Length] = [written.length(result, k) for k in range(len(leading))]
    for k, group in enumerate((*groups, columns)):
        if len(group) == 1:
            lengths.append(written.length(result, len(leading) + k))
        else:
            source = right if k == len(groups) else left
            lengths += [written.length(source.value, source.letters.index(c)) for c in group]
    return _Operand(written.reshape(result, lengths), (*leading, *rows, *columns))


def _matrix(
    written: Composite, operand: _Operand, leading: Sequence[str], groups: Iterable[Sequence[str]]
) -> ir.Value:
    """Join the axes of each group to one."""
    groups = list(groups)
    letters = [*leading, *(c for group in groups for c in group)]
    value = written.transpose(operand.value, [operand.letters.index(c) for c in letters])
    lengths: list[Length] = [written.length(value, k) for k in range(len(leading))]
    at = len(leading)
    for group in groups:
        lengths.append(written.product([written.length(value, at + k) for k in range(len(group))]))
        at += len(group)
    return written.reshape(value, lengths)
