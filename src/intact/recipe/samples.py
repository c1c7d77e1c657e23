"""Declares the options that say how samples are read, fed and prepared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from intact.recipe.declare import Options, option
from intact.recipe.kinds import File, Flag, Given, Instance, Name, Names, Text, path_or_preprocess
from intact.recipe.numbers import Count, Memory, Numbers, Pairs, Whole

if TYPE_CHECKING:
    from intact.data.preprocess import Preprocess

TOKENIZER = Given(
    "the path of a tokenizer.json, a tokenizers.Tokenizer or a function",
    (),
    "FILE|FOLDER",
    text="the path of a tokenizer.json",
)
TRANSFORM: Instance[Any] = Instance("a function of a sample that returns what the model takes")
IMAGE_SECTION = "Images (where the data is a folder)"


class ReadOptions(Options, kw_only=True):
    """How text and sounds are read."""

    section: ClassVar[str] = "Text and sounds (see docs/language-models.md)"

    tokenizer: Any = option(
        TOKENIZER,
        None,
        "The tokenizer.json that comes with the model, or its folder: the data is text, whose "
        "windows a decoder gets, and whose lines other models.",
        in_python="A tokenizers.Tokenizer or a function from a text to its token ids will do too; "
        "rows of token ids need none.",
    )
    context: int | None = option(
        Whole(least=2),
        None,
        "Tokens of a window of text, or the most of a line, which is then padded to it; left out, "
        "what the model fixes, else 256 and 128.",
    )
    sample_rate: int | None = option(
        Whole(least=1),
        None,
        "Samples a second that the model takes: .wav files with another rate are refused.",
    )


class SampleOptions(Options, kw_only=True):
    """How samples are read and observed."""

    section: ClassVar[str] = "Calibration"

    samples: int | None = option(
        Count(), 512, "Calibrate on at most so many samples; `all` for no limit."
    )
    mask: str | None = option(
        Text("the name of an array", "NAME"),
        None,
        "Input of the model, or array of the data, that is 0 where a sequence is padded: padding "
        "is not observed.",
    )
    max_memory: int | None = option(
        Memory(),
        None,
        "Memory for observed activations and for trials of scales, in bytes or e.g. 2G: fewer at "
        "once, more passes over the samples, same result. Left out, half of the free memory, or "
        "more where a tensor alone takes that, or samples can be read only once.",
    )


class FeedOptions(ReadOptions, kw_only=True):
    """How samples become what the model takes."""

    section: ClassVar[str] = "States and inputs without a batch"

    no_batch: Sequence[str] = option(
        Names("inputs", str, "INPUT"),
        (),
        "An input that has no axis for samples: its array is the same for all samples, or has a "
        "further first axis. Several may be given.",
    )
    state: Mapping[str, str] | None = option(
        Pairs(Text("a name"), "names", "stateN=state", "OUT=IN"),
        None,
        "An output that is fed back to an input for the next sample; the samples are a sequence. "
        "The first value comes from the data, or is zero. Several may be given.",
    )
    # Recorded though no file can hold it: the recipe then says that something is missing in it.
    transform: Callable[[Any], Any] | None = option(
        TRANSFORM,
        None,
        "Applied to each sample before it joins a batch: a function of an array, or of an image of "
        "Pillow, that returns an array or tensor. Give it again wherever such data is given.",
        flag="",
    )


class SkipOptions(Options, kw_only=True):
    """What is done with files that are no images."""

    section: ClassVar[str] = IMAGE_SECTION

    skip_bad: bool = option(
        Flag(), False, "Leave out images that cannot be read; the result lists them."
    )


class ArrayStepOptions(Options, kw_only=True):
    """What is done to samples before the model runs on them."""

    section: ClassVar[str] = "Preprocessing"

    normalize: str | None = option(
        Name("the name of a preprocessing"),
        None,
        "How the model wants pixels of 0 to 255, by name: imagenet, imagenet-caffe, 0..1 or -1..1. "
        "Sets mean, deviation and order of the channels; what is given beside it wins.",
    )
    mean: Sequence[float] = option(
        Numbers("a number, or one a channel", "M[,M...]"),
        (),
        "Subtracted from the samples: one number, or one a channel, in the unit of the data.",
    )
    std: Sequence[float] = option(
        Numbers("a number, or one a channel", "D[,D...]"),
        (),
        "Divided by after the mean is subtracted: one number, or one a channel.",
    )
    scale: Sequence[float] = option(
        Numbers("a number, or one a channel", "S[,S...]"),
        (),
        "Multiplied by instead of dividing by a deviation: one number, or one a channel.",
    )
    preprocess: Preprocess | str | Path | None = option(
        path_or_preprocess(),
        None,
        "The steps as a file; steps given beside it win.",
        in_python="A Preprocess will do too.",
    )


class ImageStepOptions(Options, kw_only=True):
    """What is done to images."""

    section: ClassVar[str] = IMAGE_SECTION

    size: Sequence[int] | None = option(
        Numbers("rows and columns, in pixels", "ROWS[,COLUMNS]", whole=True, square=True),
        None,
        "Size of the images in pixels; left out, the size of the model's input.",
    )
    order: str | None = option(
        Name("rgb or bgr", metavar="rgb|bgr"), None, "Order of the channels; left out, rgb."
    )
    resize: str | None = option(
        Name("the name of a filter"),
        None,
        "Filter for resizing: nearest, bilinear, bicubic, lanczos or box; left out, bilinear.",
    )
    shorter_side: int | None = option(
        Whole(), None, "Resize the shorter side to so many pixels, then crop the centre."
    )
    center_crop: bool = option(Flag(), False, "Crop the centre.")
    letterbox: Sequence[int] | None = option(
        Numbers("rows and columns, in pixels", "ROWS[,COLUMNS]", whole=True, square=True),
        None,
        "Resize in proportion until the image fits so many pixels, and pad the rest.",
    )
    side_rounding: str | None = option(
        Name("exact or truncated", metavar="exact|truncated"),
        None,
        "How sides become whole pixels with --letterbox or --shorter-side: exact, or cut off as "
        "Tengine's tool computes them; left out, exact.",
    )
    pad: Sequence[float] | None = option(
        Numbers("a number, or one a channel", "P[,P,P]"),
        None,
        "Pixel values beside a letterboxed image, fractions too; left out, 114.",
    )
    focus: bool = option(Flag(), False, "Space to depth as YOLOv5 has it.")


class LabelOptions(Options, kw_only=True):
    """Where labels come from."""

    section: ClassVar[str] = IMAGE_SECTION

    labels: str | Path | None = option(
        File("FILE.csv|FILE.json|FOLDER"),
        None,
        "Lines of file,label; for --metric detections COCO's json or a folder of YOLO's text "
        "files. Left out, sub-folders are the classes.",
    )


class DetectionOptions(Options, kw_only=True):
    """Which outputs of a detector hold what."""

    section: ClassVar[str] = "Detections"

    boxes: str | None = option(
        Name("the name of an output, perhaps with a form", metavar="OUTPUT[:FORM]"),
        None,
        "The output with boxes, alone or with scores in one; FORM is corners, centres, corners_yx "
        "or corner_size. Left out, it is found where that is clear.",
    )
    scores: str | None = option(
        Name("the name of an output", metavar="OUTPUT"), None, "The output with scores."
    )
    classes: str | None = option(
        Name("the name of an output", metavar="OUTPUT"),
        None,
        "The output with class numbers, where scores are not by class.",
    )
