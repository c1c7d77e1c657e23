"""Makes samples of a text, or of tokens.

A model that scores the next token gets windows that follow one another in the whole text, each of
as many tokens. Every other model gets one line a sample, with the tokens that its tokenizer puts
before and after it.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from intact.data.arrays import is_array, plain
from intact.data.batching import Batch
from intact.data.images.reader import evenly_spread
from intact.data.items import Holds, OpenedSource
from intact.data.text.inputs import Ids, TokenInputs
from intact.data.text.tokenizer import FILE, TextTokenizer, join_rows
from intact.errors import DataError, UsageError
from intact.graph import Graph
from intact.graph.files.regular import open_file

WINDOW, LINE = 256, 128
"""Tokens of a window, and the most of a line, where nothing says another number."""
_LARGEST_TEXT = 1 << 26
_REMEMBERED = 4
_memory: dict[tuple[object, ...], list[Ids]] = {}
"""The rows of files that were read: a command opens its samples several times."""


class Rows(msgspec.Struct, frozen=True):
    """Rows of tokens, as batches of one.

    Attributes:
        inputs: The model's inputs.
        rows: The tokens of each sample.
        size: Length to pad them to; None leaves theirs.
    """

    inputs: TokenInputs
    rows: Sequence[Ids]
    size: int | None

    def __iter__(self) -> Iterator[Batch]:
        return (self.inputs.feed(row, size=self.size) for row in self.rows)


class TextSource(msgspec.Struct, frozen=True):
    """Text that was opened.

    Attributes:
        opened: Its samples.
        mask: The input that is 0 where samples are padded; None where they are not.
        no_batch: Inputs without an axis for samples.
    """

    opened: OpenedSource
    mask: str | None
    no_batch: tuple[str, ...]


def open_text(
    source: Any, graph: Graph, tokenizer: Any, context: int | None, limit: int | None
) -> TextSource:
    """Open text or tokens for a model.

    Args:
        source: The path of a text in UTF-8; texts; rows of token ids, or one long row.
        graph: The model.
        tokenizer: Any source of a `TextTokenizer`; None where the source has token ids.
        context: Tokens of a window, or the most of a line; None for a usual number.
        limit: At most so many samples, evenly spread.

    Raises:
        DataError: The model takes no tokens, has other inputs or fewer embeddings than the
            tokenizer has tokens; the text is missing, damaged or too short.
        UsageError: Text comes without a tokenizer, or the model fixes another context.
        MissingExtraError: The package tokenizers is not installed.
    """
    name = str(source) if isinstance(source, str | Path) else "data"
    inputs = TokenInputs.of(graph)
    if inputs is None:
        listed = ", ".join(str(value.name) for value in graph.inputs)
        raise DataError(
            f"{name}: text is for models that take token ids [batch, sequence], and this takes "
            f"{listed}",
            remedy="leave out --tokenizer and --context, and give arrays or images",
        )
    inputs.refuse_others(name)
    length = _context(inputs, context)
    rows = _rows(name, source, inputs, tokenizer, length)
    chosen = evenly_spread(rows, limit)
    pads = not inputs.logits and (context is not None or inputs.length is not None)
    what = "window" if inputs.logits else "line"
    items = Rows(inputs, chosen, length if pads else None)
    numbers = evenly_spread(range(len(rows)), limit)
    opened = OpenedSource(
        items, "the text", what, numbers=numbers, count=len(chosen), holds=Holds.BATCHES
    )
    is_padded = pads and any(len(row) < length for row in chosen)
    unbatched = tuple(n for n, spec in inputs.specs.items() if len(spec.shape) == 1)
    return TextSource(opened, inputs.mask if is_padded else None, unbatched)


def _context(inputs: TokenInputs, context: int | None) -> int:
    fixed = inputs.length
    if None not in (fixed, context) and fixed != context:
        raise UsageError(
            f"--context is {context}, and the model takes sequences of {fixed}",
            remedy=f"give {fixed}, or leave it out",
        )
    return fixed or context or (WINDOW if inputs.logits else LINE)


def _rows(
    name: str, source: Any, inputs: TokenInputs, tokenizer: Any, length: int
) -> Sequence[Ids]:
    """Return the tokens of each sample; those of files are remembered."""
    if not isinstance(source, str | Path):
        return _make_rows(name, source, inputs, tokenizer, length)
    if tokenizer is None:
        raise UsageError(
            f"{name}: is text, and nothing says how it becomes tokens",
            remedy=f"give --tokenizer {FILE}, the file that comes with the model",
        )
    lines = partial(_lines_of, Path(source))
    if not isinstance(tokenizer, str | Path):
        return _make_rows(name, lines(), inputs, tokenizer, length)
    # All that the rows depend on. `vocabulary` is there because unknown tokens are refused with the
    # rows.
    key = (_stamp(source), _stamp(tokenizer), inputs.logits, inputs.vocabulary, length)
    if key not in _memory:
        made = _make_rows(name, lines(), inputs, tokenizer, length)
        while len(_memory) >= _REMEMBERED:
            # The oldest: dictionaries keep the order of insertion.
            _memory.pop(next(iter(_memory)))
        _memory[key] = list(made)
    return _memory[key]


def _stamp(place: str | Path) -> tuple[object, ...]:
    """Return what changes when a file does."""
    path = Path(place)
    try:
        found = (path / FILE if path.is_dir() else path).stat()
    except (OSError, ValueError):  # reported when it is read
        return (str(place),)
    return str(path.absolute()), found.st_mtime_ns, found.st_size, found.st_ino


def _lines_of(path: Path) -> list[str]:
    try:
        with open_file(path) as file:
            # One byte more than allowed shows that a file is longer, whatever its size was before.
            content = file.read(_LARGEST_TEXT + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read ({reason})", remedy="check --data") from error
    if len(content) > _LARGEST_TEXT:
        size = _LARGEST_TEXT >> 20
        raise DataError(
            f"{path}: text of more than {size} MiB is read for nothing: no calibration needs it",
            remedy=f"give a part: head -c {size}M {path} > part.txt",
        )
    try:
        # Editors of Windows put a mark in front, which is no token.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: is no text in UTF-8 (byte {error.start})", remedy="convert it with iconv"
        ) from error
    # Not `splitlines`, which also cuts at form feeds and U+2028, within a line to all else.
    return list(io.StringIO(text, newline=""))


def _make_rows(
    name: str, source: Any, inputs: TokenInputs, tokenizer: Any, length: int
) -> Sequence[Ids]:
    """Make the tokens of each sample: windows or lines, of texts or of rows of tokens."""
    texts, given = _split_kinds(name, source)
    if texts and tokenizer is None:
        raise UsageError(
            f"{name}: is text, and nothing says how it becomes tokens",
            remedy=f"give --tokenizer {FILE}, the file that comes with the model",
        )
    reads = None if tokenizer is None else TextTokenizer(tokenizer)
    if inputs.logits:
        begin = reads.begin if texts and reads is not None else ()
        if texts and reads is not None:
            # As one text: a tokenizer joins or splits what stands at the ends of lines.
            whole = "".join(t if t.endswith(("\n", "\r")) else f"{t}\n" for t in texts)
            given = list(reads.whole([whole]))
        rows = _windows(name, join_rows(given), begin, length)
    elif texts and reads is not None:
        lines = [line.strip() for line in texts]
        rows = list(reads.lines([line for line in lines if line], length))
    else:
        # Cut at the end, where tokenizers cut too.
        rows = [row[:length] for row in given]
    rows = [row for row in rows if len(row)]
    if not rows:
        raise DataError(f"{name}: there is no text in it", remedy="give one sample a line")
    _refuse_unknown(name, rows, inputs, reads)
    return rows


def _split_kinds(name: str, source: Any) -> tuple[list[str], list[Ids]]:
    """Return what a source has, texts or rows of tokens."""
    if is_array(source) or (isinstance(source, list | tuple) and source and _is_id(source[0])):
        found = plain(source)
        source = [found] if found.ndim == 1 else list(found)
    texts: list[str] = []
    rows: list[Ids] = []
    for number, item in enumerate(source() if callable(source) else source):
        value = _content(item)
        if isinstance(value, str):
            texts.append(value)
            continue
        try:
            row = plain(value)
        except Exception:  # reported below, whatever it is
            row = np.zeros((0, 0))
        if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
            raise DataError(
                f"{name}: item {number} is of type {type(value).__name__}",
                remedy="give texts, or rows of token ids",
            )
        rows.append(row.astype(np.int64))
    if texts and rows:
        raise DataError(f"{name}: holds texts and token ids", remedy="give one of them")
    return texts, rows


def _content(item: Any) -> Any:
    """Return the text or the tokens of an item, as datasets have them."""
    if isinstance(item, Mapping):
        return next((item[key] for key in ("input_ids", "text", "sentence") if key in item), item)
    return item


def _is_id(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _windows(name: str, ids: Ids, begin: tuple[int, ...], length: int) -> list[Ids]:
    """Cut tokens into windows; each begins as the tokenizer begins a text."""
    # The window's own tokens follow those that the model was trained to see in front.
    fresh = length - len(begin)
    count = len(ids) // fresh if fresh > 0 else 0
    if not count:
        raise DataError(
            f"{name}: {len(ids)} tokens, and a window has {length}",
            remedy=f"give more text, or --context {max(len(ids), 2)}",
        )
    starts = itertools.islice(itertools.count(0, fresh), count)
    front = np.array(begin, np.int64)
    return [np.concatenate([front, ids[start : start + fresh]]) for start in starts]


def _refuse_unknown(
    name: str, rows: Iterable[Ids], inputs: TokenInputs, reads: TextTokenizer | None
) -> None:
    """Refuse tokens that the model has no embedding for."""
    vocabulary = inputs.vocabulary
    lowest = min(int(row.min()) for row in rows)
    largest = max(int(row.max()) for row in rows)
    if lowest < 0:
        raise DataError(f"{name}: the token id {lowest} is negative", remedy="give ids from 0")
    if vocabulary is None or largest < vocabulary:
        return
    where, token = (name, "a token") if reads is None else (reads.name, reads.describe(largest))
    raise DataError(
        f"{where}: {token} has the id {largest}, and the model has embeddings for 0 to "
        f"{vocabulary - 1}",
        remedy="give the tokenizer that comes with the model",
    )
