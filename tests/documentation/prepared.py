"""What pages of the documentation need beside the folder that all of them have."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from PIL import Image

import intact
from tests import texts
from tests.data import test_sounds as sounds
from tests.formats.onnx_qdq.trained import mqbench_net, saved_net
from tests.models import ModelBuilder, random_inputs, residual_net, run_model, transformer_block
from tests.recurrent import recurrent_model

Names: TypeAlias = Mapping[str, Any]

TRAINING = "tests/examples/test_training_document.py"
ELSEWHERE: Mapping[str, tuple[frozenset[str], str]] = {
    "training.md": (frozenset({"sh", "python"}), TRAINING),
    "from-mqbench.md": (frozenset({"python"}), TRAINING),
}
"""Blocks of these languages need torch, which is not loaded beside all other runtimes: another test
runs them."""


class Loader:
    """Has what tells a loader of training code from other iterables."""

    batch_size = 32

    def __init__(self, dataset: list[Any]) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        yield np.stack([image for image, _ in self.dataset])


def small_model() -> Names:
    """A model of four layers, right on all its samples: what takes long takes a second."""
    model = residual_net()
    onnx.save(model, "model.onnx")
    feeds = random_inputs(model, batch=24)
    labels = run_model(model, feeds)["logits"].argmax(1)
    for name in ("calib.npz", "test.npz"):
        np.savez(name, labels=labels, **feeds)  # type: ignore[arg-type]
    batches = [{**feeds, "label": labels}]
    return {"graph": model, "dataset": batches}


def data() -> Names:
    with np.load("calib.npz") as arrays:
        image, labels = arrays["image"][:32], arrays["labels"][:32]
    for name in ("a.jpg", "b.jpg"):
        shutil.copy(next(Path("photos").rglob("*.jpg")), name)
    _voice()
    _lines()
    text_model("attention_mask")
    dataset = [(one, int(label)) for one, label in zip(image, labels, strict=True)]
    return {
        "loader": Loader(dataset),
        "x_test": image,
        "y_test": labels,
        "dataset": dataset,
        "prepare": np.asarray,
    }


def _voice() -> None:
    """A detector with a state and a sampling rate, frames with states and a sequence without."""
    model = recurrent_model()
    renamed = {"x": "input", "rate": "sr", "next": "stateN"}
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    for port in (*model.graph.input, *model.graph.output):
        port.name = renamed.get(port.name, port.name)
    onnx.save(model, "vad.onnx")
    random = np.random.default_rng(0)
    sound = random.normal(size=(12, 1, 8)).astype(np.float32)
    state = random.normal(size=(12, 2, 1, 3)).astype(np.float32)
    rate = np.array(16000, np.int64)
    np.savez("frames.npz", input=sound, state=state, sr=rate)
    np.savez("speech.npz", input=sound, sr=rate)


def _lines() -> None:
    """A model that leaves the size of its images open."""
    b = ModelBuilder()
    x = b.node("Relu", b.conv(b.input("x", ["n", 3, "h", "w"]), 3, 4))
    b.node("GlobalAveragePool", x, out="pooled")
    b.output("pooled")
    onnx.save(b.build(), "ocr.onnx")
    lines = np.random.default_rng(0).normal(size=(4, 3, 48, 320)).astype(np.float32)
    np.savez("lines.npz", x=lines)


def text_model(padding: str) -> None:
    """A model of sequences, and texts whose ends are padded; which, says an array of that name."""
    model = transformer_block()
    model.graph.node[-1].output[0] = model.graph.output[0].name = "logits"
    onnx.save(model, "text.onnx")
    tokens = random_inputs(model, batch=8)["tokens"]
    mask = np.arange(5) < np.arange(8)[:, None] % 4 + 2
    labels = run_model(model, {"tokens": tokens})["logits"].argmax(-1)
    np.savez("texts.npz", tokens=tokens, labels=labels, **{padding: mask})  # type: ignore[arg-type]


def metrics() -> None:
    text_model("labels_mask")
    intact.quantize("text.onnx", "texts.npz", output="out")


def language_models() -> None:
    """A decoder with its tokenizer, an encoder, texts, a model of sounds and some sounds."""
    folder = Path("decoder")
    folder.mkdir()
    texts.saved(texts.tiny_decoder(), folder)
    texts.tiny_tokenizer(folder)
    Path("encoder").mkdir()
    texts.saved(texts.tiny_encoder(hidden=32), Path("encoder"))
    random = np.random.default_rng(0)
    for name in ("corpus.txt", "test.txt"):
        Path(name).write_text(texts.text_of(*random.integers(4, 50, 1000)), encoding="utf-8")
    b = ModelBuilder()
    hidden = b.node("Relu", b.node("MatMul", b.input("sound", ["n", 800]), b.weight(800, 8)))
    b.node("MatMul", hidden, b.weight(8, 3), out="scores")
    b.output("scores", ["n", 3])
    onnx.save(b.build(), "speech.onnx")
    Path("sounds").mkdir()
    for number in range(3):
        samples = random.normal(0, 0.2, 1600).clip(-1, 1).astype(np.float32)
        Path("sounds", f"{number}.wav").write_bytes(sounds.wav(samples, rate=16000))


def diagnosis() -> None:
    intact.quantize("model.onnx", "calib.npz", output="out")


def compared() -> None:
    intact.quantize("model.onnx", "calib.npz", output="out")
    intact.quantize("model.onnx", "calib.npz", weight_bits=4, output="narrow")
    intact.quantize("model.onnx", "calib.npz", target="tflite", output="tflite")


def quantized_models() -> None:
    intact.quantize("model.onnx", "calib.npz", target="onnxruntime", output="others")
    intact.quantize("model.onnx", "calib.npz", target="tflite", output="lite")
    shutil.copy("others/model.int8.onnx", "model.int8.onnx")
    shutil.copy("others/model.int8.onnx", "model.qdq.onnx")
    shutil.copy("lite/model.int8.tflite", "model.tflite")


def integers() -> None:
    quantized_models()
    with np.load("test.npz") as arrays:
        image: npt.NDArray[np.float32] = arrays["image"][:6]
    np.savez("x.npz", image=image)
    np.savez("nhwc.npz", image=image.transpose(0, 2, 3, 1))
    made = intact.quantize("model.onnx", "calib.npz", target="tflite-micro")
    recorded = intact.execute(made, "x.npz", observe=None, threads=1).tensors
    codes = {name: array for name, array in recorded.items() if name != "image"}
    np.savez("dump.npz", **codes)  # type: ignore[arg-type]


def mqbench() -> None:
    model = mqbench_net()
    onnx.save(model, "resnet.onnx")
    onnx.save(saved_net(4, activations=4), "academic.onnx")
    for name in ("calib.npz", "test.npz"):
        np.savez(name, **random_inputs(model, batch=8))  # type: ignore[arg-type]


def recipes() -> None:
    shutil.copy("model.onnx", "other.onnx")


def photos_of_models_with_colours() -> None:
    """Photographs that are larger than the model's input."""
    for path in Path("photos").rglob("*.jpg"):
        with Image.open(path) as image:
            image.resize((20, 16)).save(path)


PREPARED: Mapping[str, Callable[[], Names | None]] = {
    "README.md": language_models,
    "data.md": data,
    "blocks.md": language_models,
    "compare.md": compared,
    "diagnosis.md": diagnosis,
    "from-hago.md": small_model,
    "from-mqbench.md": mqbench,
    "integers.md": integers,
    "language-models.md": language_models,
    "metrics.md": metrics,
    "quantized-models.md": quantized_models,
    "quickstart.md": photos_of_models_with_colours,
    "recipes.md": recipes,
    "search-log.md": small_model,
    "report.md": diagnosis,
    "searching.md": small_model,
    "tensors.md": small_model,
    "targets/nnie.md": small_model,
    "targets/tvm.md": small_model,
    "targets/vta.md": small_model,
    "targets/integer-pow2.md": small_model,
    "own-hardware.md": small_model,
    "when-accuracy-drops.md": small_model,
}
"""Functions that write further files into the working directory, and give names to the snippets."""
