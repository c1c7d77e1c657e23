"""Data between pieces: quantized once, written over only when nobody else has them."""

from __future__ import annotations

import numpy as np
import pytest

from intact.engines.piecewise.pieces import Piece
from intact.engines.piecewise.plan import Flow, PiecewisePlan, Step
from intact.engines.piecewise.streams import Stream
from intact.errors import DataError
from intact.numerics.simulated_quantize import SimulatedQuantize

PLAIN, READ, OTHER = Stream("v"), Stream("v", "node.input[0]"), Stream("v", "node.input[1]")
TO_ONES, TO_TENS = SimulatedQuantize(1.0), SimulatedQuantize(10.0)
DATA = np.array([3.3, 17.0, -4.0], np.float32)


def step(*inputs: Stream) -> Step:
    return Step(Piece((), inputs, ((),) * len(inputs), (), ()), b"", {})


def prepared(
    quantizers: dict[Stream, SimulatedQuantize], outputs: dict[str, Stream]
) -> PiecewisePlan:
    return PiecewisePlan((), outputs, quantizers, {}, {}, frozenset())


@pytest.mark.parametrize("inputs", [(PLAIN, READ, OTHER), (OTHER, READ, PLAIN)])
@pytest.mark.parametrize("handed_out", [True, False])
@pytest.mark.parametrize("is_ours", [True, False])
def test_one_step_reads_the_same_value_in_several_ways(
    inputs: tuple[Stream, ...], handed_out: bool, is_ours: bool
) -> None:
    quantizers = {READ: TO_TENS, OTHER: SimulatedQuantize(4.0)}
    quantizers |= {PLAIN: TO_ONES} if handed_out else {}
    flow = Flow(prepared(quantizers, {}), [step(*inputs)], {})
    data = DATA.copy()
    flow.put("v", data, is_ours=is_ours)
    taken = {stream: flow.take(stream) for stream in inputs}
    source = [3.0, 17.0, -4.0] if handed_out else DATA.tolist()
    assert taken[PLAIN].tolist() == source
    assert taken[READ].tolist() == [0.0, 20.0, 0.0]
    assert taken[OTHER].tolist() == [4.0, 16.0, -4.0]
    if not is_ours:
        assert data.tolist() == DATA.tolist()


def test_the_only_reader_writes_over_what_is_ours() -> None:
    for is_ours in (True, False):
        flow = Flow(prepared({READ: TO_TENS}, {}), [step(READ), step(READ)], {})
        data = DATA.copy()
        flow.put("v", data, is_ours=is_ours)
        first = flow.take(READ)
        assert first is flow.take(READ)
        assert np.shares_memory(first, data) == is_ours


def test_what_is_given_is_left_alone() -> None:
    data = DATA.copy()
    flow = Flow(prepared({PLAIN: TO_ONES, READ: TO_TENS}, {}), [step(READ)], {"v": data})
    assert flow.take(READ).tolist() == [0.0, 20.0, 0.0]
    assert data.tolist() == DATA.tolist()


def test_a_missing_input_is_named() -> None:
    with pytest.raises(DataError, match="input 'v' is missing"):
        Flow(prepared({}, {}), [step(PLAIN)], {}).take(PLAIN)
