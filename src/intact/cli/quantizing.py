"""The commands that make a result: each parses, calls one public function and prints."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from intact.flow.result import Result

from intact.cli.options import (
    ActivationBits,
    AsJson,
    Bits,
    Data,
    EndsIo,
    Expand,
    Formats,
    Improve,
    KeepFloat,
    Mask,
    MaxMemory,
    MaybeTarget,
    Method,
    MethodOption,
    ModelPath,
    QuantizedPath,
    Scales,
    Targets,
    Threads,
    WeightBits,
    WeightMethod,
    memory_from,
    method_options_from,
    overrides_from,
    scales_from,
)
from intact.cli.preprocess_options import (
    CenterCrop,
    Focus,
    Letterbox,
    Mean,
    Order,
    Pad,
    PreprocessFile,
    Resize,
    Scale,
    ShorterSide,
    Size,
    SkipBad,
    image_steps_from,
    preprocess_from,
)

Output = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="FOLDER", help="Where the result goes.", show_default=False
    ),
]
CalibrationSamples = Annotated[
    int, typer.Option(min=1, help="Calibrate on at most so many samples.")
]


def quantize(
    model: ModelPath,
    output: Output,
    data: Data = None,
    target: Targets = None,
    formats: Formats = None,
    io: EndsIo = "int8",
    method: Method = None,
    weight_method: WeightMethod = None,
    method_option: MethodOption = None,
    scales: Scales = None,
    samples: CalibrationSamples = 512,
    mask: Mask = None,
    max_memory: MaxMemory = "",
    threads: Threads = 0,
    keep_float: KeepFloat = None,
    expand: Expand = None,
    improve: Improve = None,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place/--no-in-place",
            help="Whether operators hand the scale of their output back, on targets that do so.",
        ),
    ] = True,
    bits: Bits = None,
    weight_bits: WeightBits = None,
    activation_bits: ActivationBits = None,
    allow_empty: Annotated[
        bool,
        typer.Option("--allow-empty", help="Accept a model that the target leaves all in float."),
    ] = False,
    as_json: AsJson = False,
    mean: Mean = "",
    scale: Scale = "",
    preprocess: PreprocessFile = None,
    size: Size = "",
    order: Order = "",
    resize: Resize = "",
    shorter_side: ShorterSide = None,
    center_crop: CenterCrop = False,
    letterbox: Letterbox = "",
    pad: Pad = "",
    focus: Focus = False,
    skip_bad: SkipBad = False,
) -> None:
    """Quantize a float model for a target, or for several.

    Example: intact quantize model.onnx --data photos/ --output out/
    """
    from intact import api
    from intact.cli import show
    from intact.cli.printing import progress as shown

    start = time.perf_counter()
    image = image_steps_from(size, order, resize, shorter_side, center_crop, letterbox, pad, focus)
    make: Callable[..., Result | dict[str, Result]] = (
        functools.partial(api.quantize_for, targets=target)
        if target and len(target) > 1
        else functools.partial(api.quantize, target=target[0] if target else None)
    )
    with shown("calibrating", quiet=as_json, at_most=samples) as progress:
        made = make(
            model,
            data,
            output=output,
            formats=formats,
            io=io,
            method=method,
            weight_method=weight_method,
            method_options=method_options_from(method_option),
            scales=scales_from(scales),
            overrides=overrides_from(keep_float, bits, weight_bits, activation_bits),
            expand=expand or (),
            improve=improve or (),
            in_place=in_place,
            preprocess=preprocess_from(preprocess, mean, scale, image),
            samples=samples,
            skip_bad=skip_bad,
            mask=mask,
            max_memory=memory_from(max_memory),
            allow_empty=allow_empty,
            threads=threads,
            progress=progress,
        )
    show.results(made, seconds=time.perf_counter() - start, as_json=as_json)


def import_quantized(
    model: QuantizedPath,
    output: Output,
    data: Data = None,
    target: MaybeTarget = None,
    formats: Formats = None,
    io: EndsIo = "int8",
    method: Method = None,
    weight_method: WeightMethod = None,
    method_option: MethodOption = None,
    samples: CalibrationSamples = 512,
    mask: Mask = None,
    max_memory: MaxMemory = "",
    threads: Threads = 0,
    keep_float: KeepFloat = None,
    as_json: AsJson = False,
    mean: Mean = "",
    scale: Scale = "",
    preprocess: PreprocessFile = None,
    skip_bad: SkipBad = False,
) -> None:
    """Read a model that others quantized (ONNX, TFLite, Tengine); its scales stay as they are.

    With --data, what it left in float is quantized too where the target can.

    Example: intact import model.qdq.onnx --output out/
    """
    from intact import api
    from intact.cli import show
    from intact.cli.printing import progress as shown

    start = time.perf_counter()
    with shown("calibrating", quiet=as_json, at_most=samples) as progress:
        result = api.read_quantized(
            model,
            data,
            target=target,
            output=output,
            formats=formats,
            io=io,
            method=method,
            weight_method=weight_method,
            method_options=method_options_from(method_option),
            overrides=overrides_from(keep_float, None, None, None),
            preprocess=preprocess_from(preprocess, mean, scale),
            samples=samples,
            skip_bad=skip_bad,
            mask=mask,
            max_memory=memory_from(max_memory),
            threads=threads,
            progress=progress,
        )
    show.result(result, seconds=time.perf_counter() - start, as_json=as_json)
