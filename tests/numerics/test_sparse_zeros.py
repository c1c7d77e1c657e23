from __future__ import annotations

import numpy as np
import pytest

from intact.numerics.histogram import sparse_zeros


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (5, 70_000)])
def test_they_are_ordinary_zeros(shape: tuple[int, ...]) -> None:
    zeros = sparse_zeros(shape, np.int64)
    assert zeros.shape == shape
    assert zeros.dtype == np.int64
    assert not zeros.any()
    assert zeros.flags.writeable
    assert zeros.flags.c_contiguous
    zeros[...] = 7
    assert (zeros == 7).all()


def test_only_what_is_written_becomes_memory() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    zeros = sparse_zeros((1024, 1 << 20), np.uint8)  # 1 GiB
    zeros[:, 5] = 1
    assert zeros[1023, 5] == 1
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 * 1024  # KiB
