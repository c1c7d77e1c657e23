"""The kinds of model files that are fuzzed: seeds, mutations, and what reads them as users do."""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.fuzz.mutate.proto import mutate_model
from tests.fuzz.mutate.raw import mutate_bytes

_LARGEST_SAMPLE = 10_000
"""Elements; models that ask for larger samples are not calibrated."""


def deployed(
    folder: Path, name: str = "model.int8.onnx", target: str = "onnxruntime"
) -> list[bytes]:
    """Write a result into the folder; return one of its files."""
    from intact import quantize
    from tests.fuzz.seeds import convolution
    from tests.models import random_inputs

    samples = random_inputs(convolution(), batch=4)
    quantize(convolution(), samples, target=target, output=folder, threads=1)
    return [(folder / name).read_bytes()]


def models(_folder: Path) -> list[bytes]:
    from tests.fuzz.seeds import models_of_opsets, small_models

    return [model.SerializeToString() for model in (*small_models(), *models_of_opsets())]


def quantizable_models(_folder: Path) -> list[bytes]:
    from tests.fuzz.seeds import quantizable_models

    return [model.SerializeToString() for model in quantizable_models()]


def mutate_onnx(data: bytes, other: bytes, random: Random) -> bytes:
    return (mutate_bytes if random.random() < 0.1 else mutate_model)(data, other, random)


def read_model(path: Path) -> None:
    from intact.errors import IntactError
    from intact.graph import Graph, normalize
    from intact.plan import build_plan
    from intact.plan.inspection import inspect_plan

    with contextlib.suppress(IntactError):
        Graph.load(path).hash  # noqa: B018 - computed when it is asked for
    graph = normalize(path)
    for target in _all_targets():
        inspect_plan(build_plan(graph, target))
    graph.hash  # noqa: B018


@cache
def _all_targets() -> Any:
    from intact.targets import load_target, target_names

    return [load_target(name) for name in target_names()]


def quantize(path: Path) -> None:
    from intact import quantize
    from intact.data.signature import input_specs
    from intact.errors import ModelError
    from intact.graph import normalize

    random = np.random.default_rng(0)
    feeds = {}
    for name, spec in input_specs(normalize(path)).items():
        shape = [2 if size is None else size for size in spec.shape]
        if np.prod([size or 1 for size in shape], dtype=float) > _LARGEST_SAMPLE:
            raise ModelError("no samples for this model")
        feeds[name] = random.integers(0, 2, shape).astype(spec.dtype)
    quantize(path, feeds, output=path.parent / "out", threads=1)


def quantized_models(folder: Path) -> list[bytes]:
    from tests.fuzz.seeds import quantized_pairs, with_ranges

    seeds = [quantized_pairs(), with_ranges()]
    return [*(model.SerializeToString() for model in seeds), *deployed(folder)]


def read_quantized(path: Path) -> None:
    from intact.formats.onnx_qdq.read import read_qdq
    from intact.formats.onnx_qdq.write import write_qdq
    from intact.plan import plan_to_json
    from intact.targets import load_target

    plan = read_qdq(path, load_target("onnxruntime"))
    plan_to_json(plan)
    write_qdq(plan)


def fake_quantized_models(_folder: Path) -> list[bytes]:
    import onnx_ir as ir

    from intact.formats.openvino.write import write_openvino
    from intact.plan import Overrides
    from tests.formats.onnx_qdq.test_read_written_out import net
    from tests.fuzz.seeds import fake_quantized, trained
    from tests.models import residual_net
    from tests.plans import calibrated

    plans = [
        calibrated(residual_net(), "openvino", overrides)
        for overrides in (Overrides(), Overrides(weight_bits=4), Overrides(activation_bits=4))
    ]
    written = [ir.to_proto(write_openvino(plan).model) for plan in plans]
    models = [fake_quantized(), trained(), net("div"), net("zero_behind"), *written]
    return [model.SerializeToString(deterministic=True) for model in models]


def read_fake_quantized(path: Path) -> None:
    from intact.formats.onnx_qdq.read import read_qdq
    from intact.formats.openvino.write import write_openvino
    from intact.plan import plan_to_json
    from intact.targets import load_target

    plan = read_qdq(path, load_target("openvino"))
    plan_to_json(plan)
    write_openvino(plan)


def tflite_models(_folder: Path) -> list[bytes]:
    from tests.formats.tflite.read_cases import CASES, WIDE, build
    from tests.formats.tflite.small_files import FileBuilder
    from tests.formats.tflite.streams import streaming

    return [*(build(name) for name in (*CASES, *WIDE)), streaming(FileBuilder(), again=True)]


def mutate_tflite(data: bytes, other: bytes, random: Random) -> bytes:
    from tests.fuzz.mutate.flatbuffer import mutate_flatbuffer

    return mutate_flatbuffer(data, other, random)


def read_tflite(path: Path) -> None:
    from intact.engines.integer import IntegerEngine
    from intact.errors import ModelError
    from intact.formats.tflite.read import read_tflite
    from intact.plan import plan_to_json
    from intact.program.lower import lower
    from intact.targets import load_target

    try:
        plan = read_tflite(path, load_target("tflite"))
    except ModelError:
        plan = read_tflite(path, load_target("tflite-16x8"))
    plan_to_json(plan)
    program = lower(plan)
    shapes = {
        name: [1 if size is None else size for size in tensor.shape]
        for name, tensor in program.inputs.items()
    }
    if sum(float(np.prod(shape, dtype=float)) for shape in shapes.values()) > _LARGEST_SAMPLE:
        return
    feeds = {name: np.zeros(shape, program.inputs[name].plain) for name, shape in shapes.items()}
    IntegerEngine(program).run(feeds)


def tengine_models(_folder: Path) -> list[bytes]:
    from intact.formats.tengine.tmfile.write import write_float, write_int8
    from intact.graph import normalize
    from tests.formats.tengine.tmfile.networks import FLOAT, INTEGER
    from tests.plans import calibrated

    floats = [write_float(normalize(build(17))) for build in FLOAT.values()]
    return floats + [write_int8(calibrated(FLOAT[name](17), "tengine")) for name in INTEGER]


def read_tengine(path: Path) -> None:
    from intact.errors import IntactError
    from intact.formats.tengine.tmfile.codec import open_tmfile
    from intact.formats.tengine.tmfile.read import read_int8, read_tmfile
    from intact.formats.tengine.tmfile.write import write_float
    from intact.graph import normalize

    graph = normalize(read_tmfile(path))
    with contextlib.suppress(IntactError):  # what is read need not be what is written
        write_float(graph)
    if open_tmfile(path).is_quantized:
        read_int8(path)
