"""The public functions: each does one job of the command line, from Python."""

from intact.api.looking import convert_ranges, inspect
from intact.api.making import DEFAULT_SAMPLES, quantize, quantize_for
from intact.api.running import evaluate, execute, inspect_graph_statistic, quant_loss
from intact.api.searching import FoundStrategy, replay_strategy, search_strategy
from intact.api.sources import ModelSource, load_result
from intact.api.taking import export, read_quantized
from intact.api.verifying import verify, verify_all

__all__ = [
    "DEFAULT_SAMPLES",
    "FoundStrategy",
    "ModelSource",
    "convert_ranges",
    "evaluate",
    "execute",
    "export",
    "inspect",
    "inspect_graph_statistic",
    "load_result",
    "quant_loss",
    "quantize",
    "quantize_for",
    "read_quantized",
    "replay_strategy",
    "search_strategy",
    "verify",
    "verify_all",
]
