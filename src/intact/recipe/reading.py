"""The options of how text and sounds are read."""

from __future__ import annotations

from typing import Any, ClassVar

from intact.recipe.declare import Options, option
from intact.recipe.kinds import Given
from intact.recipe.numbers import Whole

TOKENIZER = Given(
    "the path of a tokenizer.json, a tokenizers.Tokenizer or a function",
    (),
    "FILE|FOLDER",
    text="the path of a tokenizer.json",
)


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
