"""What stands in a written file, as the schema's own classes read it: for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

CODES = {code: name for name, code in vars(schema.BuiltinOperator).items() if name.isupper()}


def model_of(content: bytes) -> Any:
    """Return the file's model, unpacked."""
    return schema.ModelT.InitFromPackedBuf(content, 0)


def operators_of(content: bytes) -> list[str]:
    """Return the names of the operators in order."""
    model = model_of(content)
    codes = [CODES[each.builtinCode] for each in model.operatorCodes]
    return [codes[each.opcodeIndex] for each in model.subgraphs[0].operators]


def operator_of(content: bytes, code: str) -> Any:
    """Return the only operator with a code."""
    graph = model_of(content).subgraphs[0]
    (place,) = [k for k, name in enumerate(operators_of(content)) if name == code]
    return graph.operators[place]


def input_of(content: bytes, code: str, slot: int) -> Any:
    """Return a tensor that the only operator with a code reads."""
    tensors = model_of(content).subgraphs[0].tensors
    return tensors[operator_of(content, code).inputs[slot]]


def data_of(content: bytes, tensor: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """Return the data of a constant."""
    data = model_of(content).buffers[tensor.buffer].data
    found: np.ndarray[Any, Any] = np.asarray(data, np.uint8).view(dtype).reshape(tensor.shape)
    return found
