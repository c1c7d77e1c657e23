"""A graph of integer operations as a Relax module in TVMScript, and its arrays.

The text says what is computed for one sample; the arrays are parameters of ``main`` behind its
inputs, in the order of the file (``num_input`` tells where they begin).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from intact.errors import ExportError
from intact.formats.tvm.operators import ScriptBuilder, tensor_text, write_node
from intact.program import Program, Tensor
from intact.program.realize import IntegerGraph, realize

_HEAD = """\
# from tvm.script import ir as I
# from tvm.script import relax as R

@I.ir_module
class Module:
    @R.function
"""


@dataclass(frozen=True, eq=False)
class TvmModule:
    """What was written.

    Attributes:
        text: TVMScript.
        arrays: Parameters of ``main`` behind the inputs, in order.
        inputs: The model's names of what ``main`` takes first.
        outputs: The model's names of what it gives, then of values that are shown.
    """

    text: str
    arrays: dict[str, npt.NDArray[np.generic]]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def archive(self) -> bytes:
        """Return the arrays as an .npz, the same bytes each time."""
        stream = io.BytesIO()
        np.savez(stream, **self.arrays)  # type: ignore[arg-type]
        return stream.getvalue()


def write_tvm(program: Program) -> TvmModule:
    """Return a program as a Relax module for one sample.

    Args:
        program: Floats stand at its ends alone, or nowhere.

    Raises:
        ExportError: Lengths other than the batch's are open, or some steps cannot be written with
            integers; all of them are listed.
    """
    return relax_module(realize(of_one_sample(program)))


def of_one_sample(program: Program) -> Program:
    """Return a program whose inputs have one sample: the length 1 along the open first axis.

    Raises:
        ExportError: Other lengths are open, which a module has to know; all inputs are listed.
    """
    listed = [
        f"input {name!r}: its lengths along axes {axes} are open"
        for name, tensor in program.inputs.items()
        if (axes := [axis for axis, n in enumerate(tensor.shape) if axis and n is None])
    ]
    if listed:
        raise ExportError(
            f"a TVM module is of known lengths: {'; '.join(listed)}",
            remedy="fix all axes of the model's inputs but the first",
            listed=listed,
        )
    return replace(
        program, inputs={name: _single(tensor) for name, tensor in program.inputs.items()}
    )


def _single(tensor: Tensor) -> Tensor:
    return replace(tensor, shape=tuple(1 if n is None else n for n in tensor.shape))


def relax_module(graph: IntegerGraph, shown: Sequence[str] = ()) -> TvmModule:
    """Return a graph as a Relax module.

    Args:
        graph: Of known shapes.
        shown: Values that are given too, behind the outputs.
    """
    builder = ScriptBuilder()
    parameters = [builder.input(value) for value in graph.inputs]
    for node in graph.nodes:
        write_node(builder, node)
    parameters += [
        f"{name}: {tensor_text(array.shape, array.dtype)}" for name, array in builder.arrays.items()
    ]
    made = {node.output.name: node.output for node in graph.nodes}
    results = [builder.use(made[name]) for name in (*(v.name for v in graph.outputs), *shown)]
    block = [*builder.lines, f"R.output({', '.join(dict.fromkeys(results))})"]
    body = [
        "    def main(",
        *(f"        {parameter}," for parameter in parameters),
        "    ):",
        f'        R.func_attr({{"num_input": {len(graph.inputs)}}})',
        "        with R.dataflow():",
        *(f"            {line}" for line in block),
        f"        return ({', '.join(results)},)",
        "",
    ]
    names = (*(value.name for value in graph.outputs), *shown)
    inputs = tuple(value.name for value in graph.inputs)
    return TvmModule(_HEAD + "\n".join(body), dict(builder.arrays), inputs, names)
