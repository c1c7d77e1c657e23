"""The options that commands share, and what their text means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intact.errors import UsageError

if TYPE_CHECKING:
    from intact.plan import Overrides

DATA = "FOLDER|FILE|MODULE:FUNCTION"
"""What data may be, as the help writes it."""

ModelPath = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="An .onnx file, or a .tmfile of Tengine.", show_default=False
    ),
]
QuantizedPath = Annotated[
    Path,
    typer.Argument(metavar="MODEL", help="An .onnx, .tflite or .tmfile file.", show_default=False),
]
AnyModel = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER|MODEL",
        help="A folder that `intact quantize` wrote, or an .onnx, .tflite or .tmfile file.",
        show_default=False,
    ),
]
Folder = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER", help="A folder that `intact quantize` wrote.", show_default=False
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        "-t",
        metavar="NAME|FILE.toml",
        help="The hardware (see `intact targets`); left out, tengine for a .tmfile and onnxruntime "
        "else. May be repeated: the samples are run once, and the output folder gets a folder for "
        "each.",
    ),
]
MaybeTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        metavar="NAME|FILE.toml",
        help="The hardware; left out, what the file is for, or else onnxruntime.",
    ),
]
Formats = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        metavar="NAME",
        help="What to write: onnx_qdq, onnx_integer, openvino, tensorrt, tflite, c, ncnn, tengine, "
        "tvm or encodings; left out, the target's. Repeatable.",
    ),
]
EndsIo = Annotated[
    str,
    typer.Option(
        "--io",
        metavar="int8|float",
        help="What a .tflite, an onnx_integer or a tvm file takes and gives.",
    ),
]
_DATA = typer.Option(
    "--data",
    "-d",
    metavar=DATA,
    help="Samples: a folder of images, an .npz keyed by input name (and `labels`), an .npy, or a "
    "function that gives dicts.",
    show_default=False,
)
Data = Annotated[str | None, _DATA]
RequiredData = Annotated[str, _DATA]
Method = Annotated[
    str | None, typer.Option(metavar="NAME", help="Threshold method; the target's if left out.")
]
WeightMethod = Annotated[str | None, typer.Option(metavar="NAME", help="minmax or mse.")]
MethodOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE", help="Option of the method, e.g. percentile=99.9. Repeatable."
    ),
]
Scales = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE|none",
        help="Scales to take as they are: encodings (JSON), a table of Tengine or ncnn, "
        "TensorRT's calibration cache, MQBench's ranges; --data calibrates the rest. `none` leaves "
        "aside those that the model carries. Repeatable.",
    ),
]
Mask = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Input, or array of the data, that is 0 where a sequence is padded: what is padded "
        "does not count.",
    ),
]
MaxMemory = Annotated[
    str,
    typer.Option(
        metavar="SIZE", help="Memory for observed activations, e.g. 2G: more passes, same result."
    ),
]
Threads = Annotated[int, typer.Option(min=0, help="Threads of the runtime; 0 takes all cores.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
KeepFloat = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NODE|TYPE", help="Leave a node, or all of an op type, in float. Repeatable."
    ),
]
Improve = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Change weights to lose less: equalize (across layers, before calibrating), "
        "weight-scales (the scale of the best cosine, afterwards). Repeatable.",
    ),
]
Expand = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TYPE",
        help="Take an operator type apart into simpler ones that can be integers: "
        "LayerNormalization. Repeatable.",
    ),
]
Bits = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NODE=N",
        help="Bits of a node's weight (of its output if it has none); NODE.weight, NODE.input "
        "and NODE.output name one. Repeatable.",
    ),
]
WeightBits = Annotated[int | None, typer.Option(help="Bits of all weights.")]
ActivationBits = Annotated[int | None, typer.Option(help="Bits of all activations.")]


def overrides_from(
    keep_float: list[str] | None,
    bits: list[str] | None,
    weight_bits: int | None,
    activation_bits: int | None,
) -> Overrides:
    """Return what the overriding options ask for."""
    from intact.plan import Overrides

    widths = {}
    for item in bits or ():
        place, mark, number = item.rpartition("=")
        if not mark or not number.isdecimal():
            raise UsageError(f"--bits {item!r}", remedy="write NODE=N, for instance conv1=4")
        if place in widths:
            raise UsageError(f"--bits {item!r}: {place} is given twice", remedy="keep one")
        widths[place] = int(number)
    return Overrides(tuple(keep_float or ()), widths, weight_bits, activation_bits)


def method_options_from(items: list[str] | None) -> dict[str, float]:
    """Return the numbers of ``--method-option NAME=NUMBER``."""
    options = {}
    for item in items or ():
        name, mark, number = item.partition("=")
        try:
            if mark and name:
                options[name] = float(number)
                continue
        except ValueError:
            pass
        raise UsageError(
            f"--method-option {item!r}", remedy="write NAME=NUMBER, for instance percentile=99.9"
        )
    return options


def scales_from(items: list[str] | None) -> list[str] | None:
    """Return the tables that ``--scales`` names: None for the model's own, if it has any."""
    if not items:
        return None
    if "none" in items and len(items) > 1:
        raise UsageError("--scales none beside a table", remedy="leave `none` out")
    return [] if items == ["none"] else items


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def memory_from(text: str) -> int | None:
    """Return the bytes of ``--max-memory``, e.g. ``500M``; None for an empty text."""
    if not text:
        return None
    number, unit = (text[:-1], text[-1].upper()) if text[-1].isalpha() else (text, "")
    if unit not in _UNITS or not number.isdecimal() or not int(number):
        raise UsageError(f"--max-memory {text!r}", remedy="write a size, for instance 500M or 4G")
    return int(number) * _UNITS[unit]
