"""Changes images without changing what they show: more to train on than there is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional

from intact.errors import UsageError, nearest

_REACH = 8
"""Images are shifted by up to an eighth of their sides."""


def _flip(images: Tensor, random: torch.Generator) -> Tensor:
    """Mirror about every second image, left to right."""
    # Drawn on the CPU, so that every device gets the same changes.
    chosen = torch.rand(len(images), 1, 1, 1, generator=random) < 0.5
    return torch.where(chosen.to(images.device), images.flip(-1), images)


def _shift(images: Tensor, random: torch.Generator) -> Tensor:
    """Shift each image by its own number of rows and columns; the rest is 0."""
    height, width = images.shape[-2:]
    rows, columns = height // _REACH, width // _REACH
    wide = functional.pad(images, (columns, columns, rows, rows))
    top = torch.randint(0, 2 * rows + 1, (len(images),), generator=random).tolist()
    left = torch.randint(0, 2 * columns + 1, (len(images),), generator=random).tolist()
    return torch.stack(
        [
            image[..., y : y + height, x : x + width]
            for image, y, x in zip(wide, top, left, strict=True)
        ]
    )


AUGMENTATIONS: Mapping[str, Callable[[Tensor, torch.Generator], Tensor]] = MappingProxyType(
    {"flip": _flip, "shift": _shift}
)
"""By name: from images ``[N, C, H, W]`` and a source of random numbers to images."""

_IMAGE_RANK = 4


def refuse_unknown(names: Sequence[str]) -> None:
    """Check names of changes.

    Raises:
        UsageError: One is unknown.
    """
    for each in names:
        if each not in AUGMENTATIONS:
            raise UsageError(f"--augment {each!r}", remedy=nearest(each, AUGMENTATIONS))


def augment_images(
    inputs: Mapping[str, Tensor], names: Sequence[str], random: torch.Generator
) -> dict[str, Tensor]:
    """Change the images of a batch.

    Args:
        inputs: The inputs by name; those of four axes are images with their channels second.
        names: Names of the changes, in their order.
        random: The source of random numbers.
    """
    found = dict(inputs)
    for each in names:
        for name, tensor in found.items():
            if tensor.ndim == _IMAGE_RANK and tensor.is_floating_point():
                found[name] = AUGMENTATIONS[each](tensor, random)
    return found
