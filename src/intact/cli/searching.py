"""The command that searches: it parses, calls one public function and prints."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from intact.cli.options import (
    AsJson,
    Bits,
    Data,
    EndsIo,
    Expand,
    Formats,
    KeepFloat,
    Mask,
    MaxMemory,
    MaybeTarget,
    Method,
    MethodOption,
    ModelPath,
    Threads,
    WeightMethod,
    memory_from,
    method_options_from,
    overrides_from,
)
from intact.cli.preprocess_options import (
    CenterCrop,
    Focus,
    Labels,
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
from intact.cli.quantizing import Output
from intact.errors import SearchError, UsageError

_GOAL = "What is looked for"
_SEARCH = "How it is looked for"
_LOG = "The log"


def search(
    model: ModelPath,
    output: Output,
    data: Data = None,
    target: MaybeTarget = None,
    max_drop: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Keep the score within so much of the float model's (points, or the "
            "objective's unit), and take the cheapest strategy.",
            rich_help_panel=_GOAL,
        ),
    ] = None,
    min_score: Annotated[
        float | None,
        typer.Option(help="The lowest score to accept.", rich_help_panel=_GOAL),
    ] = None,
    max_cost: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|N%",
            help="The highest cost to accept, also as a part of what the widest integers cost; "
            "take the strategy of the highest score.",
            rich_help_panel=_GOAL,
        ),
    ] = None,
    minimize: Annotated[
        str,
        typer.Option(
            metavar="COST",
            help="bits, bytes, bitops, target (cost per operator and data type, from its file) or "
            "latency (measured in ONNX Runtime).",
            rich_help_panel=_GOAL,
        ),
    ] = "bits",
    objective: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|MODULE:FUNCTION",
            help="accuracy (needs labels), agreement, kl, sqnr, cosine, or a function of yours "
            "(docs/metrics.md); left out, accuracy where there are labels, else agreement.",
            rich_help_panel=_GOAL,
        ),
    ] = None,
    figure: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Which figure of a function that gives several; left out, the first.",
            rich_help_panel=_GOAL,
        ),
    ] = "",
    lower_is_better: Annotated[
        bool,
        typer.Option(
            "--lower-is-better",
            help="The function counts mistakes: --max-drop says how many more, --min-score how "
            "many at most.",
            rich_help_panel=_GOAL,
        ),
    ] = False,
    budget: Annotated[
        str,
        typer.Option(
            metavar="N trials|T min", help="200trials, 10min, 2h.", rich_help_panel=_SEARCH
        ),
    ] = "200trials",
    sampler: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="sensitivity, greedy, batched-greedy, annealing, random, tpe or nsga2.",
            rich_help_panel=_SEARCH,
        ),
    ] = "sensitivity",
    seed: Annotated[
        int, typer.Option(min=0, help="For samplers that draw.", rich_help_panel=_SEARCH)
    ] = 0,
    widths: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N...]",
            help="The bit-widths to choose from, e.g. 4,8; left out, 4 up to what the target has.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    allow_float: Annotated[
        bool,
        typer.Option(
            "--float/--no-float",
            help="Whether parts of the model may stay float.",
            rich_help_panel=_SEARCH,
        ),
    ] = True,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes side by side.", rich_help_panel=_SEARCH)
    ] = 1,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS|local",
            help="Let a Ray cluster do the trials, --workers of them at a time.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where every trial is written down; left out, OUTPUT.search.jsonl.",
            rich_help_panel=_LOG,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with that log.", rich_help_panel=_LOG)
    ] = False,
    replay: Annotated[
        Path | None,
        typer.Option(
            metavar="LOG",
            help="No search: realize a strategy of this log; needs no data.",
            rich_help_panel=_LOG,
        ),
    ] = None,
    trial: Annotated[
        str,
        typer.Option(
            metavar="best|N", help="Which one of the log to replay.", rich_help_panel=_LOG
        ),
    ] = "best",
    samples: Annotated[
        int, typer.Option(min=1, help="Calibrate and score on at most so many samples.")
    ] = 512,
    formats: Formats = None,
    io: EndsIo = "int8",
    method: Method = None,
    weight_method: WeightMethod = None,
    method_option: MethodOption = None,
    keep_float: KeepFloat = None,
    bits: Bits = None,
    expand: Expand = None,
    mask: Mask = None,
    max_memory: MaxMemory = "",
    threads: Threads = 0,
    as_json: AsJson = False,
    labels: Labels = None,
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
    """Search for the best strategy: which tensors are quantized, and with how many bits.

    Ctrl-C ends the search and keeps the best that was found.

    Example: intact search model.onnx -d calib.npz --max-drop 0.5 --minimize bytes -o out/
    """
    from intact import api
    from intact.cli import show, show_search

    start = time.perf_counter()
    image = image_steps_from(size, order, resize, shorter_side, center_crop, letterbox, pad, focus)
    prepared = preprocess_from(preprocess, mean, scale, image)
    if replay is not None:
        if resume:
            raise UsageError("--replay and --resume", remedy="give one of the two")
        result = api.replay_strategy(
            model,
            replay,
            trial=trial,
            target=target,
            output=output,
            formats=formats,
            io=io,
            expand=expand or (),
            preprocess=prepared,
        )
        show.result(result, seconds=time.perf_counter() - start, as_json=as_json)
        return
    if trial != "best":
        raise UsageError("--trial without --replay", remedy="name the log with --replay")
    if data is None:
        raise UsageError("there is nothing to search on", remedy="give samples with --data")
    try:
        with show_search.live(quiet=as_json, at_most=samples) as (progress, report):
            found = api.search_strategy(
                model,
                data,
                target=target,
                output=output,
                max_drop=max_drop,
                min_score=min_score,
                max_cost=max_cost,
                minimize=minimize,
                objective=objective,
                figure=figure,
                lower_is_better=lower_is_better,
                budget=budget,
                sampler=sampler,
                seed=seed,
                widths=widths_from(widths),
                allow_float=allow_float,
                log=log,
                resume=resume,
                workers=workers,
                cluster=cluster,
                labels=labels,
                formats=formats,
                io=io,
                method=method,
                weight_method=weight_method,
                method_options=method_options_from(method_option),
                overrides=overrides_from(keep_float, bits, None, None),
                expand=expand or (),
                preprocess=prepared,
                samples=samples,
                skip_bad=skip_bad,
                mask=mask,
                max_memory=memory_from(max_memory),
                threads=threads,
                progress=progress,
                report=report,
            )
    except KeyboardInterrupt as interrupt:
        if not interrupt.args:
            raise
        raise SearchError(str(interrupt)) from interrupt
    show_search.found(found, seconds=time.perf_counter() - start, as_json=as_json)


def widths_from(text: str | None) -> tuple[int, ...] | None:
    """Return the widths of ``--widths``; None where it is left out."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"--widths {text!r}", remedy="write widths with commas, for instance 4,8")
    return tuple(int(part) for part in parts)
