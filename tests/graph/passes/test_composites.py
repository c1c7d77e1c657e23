"""Composite operators written out: the numbers of ONNX Runtime's kernels, open or fixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper, numpy_helper

from intact.engines.session import FloatModel
from intact.graph import Graph, normalize
from intact.graph.passes.expand import expand
from intact.graph.passes.expand_places import rotate_apart
from intact.plan import build_plan
from intact.targets import load_target

Arrays = Mapping[str, npt.NDArray[Any]]
MICROSOFT = "com.microsoft"


def numbers(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed + sum(shape)).normal(0, 1, shape).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """One node.

    Attributes:
        inputs: By position; None for one that is left out.
        constants: Positions of inputs that are constants.
        closed: Positions of inputs whose last axis has a fixed length in the open form too.
        results: Types of the outputs.
    """

    op_type: str
    inputs: tuple[npt.NDArray[Any] | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 23
    domain: str = ""
    constants: tuple[int, ...] = ()
    results: int = 1

    def __str__(self) -> str:
        shapes = ",".join("x".join(map(str, x.shape)) for x in self.inputs if x is not None)
        texts = [f"{k}={v}" for k, v in self.attributes.items()]
        return "-".join([self.op_type, shapes, *texts, str(self.opset)])

    def feeds(self) -> Arrays:
        return {
            f"x{k}": x
            for k, x in enumerate(self.inputs)
            if x is not None and k not in self.constants
        }

    def graph(self, *, is_open: bool) -> Graph:
        """Open axes are all but the last two, and the last but one where that is no channel."""
        names = ["" if x is None else f"x{k}" for k, x in enumerate(self.inputs)]
        results = [f"y{k}" for k in range(self.results)]
        node = helper.make_node(
            self.op_type, names, results, name="node", domain=self.domain, **self.attributes
        )
        nodes, outputs = [node], []
        for name in results:  # a known operator behind asks for types
            nodes.append(helper.make_node("Identity", [name], [f"{name}_out"], name=f"{name}_id"))
            outputs.append(helper.make_tensor_value_info(f"{name}_out", 1, None))
        inputs = []
        for name, array in self.feeds().items():
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            shape: list[Any] = list(array.shape)
            if is_open:
                shape = [
                    f"{name}_{k}" if k in self.open_axes(shape) else n for k, n in enumerate(shape)
                ]
            inputs.append(helper.make_tensor_value_info(name, kind, shape))
        stored = [
            numpy_helper.from_array(x, f"x{k}")
            for k, x in enumerate(self.inputs)
            if x is not None and k in self.constants
        ]
        graph = helper.make_graph(nodes, "g", inputs, outputs, stored)
        domains = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=domains, ir_version=10)
        return normalize(onnx.load_from_string(model.SerializeToString()))

    def open_axes(self, shape: list[int]) -> set[int]:
        last = len(shape) - 1
        if self.op_type == "Einsum":
            return set(range(len(shape)))
        if "Attention" in self.op_type or "Rotary" in self.op_type:
            return {0, 1} if last == 2 else {0, 2} if last == 3 else set()
        return {0, last} if last > 1 and self.op_type.startswith(("Inst", "Group")) else {0}


def einsum(equation: str, *shapes: tuple[int, ...], constants: tuple[int, ...] = ()) -> Case:
    arrays = tuple(numbers(*shape, seed=k) for k, shape in enumerate(shapes))
    return Case("Einsum", arrays, {"equation": equation}, 13, constants=constants)


EINSUMS = [
    einsum("ij,jk->ik", (3, 4), (4, 5)),
    einsum("bij,jk->bik", (2, 3, 4), (4, 5), constants=(1,)),
    einsum("bsd,dhk->bhsk", (2, 3, 4), (4, 5, 6), constants=(1,)),
    einsum("bshk,hkd->bsd", (2, 3, 5, 6), (5, 6, 4), constants=(1,)),
    einsum("oi,bih->boh", (5, 4), (2, 4, 3), constants=(0,)),
    einsum("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    einsum("bqhd,bkhd->bhqk", (2, 4, 3, 5), (2, 6, 3, 5)),
    einsum("bhqk,bkhd->bqhd", (2, 3, 4, 6), (2, 6, 3, 5)),
    einsum("...ij,...jk->...ik", (2, 1, 3, 4), (1, 6, 4, 5)),
    einsum("...i,i", (2, 3, 4), (4,)),
    einsum("i,j->ij", (3,), (4,)),
    einsum("bi,bi->b", (3, 4), (3, 4)),
    einsum("bi,bi->bi", (3, 4), (3, 4)),
    einsum("bc,bchw->bchw", (2, 3), (2, 3, 4, 5)),
    einsum("ij,kl->", (2, 3), (4, 5)),
    einsum("ijk,kl->il", (2, 3, 4), (4, 5)),
    einsum("ii->i", (4, 4)),
    einsum("bii", (2, 4, 4)),
    einsum("ij->ji", (3, 4)),
    einsum("bij->b", (2, 3, 4)),
    einsum("...", (2, 3)),
    einsum("ncu,vw->ncwu", (2, 3, 4), (4, 5)),
    einsum("i,ij,j->", (3,), (3, 4), (4,)),
    einsum("ab,bc,cd->ad", (2, 3), (3, 4), (4, 5)),
    einsum("iji,jk->ik", (3, 4, 3), (4, 5)),
    einsum("b n i, b n j -> b i j", (2, 3, 4), (2, 3, 5)),
]

ROW, CHANNELS = numbers(8) + 1, numbers(6, seed=1)
IMAGE, ROWS = numbers(2, 6, 4, 5), numbers(2, 5, 8)


def reduction(name: str, opset: int, **attributes: Any) -> Case:
    axes = attributes.pop("axes", None)
    data = np.abs(ROWS) + 0.1 if name == "ReduceLogSum" else ROWS
    if axes is None:
        return Case(name, (data,), attributes, opset)
    if opset < 18:
        return Case(name, (data,), {"axes": axes, **attributes}, opset)
    return Case(name, (data, np.array(axes, np.int64)), attributes, opset, constants=(1,))


NORMS = [
    Case(
        "InstanceNormalization",
        (IMAGE, CHANNELS, CHANNELS),
        {"epsilon": 1e-3},
        11,
        constants=(1, 2),
    ),
    Case("InstanceNormalization", (numbers(2, 6, 7), CHANNELS, CHANNELS), {}, 22),
    Case(
        "GroupNormalization", (IMAGE, CHANNELS, CHANNELS), {"num_groups": 3}, 21, constants=(1, 2)
    ),
    Case(
        "GroupNormalization",
        (IMAGE, numbers(2), numbers(2)),
        {"num_groups": 2},
        18,
        constants=(1, 2),
    ),
    Case("RMSNormalization", (ROWS, ROW), {"epsilon": 1e-3}, constants=(1,)),
    Case("RMSNormalization", (ROWS, numbers(5, 8)), {"axis": 1}),
    Case("SimplifiedLayerNormalization", (ROWS, ROW), {"axis": -1}, 17, constants=(1,)),
    Case("LpNormalization", (ROWS,), {}, 11),
    Case("LpNormalization", (ROWS * np.float32(0),), {"axis": 1, "p": 1}, 22),
    Case("MeanVarianceNormalization", (IMAGE,), {}, 13),
    Case("MeanVarianceNormalization", (IMAGE,), {"axes": [1, -1]}, 13),
    *(
        reduction(name, opset, **attributes)
        for name in ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
        for opset, attributes in (
            (11, {"axes": [-1, 1]}),
            (13, {"keepdims": 0}),
            (18, {"axes": [-1, 1], "keepdims": 0}),
        )
    ),
    *(
        Case(
            "SkipLayerNormalization",
            (ROWS, skip, ROW, shift, bias),
            {"epsilon": 1e-3},
            17,
            MICROSOFT,
            (2, 3, 4),
            n,
        )
        for skip, shift, bias, n in (
            (ROWS[::-1].copy(), None, None, 1),
            (ROWS[:1], ROW, ROW, 1),
            (ROWS[1], ROW, None, 1),
        )
    ),
    Case("SkipSimplifiedLayerNormalization", (ROWS, ROWS[:1], ROW, ROW), {}, 17, MICROSOFT, (2, 3)),
]


def columns(
    image: tuple[int, int], block: tuple[int, int], count: int, **attributes: list[int]
) -> Case:
    data = numbers(2, 3 * block[0] * block[1], count)
    sizes = (np.array(image, np.int64), np.array(block, np.int64))
    return Case("Col2Im", (data, *sizes), attributes, 18, constants=(1, 2))


COLUMNS = [
    columns((6, 4), (2, 2), 6, strides=[2, 2]),
    columns((6, 6), (3, 2), 6, strides=[3, 2]),
    columns((5, 5), (2, 3), 12),
    columns((7, 8), (2, 3), 18, strides=[2, 1], dilations=[2, 1], pads=[1, 0, 0, 0]),
    columns((5, 4), (2, 2), 4, strides=[2, 2]),  # its last row is in no window
]


def spectrum(*shape: int, axis: int, opset: int = 20, **attributes: int) -> Case:
    data = numbers(*shape)
    if opset < 20:
        return Case("DFT", (data,), {"axis": axis, **attributes}, opset)
    return Case("DFT", (data, None, np.array(axis, np.int64)), attributes, opset, constants=(2,))


SPECTRA = [
    spectrum(2, 6, 5, 2, axis=2),
    spectrum(2, 6, 5, 2, axis=1),
    spectrum(2, 6, 5, 1, axis=-2),
    spectrum(2, 7, 3, 1, axis=1, onesided=1),
    spectrum(2, 6, 2, axis=1, inverse=1),
    spectrum(2, 6, 5, 2, axis=2, opset=17),
]


NOWHERE = [(np.nan, np.inf), (np.inf, -np.inf), (-1e30, np.nan)]


def sampled(mode: str, padding: str, corners: int, opset: int = 20, width: int = 6) -> Case:
    """Places in the image and beyond each edge, on pixels and on edges too."""
    grid = numbers(2, 4, 7, 2) * np.float32(1.2)
    grid[0, 0, :3] = np.array([[-1, -1], [1, 1], [0, 0.5]])
    # A warp divides by 0; ONNX Runtime reads the first pixel there.
    grid[1, 1:] = np.array(NOWHERE, np.float32)[:, None] * np.ones((7, 1))
    grid[1, 1:, 1::2, 0] = -0.2
    grid[1, 1:, 2::2, 1] = 0.3
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    return Case("GridSample", (numbers(2, 3, 5, width), grid), attributes, opset)


def between(corners: int, width: int) -> Case:
    """Places between two pixels, in the image and far beyond its edges."""
    ties = np.arange(-2 * width, 3 * width, dtype=np.float32) + np.float32(0.5)
    grid = np.zeros((2, 3, len(ties), 2), np.float32)
    grid[..., 0] = 2 * ties / (width - 1) - 1 if corners else (2 * ties + 1) / width - 1
    attributes = {"mode": "nearest", "padding_mode": "reflection", "align_corners": corners}
    return Case("GridSample", (numbers(2, 3, 5, width), grid), attributes, 20)


SAMPLED = [
    between(0, 4),
    between(1, 5),  # steps that floats hold exactly
    sampled("linear", "zeros", 0),
    sampled("linear", "zeros", 1),
    sampled("linear", "border", 0),
    sampled("linear", "reflection", 0),
    sampled("linear", "reflection", 1),
    sampled("linear", "reflection", 1, width=1),
    sampled("linear", "border", 1, width=1),
    sampled("nearest", "zeros", 0),
    sampled("nearest", "border", 1),
    sampled("nearest", "reflection", 0),
    sampled("bilinear", "zeros", 0, opset=16),
]


def attention(
    heads: tuple[int, int] = (4, 4),
    lengths: tuple[int, int] = (5, 5),
    *,
    flat: bool = False,
    mask: npt.NDArray[Any] | None = None,
    past: int | None = None,
    results: int = 1,
    opset: int = 23,
    **attributes: Any,
) -> Case:
    size, batch = 8, 2
    shapes = [(heads[0], lengths[0], size), *[(heads[1], lengths[1], size)] * 2]
    arrays: list[npt.NDArray[Any] | None] = [
        numbers(batch, *s, seed=k) for k, s in enumerate(shapes)
    ]
    if flat:
        arrays = [
            x.transpose(0, 2, 1, 3).reshape(batch, x.shape[2], -1) for x in arrays if x is not None
        ]
        attributes |= {"q_num_heads": heads[0], "kv_num_heads": heads[1]}
    caches = [] if past is None else [numbers(batch, heads[1], past, size, seed=k) for k in (7, 8)]
    return Case("Attention", (*arrays, mask, *caches), attributes, opset, results=results)


SEEN = np.random.default_rng(3).random((5, 5)) < 0.7
SEEN[:, 0] = True

ATTENTIONS = [
    attention(),
    attention(flat=True, lengths=(5, 7)),
    attention((8, 2), (5, 7), flat=True, scale=0.2),
    attention((8, 2), (5, 7), mask=numbers(2, 1, 5, 7)),
    attention(is_causal=1),
    attention((4, 4), (3, 6), is_causal=1),
    attention((4, 2), (3, 3), past=4, results=3, is_causal=1, flat=True),
    attention(mask=SEEN),
    attention(mask=SEEN, is_causal=1, softcap=2.0),
    attention(mask=numbers(4, 5, 5), softcap=3.0),
    attention(results=4, qk_matmul_output_mode=3),
    attention(results=4),
]


def heads(
    query: int = 5,
    keys: int = 5,
    *,
    bias: bool = False,
    padding: npt.NDArray[Any] | None = None,
    addend: npt.NDArray[Any] | None = None,
    past: int | None = None,
    results: int = 1,
    **attributes: Any,
) -> Case:
    width, count, batch = 32, 4, 2
    q, k, v = (numbers(batch, n, width, seed=s) for s, n in enumerate((query, keys, keys)))
    caches = (
        []
        if past is None
        else [numbers(batch, count, past, width // count, seed=s) for s in (7, 8)]
    )
    own = numbers(3 * width) if bias else None
    inputs = (q, k, v, own, padding, addend, *caches)
    options = {"num_heads": count, **attributes}
    return Case("MultiHeadAttention", inputs, options, 17, MICROSOFT, (3,) if bias else (), results)


PADDING = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)

HEADS = [
    heads(),
    heads(3, 6, bias=True, scale=0.3),
    heads(padding=PADDING, addend=numbers(1, 4, 5, 5)),
    heads(unidirectional=1),
    heads(3, 3, past=2, results=3, bias=True, addend=numbers(2, 1, 3, 5)),
]


def rotary(
    shape: tuple[int, ...],
    width: int = 8,
    *,
    places: npt.NDArray[Any] | None = None,
    domain: str = "",
    **attributes: Any,
) -> Case:
    data = numbers(*shape)
    length = shape[2] if len(shape) == 4 else shape[1]
    rows = (16, width // 2) if places is not None else (shape[0], length, width // 2)
    angles = np.random.default_rng(5).uniform(-3, 3, rows)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    if domain:
        return Case("RotaryEmbedding", (data, places, cos, sin), attributes, 17, domain, (2, 3))
    constants = (1, 2) if places is not None else ()
    return Case("RotaryEmbedding", (data, cos, sin, places), attributes, 23, constants=constants)


PLACES = np.array([[3, 1, 4, 0, 5], [9, 2, 6, 8, 7]], np.int64)

ROTATIONS = [
    rotary((2, 3, 5, 8)),
    rotary((2, 3, 5, 8), places=PLACES),
    rotary((2, 5, 24), places=PLACES, num_heads=3, interleaved=1),
    rotary((2, 3, 5, 8), 4, places=PLACES, rotary_embedding_dim=4),
    rotary((2, 3, 5, 8), places=PLACES, interleaved=1, domain=MICROSOFT),
    rotary((2, 5, 24), places=np.array([2], np.int64), domain=MICROSOFT),
    rotary((2, 5, 24), 4, places=PLACES, num_heads=3, rotary_embedding_dim=4, domain=MICROSOFT),
]


def grouped(
    query: int,
    past: int | None,
    *,
    ends: tuple[int, int] | None = None,
    packed: bool = False,
    **attributes: Any,
) -> Case:
    count, kinds, size, batch = 4, 2, 16, 2
    q, k, v = (numbers(batch, query, n * size, seed=s) for s, n in enumerate((count, kinds, kinds)))
    caches = [numbers(batch, kinds, past or 0, size, seed=s) for s in (7, 8)]
    whole = query + (past or 0)
    last = np.array(ends or (whole, whole), np.int32) - 1
    angles = np.random.default_rng(5).uniform(-3, 3, (16, size // 2))
    tables = [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]
    if not attributes.get("do_rotary"):
        tables = [None, None]  # type: ignore[list-item]
    given = (np.concatenate([q, k, v], 2), None, None) if packed else (q, k, v)
    inputs = (
        *given,
        *(caches if past is not None else (None, None)),
        last,
        np.array(whole, np.int32),
        *tables,
    )
    options = {"num_heads": count, "kv_num_heads": kinds, **attributes}
    return Case("GroupQueryAttention", inputs, options, 17, MICROSOFT, (6, 7, 8), 3)


GROUPED = [
    grouped(5, None),
    grouped(5, None, do_rotary=1, packed=True),
    grouped(1, 4, do_rotary=1, rotary_interleaved=1),
    grouped(5, None, softcap=2.0, scale=0.2, local_window_size=3),
]


@pytest.mark.parametrize(
    "case",
    [
        Case("DFT", (numbers(2, 6, 2), np.array(8, np.int64)), {}, 17, constants=(1,)),  # padded
        spectrum(1, 3000, 1, axis=1),  # of a matrix of 72 MB
    ],
    ids=str,
)
def test_other_spectra_stay(case: Case) -> None:
    expanded = expand(case.graph(is_open=False), ["DFT"])
    assert [node.op_type for node in expanded.nodes] == ["DFT"]


@pytest.mark.parametrize("is_open", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize(
    "case",
    [*EINSUMS, *NORMS, *COLUMNS, *SPECTRA, *SAMPLED, *ATTENTIONS, *HEADS, *ROTATIONS, *GROUPED],
    ids=str,
)
def test_what_is_written_out_computes_the_same(case: Case, is_open: bool) -> None:
    graph = case.graph(is_open=is_open)
    expanded = expand(graph, [case.op_type, "InstanceNormalization"])
    assert case.op_type not in {node.op_type for node in expanded.nodes}
    assert not any(node.domain for node in expanded.nodes)
    wanted = FloatModel(graph, threads=1).run(dict(case.feeds()))
    found = FloatModel(expanded, threads=1).run(dict(case.feeds()))
    assert wanted.keys() == found.keys()
    for name, array in wanted.items():
        # ONNX Runtime turns its sines on in float32.
        tolerance = 3e-5 if case.op_type == "DFT" else 3e-6
        np.testing.assert_allclose(found[name], array, rtol=2e-5, atol=tolerance)
    if not is_open:
        assert all(value.dtype is not None and value.shape is not None for value in expanded.values)


@pytest.mark.parametrize(
    "case",
    [
        grouped(5, 0, do_rotary=1, packed=True),
        grouped(5, 0, ends=(3, 5), do_rotary=1),
        grouped(1, 4, do_rotary=1, rotary_interleaved=1),
        grouped(1, 4, do_rotary=1, local_window_size=2),
    ],
    ids=["packed", "padded", "interleaved", "in a window"],
)
def test_attention_that_is_rotated_apart_computes_the_same(case: Case) -> None:
    graph = case.graph(is_open=True)
    apart = rotate_apart(graph)
    kinds = [node.op_type for node in apart.nodes]
    assert kinds.count("RotaryEmbedding") == 2
    (node,) = (node for node in apart.nodes if node.op_type == "GroupQueryAttention")
    assert node.attributes.get_int("do_rotary", 0) == 0
    wanted = FloatModel(graph, threads=1).run(dict(case.feeds()))
    found = FloatModel(apart, threads=1).run(dict(case.feeds()))
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=2e-5, atol=3e-6)


def test_what_is_not_written_out_stays_and_says_why() -> None:
    """Scores behind the cap are read: no operator of the written form has them alone."""
    case = attention(results=4, qk_matmul_output_mode=2)
    graph = expand(case.graph(is_open=False), ["Attention"])
    assert [node.op_type for node in graph.nodes if node.op_type != "Identity"] == ["Attention"]
    decision = build_plan(graph, load_target("tflite")).decisions["node"]
    assert "its scores are read between cap, mask and Softmax" in decision.reason


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (sampled("cubic", "zeros", 0), "cubic"),
        (sampled("linear", "zeros", 0, width=2**22), "count"),
    ],
    ids=["cubic", "large"],
)
def test_samples_of_grids_that_stay_say_why(case: Case, why: str) -> None:
    graph = expand(case.graph(is_open=False), ["GridSample"])
    assert [node.op_type for node in graph.nodes if node.op_type != "Identity"] == ["GridSample"]
    assert why in build_plan(graph, load_target("tflite")).decisions["node"].reason
