"""Chooses the preprocessing for samples that a result is run on.

It is that of the calibration, unless the call gives another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from intact.data.preprocess import NORMALIZATIONS, Preprocess
from intact.data.sources import has_image_steps
from intact.errors import UsageError
from intact.recipe.declare import options_of
from intact.recipe.groups import ComparisonOptions
from intact.recipe.samples import ArrayStepOptions, ImageStepOptions
from intact.results.recipes import preprocess_of

if TYPE_CHECKING:
    from intact.recipe.groups import DataSource


def steps_for(options: ComparisonOptions, data: DataSource, kept: Preprocess) -> Preprocess:
    """Return the steps for some data.

    Args:
        options: As a call gave them.
        data: The samples.
        kept: The steps of the calibration, which hold where nothing else is given.

    Raises:
        UsageError: A step for images is given, and the data are arrays.
        DataError: The steps contradict each other.
    """
    if not has_image_steps(data, options.transform):
        refuse_image_steps(options)
    return preprocess_of(options, kept) or kept


def refuse_image_steps(options: ArrayStepOptions) -> None:
    """Refuse what arrays cannot be done: steps of images that are given one by one.

    Raises:
        UsageError: There is one.
    """
    for name in options_of(ImageStepOptions):
        if getattr(options, name, None) not in (None, False):
            raise UsageError(
                f"--{name.replace('_', '-')} is for a folder of images, the data is none",
                remedy="leave it out: arrays come as the model takes them (images come as a "
                "folder, a list or a dataset, without a transform)",
            )
    named: dict[str, Any] = dict(NORMALIZATIONS.get(options.normalize or "", {}))
    if named.get("order", "rgb") != "rgb":
        means = ",".join(map(str, options.mean or named["mean"]))
        raise UsageError(
            f"--normalize {options.normalize} brings the channels of images into the order "
            f"{named['order']}, and the data is no folder of images",
            remedy=f"give arrays in that order, and --mean {means} in its place",
        )
