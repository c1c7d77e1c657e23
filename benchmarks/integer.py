"""The integer engine against LiteRT's reference kernels on the zoo's CNNs: seconds per image.

    python benchmarks/integer.py [--models a,b] [--rounds 5] [--batch 64] [--json]

Both run the same program on the same images, in turn; the ratio is that of the medians. LiteRT is
timed with the whole batch at once and image by image, and the faster counts. Beside them the floor:
the float model in ONNX Runtime on one thread and on all. 512 calibration images, target ``tflite``.
The engine and LiteRT use one thread. "differ" counts output codes; it has to be 0.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnxruntime
from rich.console import Console
from rich.table import Table

import intact
from intact.data.preprocess import Preprocess
from intact.engines.cpu import detect_cpu
from intact.engines.integer import IntegerEngine
from intact.formats.tflite.write import write_tflite
from intact.program.lower import lower
from intact.program.passes.integer_io import integer_io
from intact.program.passes.layout import IoLayout
from zoo import CALIBRATION, MODELS, ZooModel

UNIT = Preprocess((0.0,) * 3, (1 / 255,) * 3)
VISUAL_WAKE_WORDS = ZooModel("mlperf_vww", UNIT)
CNNS = (*(m for m in MODELS if m.is_cnn and not m.name.endswith("-raw")), VISUAL_WAKE_WORDS)

Array = npt.NDArray[Any]


class Row(msgspec.Struct):
    """Milliseconds per image, and whether the outputs are the same.

    Attributes:
        ratio: Reference kernels over engine.
        mismatches: Output codes in which both differ.
    """

    engine: float
    reference_batch: float
    reference_single: float
    ratio: float
    mismatches: int
    float_single_thread: float
    float_all_threads: float


def images_for(model: ZooModel, count: int) -> npt.NDArray[np.float32]:
    """Return preprocessed images; those of CIFAR-10, three times as wide, where it takes more."""
    images = np.load(CALIBRATION)["image"][:count]
    if model is VISUAL_WAKE_WORDS:
        images = images.repeat(3, axis=2).repeat(3, axis=3)
    return np.asarray(model.preprocess("image", images), np.float32)


class Reference:
    """LiteRT's reference kernels, one thread, for batches of one size."""

    def __init__(self, content: bytes, batch: int) -> None:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        self._interpreter = Interpreter(
            model_content=content,
            num_threads=1,
            experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
        )
        (given,) = self._interpreter.get_input_details()
        self._input = given["index"]
        self._interpreter.resize_tensor_input(self._input, [batch, *given["shape"][1:]])
        self._interpreter.allocate_tensors()
        self._output = self._interpreter.get_output_details()[0]["index"]

    def __call__(self, codes: Array) -> Array:
        """Return the output's codes."""
        self._interpreter.set_tensor(self._input, codes)
        self._interpreter.invoke()
        return np.asarray(self._interpreter.get_tensor(self._output))


def measure(model: ZooModel, batch: int, rounds: int) -> Row:
    """Quantize one model and time it."""
    images = images_for(model, 512)
    plan = intact.quantize(
        model.path, {input_name(model): images}, target="tflite", formats=[]
    ).plan
    program = lower(plan, layout=IoLayout.CHANNELS_LAST)
    content = write_tflite(program)
    engine = IntegerEngine(integer_io(program))
    (name,) = engine.program.inputs
    codes = quantized(program, images[:batch])
    whole, single = Reference(content, batch), Reference(content, 1)

    def run() -> Array:
        (output,) = engine.run({name: codes}).outputs.values()
        return output

    mismatches = int(np.count_nonzero(run() != whole(codes)))
    times = in_turn(
        rounds,
        run,
        lambda: whole(codes),
        lambda: [single(codes[index : index + 1]) for index in range(batch)],
    )
    floats = in_turn(rounds, *(float_pass(model, images[:batch], threads) for threads in (1, 0)))
    ours, together, alone = (1e3 * seconds / batch for seconds in times)
    one, all_threads = (1e3 * seconds / batch for seconds in floats)
    return Row(ours, together, alone, min(together, alone) / ours, mismatches, one, all_threads)


def quantized(program: Any, images: npt.NDArray[np.float32]) -> Array:
    """Return the codes that the program's first step makes of images."""
    (name,) = program.inputs
    channels_last = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    first = program.steps[0].outputs[0].name
    found = IntegerEngine(program).run({name: channels_last}, observe=[first])
    return found.tensors[first]


def input_name(model: ZooModel) -> str:
    """Return the name of a model's input."""
    session = onnxruntime.InferenceSession(model.path, providers=["CPUExecutionProvider"])
    return str(session.get_inputs()[0].name)


def float_pass(model: ZooModel, images: Array, threads: int) -> Callable[[], object]:
    """Return a run of the float model in ONNX Runtime; 0 threads lets it choose."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda: session.run(None, {name: images})


def in_turn(rounds: int, *functions: Callable[[], object]) -> list[float]:
    """Return the median seconds of functions that run in turn, the first round left out."""
    times: list[list[float]] = [[] for _ in functions]
    for index in range(rounds + 1):
        for taken, function in zip(times, functions, strict=True):
            start = time.perf_counter()
            function()
            if index:
                taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


def main() -> None:
    """Print one row for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(model.name for model in CNNS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    wanted = arguments.models.split(",")
    rows = {m.name: measure(m, arguments.batch, arguments.rounds) for m in CNNS if m.name in wanted}
    if arguments.json:
        print(json.dumps({name: msgspec.to_builtins(row) for name, row in rows.items()}, indent=1))
        return
    cpu = detect_cpu()
    title = f"ms per image, batch {arguments.batch}, {cpu.name} ({cpu.instruction_set})"
    table = Table(title=title)
    headings = (
        "model", "engine", "LiteRT", "one by one", "faster", "differ", "float, 1 thread", "float",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in rows.items():
        times = (row.engine, row.reference_batch, row.reference_single)
        floats = (row.float_single_thread, row.float_all_threads)
        table.add_row(
            name,
            *(f"{value:.3f}" for value in times),
            f"{row.ratio:.1f} x",
            str(row.mismatches),
            *(f"{value:.3f}" for value in floats),
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
