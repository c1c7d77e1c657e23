"""Quantization-aware training in several processes, one for each GPU or part of the CPU.

    torchrun --nproc-per-node 2 examples/distributed.py

The module is wrapped in DistributedDataParallel as any other. One process quantizes, all train on
their share of the images, one writes. `ray_train.py` runs the same loop on Ray.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import intact
from digits import accuracy, float_model, images, loaders  # your model and your data


def main() -> None:
    """Join the processes that torchrun started, and train with them."""
    options = arguments()
    has_gpus = torch.cuda.is_available()
    device = torch.device("cpu")
    if has_gpus:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if has_gpus else "gloo")
    try:
        if dist.get_rank() == 0:
            quantize(options.quantized, options.samples)
        dist.barrier()  # the others wait for the folder, and read it
        train(options.quantized, options.output, options.epochs, options.samples, device)
    finally:
        dist.destroy_process_group()


def quantize(folder: str, samples: int) -> None:
    """Leave a quantized model in a folder: what every process begins with."""
    torch.manual_seed(0)
    loader, _ = loaders(samples)
    intact.quantize(float_model(loader), loader, target="openvino", weight_bits=3, output=folder)


def train(quantized: str, output: str, epochs: int, samples: int, device: torch.device) -> None:
    """Train in this process together with the others; the first one writes.

    The processes are joined already: by torchrun and `main`, or by Ray.
    """
    module = intact.to_torch(quantized, batch_norm="live").to(device)
    ranks = [device.index] if device.type == "cuda" else None
    parallel = DistributedDataParallel(module, device_ids=ranks)
    learned, test = images(samples)
    share = DistributedSampler(learned, seed=0)
    loader = DataLoader(learned, 32, sampler=share, drop_last=True)
    before = accuracy(module, DataLoader(test, 100))

    optimizer = torch.optim.Adam(
        [
            {"params": module.weight_parameters(), "lr": 1e-3},
            {"params": module.scale_parameters(), "lr": 1e-4},
        ]
    )
    for epoch in range(epochs):
        share.set_epoch(epoch)  # another order in each epoch
        parallel.train()
        if epoch >= epochs * 3 // 4:
            module.freeze_batch_norms()
        for image, label in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(parallel(image.to(device)), label.to(device))
            loss.backward()  # gradients are averaged over the processes here
            optimizer.step()

    if dist.get_rank() == 0:
        intact.from_torch(parallel, quantized, output=output)
        after = accuracy(module, DataLoader(test, 100))
        count = f"{dist.get_world_size()} processes on {device.type}"
        print(f"{count}, accuracy: quantized {before:.1f} %, trained {after:.1f} %", flush=True)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Quantization-aware training with torchrun.")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--samples", type=int, default=600, help="images to train on")
    parser.add_argument("--quantized", default="out/quantized", help="folder to begin with")
    parser.add_argument("--output", default="out/distributed", help="folder for the result")
    return parser.parse_args()


if __name__ == "__main__":
    main()
