"""The public functions: each does one job of the command line, from Python.

A function's module is imported when the function is first asked for: quantizing loads nothing of
evaluation, search or verification.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Type checkers and editors read these; at run time `__getattr__` gives the names.
    from intact.api._make import (
        export,
        quantize,
        quantize_for,
        read_quantized,
        replay_strategy,
        search_strategy,
        train,
    )
    from intact.api._tell import (
        compare,
        convert_ranges,
        diagnose,
        evaluate,
        execute,
        inspect,
        inspect_graph_statistic,
        quant_loss,
        report,
        verify,
        verify_all,
    )
    from intact.api._torch import (
        deploy,
        enable_calibration,
        enable_quantization,
        from_torch,
        prepare,
        to_torch,
    )
    from intact.flow.search import FoundStrategy
    from intact.results.sources import load_result

HOMES = {
    "FoundStrategy": "intact.flow.search",
    "compare": "intact.api._tell",
    "convert_ranges": "intact.api._tell",
    "diagnose": "intact.api._tell",
    "evaluate": "intact.api._tell",
    "execute": "intact.api._tell",
    "export": "intact.api._make",
    "inspect": "intact.api._tell",
    "inspect_graph_statistic": "intact.api._tell",
    "load_result": "intact.results.sources",
    "quant_loss": "intact.api._tell",
    "quantize": "intact.api._make",
    "quantize_for": "intact.api._make",
    "read_quantized": "intact.api._make",
    "replay_strategy": "intact.api._make",
    "report": "intact.api._tell",
    "search_strategy": "intact.api._make",
    "deploy": "intact.api._torch",
    "enable_calibration": "intact.api._torch",
    "enable_quantization": "intact.api._torch",
    "from_torch": "intact.api._torch",
    "prepare": "intact.api._torch",
    "to_torch": "intact.api._torch",
    "train": "intact.api._make",
    "verify": "intact.api._tell",
    "verify_all": "intact.api._tell",
}
"""Each public name and the module that holds it."""

__all__ = [
    "FoundStrategy",
    "compare",
    "convert_ranges",
    "deploy",
    "diagnose",
    "enable_calibration",
    "enable_quantization",
    "evaluate",
    "execute",
    "export",
    "from_torch",
    "inspect",
    "inspect_graph_statistic",
    "load_result",
    "prepare",
    "quant_loss",
    "quantize",
    "quantize_for",
    "read_quantized",
    "replay_strategy",
    "report",
    "search_strategy",
    "to_torch",
    "train",
    "verify",
    "verify_all",
]


def __getattr__(name: str) -> object:
    """Import a public name at its first use and keep it."""
    home = HOMES.get(name)
    if home is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(importlib.import_module(home), name)
    # Python asks `__getattr__` only for names that the module lacks: from here on it does not.
    globals()[name] = value
    return value
