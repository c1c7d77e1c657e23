"""A model of more than 2 GiB that takes no disk, and its way through intact with memory measured.

Run as a program, in a process of its own: ``python -m tests.big FOLDER evaluate verify`` prints
what happened as one line of JSON. The weights are holes of a sparse file, with a few numbers.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDE, NARROW = 12288, 2048
KINDS = ("Gemm", "MatMul", "Conv", "MatMul", "MatMul", "MatMul") * 4
"""One weight of 96 MiB each, [NARROW, WIDE] or [WIDE, NARROW] in turn: 2.25 GiB together."""

THREADS = 2
"""Each has counts of its own: with one for each core, memory would depend on the machine."""

STEP = 256
VALUES = (1.0, 0.25)
"""Every ``STEP``-th output channel reads one input with each of these factors, all others none."""


def build(folder: Path) -> Path:
    """Write ``model.onnx`` and ``weights.bin``."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = numpy_helper.from_array(np.array([0, 0, 1, 1], np.int64), "as image")
    nodes, tensors, x = [], [shape], "x"
    with (folder / "weights.bin").open("wb") as file:
        for layer, kind in enumerate(KINDS):
            offset = file.seek(0, 2)
            inputs, outputs = sizes(layer)
            for row, column, value in numbers(layer):
                place = column * inputs + row if kind != "MatMul" else row * outputs + column
                file.seek(offset + 4 * place)
                file.write(np.float32(value).tobytes())
            file.truncate(offset + 4 * inputs * outputs)
            tensors.append(_external(layer, kind, offset))
            nodes += _nodes(layer, kind, x)
            x = f"y{layer}"
    source, goal = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", NARROW])] for name in ("x", x)
    )
    graph = helper.make_graph(nodes, "big", source, goal, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def sizes(layer: int) -> tuple[int, int]:
    """Return how many inputs and outputs a layer has."""
    return (NARROW, WIDE) if layer % 2 == 0 else (WIDE, NARROW)


def numbers(layer: int) -> list[tuple[int, int, float]]:
    """Return the numbers of a weight that are not zero: input, output channel, value."""
    channels = range(0, min(sizes(layer)), STEP)
    return [(c + k, c, value) for c in channels for k, value in enumerate(VALUES)]


def _nodes(layer: int, kind: str, x: str) -> list[onnx.NodeProto]:
    name, weight, y = f"layer{layer}", f"w{layer}", f"y{layer}"
    if kind == "Conv":
        return [
            helper.make_node("Reshape", [x, "as image"], [f"i{layer}"], f"reshape{layer}"),
            helper.make_node("Conv", [f"i{layer}", weight], [f"o{layer}"], name),
            helper.make_node("Flatten", [f"o{layer}"], [y], f"flatten{layer}"),
        ]
    attributes: dict[str, Any] = {"transB": 1} if kind == "Gemm" else {}
    return [helper.make_node(kind, [x, weight], [y], name, **attributes)]


def _external(layer: int, kind: str, offset: int) -> onnx.TensorProto:
    inputs, outputs = sizes(layer)
    shape = {"MatMul": [inputs, outputs], "Gemm": [outputs, inputs]}.get(
        kind, [outputs, inputs, 1, 1]
    )
    tensor = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": "weights.bin", "offset": offset, "length": 4 * inputs * outputs}
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


class Peak:
    """The largest memory of this process's own while a block runs, in MiB (Linux)."""

    def __enter__(self) -> Peak:
        self.mebibytes = 0
        self._started = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self.seconds = time.monotonic() - self._started

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            lines = Path("/proc/self/status").read_text().splitlines()
            own = next(line for line in lines if line.startswith("RssAnon"))
            self.mebibytes = max(self.mebibytes, int(own.split()[1]) // 1024)

    def __str__(self) -> str:
        return f"{self.mebibytes} MiB, {self.seconds:.1f} s"


def inputs() -> npt.NDArray[np.float32]:
    """Return samples in which the inputs that the weights read are not zero."""
    return np.random.default_rng(0).uniform(0, 1, (8, NARROW)).astype(np.float32)


def main(folder: Path, wanted: list[str]) -> dict[str, Any]:
    """Take the model as far as wanted; return peaks in MiB by step and what came out."""
    import intact

    model, result = build(folder / "model"), folder / "result"
    steps: dict[str, Peak] = {}
    found: dict[str, Any] = {}
    with Peak() as steps["quantize"]:
        intact.quantize(model, inputs(), output=result, threads=THREADS)
    if "evaluate" in wanted:
        with Peak() as steps["evaluate"]:
            found["sqnr_db"] = intact.evaluate(result, inputs()[:1], threads=THREADS).sqnr_db
    if "verify" in wanted:
        with Peak() as steps["verify"]:
            verification = intact.verify(result, inputs()[:1], threads=THREADS)
        found["simulated_sqnr_db"] = min(verification.outputs_sqnr_db.values())
        found["mismatches"] = sum(layer.mismatches for layer in verification.layers)
    for name, peak in steps.items():
        found[name] = peak.mebibytes
        sys.stderr.write(f"{name}: {peak}\n")
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), sys.argv[2:])))
