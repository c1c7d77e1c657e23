"""Files that are cut, changed, or made to do harm."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path
from random import Random

import numpy as np
import pytest

from intact.errors import IntactError, ModelError
from intact.formats.tengine.tmfile.read import read_int8, read_tmfile
from intact.formats.tengine.tmfile.write import write_int8
from intact.results.sources import open_source
from tests.formats.tengine.tmfile import by_hand
from tests.formats.tengine.tmfile.by_hand import Hand, Node, Tensor, assembled
from tests.formats.tengine.tmfile.networks import FLOAT
from tests.formats.tengine.tmfile.test_layout import constant, hand
from tests.plans import calibrated


def test_a_file_that_is_cut_anywhere_is_refused() -> None:
    data = assembled(hand())
    for length in range(len(data)):
        with pytest.raises(ModelError) as error:
            read_tmfile(data[:length])
        assert str(error.value).isprintable()


def test_every_word_may_be_anything() -> None:
    data = assembled(hand())
    random = Random(1)
    for at in range(0, len(data) - 3, 4):
        changed = bytearray(data)
        word = random.choice((0, 1, 2, 2**31, 2**32 - 1, len(data), at, len(data) - at))
        struct.pack_into("<I", changed, at, word)
        try:
            read_tmfile(bytes(changed))
        except IntactError as error:
            assert str(error).isprintable()  # noqa: PT017 - some are read


def test_quantized_files_may_be_damaged_too() -> None:
    data = write_int8(calibrated(FLOAT["residual"](17), "tengine"))
    random = Random(2)
    for _ in range(30):
        changed = bytearray(data)
        for _ in range(random.choice((1, 2, 5))):
            at = random.randrange(len(data) // 4) * 4
            struct.pack_into("<I", changed, at, random.choice((0, 1, 3, 2**32 - 1, at)))
        try:
            read_int8(bytes(changed))
        except IntactError as error:
            assert str(error).isprintable()  # noqa: PT017 - some are read


def cheaply(data: bytes, most: int) -> str:
    """Read a file that must be refused, in little time and memory; return the reason."""
    tracemalloc.start()
    begin = time.perf_counter()
    with pytest.raises(ModelError) as error:
        read_tmfile(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert time.perf_counter() - begin < 5
    assert peak < most
    return str(error.value)


def test_constants_that_share_one_buffer_do_not_multiply() -> None:
    array = np.ones((1 << 16,), np.float32)
    count = 200
    graph = Hand(
        [Tensor("x", (1, 4), by_hand.INPUT_TENSOR), constant("c", array)],
        [Node("x", by_hand.INPUT, (), ("x",)), Node("r", by_hand.RELU, ("x",), ("c",), (0.0,))],
        ("x",),
        ("r",),
    )
    graph.tensors += [Tensor(f"c{k}", array.shape, by_hand.CONST_TENSOR) for k in range(count)]
    data = bytearray(assembled(graph))
    root = struct.unpack_from("<I", data, 8)[0]
    (graphs,) = struct.unpack_from("<I", data, root + 8)
    (subgraph,) = struct.unpack_from("<I", data, graphs + 4)
    (buffers,) = struct.unpack_from("<I", data, subgraph + 28)
    (first,) = struct.unpack_from("<I", data, buffers + 4)
    struct.pack_into(f"<{count}I", data, buffers + 8, *[first] * count)
    assert "share their contents too often" in cheaply(bytes(data), 1 << 22)


def test_lists_that_are_longer_than_the_file() -> None:
    data = bytearray(assembled(hand()))
    root = struct.unpack_from("<I", data, 8)[0]
    (graphs,) = struct.unpack_from("<I", data, root + 8)
    for length in (2**30, 2**32 - 1):
        struct.pack_into("<I", data, graphs, length)
        assert "lie outside it" in cheaply(bytes(data), 1 << 20)


def test_activations_that_no_machine_holds() -> None:
    graph = hand()
    graph.tensors[0].dims = (1, 3, 2**16, 2**16)
    assert "has the shape" in cheaply(assembled(graph), 1 << 20)
    graph.tensors[0].dims = (1, 3, 2**32 - 2, 2)
    assert "its input is FLOAT32 [1, 3, -2, 2]" in cheaply(assembled(graph), 1 << 20)
    graph.tensors[0].dims = ()
    assert "its input is FLOAT32 []" in cheaply(assembled(graph), 1 << 20)


def test_a_graph_that_reads_what_it_leads_to() -> None:
    graph = hand()
    graph.nodes[3].inputs = ("relu", "kernel", "shift")
    assert "Convolution ('n1'): its input 'relu' is not computed yet" in cheaply(
        assembled(graph), 1 << 20
    )


def test_two_nodes_that_write_one_tensor() -> None:
    graph = hand()
    graph.nodes[4].outputs = ("conv",)
    assert "ReLu ('n2'): it writes a tensor that another node writes" in cheaply(
        assembled(graph), 1 << 20
    )


def test_data_that_was_left_out_for_benchmarks() -> None:
    data = bytearray(assembled(hand()))
    at = data.index(struct.pack("<I", 24), 900)  # the size of the kernel's buffer
    struct.pack_into("<I", data, at + 4, 0)
    assert "TM_FOR_BENCHMARK" in cheaply(bytes(data), 1 << 20)


@pytest.mark.parametrize("version", [0, 1, 3])
def test_other_versions(version: int) -> None:
    assert f"version {version} of Tengine" in cheaply(assembled(hand(), version=version), 1 << 20)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    for path in (tmp_path / "none.tmfile", tmp_path, Path("\0")):
        with pytest.raises(ModelError, match="cannot read"):
            read_tmfile(path)


def test_a_file_is_what_its_name_says(tmp_path: Path) -> None:
    """Cut short, or of an older version, it is still not taken for ONNX."""
    path = tmp_path / "model.tmfile"
    for content in (b"", assembled(hand())[:20], assembled(hand(), version=1)):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"damaged|version 1 of Tengine"):
            open_source(path)


def test_names_of_any_bytes() -> None:
    graph = hand()
    names = {"conv": "line\nend", "relu": "", "mean": "\x1b[31m", "row": "x" * 5000}
    for tensor in graph.tensors:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.nodes:
        node.inputs = tuple(names.get(each, each) for each in node.inputs)
        node.outputs = tuple(names.get(each, each) for each in node.outputs)
    found = read_tmfile(assembled(graph))
    assert {str(value.name) for node in found.graph for value in node.outputs} >= {"line\nend"}
    graph.nodes[-1].options = (7,)
    assert cheaply(assembled(graph), 1 << 20).isprintable()
