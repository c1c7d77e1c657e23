"""Finds where the kernels for one processor compute otherwise than the target says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from intact.engines.exact_sums import EXACT, SATURATES, shares_weights
from intact.engines.integer.engine import IntegerEngine
from intact.formats.base.comparison import OutputComparer, OutputComparison
from intact.plan import QuantizedGraph
from intact.program import Array, Program
from intact.program.lower import lower
from intact.targets import InstructionSet, Target
from intact.targets.advice import advice, quantize_for_saturating_pairs


@dataclass
class ProcessorFinding:
    """What the kernels for this processor compute otherwise than the target describes.

    Attributes:
        cause: What the processor does.
        compared: How the layers and outputs of the verification were computed all the same.
        outputs: As the runtime computes them here by default, against what the target describes.
        remedy: What makes both the same.
    """

    cause: str
    compared: str
    outputs: list[OutputComparison]
    remedy: str


def saturation(
    model: ir.Model, by_default: list[OutputComparison], target: Target
) -> ProcessorFinding:
    """Return what saturating pairs of products change where apps run a model with default options.

    Args:
        model: What ONNX Runtime runs.
        by_default: Its outputs with default options, against what the target describes.
        target: What it was quantized for.
    """
    # Two ways out: a target whose weights cannot saturate, or an option of the session, which the
    # runtime refuses for weights that nodes share.
    other = quantize_for_saturating_pairs(target)
    refused = "ONNX Runtime refuses the option for weights and zero points that nodes share"
    return ProcessorFinding(
        cause=SATURATES,
        compared=f"with {EXACT}",
        outputs=by_default,
        remedy="; ".join(filter(None, (other, refused)))
        if shares_weights(model)
        else advice("set that session option in your app", other),
    )


def plan_on_processor(plan: QuantizedGraph, instructions: InstructionSet | None) -> QuantizedGraph:
    """Return the plan with the arithmetic of its target's kernels for a processor."""
    return replace(plan, target=plan.target.on(instructions))


class AsDescribed:
    """The outputs of a runtime, against what the target describes.

    Only where the kernels for this processor compute otherwise; elsewhere that is what is compared
    anyway.

    Args:
        plan: With the target as it is described.
        here: The program with the arithmetic of this processor's kernels.
        threads: Threads of float islands; 0 lets their runtime choose.
    """

    def __init__(self, plan: QuantizedGraph, here: Program, threads: int) -> None:
        program = lower(plan)
        described = [step.arithmetic for step in program.steps]
        # Equal arithmetic gives equal bits: a second engine would only repeat the first.
        differs = described != [step.arithmetic for step in here.steps]
        self._engine = IntegerEngine(program, threads=threads) if differs else None
        self._outputs = OutputComparer()

    def add(self, feeds: Mapping[str, npt.NDArray[Any]], deployed: Mapping[str, Array]) -> None:
        """Compare the outputs of one batch."""
        if self._engine is None:
            return
        # From its own inputs, end to end: the question is what an app would see.
        computed = self._engine.run(feeds).outputs
        for name, array in deployed.items():
            self._outputs.add(name, array, computed[name])

    def finding(
        self, instructions: InstructionSet | None, *, saturates: bool = False, remedy: str = ""
    ) -> ProcessorFinding | None:
        """Return what was found; None where nothing is computed otherwise.

        Args:
            instructions: What this processor's kernels use.
            saturates: Whether they saturate pairs of products, and the target's do not.
            remedy: How to get the same bits; by default there is none.
        """
        if self._engine is None:
            return None
        otherwise = f"kernels for {instructions} compute otherwise than the target describes"
        return ProcessorFinding(
            cause=SATURATES if saturates else otherwise,
            compared=f"with the arithmetic of kernels for {instructions}",
            outputs=self._outputs.found(),
            remedy=remedy or "verify on the processor that you deploy to",
        )
