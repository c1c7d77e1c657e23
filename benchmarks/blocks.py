"""Compare ways to quantize weights in blocks and caches: quality, bytes, time, memory, proof.

    python benchmarks/decoders.py --packages PACKAGES --output models/
    python benchmarks/blocks.py models/ --peers ort=/envs/ort/bin/python,nncf=/envs/nncf/bin/python
    python benchmarks/blocks.py models/ --models smollm2 --windows 8

The models are those that `decoders.py` writes; glassllm and MiniLM unless `--models` names others.
What is fitted sees three quarters of a text, what is measured the first quarter. Each way runs in
a process of its own on one thread: intact by its commands, peers by the scripts in `peers/` in
environments of their own (``ort+torch=PYTHON`` is ONNX Runtime's tool in one with torch). All
results are measured by the same function, in ONNX Runtime:

- decoders: perplexity, and the rise of the loss in nats a token over the float model with its 95 %
  interval over windows; how far the next token's distribution is from the float one's (KL), in
  nats; the share of best tokens that differ; tokens a second with caches.
- encoders: the mean cosine of sentences' vectors with the float model's, with its interval, and
  sentences a second.

`intact verify` adds how many stored and computed codes differ from the prediction. Peers get the
model with the table of a tied last layer stored a second time, as their tools ask for a constant.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from tokenizers import Tokenizer

from decoders import TOKENIZER, empty_feeds, prose

Ids = npt.NDArray[np.int64]
PEERS = Path(__file__).parent / "peers"
CONTEXTS = {"glassllm": 64, "minilm": 64, "smollm2": 256}
"""Tokens of a window; for an encoder the most of a sentence."""
ENCODERS = frozenset({"minilm"})
DYNAMIC8 = ("--block", "32", "--weight-bits", "8", "--activations", "dynamic")
SCHEMES: Mapping[str, tuple[str, ...]] = {
    "int4": ("--block", "32"),
    "int4-dynamic": ("--block", "32", "--activations", "dynamic"),
    "int8-dynamic": DYNAMIC8,
    "cache8": ("--cache-bits", "8", "--activations", "float"),
    "cache4": ("--cache-bits", "4", "--activations", "float"),
}
"""Options of `intact quantize` by what weights and activations are, or the caches of a decoder."""
CACHES = frozenset({"cache8", "cache4"})
METHODS: Mapping[str, tuple[str, ...]] = {
    "nearest": ("--preset", "fast"),
    "rounding": ("--preset", "balanced"),
    "rotate": ("--preset", "balanced"),
    "learned": ("--improve", "rounding", "--improve", "reconstruct"),
    "widths": ("--improve", "widths{growth=5}", "--improve", "rounding"),
}
"""Options of `intact quantize` by what is done to lose less; `learned` needs torch."""
OWN = (
    ("int4", "nearest"),
    ("int4", "rounding"),
    ("int4", "widths"),
    ("int4-dynamic", "rounding"),
    ("int8-dynamic", "nearest"),
    ("cache8", "nearest"),
    ("cache4", "nearest"),
    ("cache4", "rotate"),
)
THEIRS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "ort": (
        ("int4", "nearest"),
        ("int4", "asymmetric"),
        ("int4", "kquant"),
        ("int4-dynamic", "nearest"),
        ("int8-dynamic", "dynamic"),
    ),
    "ort+torch": (("int4", "gptq"), ("int4", "hqq")),
    "nncf": (("int4", "nearest"), ("int4", "awq")),
}
"""Schemes and methods by peer; two methods of ONNX Runtime's tool need torch."""

