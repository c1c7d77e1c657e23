"""The public functions: each does one job of the command line, from Python."""

from intact.api.looking import convert_ranges, inspect
from intact.api.making import DEFAULT_SAMPLES, export, quantize, quantize_for, read_quantized
from intact.api.running import evaluate, execute, quant_loss, verify, verify_all
from intact.api.sources import ModelSource, load_result

__all__ = [
    "DEFAULT_SAMPLES",
    "ModelSource",
    "convert_ranges",
    "evaluate",
    "execute",
    "export",
    "inspect",
    "load_result",
    "quant_loss",
    "quantize",
    "quantize_for",
    "read_quantized",
    "verify",
    "verify_all",
]
