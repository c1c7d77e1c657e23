"""The gallery: what its models are fed with, and what is expected of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import onnx

from tests.gallery import dense, sequence, vision
from tests.gallery.data import Source, structured

TARGETS = ("onnxruntime", "onnxruntime-avx2", "tensorrt", "integer-pow2")

REASONS = {
    "no operator": "describes no integer",
    "no integer reader": "nothing that reads it computes with integers",
    "no integer source": "none of its inputs comes from a quantized node",
    "shapes": "computes shapes or indices only",
    "not float": "not float32",
    "no kernel": "ONNX Runtime has no integer kernel for it",
    "costs accuracy": "its 8-bit kernel costs accuracy",
    "weights only": "weights only: ",
}
"""Why a node stays float: a short word for what the decision's reason holds."""


@dataclass(frozen=True)
class GalleryModel:
    """One model and what is expected of it.

    Attributes:
        build: Makes the float model, the same each time.
        floors: SQNR of the worst output in dB, by target in the order of ``TARGETS``: four below
            what was measured. Noise of 8 bits in every layer leaves 25 to 45; powers of two cost
            10 more. One layer with wrong scales leaves 0 to 15.
        floats: The operators that stay float on ``onnxruntime``, by reason; one operator may
            stand under several, and the same operator may be quantized elsewhere in the model.
        samples: Where inputs come from; None draws structured floats.
    """

    build: Callable[[], onnx.ModelProto]
    floors: tuple[float, float, float, float]
    floats: Mapping[str, str] = field(default_factory=dict)
    samples: Source | None = None

    @cached_property
    def model(self) -> onnx.ModelProto:
        return self.build()

    @property
    def source(self) -> Source:
        return self.samples or structured(self.model)


_ENCODER = {
    "no operator": "Sub Tanh",
    "no kernel": "LayerNormalization Gelu",
    "no integer source": "Gather Add Mul",
    "weights only": "Gather",
    "no integer reader": "Add Mul",
    "shapes": "Unsqueeze",
    "not float": "Cast",
    "costs accuracy": "Softmax",
}
_RECURRENT = {
    "no integer source": "Transpose Reshape",
    "no integer reader": "Add Relu Transpose",
}

GALLERY: Mapping[str, GalleryModel] = {
    # ---- images -----------------------------------------------------------------------------
    "mobilenet_v3": GalleryModel(
        vision.mobilenet_v3,
        (33, 30, 28, 24),
        {"no operator": "HardSigmoid"},
    ),
    "shufflenet": GalleryModel(vision.shufflenet, (35, 32, 31, 20)),
    "inception": GalleryModel(vision.inception, (35, 29, 33, 28)),
    "densenet": GalleryModel(
        vision.densenet,
        (37, 30, 35, 29),
        {
            "no operator": "BatchNormalization",
            "no integer source": "Relu GlobalAveragePool Flatten",
            "no integer reader": "Concat AveragePool",
        },
    ),
    "separable": GalleryModel(vision.separable, (39, 33, 36, 30)),
    "prelu_net": GalleryModel(vision.prelu_net, (27, 24, 26, 24), {"no operator": "PRelu"}),
    "tensorflow_layout": GalleryModel(
        vision.tensorflow_layout,
        (37, 31, 37, 20),
        {
            "no operator": "ReduceMean",
            "no integer source": "Transpose",
            "no integer reader": "Transpose Relu Add MaxPool",
        },
    ),
    # Powers of two clip the normalized activations, all of one range, in every layer alike.
    "normalized_net": GalleryModel(
        vision.normalized_net,
        (42, 36, 39, 19),
        {
            "no operator": "InstanceNormalization GroupNormalization",
            "no integer source": "Relu Reshape Mul Add GlobalAveragePool Flatten",
            "no integer reader": "Reshape",
        },
    ),
    # ---- outputs as large as inputs ---------------------------------------------------------
    "yolo": GalleryModel(
        dense.yolo,
        (24, 22, 21, 17),
        {
            "no integer source": "Slice Concat",
            "no integer reader": "Reshape Transpose Sigmoid",
        },
    ),
    "unet": GalleryModel(
        dense.unet,
        (28, 25, 26, 23),
        {
            "no operator": "Resize",
            "no kernel": "ConvTranspose",
            "no integer reader": "Sigmoid",
        },
    ),
    "upsampler": GalleryModel(
        dense.upsampler,
        (26, 25, 23, 20),
        {
            "no operator": "Tanh",
            "no kernel": "ConvTranspose",
            "no integer source": "Relu",
        },
    ),
    "any_size": GalleryModel(
        dense.any_size,
        (34, 32, 32, 31),
        {
            "no operator": "Resize",
            "shapes": "Shape Slice Concat",
            "costs accuracy": "Softmax",
        },
    ),
    "split_net": GalleryModel(dense.split_net, (24, 22, 22, 19)),
    # ---- signals, volumes, text -------------------------------------------------------------
    "keyword_spotter": GalleryModel(sequence.keyword_spotter, (37, 33, 32, 17)),
    "volume_net": GalleryModel(sequence.volume_net, (45, 40, 42, 23)),
    "lstm_net": GalleryModel(
        sequence.lstm_net, (32, 30, 31, 26), {"weights only": "LSTM", **_RECURRENT}
    ),
    "gru_net": GalleryModel(
        sequence.gru_net, (35, 34, 34, 25), {"weights only": "GRU", **_RECURRENT}
    ),
    "text_transformer": GalleryModel(
        sequence.text_transformer,
        (30, 27, 28, 20),
        _ENCODER,
        sequence.sentences,
    ),
    "padded_text_transformer": GalleryModel(
        sequence.text_transformer,
        (28, 27, 28, 19),
        _ENCODER,
        sequence.padded_sentences,
    ),
    "older_text_transformer": GalleryModel(
        sequence.older_text_transformer,
        (28, 27, 28, 17),
        _ENCODER,
        sequence.padded_sentences,
    ),
    "einsum_attention": GalleryModel(
        sequence.einsum_attention,
        (34, 32, 33, 27),
        {"no integer reader": "Add Mul", "costs accuracy": "Softmax"},
    ),
    # Products of activations: each side has its own error.
    "similarity": GalleryModel(
        sequence.similarity,
        (20, 19, 25, 16),
        {"no integer reader": "Mul Add", "costs accuracy": "Softmax"},
    ),
    "two_towers": GalleryModel(
        sequence.two_towers, (32, 30, 31, 22), {"no integer reader": "Reshape"}
    ),
}
