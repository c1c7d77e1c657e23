"""An integer ONNX model in ONNX Runtime against the integer engine; no difference is allowed.

A second model gives every value too, so that each layer is computed from the runtime's own
integers. The outputs are those of the model as it was written.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from intact.engines.exact_sums import saturates_pairs
from intact.formats.base.comparison import stored_feeds
from intact.formats.base.format import Feeds
from intact.formats.base.report import Verification
from intact.formats.base.verification import Arrays, ByDefault, EngineBeside, compare
from intact.formats.onnx_integer.run import OnnxIntegerRuntime
from intact.formats.onnx_integer.write import integer_model
from intact.plan import QuantizedGraph
from intact.program.realize import integer_program, realize


def verify_onnx_integer(
    plan: QuantizedGraph,
    content: bytes,
    batches: Iterable[Feeds],
    *,
    float_ends: bool = False,
    threads: int = 0,
) -> Verification:
    """Compare an integer ONNX model in ONNX Runtime with the integers that its plan says.

    Args:
        plan: The plan.
        content: What was written from it.
        batches: Inputs by name: floats, or codes for inputs that are integers.
        float_ends: It takes and gives floats.
        threads: Threads inside one operator; 0 lets the runtime choose.

    Raises:
        ExportError: The runtime refuses the model, or fails on it.
        DataError: The model gives other shapes than the plan.
    """
    program = integer_program(plan, float_ends=float_ends)
    graph = realize(program)
    shown = graph.shown()
    exact = not plan.target.saturates_pairs
    shown_model = integer_model(graph, program, tuple(shown))
    watched = OnnxIntegerRuntime(shown_model, threads=threads, exact=exact)
    written = OnnxIntegerRuntime(content, threads=threads, exact=exact)
    by_default = None
    if exact and saturates_pairs():
        default = OnnxIntegerRuntime(content, threads=threads, exact=False)
        by_default = ByDefault(default.run, ir.from_proto(onnx.load_from_string(content)))

    def run(feeds: Feeds) -> tuple[Arrays, Arrays]:
        values = watched.run(feeds)
        stored = {t.name: place.as_stored(values[name]) for name, (t, place) in shown.items()}
        return written.run(feeds), stored

    reference = EngineBeside(program, (tensor for tensor, _ in shown.values()), threads=threads)
    given = (stored_feeds(program, feeds) for feeds in batches)
    return compare(plan, written.name, run, reference, given, program.outputs, by_default)
