"""Hardware that intact does not know: describe it, see its bits, find the fault of a simulation.

    python examples/own_accelerator.py
    python examples/own_accelerator.py --target my.toml

`accelerator.toml` describes a made-up accelerator: types, roundings, the output stage, what runs
where. The integer engine computes what it would, and gives test vectors for a simulation of the
hardware. Such a simulation is played here by a few lines of NumPy, once right and once with an
output stage that forgets to round, and `verify` names the layer. The same on the command line:

    intact quantize model.onnx --data calib.npz --target accelerator.toml -o out/accelerator
    intact run out/accelerator --integer --all --data test.npz --output vectors.npz
    intact verify out/accelerator --data test.npz --observed dump.npz
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt

import intact
from intact import demo
from intact.plan import QuantizedGraph

TARGET = Path(__file__).with_name("accelerator.toml")
MULTIPLIER_BITS = 31  # as the output stage has them


def main() -> None:
    """Inspect, quantize, write vectors, play a simulation, find its fault."""
    options = arguments()
    model = demo.model_path()

    # 1. What will run on the array and what on the CPU, and why. This needs no data.
    inspection = intact.inspect(model, target=options.target)
    print(inspection)
    for node in inspection.nodes:
        if not node.quantized:
            print(f"in float: {node.node}, {node.reason}")

    # 2. The model for it, against the float model.
    result = intact.quantize(
        model, demo.calibration_path(), target=options.target, output=options.output
    )
    print(repr(intact.evaluate(result, demo.test_path())))

    # 3. Test vectors: the codes of every tensor, by the model's names and with its axes.
    with np.load(demo.test_path()) as file:
        samples = {"image": file["image"][: options.samples]}
    vectors = intact.execute(result, samples, observe=None).tensors
    np.savez(options.output.parent / "vectors.npz", allow_pickle=False, **vectors)
    print(f"vectors.npz: {len(vectors)} tensors of {options.samples} samples")

    # 4. A simulation of the hardware computes the last layer from the codes before it.
    for rounds in (True, False):
        logits = dense(result.plan, vectors["features"], rounds=rounds)
        found = intact.verify(result, samples, observed={**vectors, "logits": logits})
        wrong = {layer.tensor: layer.mismatches for layer in found.layers if layer.mismatches}
        print(f"the simulation {'rounds' if rounds else 'truncates'}: differing codes {wrong or 0}")


def dense(
    plan: QuantizedGraph, codes: npt.NDArray[np.uint8], *, rounds: bool
) -> npt.NDArray[np.uint8]:
    """Compute the model's dense layer as the data sheet says.

    Args:
        plan: Has the scales and zero points.
        codes: Of the layer's input, [N, inputs].
        rounds: Whether the output stage adds half a step before it shifts.

    Returns:
        Codes of the layer's output, [N, outputs].
    """
    node = plan.graph.nodes[-1]
    x, w, b = (plan.input_config(node, slot) for slot in range(3))
    y = plan.output_config(node)
    constants = [np.asarray(plan.graph.constant(node.inputs[slot])) for slot in (1, 2)]
    weight, bias = w.quantize(constants[0]), b.quantize(constants[1])
    of_x, of_w, of_y = (np.asarray(end.scale, np.float64) for end in (x, w, y))

    sums = (codes.astype(np.int64) - np.asarray(x.offset)) @ weight.T.astype(np.int64) + bias
    fraction, exponent = np.frexp(of_x * of_w / of_y)
    multiplier = np.rint(np.ldexp(fraction, MULTIPLIER_BITS)).astype(np.int64)
    shift = MULTIPLIER_BITS - exponent.astype(np.int64)
    half = 1 << (shift - 1) if rounds else 0
    steps = ((sums * multiplier + half) >> shift) + np.asarray(y.offset)
    return np.asarray(np.clip(steps, y.quant_min, y.quant_max), np.uint8)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Quantize for hardware of one's own.")
    parser.add_argument("--target", type=Path, default=TARGET, help="its description")
    parser.add_argument("--samples", type=int, default=50, help="of the test vectors")
    parser.add_argument("--output", type=Path, default=Path("out/accelerator"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
