"""Names of tensor ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.errors import PlanError
from intact.plan import Direction, TensorEnd

NAMES = st.one_of(
    st.text(min_size=1),
    st.sampled_from(["a.input[0]", "a.output[1].input[2]", "a b", "ü\n", '"', ".input[", "x]"]),
)


@given(NAMES, st.sampled_from(Direction), st.integers(0, 999))
def test_text_reads_back(name: str, direction: Direction, slot: int) -> None:
    end = TensorEnd(name, direction, slot)
    assert TensorEnd.parse(str(end)) == end


@pytest.mark.parametrize(
    "text", ["", "a", "a.input", "a.input[]", "a.input[-1]", "a.input[x]", ".input[0]", "a.in[0]"]
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="does not name a tensor end"):
        TensorEnd.parse(text)
