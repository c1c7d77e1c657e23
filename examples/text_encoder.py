"""An encoder of text, from bytes to a content type: tokens in, no images, much that stays float.

    pip install magika
    python examples/text_encoder.py
    python examples/text_encoder.py --files ~/documents --target openvino

The model is Magika's (Apache-2.0), as its package ships it: an embedding, a convolution, dense
layers, two LayerNormalizations, 214 kinds of content. It is judged on files of this machine, by
default those of the installed packages; what a file is called says what it should be.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import sysconfig
from collections import defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

import intact

KINDS = {
    ".c": "c",
    ".css": "css",
    ".csv": "csv",
    ".h": "c",
    ".html": "html",
    ".ini": "ini",
    ".js": "javascript",
    ".json": "json",
    ".md": "markdown",
    ".py": "python",
    ".rst": "rst",
    ".sh": "shell",
    ".toml": "toml",
    ".txt": "txt",
    ".xml": "xml",
    ".yaml": "yaml",
}
"""The model's name of what files with an ending hold."""
HALF, BLOCK, PADDING = 1024, 4096, 256
"""Tokens of each end of a file, bytes read there, the token for nothing (Magika's settings)."""
SHORTEST = 64  # bytes


def main() -> None:
    """Quantize the encoder, say what stays float, compare both versions."""
    options = arguments()
    names = json.loads((options.model.parent / "config.min.json").read_text())
    classes = {name: number for number, name in enumerate(names["target_labels_space"])}
    tokens, labels = read_files(options.files, options.each, classes)
    print(f"{len(labels)} files of {len(set(labels.tolist()))} kinds")

    # Every second file calibrates; labels there are not looked at.
    result = intact.quantize(
        options.model, {"bytes": tokens[::2]}, target=options.target, output=options.output
    )
    inspection = intact.inspect(options.output)
    integers = [node.op_type for node in inspection.nodes if node.quantized]
    print(f"{inspection}: {', '.join(integers)}")

    test = {"bytes": tokens[1::2], "labels": labels[1::2]}
    print(intact.evaluate(result, test, batch=8))
    print(intact.verify(result, test, samples=16))


def read_files(
    folder: Path, each: int, classes: dict[str, int]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Return tokens [N, 2048] and class numbers [N] of so many files of each kind."""
    found: dict[str, list[npt.NDArray[np.int32]]] = defaultdict(list)
    for path in sorted(folder.rglob("*")):
        kind = KINDS.get(path.suffix)
        if kind is not None and len(found[kind]) < each and path.is_file():
            content = path.read_bytes()
            if len(content) >= SHORTEST:
                found[kind].append(tokens_of(content))
    pairs = [(row, classes[kind]) for kind, rows in sorted(found.items()) for row in rows]
    return np.stack([row for row, _ in pairs]), np.array([number for _, number in pairs])


def tokens_of(content: bytes) -> npt.NDArray[np.int32]:
    """Return what the model reads of a file: both its ends, without white space around them."""
    tokens = np.full(2 * HALF, PADDING, np.int32)
    begin = np.frombuffer(content[:BLOCK].lstrip()[:HALF], np.uint8)
    end = np.frombuffer(content[-BLOCK:].rstrip()[-HALF:], np.uint8)
    tokens[: len(begin)] = begin
    tokens[len(tokens) - len(end) :] = end
    return tokens


def shipped_model() -> Path | None:
    """Return the newest model in the installed package, or None."""
    package = importlib.util.find_spec("magika")
    if package is None or package.origin is None:
        return None
    models = (Path(package.origin).parent / "models").glob("*/model.onnx")
    return max(models, default=None)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Quantize an encoder of text.")
    parser.add_argument("--model", type=Path, default=shipped_model(), help="a model of Magika")
    parser.add_argument("--files", type=Path, default=sysconfig.get_path("purelib"))
    parser.add_argument("--each", type=int, default=12, help="files of each kind")
    parser.add_argument("--target", default="onnxruntime", help="see: intact targets")
    parser.add_argument("--output", default="out/text-encoder", help="folder for the result")
    options = parser.parse_args()
    if options.model is None:
        sys.exit("no model: pip install magika, or give --model FOLDER/model.onnx")
    return options


if __name__ == "__main__":
    main()
