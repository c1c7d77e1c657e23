"""A quantised ``.tflite`` file, made by others, as a plan that keeps what it says.

Source: the TFLite schema and LiteRT's documentation of its quantisation specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from intact.formats.tflite.reading.assemble import assemble
from intact.formats.tflite.reading.configure import configure
from intact.formats.tflite.reading.decode import is_tflite, open_tflite
from intact.formats.tflite.reading.draft import Draft
from intact.formats.tflite.reading.file import Signature
from intact.formats.tflite.reading.layouts import Layout, channels_first, inverse
from intact.formats.tflite.reading.operators import draw
from intact.formats.tflite.reading.schema import Element
from intact.plan import READ_FROM, READ_SOURCE, QuantizedGraph
from intact.targets import Target

__all__ = [
    "TensorPlace",
    "TfliteModel",
    "is_tflite",
    "read_tflite",
    "read_tflite_model",
]


@dataclass(frozen=True)
class TensorPlace:
    """Where a tensor of the file is in the plan.

    Attributes:
        name: As in the file.
        value: The float graph's value.
        element: Type in the file, in lower case: ``int8``, ``float32`` ...
        permutation: Axis ``k`` of the file's tensor is axis ``permutation[k]`` of the value; None
            where they lie alike.
    """

    name: str
    value: str
    element: str
    permutation: tuple[int, ...] | None


@dataclass(frozen=True, eq=False)
class TfliteModel:
    """A file that was read.

    Attributes:
        plan: What it computes.
        tensors: The activations that its plan has, by their number in the file.
        inputs: Numbers of the file's inputs, in the order of the graph's.
        outputs: Numbers of the file's outputs, in the order of the graph's.
        signature: What callers of the file's signature call them; empty where it has none.
    """

    plan: QuantizedGraph
    tensors: Mapping[int, TensorPlace]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    signature: Signature


def read_tflite(source: str | Path | bytes, target: Target) -> QuantizedGraph:
    """Read a quantised TFLite model.

    The float model of the plan is in ONNX, with channels first inside; its inputs and outputs have
    the layout of the file, and are called as in its signature (as its tensors where it has none).
    An input or output that is int8 in the file is float here
    and quantised with the file's scale. The batch of one that files have is left open if nothing
    in the model mixes samples.

    Args:
        source: A path, or the bytes of the file.
        target: The hardware that the plan is for; what the model says stays, wherever it differs.

    Returns:
        A calibrated plan. Ends that the model quantises are ACTIVATED (constants BAKED or
        PASSIVE_BAKED, with their integers), with ``detail["fixed"]``; between the nodes that one
        operator stands for they are OVERLAPPED; all others are FP32 or SOI.

    Raises:
        ModelError: The file is damaged or not quantised, or some of its operators cannot be read:
            all of those are listed, with the reason.
    """
    return read_tflite_model(source, target).plan


def read_tflite_model(source: str | Path | bytes, target: Target) -> TfliteModel:
    """Read a quantised TFLite model, and where each tensor of the file is in the plan.

    Raises:
        ModelError: See `read_tflite`.
    """
    file = open_tflite(source)
    draft = draw(file)
    graph = assemble(draft)
    plan = configure(graph, target, draft)
    plan.provenance |= {"source": READ_SOURCE, READ_FROM: "tflite"}
    if file.description:
        plan.provenance["producer"] = file.description[:200]
    return TfliteModel(plan, _places(draft), file.inputs, file.outputs, file.signature)


def _places(draft: Draft) -> dict[int, TensorPlace]:
    places = {}
    for index, tensor in enumerate(draft.file.tensors):
        drawn = draft.drawn.get(draft.alias.get(index, index))
        if drawn is None or not drawn.values:
            continue
        layout, value = next(iter(drawn.values.items()))
        order = None
        if layout is Layout.FIRST and tensor.rank > 2:
            order = inverse(channels_first(tensor.rank))
        element = Element(tensor.element).name.lower()
        places[index] = TensorPlace(tensor.name, str(value.name), element, order)
    return places
