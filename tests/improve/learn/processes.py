"""One of two processes that train together: ``python processes.py RANK FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from intact.improve.learn.module import QuantizedModule


def loss_of(module: nn.Module, x: Tensor) -> Tensor:
    """The mean over the batch, so that halves of a batch average to the whole."""
    loss: Tensor = module(x).square().mean()
    return loss


def main(rank: int, folder: Path) -> None:
    """Train for two steps on every second sample; keep gradients and parameters."""
    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    module = torch.load(folder / "module.pt", weights_only=False)
    assert isinstance(module, QuantizedModule)
    together = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    x = torch.load(folder / "x.pt")[rank::2]
    for step in range(2):
        optimizer.zero_grad()
        loss_of(together, x).backward()
        if step == 0:
            grads = {name: p.grad for name, p in module.named_parameters()}
            torch.save(grads, folder / f"grads{rank}.pt")
        optimizer.step()
    torch.save(module.state_dict(), folder / f"state{rank}.pt")
    distributed.barrier()  # who is first would take the store away from under the other
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
