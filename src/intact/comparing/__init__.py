"""From a result, or a file that others made, to the verification that fits it."""

from __future__ import annotations

from intact.comparing.deployed import (
    compare,
    compare_or_say,
    not_compared,
    runnable_formats,
    takes_kernels,
)
from intact.comparing.recorded import compare_observed
from intact.comparing.runtimes import Interpreter
from intact.comparing.subject import Subject

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
