"""What cannot be written with integers, told at once."""

from __future__ import annotations

from collections.abc import Mapping

from intact.errors import ExportError, Unsupported
from intact.program.operations import FloatNodes
from intact.program.program import Program, Step


class Faults:
    """Collects refusals; those with one reason are told together.

    Args:
        reasons: Why nodes compute in float, where that is known.
    """

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self._reasons = reasons
        self._places: dict[tuple[str, str], list[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._places)

    def add(self, place: str, refusal: Unsupported) -> None:
        """Remember what is refused about a place."""
        self._places.setdefault((refusal.reason, refusal.remedy), []).append(place)

    def add_step(self, step: Step, refusal: Unsupported) -> None:
        """Remember why a step is refused; of nodes in float the plan's own reason is told."""
        if not isinstance(step.operation, FloatNodes):
            self.add(repr(step.name), refusal)
            return
        for node in step.nodes or (step.name,):
            reason = self._reasons.get(node)
            own = Unsupported(f"{refusal.reason}: {reason}", refusal.remedy) if reason else refusal
            self.add(repr(node), own)

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
        message = f"not in integers alone: {'; '.join(told)}"
        return ExportError(message, remedy="mend each as it says", listed=listed)


def follows_from_floats(program: Program, step: Step) -> bool:
    """Tell whether a step is beside a node in float, which is told of itself."""
    if isinstance(step.operation, FloatNodes):
        return False
    has_floats = any(isinstance(other.operation, FloatNodes) for other in program.steps)
    tensors = [*step.outputs, *(tensor for tensor in step.inputs if tensor is not None)]
    return has_floats and any(tensor.encoding is None for tensor in tensors)
