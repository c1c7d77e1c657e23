"""A written QDQ model in ONNX Runtime, with its integers on request."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from intact.graph.edit import Editor
from intact.plan import TensorEnd
from intact.run.session import Feeds, make_session, run_session

RUNTIME = f"ONNX Runtime {ort.__version__}"


class QdqRuntime:
    """A compiled QDQ model.

    Args:
        model: The written model.
        codes: Value names of the integers to hand out, by tensor end. Handing out the output of
            a QuantizeLinear does not undo the runtime's fusions.
        threads: Threads inside one operator; 0 lets the runtime choose.
    """

    def __init__(
        self, model: ir.Model, codes: Mapping[TensorEnd, str] | None = None, *, threads: int = 0
    ) -> None:
        self._ends = tuple(codes or ())
        self._outputs = tuple(str(value.name) for value in model.graph.outputs)
        if codes:
            editor = Editor(model)
            editor.model.graph.outputs.extend(editor.value(codes[end]) for end in self._ends)
            model = editor.finish()
        self._session = make_session(model, threads=threads)

    def run(
        self, feeds: Feeds
    ) -> tuple[dict[str, np.ndarray[Any, Any]], dict[TensorEnd, np.ndarray[Any, Any]]]:
        """Run one batch; return the outputs by name and the integers by tensor end."""
        arrays = run_session(self._session, feeds)
        count = len(self._outputs)
        outputs = dict(zip(self._outputs, arrays[:count], strict=True))
        return outputs, dict(zip(self._ends, arrays[count:], strict=True))


def executed_operators(model: ir.Model) -> dict[str, list[str]]:
    """Return what the runtime makes of a model: node names by op type, after its fusions.

    A node that was planned for integers and still appears under its float op type was not fused.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        options = ort.SessionOptions()
        options.optimized_model_filepath = str(path)
        ort.InferenceSession(
            ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        optimized = ir.load(path)
    found: dict[str, list[str]] = {}
    for node in optimized.graph:
        found.setdefault(node.op_type, []).append(str(node.name))
    return found


def float_leftovers(model: ir.Model, quantized: Sequence[str]) -> dict[str, str]:
    """Return the nodes among ``quantized`` that the runtime executes in float, with op type."""
    wanted = set(quantized)
    executed = executed_operators(model)
    return {
        name: op_type
        for op_type, names in executed.items()
        if not op_type.startswith(("QLinear", "QGemm", "MatMulInteger"))
        for name in names
        if name in wanted
    }
