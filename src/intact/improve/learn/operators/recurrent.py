"""Computes LSTM, GRU and RNN in torch, step by step.

Shapes: steps ``T``, batch ``N``, features ``C``, hidden size ``H``, directions ``D``; gates in
ONNX's order, ``iofc`` and ``zrh``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from intact.errors import Unsupported
from intact.improve.learn.operators.activations import function_of
from intact.improve.learn.operators.indices import reversed_sequences
from intact.improve.learn.operators.rules import Apply, operator, outputs
from intact.ops import functions
from intact.ops.functions import FUNCTIONS
from intact.ops.operators import GRU, LSTM, RNN, Recurrent, is_a

_Function: TypeAlias = Callable[[Tensor], Tensor]
_State: TypeAlias = tuple[Tensor, Tensor | None]
"""Hidden and cell state ``[N, H]``; only an LSTM has the latter."""

_OF_LAYERS: Mapping[str, tuple[Callable[..., Tensor], tuple[float, ...]]] = MappingProxyType(
    {
        "affine": (lambda x, alpha, beta: alpha * x + beta, (1.0, 0.0)),
        "relu": (torch.relu, ()),
        "scaledtanh": (lambda x, alpha, beta: alpha * torch.tanh(beta * x), (1.0, 1.0)),
    }
)
"""Functions that are no declared ones, by their names in lower case, with defaults of alpha and
beta."""

_DEFAULTS = {
    GRU.name: (functions.sigmoid.name, functions.tanh.name),
    LSTM.name: (functions.sigmoid.name, functions.tanh.name, functions.tanh.name),
    RNN.name: (functions.tanh.name,),
}
"""Activations of one direction."""


@dataclass(frozen=True)
class _Cell:
    """The attributes of one direction."""

    functions: tuple[_Function, ...]
    clip: float | None
    couples: bool
    resets_after: bool

    def apply_function(self, function: int, sums: Tensor) -> Tensor:
        sums = sums if self.clip is None else sums.clamp(-self.clip, self.clip)
        return self.functions[function](sums)


@dataclass(frozen=True)
class _Weights:
    """Weights of one direction: ``w`` ``[gates * H, C]``, ``r`` ``[gates * H, H]``, and more."""

    w: Tensor
    r: Tensor
    w_bias: Tensor | None
    r_bias: Tensor | None
    peepholes: tuple[Tensor, ...] | None


def _rnn(cell: _Cell, weights: _Weights, sums: Tensor, state: _State) -> _State:
    return cell.apply_function(0, sums + F.linear(state[0], weights.r, weights.r_bias)), None


def _gru(cell: _Cell, weights: _Weights, sums: Tensor, state: _State) -> _State:
    hidden, size = state[0], state[0].shape[-1]
    split = (2 * size, size)
    r_gates, r_new = weights.r.split(split)
    b_gates, b_new = (None, None) if weights.r_bias is None else weights.r_bias.split(split)
    gates, new = sums.split(split, -1)
    update, reset = cell.apply_function(0, gates + F.linear(hidden, r_gates, b_gates)).chunk(2, -1)
    # ONNX has both orders (``linear_before_reset``); torch's own GRU has this one.
    if cell.resets_after:
        new = new + reset * F.linear(hidden, r_new, b_new)
    else:
        new = new + F.linear(reset * hidden, r_new, b_new)
    return (1 - update) * cell.apply_function(1, new) + update * hidden, None


def _lstm(cell: _Cell, weights: _Weights, sums: Tensor, state: _State) -> _State:
    hidden, before = state
    i, o, f, c = (sums + F.linear(hidden, weights.r, weights.r_bias)).chunk(4, -1)
    p = weights.peepholes
    enter = cell.apply_function(0, i if p is None else i + p[0] * before)
    forget = f if p is None else f + p[2] * before
    keep = 1 - enter if cell.couples else cell.apply_function(0, forget)
    memory = keep * before + enter * cell.apply_function(1, c)
    leave = cell.apply_function(0, o if p is None else o + p[1] * memory)
    return leave * cell.functions[2](memory), memory  # ONNX Runtime does not clip it


_STEPS: Mapping[str, Callable[[_Cell, _Weights, Tensor, _State], _State]] = MappingProxyType(
    {GRU.name: _gru, LSTM.name: _lstm, RNN.name: _rnn}
)


@operator(*_STEPS)
def recurrent(node: ir.Node) -> Apply:
    """Compute all states, the last hidden state, and an LSTM's last cell state."""
    options = Recurrent.of(node)
    direction, batch_first = options.direction, bool(options.layout)
    cells = _cells(node, 2 if direction == "bidirectional" else 1)
    step, has_cell = _STEPS[node.op_type], is_a(node, LSTM)

    def apply(
        x: Tensor,
        w: Tensor,
        r: Tensor,
        bias: Tensor | None = None,
        lengths: Tensor | None = None,
        hidden: Tensor | None = None,
        memory: Tensor | None = None,
        peepholes: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        x = x.transpose(0, 1) if batch_first else x
        runs = []
        for k, cell in enumerate(cells):
            start = partial(_start, k, x, r, batch_first=batch_first)
            first: _State = (start(hidden), start(memory) if has_cell else None)
            advance = partial(step, cell, _weights(k, w, r, bias, peepholes))
            is_reverse = k == 1 or direction == "reverse"
            # Of all steps at once: only what depends on the state is computed step by step.
            sums = F.linear(x, w[k], None if bias is None else bias[k].chunk(2)[0])
            runs.append(_run(advance, sums, first, lengths, is_reverse))
        results = [torch.stack([run[0] for run in runs], 1)]
        results += [
            torch.stack(states)
            for states in zip(*(state[: 1 + has_cell] for _, state in runs), strict=True)
        ]
        if batch_first:
            ends = [each.transpose(0, 1) for each in results[1:]]
            results = [results[0].permute(2, 0, 1, 3), *ends]
        return outputs(node, tuple(results))

    return apply


def _run(
    advance: Callable[[Tensor, _State], _State],
    sums: Tensor,
    state: _State,
    lengths: Tensor | None,
    is_reverse: bool,
) -> tuple[Tensor, _State]:
    """Return the hidden states ``[T, N, H]`` and the last state; behind a sequence are zeros."""

    states = []
    for place, each in enumerate(_turn(sums, lengths, is_reverse).unbind(0)):
        after = advance(each, state)
        if lengths is None:
            state = after
            states.append(after[0])
            continue
        # Behind the end of a sequence its state stays.
        inside = (place < lengths).unsqueeze(-1)
        states.append(torch.where(inside, after[0], torch.zeros_like(after[0])))
        state = (
            torch.where(inside, after[0], state[0]),
            None if after[1] is None else torch.where(inside, after[1], state[1]),
        )
    if not states:
        return sums.new_zeros(0, *state[0].shape), state
    return _turn(torch.stack(states), lengths, is_reverse), state


def _turn(states: Tensor, lengths: Tensor | None, is_reverse: bool) -> Tensor:
    """Turn sequences around where they are read backwards."""
    if not is_reverse:
        return states
    return states.flip(0) if lengths is None else reversed_sequences(states, lengths)


def _start(k: int, x: Tensor, r: Tensor, given: Tensor | None, *, batch_first: bool) -> Tensor:
    """Return the first state ``[N, H]`` of a direction: zeros where none is given."""
    if given is None:
        return x.new_zeros(x.shape[1], r.shape[-1])
    return given[:, k] if batch_first else given[k]


def _weights(
    k: int, w: Tensor, r: Tensor, bias: Tensor | None, peepholes: Tensor | None
) -> _Weights:
    own = None if bias is None else bias[k].chunk(2)
    return _Weights(
        w[k],
        r[k],
        None if own is None else own[0],
        None if own is None else own[1],
        None if peepholes is None else peepholes[k].chunk(3),
    )


def _activation(name: str) -> tuple[Callable[..., Tensor], Sequence[float]]:
    """Return a function of one tensor, alpha and beta, and the defaults of these.

    Raises:
        Unsupported: It is unknown.
    """
    if name.lower() in _OF_LAYERS:
        return _OF_LAYERS[name.lower()]
    # Names are those of operators, in any case.
    for each in FUNCTIONS.values():
        if each.name.lower() == name.lower() and each.defaults.keys() <= {"alpha", "beta"}:
            return function_of(each), [float(number) for number in each.defaults.values()]
    raise Unsupported(f"training has no activation {name!r}")


def _cells(node: ir.Node, directions: int) -> list[_Cell]:
    """Read the attributes of each direction.

    Raises:
        Unsupported: An activation is unknown.
    """
    options = Recurrent.of(node)
    names = options.activations or _DEFAULTS[node.op_type] * directions
    alphas, betas = list(options.activation_alpha), list(options.activation_beta)
    functions = []
    for name in names:
        function, numbers = _activation(name)
        given = [
            # The lists have no entry for functions without that number: they are used up in order.
            own.pop(0) if own else default
            for own, default in zip((alphas, betas), numbers, strict=False)
        ]
        functions.append(_with(function, given))
    each = len(names) // directions
    return [
        _Cell(
            tuple(functions[k * each : (k + 1) * each]),
            options.clip or None,
            bool(LSTM.of(node).input_forget),
            bool(GRU.of(node).linear_before_reset),
        )
        for k in range(directions)
    ]


def _with(function: Callable[..., Tensor], numbers: list[float]) -> _Function:
    return lambda x: function(x, *numbers)
