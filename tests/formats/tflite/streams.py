"""Files of models of streams, which keep a part of their input in a resource variable."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.formats.tflite.read_layers import conv
from tests.formats.tflite.small_files import FileBuilder

PAST = (1, 2, 1, 4)
RING: dict[str, Any] = {"scale": 0.05, "zero": 3}


def streaming(
    b: FileBuilder, *, first_scale: float = 0.05, fill: int = 7, again: bool = False
) -> bytes:
    """Return a file that convolves the last three rows, of which it keeps two."""
    x = b.input((1, 1, 1, 4), name="audio", **RING)
    b.op("CALL_ONCE", [], [], "CallOnceOptions", initSubgraphIndex=1)
    handle = _handle(b)
    past = b.op("READ_VARIABLE", [handle], b.tensor(PAST, **RING), "ReadVariableOptions")
    rows = b.tensor((1, 3, 1, 4), **RING)
    rows = b.op("CONCATENATION", [past, x], rows, "ConcatenationOptions", axis=1)
    kept = b.op("SLICE", [rows, b.ints(0, 1, 0, 0), b.ints(1, 2, 1, 4)],
                b.tensor(PAST, **RING), "SliceOptions")  # fmt: skip
    b.op("ASSIGN_VARIABLE", [handle, kept], [], "AssignVariableOptions")
    outputs = [conv(b, rows, (1, 1, 1, 3), (3, 1, 0), padding=1)]
    if again:
        new = b.op("READ_VARIABLE", [handle], b.tensor(PAST, **RING), "ReadVariableOptions")
        outputs.append(conv(b, new, (1, 1, 1, 2), (2, 1, 0), padding=1))
    b.begin_subgraph()
    first = b.tensor(PAST, data=np.full(PAST, fill), scale=first_scale, zero=3)
    b.op("ASSIGN_VARIABLE", [_handle(b), first], [], "AssignVariableOptions")
    b.end_subgraph()
    b.sign({"audio": x}, {f"out{k}": each for k, each in enumerate(outputs)})
    return b.build(*outputs)


def _handle(b: FileBuilder) -> int:
    handle = b.tensor((), "resource", None)
    return b.op("VAR_HANDLE", [], handle, "VarHandleOptions", sharedName="ring", container="")
