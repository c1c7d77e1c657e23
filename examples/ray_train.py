"""The loop of `distributed.py` on Ray: on this machine, or on a cluster.

    python examples/ray_train.py --workers 2

Ray starts the workers, joins them, and gives each its device. The folders have to lie where all
machines see them. Needs: pip install "intact-quantizer[train]" 'ray[train]'
"""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path
from typing import Any

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device

import distributed


def main() -> None:
    """Quantize here, train there."""
    options = arguments()
    quantized, output = Path(options.quantized).resolve(), Path(options.output).resolve()
    distributed.quantize(str(quantized), options.samples)

    # The workers import what stands beside this file.
    ray.init(runtime_env={"env_vars": {"PYTHONPATH": import_path()}}, logging_level=logging.ERROR)
    trainer = TorchTrainer(
        work,
        train_loop_config={
            "quantized": str(quantized),
            "output": str(output),
            "epochs": options.epochs,
            "samples": options.samples,
        },
        scaling_config=ScalingConfig(num_workers=options.workers, use_gpu=options.gpu),
        run_config=RunConfig(storage_path=str(output.parent / "ray")),
    )
    trainer.fit()
    print("written:", output)


def work(config: dict[str, Any]) -> None:
    """Train in one of the workers."""
    distributed.train(**config, device=get_device())


def import_path() -> str:
    """Return where the workers find this folder, and what this process was told."""
    return os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Quantization-aware training on Ray.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gpu", action="store_true", help="a GPU for each worker")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--samples", type=int, default=600, help="images to train on")
    parser.add_argument("--quantized", default="out/quantized", help="folder to begin with")
    parser.add_argument("--output", default="out/ray-trained", help="folder for the result")
    return parser.parse_args()


if __name__ == "__main__":
    main()
