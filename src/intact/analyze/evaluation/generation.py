"""Lets two decoders write text, and compares their tokens and their speed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from intact._text import times
from intact.data.text.inputs import Ids, TokenInputs
from intact.engines.executor import Arrays, Run

PROMPTS, _PROMPT, _TOKENS = 4, 32, 32
"""How many texts are continued, how long they are at most, and by how many tokens."""


class GenerationFigures(msgspec.Struct, frozen=True):
    """What two models do along the float model's own text, (float, quantized).

    Attributes:
        tokens_per_second: Speed on one text, once its beginning is read.
        first_token_ms: Time to the first token.
        prompt: Tokens that are read for that.
        differing: Tokens that the quantized model chooses otherwise, each after the float model's
            own text so far.
        tokens: Number of tokens that were compared.
    """

    tokens_per_second: tuple[float, float]
    first_token_ms: tuple[float, float]
    prompt: int
    differing: int
    tokens: int

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Write the rows of a table, (name, float, quantized, change)."""
        before, after = self.tokens_per_second
        change = times(after / before, "faster", "slower")
        yield "tokens/s", f"{before:.1f}", f"{after:.1f}", change
        before, after = self.first_token_ms
        change = times(before / after, "faster", "slower")
        yield "first token", f"{before:.1f} ms", f"{after:.1f} ms", change

    def lines(self) -> Iterator[str]:
        """Write what stands below the table."""
        yield (
            f"along the float model's own text: {self.differing} of {self.tokens} tokens differ "
            f"(each after the same text; first token after {self.prompt})"
        )


class _Continuation(msgspec.Struct, frozen=True):
    tokens: Ids
    first_seconds: float
    seconds: Sequence[float]


def generate(
    in_float: Run, quantized: Run, inputs: TokenInputs, texts: Ids
) -> GenerationFigures | None:
    """Let both models continue the beginnings of texts.

    Args:
        in_float: Runs the float model.
        quantized: Runs the other.
        inputs: Inputs of both.
        texts: Tokens, ``[n, sequence]``; the first are taken.

    Returns:
        None where the models have no caches, or take one length only.
    """
    if not inputs.present or inputs.length is not None or not len(texts):
        return None
    length = max(1, min(_PROMPT, texts.shape[1] // 2))
    beginnings = texts[:PROMPTS, :length].astype(np.int64)
    both: list[tuple[_Continuation, _Continuation]] = []
    differing = 0
    for row in beginnings:
        # Each writes its own text for its times; tokens are compared along the float text below.
        want, have = (_continue_text(run, inputs, row) for run in (in_float, quantized))
        both.append((want, have))
        # After one token that differs two texts go apart, so each token is asked for behind the
        # float model's.
        whole = np.concatenate([row, want.tokens])
        scores = quantized(inputs.feed(whole[:-1]))[inputs.logits][0]
        differing += int((scores[length - 1 :].argmax(axis=-1) != want.tokens).sum())
    ends = [
        (
            # The median: single steps wait for other programs.
            1 / statistics.median(step for each in written for step in each.seconds),
            1e3 * statistics.median(each.first_seconds for each in written),
        )
        for written in zip(*both, strict=True)
    ]
    return GenerationFigures(
        tokens_per_second=(ends[0][0], ends[1][0]),
        first_token_ms=(ends[0][1], ends[1][1]),
        prompt=length,
        differing=differing,
        tokens=len(beginnings) * _TOKENS,
    )


def _continue_text(run: Run, inputs: TokenInputs, row: Ids) -> _Continuation:
    """Continue a text by the most probable tokens, one after the other."""
    began = time.perf_counter()
    outputs = run(inputs.feed(row))
    tokens = [_best(outputs, inputs)]
    first = time.perf_counter() - began
    seconds = []
    while len(tokens) < _TOKENS:
        began = time.perf_counter()
        feed = inputs.feed(np.array(tokens[-1:]), past=len(row) + len(tokens) - 1)
        # As a runtime of language models does it: nothing is computed twice.
        caches = {name: outputs[output] for name, output in inputs.present.items()}
        outputs = run({**feed, **caches})
        tokens.append(_best(outputs, inputs))
        seconds.append(time.perf_counter() - began)
    return _Continuation(np.array(tokens, np.int64), first, seconds)


def _best(outputs: Arrays, inputs: TokenInputs) -> int:
    return int(outputs[inputs.logits][0, -1].argmax())
