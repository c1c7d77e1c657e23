"""Quantize an ONNX model with intact: MODEL SAMPLES.npy OUTPUT BITS METHOD.

Method ``default`` names nothing; others are presets. The counterpart of the other scripts here.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

# This folder holds scripts with names of packages.
sys.path.pop(0)

import intact


def main() -> None:
    """Read, quantize, write; print the seconds that took."""
    model_path, samples_path, output, bits, method = sys.argv[1:]
    if bits != "W8A8":
        sys.exit(f"this script has no {bits}")
    start = time.perf_counter()
    folder = Path(output).with_suffix("")
    preset = None if method == "default" else method
    result = intact.quantize(
        model_path, np.load(samples_path), target="onnxruntime", preset=preset, output=folder
    )
    (folder / result.deployed_file).rename(output)
    seconds = time.perf_counter() - start
    print(json.dumps({"version": intact.__version__, "seconds": seconds}))


if __name__ == "__main__":
    main()
