"""Quantization-aware training of a PyTorch model, in a training loop of one's own, for OpenVINO.

    python examples/qat_to_openvino.py

A float module is quantized with a few of its images. What comes back is a module again, with fake
quantizers where OpenVINO will round, so that training sees what deployment does. What it learned is
written as a model of OpenVINO, which computes the same integers: `intact.verify` counts.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import intact
from digits import accuracy, float_model, loaders  # your model and your data


def main() -> None:
    """Quantize, train, write, verify."""
    options = arguments()
    torch.manual_seed(0)
    train, test = loaders(options.samples)
    model = float_model(train)

    # 1. Quantize. Any DataLoader does for calibration; labels in it are not looked at.
    #    Weights of 3 bits lose something, for training to win back. Leave `weight_bits` out for the
    #    target's own 8 bits, and take another `target` for other hardware (`intact targets`).
    result = intact.quantize(model, train, target="openvino", weight_bits=3)

    # 2. The plan as a module. BatchNormalizations were folded into the convolutions; "live" lets
    #    them follow the batches again while training (docs/training.md has the other strategies).
    module = intact.to_torch(result, batch_norm="live")
    quantized = accuracy(module, test)

    # 3. Train as ever. An update of Adam moves a number by about the rate: scales are small.
    optimizer = torch.optim.Adam(
        [
            {"params": module.weight_parameters(), "lr": 1e-3},
            {"params": module.scale_parameters(), "lr": 1e-4},
        ]
    )
    for epoch in range(options.epochs):
        module.train()
        if epoch >= options.epochs * 3 // 4:
            module.freeze_batch_norms()  # the last epochs train exactly what is deployed
        for image, label in train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(image), label).backward()
            optimizer.step()
    trained = accuracy(module, test)

    # 4. Write it: model.xml and model.bin for OpenVINO, model.fq.onnx, and plan.json with every
    #    scale. The folder is a result like any other for `intact evaluate`, `export`, `verify` ...
    intact.from_torch(module, result, output=options.output)

    before = f"float {accuracy(model, test):.1f} %, quantized {quantized:.1f} %"
    print(f"accuracy: {before}, trained {trained:.1f} %")

    # 5. The model in OpenVINO against the integers that were planned, layer by layer.
    found = intact.verify(options.output, test, samples=200)
    print(found)
    if found.top1 is not None:
        print(f"accuracy in OpenVINO: {found.top1[0]:.1f} %")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Quantization-aware training for OpenVINO.")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--samples", type=int, default=600, help="images to train on")
    parser.add_argument("--output", default="out/trained", help="folder for the result")
    return parser.parse_args()


if __name__ == "__main__":
    main()
