"""The steps of MQBench's documentation, one to one.

    python examples/from_mqbench.py

MQBench's name of each step stands in the comment beside it; docs/from-mqbench.md has the whole
table. What is different: the fake quantizers have the arithmetic of the target, and `deploy` writes
what the hardware runs.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import intact
from digits import accuracy, float_model, loaders  # your model and your data


def main() -> None:
    """Prepare, calibrate, train, deploy."""
    options = arguments()
    torch.manual_seed(0)
    train, test = loaders(options.samples)
    model = float_model(train)
    example, _ = next(iter(train))

    # prepare_by_platform(model, BackendType.Tensorrt); "lsq" is LearnableFakeQuantize
    module = intact.prepare(model, options.target, example, quantizers="lsq", batch_norm="live")

    # enable_calibration(model), then a calibration loop
    module.eval()
    intact.enable_calibration(module)
    with torch.no_grad():
        for image, _ in train:
            module(image)

    # enable_quantization(model), then the training loop
    intact.enable_quantization(module)
    quantized = accuracy(module, test)
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    for _ in range(options.epochs):
        for image, label in train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(image), label).backward()
            optimizer.step()

    # convert_deploy(model.eval(), BackendType.Tensorrt, input_shape_dict): the target and the
    # shapes are known by now
    result = intact.deploy(module.eval(), options.output)

    trained = accuracy(module, test)
    before = f"float {accuracy(model, test):.1f} %, quantized {quantized:.1f} %"
    print(f"accuracy: {before}, trained {trained:.1f} %")
    print("written:", ", ".join(sorted(result.exports)))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="MQBench's steps with intact.")
    parser.add_argument("--target", default="tensorrt", help="see: intact targets")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--samples", type=int, default=600, help="images to train on")
    parser.add_argument("--output", default="out/deployed", help="folder for the result")
    return parser.parse_args()


if __name__ == "__main__":
    main()
