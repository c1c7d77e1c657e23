"""The options that say what happens to data before the model sees it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intact.errors import UsageError

if TYPE_CHECKING:
    from intact.data.preprocess import Preprocess

Mean = Annotated[
    str,
    typer.Option(
        metavar="M[,M...]", help="Subtracted from the samples, one number or one a channel."
    ),
]
Scale = Annotated[str, typer.Option(metavar="S[,S...]", help="Multiplied after that.")]
PreprocessFile = Annotated[
    Path | None,
    typer.Option(
        "--preprocess",
        metavar="FILE.toml",
        help="These options as a file; options given beside it win.",
    ),
]
_PANEL = "Images (where --data is a folder)"
Size = Annotated[
    str,
    typer.Option(
        metavar="ROWS[,COLUMNS]",
        help="Size of the images; the model's input size if left out.",
        rich_help_panel=_PANEL,
    ),
]
Order = Annotated[
    str, typer.Option(metavar="rgb|bgr", help="Order of the channels.", rich_help_panel=_PANEL)
]
Resize = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="nearest, bilinear, bicubic, lanczos or box.",
        rich_help_panel=_PANEL,
    ),
]
ShorterSide = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Resize the shorter side to N, crop the centre.", rich_help_panel=_PANEL
    ),
]
CenterCrop = Annotated[
    bool, typer.Option("--center-crop", help="Crop the centre.", rich_help_panel=_PANEL)
]
Letterbox = Annotated[
    str,
    typer.Option(
        metavar="ROWS[,COLUMNS]",
        help="Resize in proportion until it fits, pad the rest.",
        rich_help_panel=_PANEL,
    ),
]
Pad = Annotated[
    str,
    typer.Option(
        metavar="P[,P,P]", help="Pixels beside a letterboxed image.", rich_help_panel=_PANEL
    ),
]
Focus = Annotated[
    bool, typer.Option("--focus", help="YOLOv5's space to depth.", rich_help_panel=_PANEL)
]
SkipBad = Annotated[
    bool,
    typer.Option(
        "--skip-bad", help="Leave out images that cannot be read.", rich_help_panel=_PANEL
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.csv",
        help="Lines of file,label; if left out, sub-folders are the classes.",
        rich_help_panel=_PANEL,
    ),
]


def preprocess_from(
    file: Path | None,
    mean: str,
    scale: str,
    image: Mapping[str, object] | None = None,
    *,
    kept: Preprocess | None = None,
) -> Preprocess | None:
    """Return what file and options say together; None where they say nothing.

    Args:
        file: A preprocessing file; the options win over it.
        mean: Text of ``--mean``.
        scale: Text of ``--scale``.
        image: Values of the image options by their fields' names (see ``image_steps_from``).
        kept: Stands where there is no file: what calibration used.
    """
    changes: dict[str, object] = dict(image or {})
    if mean:
        changes["mean"] = numbers("--mean", mean, float)
    if scale:
        changes["scale"] = numbers("--scale", scale, float)
    if file is None and not changes:
        return None
    from intact.data.preprocess import Preprocess, preprocess_with, read_preprocess

    base = read_preprocess(file) if file is not None else kept or Preprocess()
    return preprocess_with(base, changes)


def image_steps_from(
    size: str,
    order: str,
    resize: str,
    shorter_side: int | None,
    center_crop: bool,
    letterbox: str,
    pad: str,
    focus: bool,
) -> dict[str, object]:
    """Return the fields that the image options give; what is left out does not appear."""
    given: dict[str, object] = {
        "size": numbers("--size", _square(size), int),
        "order": order,
        "resize": resize,
        "shorter_side": shorter_side,
        "center_crop": center_crop,
        "letterbox": numbers("--letterbox", _square(letterbox), int),
        "pad": numbers("--pad", pad, int),
        "focus": focus,
    }
    # `is`, because 0 equals False, and is no number of pixels, which the steps then say.
    return {
        name: value
        for name, value in given.items()
        if value is not False and value not in ("", (), None)
    }


def _square(text: str) -> str:
    return f"{text},{text}" if text and "," not in text else text


def numbers(option: str, text: str, kind: type[int] | type[float]) -> tuple[float, ...]:
    """Return the numbers of a text ``1,2,3``; none for an empty one."""
    try:
        return tuple(kind(part) for part in text.split(",")) if text else ()
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise UsageError(f"{option} {text!r}", remedy=f"give {what} separated by commas") from None