COLUMNS = (
    "model", "scheme", "method", "perplexity or cosine", "rise of the loss", "KL", "flips",
    "per second", "MB", "s", "GB", "values that differ",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model, and the text that it is fitted to and measured on.

    Attributes:
        windows: Rows of tokens to measure on; for an encoder sentences, of any lengths.
        fit: A file with the text to fit to.
        samples: How many windows of it are used.
        fed: Inputs of the model for them, stacked, as a `.npz` file for peers.
    """

    name: str
    folder: Path
    windows: Sequence[Ids]
    fit: Path
    samples: int
    fed: Path

    @property
    def context(self) -> int:
        """Tokens of a window."""
        return CONTEXTS[self.name]

    def model(self, scheme: str) -> Path:
        """Return the float model; caches of 4 bits need attention as one operator."""
        return self.folder / ("builder" if scheme in CACHES else ".") / "model.onnx"


@dataclass(frozen=True)
class Made:
    """What one command left."""

    file: Path
    seconds: float
    peak: float


def session_of(file: Path) -> onnxruntime.InferenceSession:
    """Open a model on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(file, options)


def sentences(text: str, count: int) -> list[str]:
    """Take sentences of a text, evenly spread."""
    flat = " ".join(text.split())
    found = [each.strip() + "." for each in flat.split(". ") if 30 < len(each) < 200]
    return found[:: max(1, len(found) // count)][:count]


def prepare(name: str, folder: Path, work: Path, windows: int, samples: int) -> Case:
    """Split the text, and write what is fitted to."""
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    text, context = prose(), CONTEXTS[name]
    test, fit = text[: len(text) // 4], text[len(text) // 4 :]
    file = work / "fit.txt"
    session = session_of(folder / "model.onnx")
    if name in ENCODERS:
        lines = sentences(fit, samples)
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        rows = [np.array(tokenizer.encode(each).ids)[:context] for each in lines]
        measured = [
            np.array(tokenizer.encode(each).ids)[:context] for each in sentences(test, windows)
        ]
        # Peers take samples of one length: sentences of the commonest.
        lengths = [len(row) for row in rows]
        least = int(np.median(lengths))
        rows = [row[:least] for row in rows if len(row) >= least]
    else:
        file.write_text(fit, encoding="utf-8")
        rows = spread(np.array(tokenizer.encode(fit).ids), context, samples)
        measured = spread(np.array(tokenizer.encode(test).ids), context, windows)
    fed = work / "fit.npz"
    feeds = [empty_feeds(session, row[None]) for row in rows]
    np.savez(fed, **{key: np.stack([each[key] for each in feeds]) for key in feeds[0]})
    return Case(name, folder, measured, file, samples, fed)


def spread(ids: Ids, context: int, count: int) -> list[Ids]:
    """Cut windows out of a long row, evenly spread."""
    whole = len(ids) // context
    return [ids[i * whole // count * context :][:context] for i in range(min(count, whole))]


def untied(model: Path, output: Path) -> Path:
    """Store transposed tables as constants of their own, as peers need them."""
    made = onnx.load(model)
    graph = made.graph
    stored = {each.name: each for each in graph.initializer}
    for node in [each for each in graph.node if each.op_type == "Transpose"]:
        if node.input[0] in stored:
            axes = onnx.helper.get_node_attr_value(node, "perm") if node.attribute else None
            array = onnx.numpy_helper.to_array(stored[node.input[0]]).transpose(axes)
            array = np.ascontiguousarray(array)
            graph.initializer.append(onnx.numpy_helper.from_array(array, node.output[0]))
            graph.node.remove(node)
    onnx.save(made, output)
    return output


def command(words: Sequence[object], folder: Path, what: str) -> tuple[float, float]:
    """Run a command; return its wall seconds and its peak memory in GB."""
    log = folder / "log.txt"
    start = time.perf_counter()
    with log.open("w") as file:
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        process = subprocess.Popen(
            [str(word) for word in words], stdout=file, stderr=file, env=environment
        )
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        last = (log.read_text(errors="replace").strip().splitlines() or ["no output"])[-1]
        raise ChildProcessError(f"{what}: {last[:200]}")
    return time.perf_counter() - start, usage.ru_maxrss / 1e6


def by_intact(case: Case, scheme: str, method: str, folder: Path) -> Made:
    """Quantize with intact's command."""
    out = folder / "out"
    data = ("--data", case.fit, "--tokenizer", case.folder, "--context", case.context)
    words = (
        sys.executable, "-m", "intact", "quantize", case.model(scheme), *SCHEMES[scheme],
        *METHODS[method], *data, "--samples", case.samples, "--threads", 1, "--output", out,
    )  # fmt: skip
    seconds, peak = command(words, folder, f"intact, {method}")
    (file,) = out.glob("model.*.onnx")
    return Made(file, seconds, peak)


def by_peer(python: str, tool: str, case: Case, scheme: str, method: str, folder: Path) -> Made:
    """Quantize with a peer's script, in its own environment."""
    script = PEERS / ("nncf_blocks.py" if tool == "nncf" else "ort_blocks.py")
    file = folder / "model.onnx"
    model = untied(case.folder / "model.onnx", folder / "float.onnx")
    words = (python, script, model, case.fed, file, scheme, method)
    seconds, peak = command(words, folder, f"{tool}, {method}")
    model.unlink()
    return Made(file, seconds, peak)


def log_odds(session: onnxruntime.InferenceSession, window: Ids) -> npt.NDArray[np.float64]:
    """Compute the logarithms of the odds of each next token, `[tokens, vocabulary]`."""
    (logits,) = session.run(["logits"], empty_feeds(session, window[None]))
    rows = logits[0].astype(np.float64)
    rows -= rows.max(axis=-1, keepdims=True)
    rows -= np.log(np.exp(rows).sum(axis=-1, keepdims=True))
    return rows


def decoding_speed(session: onnxruntime.InferenceSession, window: Ids, steps: int = 32) -> float:
    """Measure tokens a second, fed back with caches behind half a window."""
    names = [each.name for each in session.get_outputs()]
    caches = [each.name for each in session.get_inputs() if "past" in each.name]
    length = len(window) // 2
    feeds = empty_feeds(session, window[None, :length])
    found = dict(zip(names, session.run(None, feeds), strict=True))
    elapsed = 0.0
    for step in range(steps):
        token = found["logits"][:, -1:].argmax(axis=-1)
        past = length + step
        feeds |= {"input_ids": token, "attention_mask": np.ones((1, past + 1), np.int64)}
        feeds |= {"position_ids": np.array([[past]])} if "position_ids" in feeds else {}
        presents = [name for name in names if name.startswith("present")]
        feeds |= {cache: found[name] for cache, name in zip(caches, presents, strict=True)}
        start = time.perf_counter()
        outputs = session.run(None, feeds)
        elapsed += time.perf_counter() - start
        found = dict(zip(names, outputs, strict=True))
    return steps / elapsed


def interval(values: npt.NDArray[np.float64]) -> float:
    """Half the width of the 95 % interval of a mean."""
    return float(1.96 * values.std(ddof=1) / np.sqrt(len(values)))


def float_results(case: Case) -> list[npt.NDArray[np.float32]]:
    """Compute what the float model makes of each window: log odds, or a sentence's vector."""
    session = session_of(case.folder / "model.onnx")
    compute = sentence_vector if case.name in ENCODERS else log_odds
    return [compute(session, window).astype(np.float32) for window in case.windows]


def measure_decoder(file: Path, case: Case, truth: Sequence[npt.NDArray[Any]]) -> Iterator[str]:
    """Measure a decoder beside the float one, window by window."""
    session = session_of(file)
    losses, rises, distances, flips = [], [], [], []
    for window, wanted in zip(case.windows, truth, strict=True):
        ours, theirs = log_odds(session, window)[:-1], wanted[:-1]
        rows = np.arange(len(window) - 1)
        loss = -ours[rows, window[1:]].mean()
        losses.append(loss)
        rises.append(loss + theirs[rows, window[1:]].mean())
        distances.append((np.exp(theirs) * (theirs - ours)).sum(axis=-1).mean())
        flips.append((ours.argmax(axis=-1) != theirs.argmax(axis=-1)).mean())
    yield f"{np.exp(np.mean(losses)):.2f}"
    yield f"{np.mean(rises):+.4f} ± {interval(np.array(rises)):.4f}"
    yield f"{np.mean(distances):.4f} ± {interval(np.array(distances)):.4f}"
    yield f"{100 * np.mean(flips):.1f} %"
    yield f"{decoding_speed(session, case.windows[0]):.0f}"


def sentence_vector(session: onnxruntime.InferenceSession, ids: Ids) -> npt.NDArray[np.float64]:
    """Compute the vector of a sentence: the mean over its tokens, of length 1."""
    states = session.run(None, empty_feeds(session, ids[None]))[0]
    mean = states[0].astype(np.float64).mean(axis=0)
    return mean / np.linalg.norm(mean)


def measure_encoder(file: Path, case: Case, truth: Sequence[npt.NDArray[Any]]) -> Iterator[str]:
    """Measure an encoder beside the float one, sentence by sentence."""
    session = session_of(file)
    sentence_vector(session, case.windows[0])
    start = time.perf_counter()
    vectors = [sentence_vector(session, ids) for ids in case.windows]
    speed = len(vectors) / (time.perf_counter() - start)
    cosines = np.array([float(a @ b) for a, b in zip(vectors, truth, strict=True)])
    yield f"{cosines.mean():.4f}"
    yield f"± {interval(cosines):.4f}, worst {cosines.min():.4f}"
    yield from ("-", "-")
    yield f"{speed:.0f}"


def stored_bytes(file: Path) -> float:
    """Count the megabytes of a model and of the weights beside it."""
    model = onnx.load(file, load_external_data=False)
    beside = {
        entry.value
        for each in model.graph.initializer
        for entry in each.external_data
        if entry.key == "location"
    }
    return (file.stat().st_size + sum((file.parent / each).stat().st_size for each in beside)) / 1e6


def differing(case: Case, made: Made) -> str:
    """Ask `intact verify` how many values differ from the prediction, of how many."""
    words = (
        sys.executable, "-m", "intact", "verify", made.file.parent, "--data", case.fit,
        "--tokenizer", case.folder, "--context", case.context, "--samples", 2, "--json",
    )  # fmt: skip
    ran = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if not ran.stdout.strip():
        return "-"
    layers = json.loads(ran.stdout)["verified"][0]["layers"]
    return (
        f"{sum(each['mismatches'] for each in layers)} of {sum(each['values'] for each in layers)}"
    )


def row(cells: Sequence[object]) -> None:
    """Print a line of the table."""
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def compare(case: Case, peers: Mapping[str, str], own: Sequence[tuple[str, str]]) -> None:
    """Print one line for each way."""
    measure = measure_encoder if case.name in ENCODERS else measure_decoder
    given, truth = case.folder / "model.onnx", float_results(case)
    row([case.name, "float", "", *measure(given, case, truth), f"{stored_bytes(given):.1f}"])
    ways: list[tuple[str, str, str]] = [
        ("intact", *way) for way in own if case.name not in ENCODERS or way[0] not in CACHES
    ]
    ways += [(tool, *way) for tool in THEIRS if tool in peers for way in THEIRS[tool]]
    for tool, scheme, method in ways:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            try:
                if tool == "intact":
                    made = by_intact(case, scheme, method, folder)
                else:
                    made = by_peer(peers[tool], tool, case, scheme, method, folder)
                figures = list(measure(made.file, case, truth))
            # A peer may fail in any way, also by a file that does not load.
            except Exception as error:
                row([case.name, scheme, f"{tool} {method}", f"failed: {error}"])
                continue
            proof = differing(case, made) if tool == "intact" else ""
            costs = [f"{stored_bytes(made.file):.1f}", f"{made.seconds:.0f}", f"{made.peak:.1f}"]
            row([case.name, scheme, f"{tool} {method}", *figures, *costs, proof])


def named(text: str) -> Any:
    """Read NAME=VALUE,NAME=VALUE."""
    return dict(part.split("=", 1) for part in text.split(",") if part)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="what decoders.py wrote")
    parser.add_argument("--models", default="glassllm,minilm", help="smollm2 takes an hour")
    parser.add_argument("--peers", default="", type=named, help="TOOL=PYTHON,...")
    parser.add_argument("--windows", type=int, default=16, help="windows to measure on")
    parser.add_argument("--samples", type=int, default=24, help="windows to fit to")
    parser.add_argument("--ways", default="", help="SCHEME:METHOD,... of intact's, or none")
    given = parser.parse_args(arguments)
    ways = given.ways.split(",") if given.ways not in ("", "none") else []
    own = [tuple(way.split(":", 1)) for way in ways] if given.ways else OWN
    row(COLUMNS)
    row(["---"] * len(COLUMNS))
    for name in given.models.split(","):
        with tempfile.TemporaryDirectory() as work:
            folder = given.folder / name
            case = prepare(name, folder, Path(work), given.windows, given.samples)
            compare(case, given.peers, own)


if __name__ == "__main__":
    main()
