"""Loads the tokenizer of a model: its file, one of the package `tokenizers`, or a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from intact._extras import missing
from intact.data.functions import describe
from intact.data.text.inputs import Ids
from intact.errors import DataError
from intact.graph.files.regular import read_file

FILE = "tokenizer.json"
_LARGEST_FILE = 1 << 28
_CHUNK = 1 << 18
"""Characters that are read at once of a text that is one: more at a line's end."""


class TextTokenizer:
    """Makes token ids of texts.

    Args:
        source: The path of a ``tokenizer.json``, or of the folder that has it; a
            ``tokenizers.Tokenizer``; or a function from a text to its token ids.

    Attributes:
        name: What it is called in messages.

    Raises:
        DataError: The file is missing or is no tokenizer.
        MissingExtraError: There is a file, and the package is not installed.
    """

    def __init__(self, source: Any) -> None:
        self.name = "the tokenizer"
        self._function: Callable[[str], Iterable[int]] | None = None
        self._tokenizer: Any = None
        if isinstance(source, str | Path):
            path = Path(source)
            path = path / FILE if path.is_dir() else path
            self.name = str(path)
            self._tokenizer = _read(path)
        elif hasattr(source, "to_str") and hasattr(source, "encode"):
            self._tokenizer = type(source).from_str(source.to_str())  # settings are changed below
        else:
            self._function = source
        if self._tokenizer is not None:  # files ask for the length of their training
            self._tokenizer.no_padding()
            self._tokenizer.no_truncation()
        self._begin: tuple[int, ...] | None = None

    def whole(self, texts: Iterable[str]) -> Iterator[Ids]:
        """Yield the tokens of texts that are one, without those that stand before and after it."""
        for text in texts:
            for part in _parts(text):
                yield self._encode(part, special=False)

    def lines(self, texts: Iterable[str], most: int) -> Iterator[Ids]:
        """Yield the tokens of each text, at most so many, with those before and after it."""
        if self._tokenizer is not None:
            # By the tokenizer, which keeps the token at the end; the cut below is for functions.
            self._tokenizer.enable_truncation(most)
        for text in texts:
            yield self._encode(text, special=True)[:most]

    @property
    def begin(self) -> tuple[int, ...]:
        """The tokens that stand before every text."""
        if self._begin is None:
            self._begin = ()
            if self._tokenizer is not None:
                whole, bare = (self._encode("a", special=each).tolist() for each in (True, False))
                starts = range(len(whole) - len(bare) + 1)
                # Told by an example: a file may put them there by any of several means.
                found = next((n for n in starts if whole[n : n + len(bare)] == bare), 0)
                self._begin = tuple(whole[:found])
        return self._begin

    def describe(self, number: int) -> str:
        """Name a token for a message."""
        token = None if self._tokenizer is None else self._tokenizer.id_to_token(number)
        return "a token" if token is None else f"the token {token!r}"

    def _encode(self, text: str, *, special: bool) -> Ids:
        try:
            if self._function is not None:
                return np.asarray(list(self._function(text)), np.int64)
            found = self._tokenizer.encode(text, add_special_tokens=special).ids
            return np.asarray(found, np.int64)
        except BaseException as error:  # Rust panics are no Exception
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            raise DataError(f"{self.name}: fails on the text ({describe(error)})") from error


def _read(path: Path) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise missing("text", ["tokenizers"], "text") from error
    try:
        content = read_file(path)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror or error})",
            remedy=f"give the {FILE} that comes with the model",
        ) from error
    if len(content) > _LARGEST_FILE:
        raise DataError(f"{path}: larger than {_LARGEST_FILE >> 20} MiB, no tokenizer is")
    try:
        return tokenizers.Tokenizer.from_buffer(content)
    except BaseException as error:  # Rust panics are no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise DataError(
            f"{path}: is no tokenizer of the package tokenizers ({describe(error)[:200]})",
            remedy=f"give the {FILE} that comes with the model",
        ) from error


def _parts(text: str) -> Iterator[str]:
    """Split a long text at ends of lines, where no token spans what is split."""
    start = 0
    while len(text) - start > _CHUNK:
        end = _end_of_line(text, start + _CHUNK)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _end_of_line(text: str, at: int) -> int:
    """Return where the next line begins that begins with more than space."""
    while True:
        at = text.find("\n", at) + 1
        if not at:
            return len(text)
        if at < len(text) and not text[at].isspace():
            return at


def join_rows(rows: Iterable[Ids]) -> Ids:
    """Join rows of tokens to one."""
    found: Sequence[Ids] = list(rows)
    return np.concatenate(found) if found else np.zeros(0, np.int64)
