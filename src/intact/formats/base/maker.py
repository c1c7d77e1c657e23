"""Names the maker of a written file, the same for the same plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from intact._version import __version__

if TYPE_CHECKING:
    import onnx_ir as ir

    from intact.plan import QuantizedGraph

PRODUCER = "intact"
VERSION_KEY, TARGET_KEY, PREPROCESS_KEY = "intact.version", "intact.target", "intact.preprocess"


def made_by(plan: QuantizedGraph) -> dict[str, str]:
    """Return version, target and, where they are known, the steps that samples went through.

    No clock, machine or path is in it: the same plan gives the same bytes.
    """
    said = {VERSION_KEY: __version__, TARGET_KEY: plan.target.name}
    return {**said, PREPROCESS_KEY: plan.preprocessing} if plan.preprocessing else said


def lasting(made: Mapping[str, str]) -> dict[str, str]:
    """Leave out the version, where a file is compared with what its plan gives, byte by byte."""
    return {key: value for key, value in made.items() if key != VERSION_KEY}


def sign(model: ir.Model, plan: QuantizedGraph) -> None:
    """Let a model that is written say who made it."""
    model.producer_name, model.producer_version = PRODUCER, __version__
    model.metadata_props.update(made_by(plan))
