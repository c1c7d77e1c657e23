"""Train the demo model and write it, with its images, into the package.

The model is a small convolutional network for scikit-learn's handwritten digits (8 x 8 pixels,
values 0..16). It is written as an exporter would leave it, with its BatchNormalization nodes still
in the graph, and holds what quantization tools trip over: residual Adds, a depthwise convolution,
a global average pool and a Gemm, with a dynamic batch.

The network is one table, ``LAYERS``; the torch module and the ONNX graph are both built from it.
Run it in an environment of its own, from the repository root, and it reproduces the committed
files (same processor and versions given)::

    pip install torch==2.13.0 scikit-learn==1.9.1 onnx==1.23.2
    python tools/train_digits.py
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

DEMO = Path(__file__).resolve().parent.parent / "src" / "intact" / "demo"
SEED = 20
CALIBRATION_IMAGES = 200
TEST_IMAGES = 600
EPOCHS = 60
BATCH = 64
OPSET = 17
IR_VERSION = 8
CLASSES = 10

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Split = tuple[Images, Labels]


@dataclass(frozen=True)
class Layer:
    """One convolution with its BatchNormalization and ReLU."""

    name: str
    channels_in: int
    channels_out: int
    kernel: int = 3
    stride: int = 1
    depthwise: bool = False
    add: str = ""  # the layer whose output is added before the ReLU

    @property
    def groups(self) -> int:
        """Number of convolution groups."""
        return self.channels_in if self.depthwise else 1

    @property
    def padding(self) -> int:
        """Zeros added on each side."""
        return self.kernel // 2


LAYERS = (
    Layer("stem", 1, 32),
    Layer("block1_conv", 32, 32),
    Layer("block1_pointwise", 32, 32, kernel=1, add="stem"),
    Layer("down", 32, 64, stride=2),
    Layer("block2_depthwise", 64, 64, depthwise=True),
    Layer("block2_conv", 64, 64, add="down"),
    Layer("head", 64, 128, kernel=1),
)


class Network(nn.Module):
    """The torch form of ``LAYERS``: float32 [N, 1, 8, 8] in, logits [N, 10] out."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleDict({layer.name: convolution(layer) for layer in LAYERS})
        self.norms = nn.ModuleDict(
            {layer.name: nn.BatchNorm2d(layer.channels_out) for layer in LAYERS}
        )
        self.classifier = nn.Linear(LAYERS[-1].channels_out, CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        outputs: dict[str, torch.Tensor] = {}
        value = image
        for layer in LAYERS:
            value = self.norms[layer.name](self.convolutions[layer.name](value))
            if layer.add:
                value = value + outputs[layer.add]
            value = torch.relu(value)
            outputs[layer.name] = value
        return self.classifier(value.mean(dim=(2, 3)))


def convolution(layer: Layer) -> nn.Module:
    """Return the torch convolution of a layer; the norm behind it makes a bias superfluous."""
    return nn.Conv2d(
        layer.channels_in,
        layer.channels_out,
        layer.kernel,
        stride=layer.stride,
        padding=layer.padding,
        groups=layer.groups,
        bias=False,
    )


def load_splits() -> tuple[Split, Split]:
    """Return the training and the test images, uint8 [N, 1, 8, 8] with values 0..16."""
    digits = load_digits()
    image = digits.images.astype(np.uint8)[:, np.newaxis]
    labels = digits.target.astype(np.int64)
    train_image, test_image, train_labels, test_labels = train_test_split(
        image, labels, test_size=TEST_IMAGES, stratify=labels, random_state=SEED
    )
    return (train_image, train_labels), (test_image, test_labels)


def shifted(image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a batch moved by up to one pixel each way, zeros coming in: the augmentation."""
    down, right = torch.randint(0, 3, (2,), generator=generator).tolist()
    return nn.functional.pad(image, (1, 1, 1, 1))[:, :, down : down + 8, right : right + 8]


def train(split: Split) -> Network:
    """Train the network with AdamW and a one-cycle schedule."""
    image, labels = torch.from_numpy(split[0]).float(), torch.from_numpy(split[1])
    generator = torch.Generator().manual_seed(SEED)
    network = Network()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2, weight_decay=1e-2)
    batches = len(image) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1e-2, total_steps=EPOCHS * batches
    )
    for _ in range(EPOCHS):
        order = torch.randperm(len(image), generator=generator)
        for batch in order[: batches * BATCH].split(BATCH):
            logits = network(shifted(image[batch], generator))
            loss = nn.functional.cross_entropy(logits, labels[batch], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    network.eval()
    return network


def layer_nodes(layer: Layer, source: str, epsilon: float) -> list[onnx.NodeProto]:
    """Return the ONNX nodes of one layer; its output is the value named like the layer."""
    name = layer.name
    conv = helper.make_node(
        "Conv",
        [source, f"{name}.weight"],
        [f"{name}.conv"],
        f"{name}/Conv",
        kernel_shape=[layer.kernel] * 2,
        strides=[layer.stride] * 2,
        pads=[layer.padding] * 4,
        group=layer.groups,
    )
    norm_inputs = [f"{name}.{part}" for part in ("gamma", "beta", "mean", "variance")]
    norm = helper.make_node(
        "BatchNormalization",
        [f"{name}.conv", *norm_inputs],
        [f"{name}.norm"],
        f"{name}/BatchNormalization",
        epsilon=epsilon,
    )
    nodes, last = [conv, norm], f"{name}.norm"
    if layer.add:
        nodes.append(helper.make_node("Add", [last, layer.add], [f"{name}.sum"], f"{name}/Add"))
        last = f"{name}.sum"
    return [*nodes, helper.make_node("Relu", [last], [name], f"{name}/Relu")]


def initializers(state: Mapping[str, Any]) -> list[onnx.TensorProto]:
    """Return every weight of the network under the name that its node uses."""
    names = {"weight": "gamma", "bias": "beta", "running_mean": "mean", "running_var": "variance"}
    arrays = {}
    for layer in LAYERS:
        arrays[f"{layer.name}.weight"] = state[f"convolutions.{layer.name}.weight"]
        for source, name in names.items():
            arrays[f"{layer.name}.{name}"] = state[f"norms.{layer.name}.{source}"]
    arrays["classifier.weight"] = state["classifier.weight"]
    arrays["classifier.bias"] = state["classifier.bias"]
    return [
        numpy_helper.from_array(np.ascontiguousarray(array.numpy(), dtype=np.float32), name)
        for name, array in arrays.items()
    ]


def to_onnx(network: Network) -> onnx.ModelProto:
    """Write the trained network as an ONNX model with a dynamic batch."""
    nodes: list[onnx.NodeProto] = []
    source = "image"
    for layer in LAYERS:
        nodes += layer_nodes(layer, source, network.norms[layer.name].eps)
        source = layer.name
    nodes += [
        helper.make_node("GlobalAveragePool", [source], ["pooled"], "pool/GlobalAveragePool"),
        helper.make_node("Flatten", ["pooled"], ["features"], "pool/Flatten", axis=1),
        helper.make_node(
            "Gemm",
            ["features", "classifier.weight", "classifier.bias"],
            ["logits"],
            "classifier/Gemm",
            transB=1,
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", CLASSES])],
        initializers(network.state_dict()),
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="train_digits",
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def check(model: onnx.ModelProto, network: Network, split: Split) -> float:
    """Return the ONNX model's test accuracy after holding its logits against torch's."""
    image, labels = split[0].astype(np.float32), split[1]
    answer: Any = ReferenceEvaluator(model).run(None, {"image": image})
    logits = answer[0]
    with torch.no_grad():
        expected = network(torch.from_numpy(image)).numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)
    return float(np.mean(logits.argmax(axis=1) == labels))


def main() -> None:
    """Train, check and write the three files."""
    parser = argparse.ArgumentParser(description="Train the demo model of intact")
    parser.add_argument("--output", type=Path, default=DEMO, help="folder for the three files")
    output = parser.parse_args().output
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    train_split, test_split = load_splits()
    network = train(train_split)
    model = to_onnx(network)
    accuracy = check(model, network, test_split)

    output.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(output / "digits.onnx"))
    calibration = [array[:CALIBRATION_IMAGES] for array in train_split]
    for name, (image, labels) in (("calib", calibration), ("test", test_split)):
        np.savez_compressed(output / f"digits-{name}.npz", image=image, labels=labels)
    print(f"test accuracy {accuracy:.4f} on {TEST_IMAGES} images")


if __name__ == "__main__":
    main()
