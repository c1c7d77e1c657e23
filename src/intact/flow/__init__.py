"""From a result, or a file that others made, to the verification that fits it."""

from __future__ import annotations

from intact.flow.runtimes import Interpreter
from intact.flow.verification import (
    Subject,
    compare,
    compare_observed,
    compare_or_say,
    not_compared,
    runnable_formats,
    takes_kernels,
)

__all__ = [
    "Interpreter",
    "Subject",
    "compare",
    "compare_observed",
    "compare_or_say",
    "not_compared",
    "runnable_formats",
    "takes_kernels",
]
