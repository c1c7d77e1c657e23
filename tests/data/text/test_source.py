"""Text and tokens become what language models take."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from intact.data.batching import Batch
from intact.data.sources import Reading, open_samples
from intact.data.text import source as text_source
from intact.errors import DataError, IntactError, MissingExtraError, UsageError
from intact.graph import Graph, normalize
from tests.models import ModelBuilder
from tests.texts import (
    BEGIN,
    DECODER,
    END,
    UNKNOWN,
    WORDS,
    text_of,
    tiny_decoder,
    tiny_encoder,
    tiny_tokenizer,
)

CORPUS = [4 + 7 * number % 46 for number in range(40)]


@pytest.fixture(scope="module")
def decoder() -> Graph:
    return normalize(tiny_decoder())


@pytest.fixture(scope="module")
def encoder() -> Graph:
    return normalize(tiny_encoder())


def read(source: Any, graph: Graph, limit: int | None = None, **how: Any) -> list[Batch]:
    samples = open_samples(source, graph, limit=limit, reading=Reading(**how))
    batches = list(samples.batches(1))
    assert samples.count == len(batches)
    return [batch for batch, _ in batches]


def ids(batches: list[Batch]) -> list[list[int]]:
    return [batch["input_ids"][0].tolist() for batch in batches]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text(text_of(*CORPUS), encoding="utf-8")
    return path


def test_windows_follow_one_another_and_find_empty_caches(
    decoder: Graph, corpus: Path, tmp_path: Path
) -> None:
    found = read(corpus, decoder, tokenizer=tiny_tokenizer(tmp_path), context=12)
    assert ids(found) == [CORPUS[:12], CORPUS[12:24], CORPUS[24:36]]
    for batch in found:
        assert batch.keys() == {str(value.name) for value in decoder.inputs}
        assert batch["attention_mask"].tolist() == [[1] * 12]
        assert batch["position_ids"].tolist() == [list(range(12))]
        cache = batch["past_key_values.1.value"]
        assert cache.shape == (1, DECODER.key_heads, 0, DECODER.head)
        assert cache.dtype == np.float32
    few = read(corpus, decoder, limit=2, tokenizer=tmp_path, context=12)
    assert ids(few) == [CORPUS[:12], CORPUS[12:24]]  # evenly spread over three


def test_each_window_begins_as_the_tokenizer_begins_a_text(
    decoder: Graph, corpus: Path, tmp_path: Path
) -> None:
    found = read(corpus, decoder, tokenizer=tiny_tokenizer(tmp_path, special=True), context=12)
    assert ids(found) == [[BEGIN, *CORPUS[at : at + 11]] for at in (0, 11, 22)]


def test_a_long_text_is_the_same_in_parts(
    decoder: Graph, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intact.data.text.tokenizer._CHUNK", 25)
    found = read(corpus, decoder, tokenizer=tiny_tokenizer(tmp_path), context=12)
    assert ids(found) == [CORPUS[:12], CORPUS[12:24], CORPUS[24:36]]


def test_a_text_that_changed_is_read_again(decoder: Graph, corpus: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"tokenizer": tiny_tokenizer(tmp_path), "context": 40}
    assert ids(read(corpus, decoder, **how)) == [CORPUS]
    assert ids(read(corpus, decoder, **how)) == [CORPUS]
    corpus.write_text(text_of(*reversed(CORPUS)) + "w4\n", encoding="utf-8")
    assert ids(read(corpus, decoder, **how)) == [CORPUS[::-1]]


def test_other_models_get_a_line_a_sample(encoder: Graph, tmp_path: Path) -> None:
    path, tokenizer = tmp_path / "lines.txt", tiny_tokenizer(tmp_path, special=True)
    path.write_text("w5 w6\n\n  \nw7 w8 w9 other w10\n", encoding="utf-8")
    lines = [[BEGIN, 5, 6, END], [BEGIN, 7, 8, 9, UNKNOWN, 10, END]]
    free = read(path, encoder, tokenizer=tokenizer)
    assert ids(free) == lines
    assert [batch["attention_mask"][0].tolist() for batch in free] == [[1] * 4, [1] * 7]
    padded = read(path, encoder, tokenizer=tokenizer, context=6)
    assert ids(padded) == [[*lines[0], 0, 0], [BEGIN, 7, 8, 9, UNKNOWN, END]]
    assert [batch["attention_mask"][0].sum() for batch in padded] == [4, 6]
    assert all(not batch["token_type_ids"].any() for batch in padded)


def test_form_feeds_and_separators_end_no_line(
    decoder: Graph, encoder: Graph, tmp_path: Path
) -> None:
    path = tmp_path / "lines.txt"
    text = "w5 w6\u2028w7\x0cw8\x85w9\rw10 w11\r\nw12 w13\n"
    path.write_bytes(text.encode())
    assert ids(read(path, encoder, tokenizer=numbers)) == [[5, 6, 7, 8, 9], [10, 11], [12, 13]]
    parts: list[str] = []

    def tokens(part: str) -> list[int]:
        parts.append(part)
        return numbers(part)

    read(path, decoder, tokenizer=tokens, context=4)
    assert "".join(parts) == text


def test_padding_is_masked_without_being_told(encoder: Graph) -> None:
    rows = [[5, 6, 7], [8, 9]]
    for context, mask in ((None, None), (2, None), (3, "attention_mask")):
        samples = open_samples(rows, encoder, reading=Reading(context=context, tokenizer=len))
        assert samples.mask == mask
    *_, real = next(iter(samples.masked_batches(2)))
    assert real is not None
    assert real.tolist() == [[True] * 3, [True, True, False]]


def numbers(text: str) -> list[int]:
    return [int(word[1:]) for word in text.split()]


def a_tokenizer(folder: Path) -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    return tokenizers.Tokenizer.from_file(str(tiny_tokenizer(folder)))


@pytest.mark.parametrize(
    "source",
    [
        np.array(CORPUS),
        CORPUS,
        [CORPUS[:30], np.array(CORPUS[30:])],
        ({"input_ids": part} for part in (CORPUS[:5], CORPUS[5:])),
        lambda: iter([CORPUS]),
        [text_of(*CORPUS[:7]), text_of(*CORPUS[7:])],
        [{"text": text_of(*CORPUS)}],
    ],
)
def test_python_may_give_tokens_or_texts(decoder: Graph, source: Any) -> None:
    assert ids(read(source, decoder, context=20, tokenizer=numbers)) == [CORPUS[:20], CORPUS[20:]]


def test_an_array_of_tokens_may_be_a_file(decoder: Graph, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.array(CORPUS))
    assert ids(read(tmp_path / "ids.npy", decoder, context=20)) == [CORPUS[:20], CORPUS[20:]]


def test_a_tokenizer_of_the_caller_stays_as_it_is(
    decoder: Graph, corpus: Path, tmp_path: Path
) -> None:
    tokenizer = a_tokenizer(tmp_path)
    assert ids(read(corpus, decoder, tokenizer=tokenizer, context=40)) == [CORPUS]
    assert tokenizer.truncation["max_length"] == 3
    assert tokenizer.padding["length"] == 7


def fixed(model: ir.Model, name: str, *shape: int | str) -> Graph:
    value = next(value for value in model.graph.inputs if value.name == name)
    value.shape = ir.Shape(list(shape))
    return normalize(model)


def test_a_fixed_length_is_the_context(encoder: Graph) -> None:
    graph = fixed(tiny_encoder(), "input_ids", "batch", 5)
    (batch,) = read([[5, 6]], graph, tokenizer=numbers)
    assert batch["attention_mask"].tolist() == [[1, 1, 0, 0, 0]]


def image_model() -> Graph:
    b = ModelBuilder()
    b.node("Relu", b.input("image", ["batch", 3, 8, 8]), out="y")
    b.output("y", ["batch", 3, 8, 8])
    return normalize(b.build())


WRONG: list[tuple[str, Callable[[], Graph], Any, dict[str, Any], str]] = [
    ("short", lambda: normalize(tiny_decoder()), CORPUS, {"context": 41}, "--context 40"),
    ("beyond", lambda: normalize(tiny_decoder()), [50, *CORPUS], {"context": 8}, "0 to 49; give"),
    ("negative", lambda: normalize(tiny_decoder()), [-1, *CORPUS], {"context": 8}, "give ids"),
    ("both", lambda: normalize(tiny_decoder()), ["w4", [5]], {"context": 2}, "give one of them"),
    ("floats", lambda: normalize(tiny_decoder()), [[0.5]], {"context": 2}, "rows of token ids"),
    ("names", lambda: normalize(tiny_decoder()), {"input_ids": [[4]]}, {"context": 2}, "leave it"),
    ("text", lambda: normalize(tiny_decoder()), "w4", {"context": 2}, "--tokenizer tokenizer.json"),
    ("images", image_model, CORPUS, {"context": 8}, "leave out --tokenizer and --context"),
    (
        "length",
        lambda: fixed(tiny_encoder(), "input_ids", "batch", 5),
        [[4]],
        {"context": 8},
        "give 5",
    ),
    (
        "cache",
        lambda: fixed(tiny_decoder("builder"), "past_key_values.0.key", "batch", 1, 5, 16),
        CORPUS,
        {"context": 8},
        "[?, 1, 5, 16], and an empty cache [batch, heads, 0, size] does not fit; leave one axis",
    ),
    ("nothing", lambda: normalize(tiny_encoder()), [[]], {"context": 8}, "give one sample a line"),
]


@pytest.mark.parametrize(
    ("make", "source", "how", "said"), [each[1:] for each in WRONG], ids=[each[0] for each in WRONG]
)
def test_what_does_not_fit_is_one_line_with_its_remedy(
    make: Callable[[], Graph], source: Any, how: dict[str, Any], said: str
) -> None:
    with pytest.raises((DataError, UsageError)) as caught:
        read(source, make(), **how)
    assert said in caught.value.with_flags


def test_an_input_that_text_does_not_fill_in_is_named() -> None:
    model = tiny_encoder()
    value = next(value for value in model.graph.inputs if value.name == "token_type_ids")
    value.name = "languages"
    with pytest.raises(DataError, match=r"input 'languages' \[\?, \?\] is none that text fills in"):
        read([[4]], normalize(model), context=4)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("corpus.txt", b"\xff\xfe\x00", "no text in UTF-8"),
        ("corpus.txt", b" \n\n", "0 tokens, and a window has 8"),
        ("tokenizer.json", b"{}", "is no tokenizer"),
        ("tokenizer.json", b"\x00" * 100, "is no tokenizer"),
        ("tokenizer.json", None, "cannot be read"),
        ("corpus.txt", None, "cannot be read"),
    ],
)
def test_files_that_are_damaged_or_missing(
    decoder: Graph, corpus: Path, tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    tokenizer = tiny_tokenizer(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said):
        read(corpus, decoder, tokenizer=tokenizer, context=8)


def test_a_tokenizer_of_another_model_is_named_with_its_token(
    decoder: Graph, corpus: Path, tmp_path: Path
) -> None:
    other = tiny_tokenizer(tmp_path, words=("more", *WORDS[:-1], "and", "w49"))
    corpus.write_text(text_of(49, *CORPUS), encoding="utf-8")
    with pytest.raises(DataError, match=r"tokenizer.json: the token 'w49' has the id 51, and"):
        read(corpus, decoder, tokenizer=other, context=8)


def test_without_the_package_the_extra_is_named(
    decoder: Graph, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match=r"intact-quantizer\[text\]"):
        read(corpus, decoder, tokenizer=tmp_path, context=8)
    with pytest.raises(IntactError, match=r"give tokenizer tokenizer.json"):
        read(corpus, decoder, context=8)


def test_few_texts_are_remembered(decoder: Graph, tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path)
    for number in range(6):
        path = tmp_path / f"{number}.txt"
        path.write_text(text_of(*CORPUS), encoding="utf-8")
        read(path, decoder, tokenizer=tokenizer, context=8)
    assert len(text_source._memory) <= 4
