"""Fills the inputs of language models from a row of tokens: ids, mask, positions, caches.

Names are those that exporters of language models give; a cache is told by its shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.data.batching import Batch
from intact.data.signature import InputSpec, input_specs, shown_sizes
from intact.errors import DataError
from intact.graph import Graph
from intact.ops.operators import (
    Cast,
    Clip,
    DequantizeLinear,
    Flatten,
    Gather,
    Identity,
    Reshape,
    Squeeze,
    Unsqueeze,
    is_a,
    types_of,
)

Ids = npt.NDArray[np.int64]


class Part(Enum):
    """What an input is for."""

    TOKENS = "token ids, [batch, sequence]"
    MASK = "1 for tokens and 0 for padding, [batch, past and sequence]"
    POSITIONS = "numbers of the tokens, [batch, sequence]"
    NUMBERS = "numbers of the tokens, [sequence]"
    SEGMENTS = "which of two texts a token is of, [batch, sequence]"
    CACHE = "keys or values of earlier tokens, [batch, heads, past, size]"


_NAMES = {
    **dict.fromkeys(("input_ids", "token_ids", "tokens", "ids"), Part.TOKENS),
    **dict.fromkeys(("attention_mask", "input_mask", "padding_mask", "mask"), Part.MASK),
    **dict.fromkeys(("position_ids", "positions"), Part.POSITIONS),
    **dict.fromkeys(("token_type_ids", "segment_ids", "token_types"), Part.SEGMENTS),
    "cache_position": Part.NUMBERS,
}
_CACHES = ("past", "cache")
"""What the name of a cache has."""
_CODES = (np.dtype(np.int8), np.dtype(np.uint8))
"""Types of caches that hold codes."""
_OF_WINDOWS = (Part.MASK, Part.POSITIONS, Part.NUMBERS, Part.SEGMENTS)
"""What follows from the length of a window that is full."""
_RANKS = {Part.NUMBERS: 1}
_PASSED_ON = types_of(Cast, Clip, Flatten, Identity, Reshape, Squeeze, Unsqueeze)
"""What may stand between token ids and the table in which they are looked up."""


class TokenInputs(msgspec.Struct, frozen=True):
    """The inputs of a model that takes token ids.

    Attributes:
        parts: What each input is for; None where nothing tells.
        specs: Their shapes and types.
        vocabulary: Rows of the table of embeddings; None where it is not found.
        logits: The first output, if it scores all tokens of the vocabulary at each position.
        present: Outputs by the caches that they are fed to, of a model that has caches.
    """

    parts: Mapping[str, Part | None]
    specs: Mapping[str, InputSpec]
    vocabulary: int | None
    logits: str
    present: Mapping[str, str]

    @staticmethod
    def of(graph: Graph) -> TokenInputs | None:
        """Tell the inputs of a model apart; None where none takes token ids."""
        specs = input_specs(graph)
        parts = {name: _part(name, spec) for name, spec in specs.items()}
        # A model of one input with any name is not taken for a language model: indices of other
        # things look the same.
        if Part.TOKENS not in parts.values():
            unknown = [name for name, part in parts.items() if part is None]
            if len(unknown) != 1 or not _is_row(specs[unknown[0]]) or len(specs) == 1:
                return None
            parts[unknown[0]] = Part.TOKENS
        tokens = next(name for name, part in parts.items() if part is Part.TOKENS)
        rows = _rows_of_table(graph, tokens)
        return TokenInputs(parts, specs, rows, _logits(graph, rows), _present(graph, parts))

    @property
    def tokens(self) -> str:
        """The name of the input that takes token ids."""
        return self._first(Part.TOKENS) or ""

    @property
    def mask(self) -> str | None:
        """The name of the input that tells tokens from padding."""
        return self._first(Part.MASK)

    @property
    def length(self) -> int | None:
        """How many tokens the model takes, where it fixes that."""
        return self.specs[self.tokens].shape[1]

    def _first(self, part: Part) -> str | None:
        return next((name for name, each in self.parts.items() if each is part), None)

    def refuse_others(self, source: str) -> None:
        """Refuse inputs that text does not fill in.

        Raises:
            DataError: There is one, or a cache cannot be empty.
        """
        for name, part in self.parts.items():
            shape = self.specs[name].shape
            if part is None:
                raise DataError(
                    f"{source}: input {name!r} {shown_sizes(shape)} is none that text fills in "
                    "(token ids, masks, positions, segments, caches)",
                    remedy="give arrays of all inputs, or fix one number with --input-value",
                )
            # An empty cache is how a text begins; a fixed length of the past has no such beginning.
            if part is Part.CACHE and _open_axis(shape) is None:
                raise DataError(
                    f"{source}: input {name!r} has the shape {shown_sizes(shape)}, and an empty "
                    "cache [batch, heads, 0, size] does not fit",
                    remedy="leave one axis behind the first open in the model, or give arrays of "
                    "all inputs",
                )

    def constant(self, *, numbers: bool) -> Batch:
        """Return inputs that hold the same in all windows, of a model that scores the next token.

        That are empty caches, in which nothing can be; and masks and numbers of tokens, as windows
        are full.

        Args:
            numbers: Whether to return masks and numbers of tokens too.

        Returns:
            By name, for a batch of one; nothing where the model leaves sizes open.
        """
        if not self.logits or self.length is None:
            return {}
        alike = {Part.CACHE, *(_OF_WINDOWS if numbers else ())}
        made = self.feed(np.zeros(self.length, np.int64))
        return {
            name: array
            for name, array in made.items()
            if self.parts[name] in alike and not (self.parts[name] is Part.CACHE and array.size)
        }

    def feed(self, ids: Ids, *, size: int | None = None, past: int = 0) -> Batch:
        """Make the inputs for a row of tokens; nothing is in its caches.

        Args:
            ids: The tokens, ``[n]``.
            size: Length to pad them to; None leaves theirs.
            past: Tokens before these; their caches are for the caller to put in.
        """
        return self.feeds(ids[None], size=size, past=past)

    def feeds(self, ids: Ids, *, size: int | None = None, past: int = 0) -> Batch:
        """Make the inputs for rows of tokens, ``[batch, n]``, as `feed` does."""
        batch, count = ids.shape
        size = size or count
        # The mask is of past and present, all other rows are of the present alone.
        real = np.arange(past + size) < past + count
        numbers = np.arange(past, past + size)
        made = {
            # Padded behind, where a causal model's tokens do not see it.
            Part.TOKENS: np.pad(ids, ((0, 0), (0, size - count))),
            Part.MASK: np.tile(real, (batch, 1)),
            Part.POSITIONS: np.tile(numbers, (batch, 1)),
            Part.NUMBERS: numbers,
            Part.SEGMENTS: np.zeros((batch, size)),
        }
        feeds = {}
        for name, part in self.parts.items():
            spec = self.specs[name]
            if part is Part.CACHE:
                sizes = [0 if n is None else n for n in spec.shape[1:]]
                feeds[name] = np.zeros((batch, *sizes), spec.dtype)
            elif part is not None:
                feeds[name] = made[part].astype(spec.dtype)
        return feeds


def _part(name: str, spec: InputSpec) -> Part | None:
    part = _NAMES.get(name.lower())
    # By name alone first; a cache has too many names to list and is told by its shape as well.
    if part is not None:
        return part if len(spec.shape) == _RANKS.get(part, 2) else None
    is_cache = any(each in name.lower() for each in _CACHES)
    holds = spec.dtype.kind == "f" or spec.dtype in _CODES
    return Part.CACHE if is_cache and holds and len(spec.shape) > 2 else None


def _is_row(spec: InputSpec) -> bool:
    return len(spec.shape) == 2 and spec.dtype.kind == "i"


def _open_axis(shape: tuple[int | None, ...]) -> int | None:
    """Return the axis along which a cache grows; None if that is not one behind the first."""
    free = [axis for axis, size in enumerate(shape) if size is None and axis]
    return free[0] if len(free) == 1 and shape[0] in (None, 1) else None


def _rows_of_table(graph: Graph, tokens: str) -> int | None:
    """Find the table in which tokens are looked up, and count its rows."""
    # A tree: these nodes are reached by their first input alone, so no value is met twice.
    waiting = [value for value in graph.inputs if value.name == tokens]
    while waiting:
        value = waiting.pop()
        for node, slot in value.uses():
            if is_a(node, Gather) and slot == 1:
                rows = _rows(node.inputs[0])
                if rows is not None:
                    return rows
            elif node.op_type in _PASSED_ON and slot == 0:
                waiting.append(node.outputs[0])
    return None


def _rows(table: ir.Value | None) -> int | None:
    """Count the rows of a constant of rank 2, whatever its type; it may be dequantized."""
    producer = None if table is None else table.producer()
    # Tables of 4 or 8 bits, and of half floats.
    if producer is not None and producer.op_type in (Cast.name, DequantizeLinear.name):
        table = producer.inputs[0]
    constant = None if table is None else table.const_value
    shape = () if constant is None else constant.shape.numpy()
    return int(shape[0]) if len(shape) == 2 else None


def _logits(graph: Graph, vocabulary: int | None) -> str:
    """Return the first output if it is ``[batch, sequence, vocabulary]``, else nothing."""
    output = graph.outputs[0]
    sizes = () if output.shape is None else tuple(output.shape)
    if len(sizes) != 3 or output.name is None:
        return ""
    last = sizes[2]
    is_named = "logits" in output.name.lower()
    # Embeddings of any size have rank 3 as well; only the vocabulary tells scores from them.
    is_whole = last == vocabulary if vocabulary is not None else is_named
    return output.name if is_whole or (is_named and not isinstance(last, int)) else ""


def _present(graph: Graph, parts: Mapping[str, Part | None]) -> dict[str, str]:
    """Return the outputs that caches become, in their order; none if they are not as many."""
    caches = [name for name, part in parts.items() if part is Part.CACHE]
    outputs = [str(value.name) for value in graph.outputs if _is_cache_output(str(value.name))]
    return dict(zip(caches, outputs, strict=True)) if len(caches) == len(outputs) else {}


def _is_cache_output(name: str) -> bool:
    return any(each in name.lower() for each in ("present", *_CACHES))
