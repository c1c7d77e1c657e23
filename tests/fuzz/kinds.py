"""What is fuzzed: for each kind of file its seeds, how it is mutated and what reads it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz import folders
from tests.fuzz import model_files as models
from tests.fuzz.mutate.archive import mutate_archive
from tests.fuzz.mutate.raw import mutate_bytes
from tests.fuzz.mutate.text import mutate_text
from tests.fuzz.mutate.tree import mutate_json, mutate_toml
from tests.fuzz.mutate.words import mutate_words

Mutate = Callable[[bytes, bytes, Random], bytes]


@dataclass(frozen=True)
class Kind:
    """One kind of file.

    Attributes:
        file: What it is called; its folder holds what ``seeds`` left there.
        seeds: Makes good files in a folder that they may use.
        mutate: Gives a damaged file from a seed, another seed and a random generator.
        feed: Reads a file as a user's call would; raises what that raises.
        seconds: Of work that one file may take; good ones take milliseconds.
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


def _result_file(name: str, target: str = "onnxruntime") -> Callable[[Path], list[bytes]]:
    return lambda folder: models.deployed(folder, name, target)


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
    from intact.search.trial import State, Trial, TrialResult

    space, plan, settings = _searched()
    path = folder / "seed.jsonl"
    path.unlink(missing_ok=True)
    with Log.create(path, settings) as log:
        for number, state in enumerate(State):
            found = Trial(number, space.default, 8.0, TrialResult(state, 0.5, 0.1, 4, 0.1, "why"))
            log.append(found, None if state is State.FAILED else Strategy.of(plan))
        log.confirm(Trial(0, space.default, 8.0, TrialResult(State.COMPLETE, 1.0, 0.0, 4)), None)
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
    "onnx": Kind("model.onnx", models.models, models.mutate_onnx, models.read_model),
    "quantize": Kind("model.onnx", models.quantizable_models, models.mutate_onnx, models.quantize),
    "quantized": Kind(
        "model.onnx", models.quantized_models, models.mutate_onnx, models.read_quantized
    ),
    "fake_quantized": Kind(
        "model.onnx", models.fake_quantized_models, models.mutate_onnx, models.read_fake_quantized
    ),
    "tflite": Kind("model.tflite", models.tflite_models, models.mutate_tflite, models.read_tflite),
    "tmfile": Kind("model.tmfile", models.tengine_models, mutate_words, models.read_tengine),
    "npz": Kind("samples.npz", _samples, mutate_archive, _read_samples),
    "image": Kind("images/0.png", _images, mutate_bytes, _read_images),
    "labels": Kind("labels.csv", _labels, mutate_text, _read_labels),
    "preprocess": Kind("preprocess.toml", _preprocessing, mutate_toml, _read_preprocessing),
    "recipe": Kind("recipe.toml", _recipes, mutate_toml, _read_recipe),
    "scales": Kind("table.scale", _tables, _mutate_table, _read_table),
    "toml": Kind("target.toml", _targets, mutate_toml, _read_target),
    "plan": Kind("plan.json", _result_file("plan.json"), mutate_json, _read_plan),
    "folder": Kind("folder.json", folders.seeds, folders.mutate, folders.feed),
    "integers": Kind("weights.npz", _integers, mutate_archive, _read_integers),
    "search_log": Kind("search.jsonl", _search_logs, _mutate_lines, _read_search_log),
    "statistics": Kind(
        "statistics.npz", _result_file("statistics.npz"), mutate_archive, _read_statistics
    ),
    "deployed": Kind(
        "model.int8.onnx", _result_file("model.int8.onnx"), models.mutate_onnx, _verify
    ),
    "tensorrt": Kind(
        "model.tensorrt.onnx",
        _result_file("model.tensorrt.onnx", "tensorrt"),
        models.mutate_onnx,
        _verify,
    ),
}
"""By the name that ``tools/fuzz.py --kind`` takes."""


def kind_named(name: str) -> Kind:
    """Return a kind, or one of those that are broken on purpose."""
    from tests.fuzz.broken import BROKEN

    return KINDS[name] if name in KINDS else BROKEN[name]
