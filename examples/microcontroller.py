"""A classifier for a microcontroller: C99 without libraries, and a .tflite for TFLite Micro.

    pip install "intact-quantizer[tflite]" tflite-micro
    python examples/microcontroller.py
    python examples/microcontroller.py --model my.onnx --data calib.npz --test test.npz

Says what the program needs of flash and memory, compiles it for this machine together with a main
of a few lines (`firmware.c`), and feeds it as a sensor would: with bytes. What it computes are the
integers of the plan, those that `intact.execute` gives.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

import intact
from intact import demo

FIRMWARE = Path(__file__).with_name("firmware.c")


def main() -> None:
    """Quantize, compile, run, compare."""
    options = arguments()
    result = intact.quantize(
        options.model,
        options.data,
        target="tflite-micro",
        formats=("c", "tflite"),
        output=options.output,
    )

    # 1. What model.h says of the program.
    header = (options.output / "model.h").read_text()
    defined = dict(re.findall(r"#define MODEL_(\w+) \(?(-?[\d.e-]+)", header))
    flash, memory = int(defined["CONSTANT_BYTES"]), int(defined["ARENA_BYTES"])
    print(f"constants: {flash / 1024:.1f} KiB of flash, activations: {memory / 1024:.1f} KiB")

    # 2. The codes of the images: one scale, one zero point, channels last.
    name = str(result.plan.graph.inputs[0].name)
    with np.load(options.test) as file:
        images, labels = file[name][: options.samples], file["labels"][: options.samples]
    port = name.upper()
    steps = images / np.float32(defined[f"{port}_SCALE"]) + int(defined[f"{port}_ZERO_POINT"])
    codes = np.clip(np.rint(steps), -128, 127).astype(np.int8)

    # 3. The program on those bytes, and the plan's integers beside it.
    program = compiled(options.output, defined)
    on_device = run(program, np.moveaxis(codes, 1, -1))
    (planned,) = intact.execute(result, {name: codes}).outputs.values()
    differ = np.count_nonzero(on_device != planned.reshape(on_device.shape))
    print(f"{program.name}: {differ} of {on_device.size} codes differ from the plan's")
    right = 100 * np.mean(on_device.argmax(axis=1) == labels)
    print(f"top-1 of the program: {right:.1f} % of {len(labels)} images")

    # 4. The same for TensorFlow Lite for Microcontrollers, where it is installed.
    found = intact.verify(result, {name: images}, deployed="tflite", samples=options.samples)
    for output in found.outputs:  # it does not show what lies between
        print(f"{found.runtime}: {output.mismatches} of {output.values} codes differ")


def compiled(folder: Path, defined: dict[str, str]) -> Path:
    """Compile the model with its main; return the program. For a device: your compiler, -Os."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        sys.exit("no C compiler on this machine")
    taken, given = [key for key in defined if key.endswith("_SIZE")]  # one input, one output
    program = folder.parent / "firmware"
    ends = (f"-DINPUT=MODEL_{taken}", f"-DOUTPUT=MODEL_{given}")
    sources = (FIRMWARE, folder / "model.c")
    subprocess.run(
        [compiler, "-std=c99", "-O2", *ends, "-I", folder, *sources, "-o", program], check=True
    )
    return program


def run(program: Path, codes: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """Feed one sample after the other, [N, ...]; return the codes of the outputs, [N, M]."""
    done = subprocess.run(
        [program.resolve()], input=codes.tobytes(), capture_output=True, check=True
    )
    return np.frombuffer(done.stdout, np.int8).reshape(len(codes), -1)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="A classifier in C for a microcontroller.")
    parser.add_argument("--model", default=demo.model_path(), help="a float .onnx, one input")
    parser.add_argument("--data", default=demo.calibration_path(), help="an .npz to calibrate on")
    parser.add_argument("--test", default=demo.test_path(), help="another, with labels")
    parser.add_argument("--samples", type=int, default=200, help="of the test")
    parser.add_argument("--output", type=Path, default=Path("out/microcontroller"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
