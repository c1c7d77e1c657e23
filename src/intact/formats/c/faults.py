"""All that C cannot hold of a program, told at once."""

from __future__ import annotations

from intact.errors import ExportError, Unsupported
from intact.program import Program, Step
from intact.program.operations import FloatNodes


class Faults:
    """Collects refusals; those with the same reason are told together.

    Args:
        program: Of the steps.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._places: dict[tuple[str, str], list[str]] = {}
        self._has_floats = any(isinstance(step.operation, FloatNodes) for step in program.steps)

    def __bool__(self) -> bool:
        return bool(self._places)

    def add(self, place: str, refusal: Unsupported) -> None:
        """Remember what is refused about a place."""
        self._places.setdefault((refusal.reason, refusal.remedy), []).append(place)

    def add_step(self, step: Step, refusal: Unsupported) -> None:
        """Remember why a step is refused.

        Of nodes in float the plan's own reason is told; conversions and moves around them follow
        from them and are not.
        """
        if isinstance(step.operation, FloatNodes):
            for node in step.nodes or (step.name,):
                reason = self._program.in_float.get(node)
                own = (
                    Unsupported(f"{refusal.reason}: {reason}", refusal.remedy)
                    if reason
                    else refusal
                )
                self.add(repr(node), own)
        elif not (self._has_floats and _touches_floats(step)):
            self.add(repr(step.name), refusal)

    def error(self) -> ExportError:
        """Return the error that tells all of them."""
        told = [
            f"{', '.join(dict.fromkeys(places))}: {reason} ({remedy})"
            for (reason, remedy), places in self._places.items()
        ]
        listed = (
            f"{place}: {reason} ({remedy})"
            for (reason, remedy), places in self._places.items()
            for place in dict.fromkeys(places)
        )
        message = f"C cannot hold {'; '.join(told)}"
        return ExportError(message, remedy="mend each as it says", listed=listed)


def _touches_floats(step: Step) -> bool:
    tensors = [*step.outputs, *(tensor for tensor in step.inputs if tensor is not None)]
    return any(tensor.encoding is None for tensor in tensors)
