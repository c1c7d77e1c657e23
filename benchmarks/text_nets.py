"""Language models as ONNX graphs, in the forms that tools export: for benchmarks and tests.

`decoder` writes a Llama-like decoder (normalization by the root mean square, rotary positions,
grouped queries, a gated layer) as `optimum` and torch's exporter do, operator by operator, or as
the builder of ONNX Runtime's generative package does, with operators of that runtime. `encoder`
writes a BERT-like encoder. Weights come by name, [inputs, outputs]; `random_weights` draws some.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph.builder import GraphBuilder

Weights: TypeAlias = Mapping[str, npt.NDArray[np.float32]]

FORMS = ("exported", "builder")
"""How a decoder is written: by an exporter, or by the generative builder."""

_OPSET, _OPSET_OF_RUNTIME = 18, 21
_RUNTIME = "com.microsoft"
_LOWEST = float(np.finfo(np.float32).min)
_FLOAT, _INT64, _INT32 = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.INT32


@dataclass(frozen=True)
class DecoderSizes:
    """The sizes of a decoder."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    key_heads: int
    inner: int
    base: float = 10_000.0
    epsilon: float = 1e-5
    longest: int = 2048

    @property
    def head(self) -> int:
        """Elements of a head."""
        return self.hidden // self.heads

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the names and shapes of the weights; the last layer shares the embedding."""
        keys = self.key_heads * self.head
        yield "embedding", (self.vocabulary, self.hidden)
        for layer in range(self.layers):
            at = f"{layer}."
            yield at + "norm", (self.hidden,)
            yield at + "q", (self.hidden, self.hidden)
            yield at + "k", (self.hidden, keys)
            yield at + "v", (self.hidden, keys)
            yield at + "o", (self.hidden, self.hidden)
            yield at + "post_norm", (self.hidden,)
            yield at + "gate", (self.hidden, self.inner)
            yield at + "up", (self.hidden, self.inner)
            yield at + "down", (self.inner, self.hidden)
        yield "norm", (self.hidden,)


@dataclass(frozen=True)
class EncoderSizes:
    """The sizes of an encoder."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    inner: int
    longest: int = 512
    epsilon: float = 1e-12

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the names and shapes of the weights."""
        yield "words", (self.vocabulary, self.hidden)
        yield "positions", (self.longest, self.hidden)
        yield "types", (2, self.hidden)
        for place in (
            "",
            *(f"{layer}.{of}" for layer in range(self.layers) for of in ("a_", "f_")),
        ):
            yield f"{place}norm", (self.hidden,)
            yield f"{place}norm_bias", (self.hidden,)
        for layer in range(self.layers):
            for name, sizes in (
                *((each, (self.hidden, self.hidden)) for each in "qkvo"),
                ("up", (self.hidden, self.inner)),
                ("down", (self.inner, self.hidden)),
            ):
                yield f"{layer}.{name}", sizes
                yield f"{layer}.{name}_bias", sizes[1:]


def random_weights(sizes: DecoderSizes | EncoderSizes, seed: int = 0) -> Weights:
    """Draw weights of usual magnitudes; scales of normalizations are 1 and biases 0."""
    random = np.random.default_rng(seed)
    found = {}
    for name, shape in sizes.shapes():
        if name.endswith("norm"):
            array = np.ones(shape)
        elif name.endswith("_bias"):
            array = np.zeros(shape)
        else:
            spread = 0.3 if name in ("embedding", "words") else 1 / math.sqrt(shape[0])
            array = random.normal(0, spread, shape)
        found[name] = array.astype(np.float32)
    return found


def decoder(sizes: DecoderSizes, weights: Weights, form: str = "exported") -> ir.Model:
    """Write a decoder.

    Its inputs are input_ids, attention_mask ``[batch, past and sequence]``, position_ids (of an
    exporter) and past_key_values.N.key and .value ``[batch, key heads, past, head]``; its outputs
    are logits ``[batch, sequence, vocabulary]`` and present.N.key and .value.
    """
    made = _Exported(sizes, weights) if form == "exported" else _Built(sizes, weights)
    return made.model()


def _node(
    build: GraphBuilder,
    op: str,
    inputs: Sequence[ir.Value | None],
    name: str,
    attributes: Mapping[str, Any],
) -> ir.Value:
    """Add a node whose output has no type: whoever reads the model infers it."""
    output = ir.Value(name=build.names.fresh(name))
    build.add(op, inputs, [output], attributes, name=output.name)
    return output


class _Decoder(ABC):
    """What both forms of a decoder share."""

    opset = _OPSET

    def __init__(self, sizes: DecoderSizes, weights: Weights) -> None:
        self.sizes, self.weights = sizes, weights
        self.build = GraphBuilder()
        self.ids = self.build.input("input_ids", _INT64, ["batch", "sequence"])
        self.mask = self.build.input("attention_mask", _INT64, ["batch", "total"])
        self.begin()
        cache: list[int | str] = ["batch", sizes.key_heads, "past", sizes.head]
        self.past = [
            tuple(
                self.build.input(f"past_key_values.{layer}.{what}", _FLOAT, cache)
                for what in ("key", "value")
            )
            for layer in range(sizes.layers)
        ]
        self.present: list[ir.Value] = []

    @abstractmethod
    def begin(self) -> None:
        """Add inputs and what all layers share."""

    @abstractmethod
    def layers(self, x: ir.Value) -> ir.Value:
        """Add all layers and the last normalization."""

    def node(self, op: str, *inputs: ir.Value | None, at: str, **attributes: Any) -> ir.Value:
        return _node(self.build, op, inputs, f"{at}/{op}", attributes)

    def weight(self, name: str) -> ir.Value:
        return self.build.initializer(f"model.{name}.weight", self.weights[name])

    def dense(self, x: ir.Value, name: str, at: str) -> ir.Value:
        return self.node("MatMul", x, self.weight(name), at=f"{at}/{name.rpartition('.')[2]}_proj")

    def gated(self, x: ir.Value, layer: int) -> ir.Value:
        at = f"/model/layers.{layer}/mlp"
        gate, up = self.dense(x, f"{layer}.gate", at), self.dense(x, f"{layer}.up", at)
        sigmoid = self.node("Sigmoid", gate, at=f"{at}/act_fn")
        active = self.node("Mul", gate, sigmoid, at=f"{at}/act_fn")
        return self.dense(self.node("Mul", active, up, at=at), f"{layer}.down", at)

    def present_of(self, layer: int, what: str) -> ir.Value:
        shape: list[int | str] = ["batch", self.sizes.key_heads, "total", self.sizes.head]
        return ir.Value(
            name=f"present.{layer}.{what}", type=ir.TensorType(_FLOAT), shape=ir.Shape(shape)
        )

    def model(self) -> ir.Model:
        sizes = self.sizes
        table = self.weight("embedding")
        x = self.node("Gather", table, self.ids, at="/model/embed_tokens")
        x = self.layers(x)
        logits = ir.Value(
            name="logits",
            type=ir.TensorType(_FLOAT),
            shape=ir.Shape(["batch", "sequence", sizes.vocabulary]),
        )
        turned = self.node("Transpose", table, at="/lm_head", perm=[1, 0])
        self.build.add("MatMul", [x, turned], [logits], name="/lm_head/MatMul")
        graph = self.build.graph([logits, *self.present], opset=self.opset, name="decoder")
        if self.opset == _OPSET_OF_RUNTIME:
            graph.opset_imports[_RUNTIME] = 1
        return ir.Model(graph, ir_version=10, producer_name=type(self).__name__.strip("_").lower())


class _Exported(_Decoder):
    """Operator by operator."""

    def begin(self) -> None:
        build, half = self.build, self.sizes.head // 2
        position = build.input("position_ids", _INT64, ["batch", "sequence"])
        at = "/model/rotary_emb"
        exponents = np.arange(half, dtype=np.float32) / half
        steps = (np.float32(self.sizes.base) ** -exponents).astype(np.float32)
        rates = build.initializer("inv_freq", steps[None, :, None])
        row = self.node("Unsqueeze", position, build.integers(1), at=at)
        row = self.node("Cast", row, at=at, to=_FLOAT.value)
        angles = self.node("MatMul", rates, row, at=at)  # [batch, half, sequence]
        angles = self.node("Transpose", angles, at=at, perm=[0, 2, 1])
        both = self.node("Concat", angles, angles, at=at, axis=-1)
        self.cos, self.sin = (
            self.node("Unsqueeze", self.node(op, both, at=at), build.integers(1), at=f"{at}/{op}")
            for op in ("Cos", "Sin")
        )
        self.position = position

    def model_mask(self) -> ir.Value:
        """Make what is added to scores: 0, or the lowest number where a query may not look."""
        build, at = self.build, "/model/mask"
        total = self.node("Shape", self.mask, at=at, start=1, end=2)
        new = self.node("Shape", self.ids, at=at, start=1, end=2)
        past = self.node("Sub", total, new, at=at)
        zero, one = (build.initializer("number", np.array(n, np.int64)) for n in (0, 1))
        scalar = build.integers(0, name="axis")
        past, end = (self.node("Squeeze", each, scalar, at=at) for each in (past, total))
        rows = self.node("Range", past, end, one, at=f"{at}/rows")
        columns = self.node("Range", zero, end, one, at=f"{at}/columns")
        rows = self.node("Unsqueeze", rows, build.integers(1), at=at)
        allowed = self.node("LessOrEqual", columns, rows, at=at)  # [sequence, total]
        real = self.node("Cast", self.mask, at=at, to=ir.DataType.BOOL.value)
        real = self.node("Unsqueeze", real, build.integers(1, 2), at=at)  # [batch, 1, 1, total]
        both = self.node("And", allowed, real, at=at)
        return self.node("Where", both, build.number(0.0), build.number(_LOWEST), at=at)

    def norm(self, x: ir.Value, name: str, at: str) -> ir.Value:
        build = self.build
        square = self.node("Pow", x, build.number(2.0), at=at)
        mean = self.node("ReduceMean", square, build.integers(-1), at=at, keepdims=1)
        root = self.node(
            "Sqrt", self.node("Add", mean, build.number(self.sizes.epsilon), at=at), at=at
        )
        scaled = self.node("Mul", x, self.node("Div", build.number(1.0), root, at=at), at=at)
        return self.node("Mul", self.weight(name), scaled, at=at)

    def layers(self, x: ir.Value) -> ir.Value:
        self.added = self.model_mask()
        for layer in range(self.sizes.layers):
            at = f"/model/layers.{layer}"
            ready = self.norm(x, f"{layer}.norm", f"{at}/input_layernorm")
            x = self.node("Add", x, self.attention(ready, layer), at=at)
            ready = self.norm(x, f"{layer}.post_norm", f"{at}/post_attention_layernorm")
            x = self.node("Add", x, self.gated(ready, layer), at=at)
        return self.norm(x, "norm", "/model/norm")

    def attention(self, x: ir.Value, layer: int) -> ir.Value:
        sizes, build, at = self.sizes, self.build, f"/model/layers.{layer}/self_attn"
        q, k, v = (
            self.split(self.dense(x, f"{layer}.{name}", at), heads, at)
            for name, heads in (("q", sizes.heads), ("k", sizes.key_heads), ("v", sizes.key_heads))
        )
        q, k = self.rotated(q, at), self.rotated(k, at)
        ends = [self.present_of(layer, what) for what in ("key", "value")]
        for past, new, end in zip(self.past[layer], (k, v), ends, strict=True):
            build.add("Concat", [past, new], [end], {"axis": -2}, name=f"{at}/{end.name}/Concat")
        self.present += ends
        keys, values = (self.repeated(end, at) for end in ends)
        turned = self.node("Transpose", keys, at=at, perm=[0, 1, 3, 2])
        scores = self.node("MatMul", q, turned, at=at)
        scores = self.node("Mul", scores, build.number(sizes.head**-0.5), at=at)
        shares = self.node("Softmax", self.node("Add", scores, self.added, at=at), at=at, axis=-1)
        mixed = self.node("MatMul", shares, values, at=f"{at}/values")
        mixed = self.node("Transpose", mixed, at=at, perm=[0, 2, 1, 3])
        joined = self.node("Reshape", mixed, build.integers(0, 0, -1), at=at)
        return self.dense(joined, f"{layer}.o", at)

    def split(self, x: ir.Value, heads: int, at: str) -> ir.Value:
        parts = self.build.integers(0, 0, heads, self.sizes.head)
        return self.node(
            "Transpose", self.node("Reshape", x, parts, at=at), at=at, perm=[0, 2, 1, 3]
        )

    def rotated(self, x: ir.Value, at: str) -> ir.Value:
        integers, half = self.build.integers, self.sizes.head // 2
        first = self.node("Slice", x, integers(0), integers(half), integers(3), at=at)
        second = self.node("Slice", x, integers(half), integers(2 * half), integers(3), at=at)
        turned = self.node("Concat", self.node("Neg", second, at=at), first, at=at, axis=-1)
        straight = self.node("Mul", x, self.cos, at=at)
        return self.node("Add", straight, self.node("Mul", turned, self.sin, at=at), at=at)

    def repeated(self, x: ir.Value, at: str) -> ir.Value:
        """Repeat keys or values for the queries that share them."""
        sizes, integers = self.sizes, self.build.integers
        times = sizes.heads // sizes.key_heads
        if times == 1:
            return x
        wide = self.node("Unsqueeze", x, integers(2), at=at)
        ones = integers(1, 1, times, 1, 1)
        wide = self.node("Expand", wide, ones, at=at)
        shape = self.node("Shape", x, at=at)
        ends = [
            self.node("Slice", shape, integers(a), integers(b), at=f"{at}/size")
            for a, b in ((0, 1), (2, 4))
        ]
        sizes_of = self.node("Concat", ends[0], integers(sizes.heads), ends[1], at=at, axis=0)
        return self.node("Reshape", wide, sizes_of, at=f"{at}/repeated")


class _Built(_Decoder):
    """With operators of ONNX Runtime, as its generative builder has them."""

    opset = _OPSET_OF_RUNTIME

    def begin(self) -> None:
        build, half, at = self.build, self.sizes.head // 2, "/model/attn_mask_reformat"
        exponents = np.arange(half, dtype=np.float32) / half
        rates = (np.float32(self.sizes.base) ** -exponents).astype(np.float32)
        angles = np.outer(np.arange(self.sizes.longest, dtype=np.float32), rates)
        self.cos = build.initializer("cos_cache", np.cos(angles).astype(np.float32))
        self.sin = build.initializer("sin_cache", np.sin(angles).astype(np.float32))
        real = self.node("ReduceSum", self.mask, build.integers(1), at=at, keepdims=1)
        last = self.node("Sub", real, build.integers(1), at=at)
        self.lengths = self.node("Cast", last, at=at, to=_INT32.value)
        total = self.node("Shape", self.mask, at=at)
        one = build.initializer("index", np.array(1, np.int64))
        total = self.node("Gather", total, one, at=at, axis=0)
        self.total = self.node("Cast", total, at=f"{at}/total", to=_INT32.value)

    def runtime(
        self,
        op: str,
        inputs: list[ir.Value | None],
        outputs: list[ir.Value],
        at: str,
        **options: Any,
    ) -> None:
        self.build.add(op, inputs, outputs, options, name=f"{at}/{op}", domain=_RUNTIME)

    def fresh(self, name: str) -> ir.Value:
        return ir.Value(name=name, type=ir.TensorType(_FLOAT))

    def norm(self, x: ir.Value, more: ir.Value, name: str, at: str) -> tuple[ir.Value, ir.Value]:
        """Add and normalize; return what is normalized, and the sum."""
        ready, total = self.fresh(f"{at}/output_0"), self.fresh(f"{at}/output_3")
        unused = [ir.Value(name=""), ir.Value(name="")]
        inputs: list[ir.Value | None] = [x, more, self.weight(name)]
        op = "SkipSimplifiedLayerNormalization"
        self.runtime(op, inputs, [ready, *unused, total], at, epsilon=self.sizes.epsilon)
        return ready, total

    def layers(self, x: ir.Value) -> ir.Value:
        epsilon = self.sizes.epsilon
        ready = self.fresh("/model/layers.0/input_layernorm/output_0")
        self.build.add(  # of ONNX Runtime, which registers it in ONNX's own domain
            "SimplifiedLayerNormalization",
            [x, self.weight("0.norm")],
            [ready],
            {"axis": -1, "epsilon": epsilon, "stash_type": 1},
            name="/model/layers.0/input_layernorm/LayerNorm",
        )
        for layer in range(self.sizes.layers):
            at = f"/model/layers.{layer}"
            mixed = self.attention(ready, layer)
            ready, x = self.norm(x, mixed, f"{layer}.post_norm", f"{at}/post_attention_layernorm")
            after = f"{layer + 1}.norm" if layer + 1 < self.sizes.layers else "norm"
            ready, x = self.norm(x, self.gated(ready, layer), after, f"{at}/final_layernorm")
        return ready

    def attention(self, x: ir.Value, layer: int) -> ir.Value:
        sizes, at = self.sizes, f"/model/layers.{layer}/attn"
        q, k, v = (self.dense(x, f"{layer}.{name}", at) for name in "qkv")
        ends = [self.present_of(layer, what) for what in ("key", "value")]
        self.present += ends
        mixed = self.fresh(f"{at}/output_0")
        self.runtime(
            "GroupQueryAttention",
            [q, k, v, *self.past[layer], self.lengths, self.total, self.cos, self.sin],
            [mixed, *ends],
            at,
            num_heads=sizes.heads,
            kv_num_heads=sizes.key_heads,
            scale=sizes.head**-0.5,
            do_rotary=1,
            rotary_interleaved=0,
        )
        return self.dense(mixed, f"{layer}.o", at)


def encoder(sizes: EncoderSizes, weights: Weights) -> ir.Model:
    """Write an encoder: input_ids, attention_mask, token_type_ids to last_hidden_state."""
    build = GraphBuilder()
    ids, mask, types = (
        build.input(name, _INT64, ["batch", "sequence"])
        for name in ("input_ids", "attention_mask", "token_type_ids")
    )

    def node(op: str, *inputs: ir.Value, at: str, **attributes: Any) -> ir.Value:
        return _node(build, op, inputs, f"{at}/{op}", attributes)

    def weight(name: str) -> ir.Value:
        return build.initializer(f"bert.{name}", weights[name])

    def dense(x: ir.Value, name: str, at: str) -> ir.Value:
        product = node("MatMul", x, weight(name), at=f"{at}/{name.rpartition('.')[2]}")
        return node("Add", weight(f"{name}_bias"), product, at=f"{at}/{name.rpartition('.')[2]}")

    def norm(x: ir.Value, name: str, at: str) -> ir.Value:
        both = weight(name), weight(f"{name}_bias")
        return node("LayerNormalization", x, *both, at=at, axis=-1, epsilon=sizes.epsilon)

    at = "/embeddings"
    length = node("Shape", ids, at=at, start=1, end=2)
    numbers = build.initializer("position_ids", np.arange(sizes.longest)[None])
    numbers = node("Slice", numbers, build.integers(0), length, build.integers(1), at=at)
    words = node("Gather", weight("words"), ids, at=f"{at}/word_embeddings")
    kinds = node("Gather", weight("types"), types, at=f"{at}/token_type_embeddings")
    places = node("Gather", weight("positions"), numbers, at=f"{at}/position_embeddings")
    x = node("Add", node("Add", words, kinds, at=at), places, at=at)
    x = norm(x, "norm", f"{at}/LayerNorm")
    real = node("Unsqueeze", mask, build.integers(1, 2), at="/mask")
    real = node("Cast", real, at="/mask", to=_FLOAT.value)
    added = node("Sub", build.number(1.0), real, at="/mask")
    added = node("Mul", added, build.number(_LOWEST), at="/mask")
    head = sizes.hidden // sizes.heads
    for layer in range(sizes.layers):
        at = f"/encoder/layer.{layer}/attention"
        q, k, v = (
            node(
                "Transpose",
                node(
                    "Reshape",
                    dense(x, f"{layer}.{name}", at),
                    build.integers(0, 0, sizes.heads, head),
                    at=at,
                ),
                at=at,
                perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3],
            )
            for name in "qkv"
        )
        scores = node("Div", node("MatMul", q, k, at=at), build.number(math.sqrt(head)), at=at)
        shares = node("Softmax", node("Add", scores, added, at=at), at=at, axis=-1)
        mixed = node("Transpose", node("MatMul", shares, v, at=at), at=at, perm=[0, 2, 1, 3])
        joined = node("Reshape", mixed, build.integers(0, 0, sizes.hidden), at=at)
        x = norm(node("Add", dense(joined, f"{layer}.o", at), x, at=at), f"{layer}.a_norm", at)
        at = f"/encoder/layer.{layer}/feed_forward"
        up = dense(x, f"{layer}.up", at)
        erf = node("Erf", node("Div", up, build.number(math.sqrt(2.0)), at=at), at=at)
        active = node("Mul", up, node("Add", erf, build.number(1.0), at=at), at=at)
        active = node("Mul", active, build.number(0.5), at=f"{at}/half")
        x = norm(node("Add", dense(active, f"{layer}.down", at), x, at=at), f"{layer}.f_norm", at)
    out = ir.Value(
        name="last_hidden_state",
        type=ir.TensorType(_FLOAT),
        shape=ir.Shape(["batch", "sequence", sizes.hidden]),
    )
    build.add("Identity", [x], [out], name="/output")
    graph = build.graph([out], opset=_OPSET, name="encoder")
    return ir.Model(graph, ir_version=10, producer_name="exported")


def save(model: ir.Model, path: Path) -> Path:
    """Write a model, its weights in a file beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = path.with_suffix(".onnx_data")
    data.unlink(missing_ok=True)
    ir.save(model, path, external_data=data.name, size_threshold_bytes=1024)
    return path
