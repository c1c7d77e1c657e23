"""Well-known networks of the `onnx` package, with weights and inputs that say something."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx.backend.test
from onnx import helper, numpy_helper

FOLDER = Path(onnx.backend.test.__file__).parent / "data" / "light"


def images(model: onnx.ModelProto, count: int, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Coarse random images with some noise, for the one input that is no weight."""
    weights = {tensor.name for tensor in model.graph.initializer}
    (port,) = (value for value in model.graph.input if value.name not in weights)
    _, channels, height, width = (dim.dim_value for dim in port.type.tensor_type.shape.dim)
    random = np.random.default_rng(seed)
    coarse = random.normal(size=(count, channels, height // 16, width // 16))
    fine = coarse.repeat(16, axis=2).repeat(16, axis=3)
    fine += 0.3 * random.normal(size=fine.shape)
    return {port.name: fine.astype(np.float32)}


def with_drawn_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace the weights, ConstantOfShape or not, by drawn ones, and leave out the Softmax."""
    random = np.random.default_rng(0)
    readers = {name: (node, k) for node in model.graph.node for k, name in enumerate(node.input)}
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    shapes = {name: array.shape for name, array in constants.items() if array.dtype == np.float32}
    kept = []
    for node in model.graph.node:
        if node.op_type == "Softmax":
            (model.graph.output[0].name,) = node.input
            break
        if node.op_type == "ConstantOfShape":
            name, shape = node.output[0], constants[node.input[0]].tolist()
            shapes[name] = tuple(shape)
            port = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
            model.graph.input.append(port)
        else:
            kept.append(node)
    for name in sorted(shapes.keys() & readers.keys()):
        constants[name] = _drawn(random, shapes[name], _role(name, readers)).astype(np.float32)
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(kept)
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in constants.items()
    )
    return model


def _role(name: str, readers: dict[str, tuple[onnx.NodeProto, int]]) -> str:
    """Return the operator and the slot that a weight ends in."""
    node, slot = readers[name]
    while node.op_type == "Unsqueeze":
        node, slot = readers[node.output[0]]
    return f"{node.op_type}[{slot}]"


def _drawn(
    random: np.random.Generator, shape: tuple[int, ...], role: str
) -> npt.NDArray[np.float64]:
    if len(shape) > 1:
        return np.asarray(random.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape))
    if role in {"BatchNormalization[1]", "BatchNormalization[4]", "Mul[1]"}:  # scale, variance
        return random.uniform(0.7, 1.3, shape)
    return random.normal(0, 0.1, shape)
