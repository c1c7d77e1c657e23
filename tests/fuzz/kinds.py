"""What is fuzzed: for each kind of file its seeds, how it is mutated and what reads it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.fuzz.mutate.archive import mutate_archive
from tests.fuzz.mutate.proto import mutate_model
from tests.fuzz.mutate.raw import mutate_bytes
from tests.fuzz.mutate.text import mutate_text
from tests.fuzz.mutate.tree import mutate_json, mutate_toml
from tests.fuzz.mutate.words import mutate_words

Mutate = Callable[[bytes, bytes, Random], bytes]
_LARGEST_SAMPLE = 10_000
"""Elements; models that ask for larger samples are not calibrated."""


@dataclass(frozen=True)
class Kind:
    """One kind of file.

    Attributes:
        file: What it is called; its folder holds what ``seeds`` left there.
        seeds: Makes good files in a folder that they may use.
        mutate: Gives a damaged file from a seed, another seed and a random generator.
        feed: Reads a file as a user's call would; raises what that raises.
        seconds: Allowed for one file on a busy machine; good ones take milliseconds.
    """

    file: str
    seeds: Callable[[Path], list[bytes]]
    mutate: Mutate
    feed: Callable[[Path], object]
    seconds: float = 30

    def case(self, seeds: list[bytes], name: str, seed: int, index: int) -> bytes:
        """Return one damaged file: the same for the same arguments, on every machine."""
        random = Random(f"{name} {seed} {index}")
        return self.mutate(random.choice(seeds), random.choice(seeds), random)


def _models(_folder: Path) -> list[bytes]:
    from tests.fuzz.seeds import small_models

    return [model.SerializeToString() for model in small_models()]


def _quantizable_models(_folder: Path) -> list[bytes]:
    from tests.fuzz.seeds import quantizable_models

    return [model.SerializeToString() for model in quantizable_models()]


def _mutate_onnx(data: bytes, other: bytes, random: Random) -> bytes:
    return (mutate_bytes if random.random() < 0.1 else mutate_model)(data, other, random)


def _read_model(path: Path) -> None:
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


def _quantize(path: Path) -> None:
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


def _samples(_folder: Path) -> list[bytes]:
    from tests.fuzz.seeds import sample_files

    return sample_files()


def _read_samples(path: Path) -> None:
    from intact.data.sources import open_samples

    samples = open_samples(path, _sample_graph())
    for _ in samples.batches(4):
        pass
    samples.labels()


@cache
def _sample_graph() -> Any:
    from intact.graph import normalize
    from tests.fuzz.seeds import convolution

    return normalize(convolution())


def _targets(_folder: Path) -> list[bytes]:
    from intact.targets import target_names, target_source

    return [target_source(name).encode() for name in target_names()]


def _read_target(path: Path) -> None:
    from intact.targets import load_target, target_from_json, target_to_json

    target_from_json(target_to_json(load_target(path)))


def _result_file(name: str) -> Callable[[Path], list[bytes]]:
    def seeds(folder: Path) -> list[bytes]:
        from intact import quantize
        from tests.fuzz.seeds import convolution
        from tests.models import random_inputs

        quantize(convolution(), random_inputs(convolution(), batch=4), output=folder, threads=1)
        return [(folder / name).read_bytes()]

    return seeds


def _for_tensorrt(folder: Path) -> list[bytes]:
    from intact import quantize
    from tests.fuzz.seeds import convolution
    from tests.models import random_inputs

    samples = random_inputs(convolution(), batch=4)
    quantize(convolution(), samples, target="tensorrt", output=folder, threads=1)
    return [(folder / "model.tensorrt.onnx").read_bytes()]


def _read_plan(path: Path) -> None:
    from intact.formats.onnx_qdq.write import write_qdq
    from intact.plan import load_plan
    from intact.plan.plan_file import plan_to_json

    plan = load_plan(path, _stored_graph(path.with_name("model.onnx")))
    plan_to_json(plan)
    write_qdq(plan)


@cache
def _stored_graph(path: Path) -> Any:
    from intact.graph import Graph

    return Graph.load(path)


def _read_statistics(path: Path) -> None:
    from intact.calibrate.statistics import Statistics

    statistics = Statistics.load(path)
    statistics.to_bytes()
    for tensor in statistics.tensors.values():
        tensor.distribution()


def _verify(path: Path) -> None:
    from intact import verify

    verify(path.parent, samples=2, threads=1)


def _plans(folder: Path) -> list[bytes]:
    """Return a plan of this version, and what an older one made of the same."""
    (now,) = _result_file("plan.json")(folder)
    texts = {"method": "percentile", "method_options": "percentile=99.5", "mean": "1.0,2.0"}
    old = json.loads(now) | {"version": 1, "provenance": texts}
    del old["weights"]
    return [now, json.dumps(old).encode()]


def _integers(folder: Path) -> list[bytes]:
    """Return the integers beside the plan of a model that was quantized already."""
    from intact.formats.onnx_qdq.read import read_qdq
    from intact.graph import save_model
    from intact.plan import save_plan
    from intact.targets import load_target
    from tests.fuzz.seeds import quantized_pairs

    plan = read_qdq(quantized_pairs(), load_target("onnxruntime"))
    save_model(plan.graph.model, folder / "model.onnx")
    save_plan(plan, folder / "plan.json")
    return [(folder / "weights.npz").read_bytes()]


def _read_integers(path: Path) -> None:
    _read_plan(path.with_name("plan.json"))


def _quantized_models(folder: Path) -> list[bytes]:
    from tests.fuzz.seeds import quantized_pairs

    return [quantized_pairs().SerializeToString(), *_result_file("model.int8.onnx")(folder)]


def _read_quantized(path: Path) -> None:
    from intact.formats.onnx_qdq.read import read_qdq
    from intact.formats.onnx_qdq.write import write_qdq
    from intact.plan import plan_to_json
    from intact.targets import load_target

    plan = read_qdq(path, load_target("onnxruntime"))
    plan_to_json(plan)
    write_qdq(plan)


def _fake_quantized_models(_folder: Path) -> list[bytes]:
    import onnx_ir as ir

    from intact.formats.openvino.write import write_openvino
    from tests.fuzz.seeds import fake_quantized
    from tests.models import residual_net
    from tests.plans import calibrated

    written = write_openvino(calibrated(residual_net(), "openvino"))
    return [
        fake_quantized().SerializeToString(),
        ir.to_proto(written.model).SerializeToString(deterministic=True),
    ]


def _read_fake_quantized(path: Path) -> None:
    from intact.formats.openvino.read import read_fake_quantize
    from intact.formats.openvino.write import write_openvino
    from intact.plan import plan_to_json
    from intact.targets import load_target

    plan = read_fake_quantize(path, load_target("openvino"))
    plan_to_json(plan)
    write_openvino(plan)


def _tflite_models(_folder: Path) -> list[bytes]:
    from tests.formats.tflite.read_cases import CASES, build

    return [build(name) for name in CASES]


def _mutate_tflite(data: bytes, other: bytes, random: Random) -> bytes:
    from tests.fuzz.mutate.flatbuffer import mutate_flatbuffer

    return mutate_flatbuffer(data, other, random)


def _read_tflite(path: Path) -> None:
    from intact.engines.integer import IntegerEngine
    from intact.formats.tflite.read import read_tflite
    from intact.plan import plan_to_json
    from intact.program.lower import lower
    from intact.targets import load_target

    plan = read_tflite(path, load_target("tflite"))
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


def _tengine_models(_folder: Path) -> list[bytes]:
    from intact.formats.tengine.tmfile.write import write_float, write_int8
    from intact.graph import normalize
    from tests.formats.tengine.tmfile.networks import FLOAT, INTEGER
    from tests.plans import calibrated

    floats = [write_float(normalize(build(17))) for build in FLOAT.values()]
    return floats + [write_int8(calibrated(FLOAT[name](17), "tengine")) for name in INTEGER]


def _read_tengine(path: Path) -> None:
    from intact.errors import IntactError
    from intact.formats.tengine.tmfile.decode import open_tmfile
    from intact.formats.tengine.tmfile.read import read_int8, read_tmfile
    from intact.formats.tengine.tmfile.write import write_float
    from intact.graph import normalize

    graph = normalize(read_tmfile(path))
    with contextlib.suppress(IntactError):  # what is read need not be what is written
        write_float(graph)
    if open_tmfile(path).is_quantized:
        read_int8(path)


def _tables(_folder: Path) -> list[bytes]:
    from tests.fuzz.seeds import scale_tables

    return scale_tables()


def _mutate_table(data: bytes, other: bytes, random: Random) -> bytes:
    trees = data.startswith(b"{") and other.startswith(b"{")
    return (mutate_json if trees else mutate_text)(data, other, random)


def _read_table(path: Path) -> None:
    from intact.calibrate.assign import Method, assign
    from intact.formats.scales import read_scales

    plan, statistics = _calibrated()
    assign(plan, statistics, Method.of(plan.target), read_scales(path, plan.graph))


@cache
def _calibrated() -> Any:
    from intact import quantize
    from tests.fuzz.seeds import convolution
    from tests.models import random_inputs
    from tests.plans import planned

    result = quantize(convolution(), random_inputs(convolution(), batch=4), threads=1)
    return planned(convolution()), result.statistics


def _preprocessing(_folder: Path) -> list[bytes]:
    from tests.fuzz.seeds import preprocess_files

    return preprocess_files()


def _read_preprocessing(path: Path) -> None:
    from intact.data.preprocess import preprocess_to_toml, read_preprocess

    preprocess_to_toml(read_preprocess(path))


def _recipes(_folder: Path) -> list[bytes]:
    return [
        b'command = "quantize"\nmodel = "m.onnx"\ntarget = ["tflite", "c"]\nsamples = "all"\n'
        b'max_memory = "2G"\nmean = [1.0, 2]\n[bits]\n"a.b" = 4\n[method_options]\nx = 1e-3\n',
        b'model = "m"\ndata = "d"\nscales = []\nsize = 8\nin_place = false\nio = "INT8"\n',
    ]


def _read_recipe(path: Path) -> None:
    from intact.recipe.file import read_recipe, write_recipe
    from intact.recipe.options import QuantizeCommand

    values = {"model": "m", "output": "o", **read_recipe(path, "quantize", QuantizeCommand)}
    write_recipe("quantize", QuantizeCommand, QuantizeCommand(**values), {})


def _labels(_folder: Path) -> list[bytes]:
    return [
        b"file,label\na.png,0\nb/c.png,12\n",
        b'"a.png",3\r\n"b/c.png",3\r\n\r\n',
    ]


def _read_labels(path: Path) -> None:
    from intact.data.images.labels import csv_labels

    csv_labels(path, ["a.png", "b/c.png"])


def _images(folder: Path) -> list[bytes]:
    from tests.fuzz.seeds import image_files

    (folder / "images").mkdir(exist_ok=True)
    return image_files()


def _read_images(path: Path) -> None:
    from intact.data.images.reader import open_folder
    from intact.data.preprocess import Preprocess
    from intact.data.signature import input_specs

    for _ in open_folder(path.parent, input_specs(_sample_graph()), Preprocess()):
        pass


def _search_logs(folder: Path) -> list[bytes]:
    from intact.search.logs.log import Log
    from intact.search.strategy import Strategy
    from intact.search.trial import Measured, State, Trial

    space, plan, settings = _searched()
    path = folder / "seed.jsonl"
    path.unlink(missing_ok=True)
    with Log.create(path, settings) as log:
        for number, state in enumerate(State):
            found = Trial(number, space.default, 8.0, Measured(state, 0.5, 0.1, 4, 0.1, "why"))
            log.append(found, None if state is State.FAILED else Strategy.of(plan))
        log.confirm(Trial(0, space.default, 8.0, Measured(State.COMPLETE, 1.0, 0.0, 4)), None)
    return [path.read_bytes()]


@cache
def _searched() -> Any:
    """A space, a plan of it with scales, and the settings of a search in it."""
    from intact.search.logs.log import LogSettings
    from intact.search.space import Space
    from intact.search.trial import Goal
    from tests.fuzz.seeds import convolution
    from tests.plans import calibrated

    plan = calibrated(convolution())
    space = Space.of(plan.graph, plan.target)
    return (
        space,
        plan,
        LogSettings.of(
            space,
            sampler="greedy",
            seed=1,
            objective="top1",
            minimize="bytes",
            goal=Goal(0.25, 100.0),
            samples=4,
            samples_hash="",
            method="minmax",
        ),
    )


def _mutate_lines(data: bytes, other: bytes, random: Random) -> bytes:
    """Damage one line as a tree, or the whole as text."""
    lines = data.splitlines(keepends=True)
    if random.random() < 0.3:
        return mutate_text(data, other, random)
    at = random.randrange(len(lines))
    donor = random.choice(other.splitlines())
    lines[at] = mutate_json(lines[at], donor, random) + b"\n"
    return b"".join(lines)


def _read_search_log(path: Path) -> None:
    from intact.errors import IntactError
    from intact.search.logs.log import Log, choose, read_log

    _, plan, settings = _searched()
    for which in ("best", 1):
        with contextlib.suppress(IntactError):
            chosen = choose(read_log(path), which).strategy
            if chosen is not None:
                chosen.plan(plan.graph, plan.target)
    Log.resume(path, settings).close()  # the last: it cuts off what is torn
    for entry in read_log(path):
        if entry.strategy is not None:
            entry.strategy.plan(plan.graph, plan.target)


KINDS: Mapping[str, Kind] = {
    "onnx": Kind("model.onnx", _models, _mutate_onnx, _read_model),
    "quantize": Kind("model.onnx", _quantizable_models, _mutate_onnx, _quantize),
    "quantized": Kind("model.onnx", _quantized_models, _mutate_onnx, _read_quantized),
    "fake_quantized": Kind(
        "model.onnx", _fake_quantized_models, _mutate_onnx, _read_fake_quantized
    ),
    "tflite": Kind("model.tflite", _tflite_models, _mutate_tflite, _read_tflite),
    "tmfile": Kind("model.tmfile", _tengine_models, mutate_words, _read_tengine),
    "npz": Kind("samples.npz", _samples, mutate_archive, _read_samples),
    "image": Kind("images/0.png", _images, mutate_bytes, _read_images),
    "labels": Kind("labels.csv", _labels, mutate_text, _read_labels),
    "preprocess": Kind("preprocess.toml", _preprocessing, mutate_toml, _read_preprocessing),
    "recipe": Kind("recipe.toml", _recipes, mutate_toml, _read_recipe),
    "scales": Kind("table.scale", _tables, _mutate_table, _read_table),
    "toml": Kind("target.toml", _targets, mutate_toml, _read_target),
    "plan": Kind("plan.json", _plans, mutate_json, _read_plan),
    "integers": Kind("weights.npz", _integers, mutate_archive, _read_integers),
    "search_log": Kind("search.jsonl", _search_logs, _mutate_lines, _read_search_log),
    "statistics": Kind(
        "statistics.npz", _result_file("statistics.npz"), mutate_archive, _read_statistics
    ),
    "deployed": Kind("model.int8.onnx", _result_file("model.int8.onnx"), _mutate_onnx, _verify),
    "tensorrt": Kind("model.tensorrt.onnx", _for_tensorrt, _mutate_onnx, _verify),
}
"""By the name that ``tools/fuzz.py --kind`` takes."""


def kind_named(name: str) -> Kind:
    """Return a kind, or one of those that are broken on purpose."""
    from tests.fuzz.broken import BROKEN

    return KINDS[name] if name in KINDS else BROKEN[name]
