"""The plan: what is quantized, how, and why, before anything is applied.

`QuantizedGraph` and the passes that build or complete it; plan files; given scales; inspection
without data; `inference/`: what each edge carries.
"""

from intact.plan.annotate import annotate
from intact.plan.build import build_float, build_plan
from intact.plan.fuse import fuse
from intact.plan.overrides import Overrides
from intact.plan.plan_file import load_plan, plan_to_json, save_plan
from intact.plan.points import QuantPoint, quantization_points, refuse_unready
from intact.plan.quantized_graph import (
    Codes,
    Decision,
    Direction,
    Note,
    NoteKind,
    QuantizedGraph,
    TensorEnd,
    quantizes,
)
from intact.plan.tie import tie

__all__ = [
    "Codes",
    "Decision",
    "Direction",
    "Note",
    "NoteKind",
    "Overrides",
    "QuantPoint",
    "QuantizedGraph",
    "TensorEnd",
    "annotate",
    "build_float",
    "build_plan",
    "fuse",
    "load_plan",
    "plan_to_json",
    "quantization_points",
    "quantizes",
    "refuse_unready",
    "save_plan",
    "tie",
]
