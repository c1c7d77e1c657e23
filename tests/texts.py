"""Small language models with random weights, and a tokenizer of whole words for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from benchmarks.text_nets import (
    DecoderSizes,
    EncoderSizes,
    decoder,
    encoder,
    random_weights,
    save,
)

DECODER = DecoderSizes(
    vocabulary=50, hidden=32, layers=2, heads=2, key_heads=1, inner=24, longest=64
)
ENCODER = EncoderSizes(vocabulary=50, hidden=16, layers=2, heads=2, inner=24, longest=32)
BEGIN, END, PADDING, UNKNOWN = 0, 1, 2, 3
WORDS = tuple(f"w{number}" for number in range(4, 50))
"""The words of the tokenizer: their numbers are their tokens."""


def tiny_decoder(form: str = "exported") -> ir.Model:
    return decoder(DECODER, random_weights(DECODER), form)


def tiny_encoder(hidden: int = ENCODER.hidden) -> ir.Model:
    sizes = replace(ENCODER, hidden=hidden)
    return encoder(sizes, random_weights(sizes))


def saved(model: ir.Model, folder: Path) -> Path:
    return save(model, folder / "model.onnx")


def tiny_tokenizer(folder: Path, *, words: tuple[str, ...] = WORDS, special: bool = False) -> Path:
    """Write a tokenizer; with ``special`` it puts tokens before and after each text.

    Like published ones it has a length and a padding of its own.
    """
    tokenizers = pytest.importorskip("tokenizers")
    names = ("[BEGIN]", "[END]", "[PAD]", "[UNKNOWN]")
    vocabulary = {word: number for number, word in enumerate((*names, *words))}
    made: Any = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(vocabulary, unk_token=names[UNKNOWN])
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    if special:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single="[BEGIN] $A [END]", special_tokens=[("[BEGIN]", BEGIN), ("[END]", END)]
        )
    made.enable_truncation(3)
    made.enable_padding(length=7, pad_id=PADDING, pad_token=names[PADDING])
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def text_of(*tokens: int, per_line: int = 10) -> str:
    """Write words of these tokens, so many a line."""
    words = [f"w{token}" for token in tokens]
    lines = (words[at : at + per_line] for at in range(0, len(words), per_line))
    return "".join(f"{' '.join(line)}\n" for line in lines)
