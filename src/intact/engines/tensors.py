"""Shows tensors of the float model, beside or instead of its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.engines.session import FloatModel
from intact.graph import Graph
from intact.graph.edit import Editor


def tensors_of(
    graph: Graph, names: Sequence[str], feeds: Mapping[str, npt.NDArray[Any]]
) -> Mapping[str, npt.NDArray[np.floating]]:
    """Run the float model on one batch, and return tensors by name.

    Args:
        graph: The model; not changed.
        names: The tensors; nothing else is computed for the outputs.
        feeds: Inputs by name.
    """
    if not names:
        return {}
    editor = Editor(graph.model)
    outputs = editor.model.graph.outputs
    for value in outputs[:]:
        outputs.remove(value)
    outputs.extend(editor.value(name) for name in names)
    return FloatModel(Graph(editor.finish()), threads=1).run(dict(feeds))
