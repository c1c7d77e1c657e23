"""Outputs whose integers the hardware prescribes, where a plan that was read has others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from intact.graph.names import Names
from intact.plan import QuantizedGraph
from intact.program.operations import Requantize
from intact.program.program import Encoding, Program, Step
from intact.targets import OpRule, Target

_CONVERSION = "QuantizeLinear"
"""The operator whose arithmetic conversions follow."""
_CODES = 256


def with_prescribed_outputs(program: Program, plan: QuantizedGraph) -> Program:
    """Return a program in which each operator writes the codes that its target prescribes.

    Where the plan has others (others chose its scales, and these are kept) the step's result is
    brought to them by a step of its own. Plans that were made for the target have none of these.

    Args:
        program: The steps of ``plan``; not changed.
        plan: What they were made of.
    """
    nodes = {str(node.name): node for node in plan.graph.nodes}
    names = Names([*(t.name for t in program.tensors()), *(s.name for s in program.steps)])
    steps: list[Step] = []
    for step in program.steps:
        last = nodes.get(step.nodes[-1]) if step.nodes else None
        rule = plan.target.rule_for(last) if last is not None else None
        wanted = None if rule is None else _prescribed(step, rule, plan.target)
        if wanted is None:
            steps.append(step)
            continue
        output = step.outputs[0]
        name = names.fresh(f"{output.name}_prescribed")
        made = replace(output, name=name, encoding=wanted, value="", end=None)
        arithmetic = plan.target.arithmetic_for(_CONVERSION)
        steps += [
            replace(step, outputs=(made,)),
            Step(
                names.fresh(f"{step.name}_rescaled"), Requantize(), (made,), (output,), arithmetic
            ),
        ]
    return program.with_steps(tuple(steps))


def _prescribed(step: Step, rule: OpRule, target: Target) -> Encoding | None:
    """Return the encoding that a step has to write, None where that is what it writes."""
    fixed, found = rule.fixed_output, step.outputs[0].encoding
    if fixed is None or found is None or found.axis is not None:
        return None
    if found.quant_max - found.quant_min != _CODES - 1:
        return None
    lowest = target.activation_scheme(rule).quant_min
    wanted = replace(
        found,
        scale=np.asarray(fixed.scale, np.float32),
        zero_point=np.asarray(fixed.offset - lowest + found.quant_min, np.int64),
    )
    return None if wanted.same_as(found) else wanted
