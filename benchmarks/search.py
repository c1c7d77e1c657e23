"""What a search costs and what it finds, on the zoo.

    python benchmarks/search.py [--models resnet20,mobilenetv2,vit] [--samples 512]
        [--targets tvm,onnxruntime,integer-pow2] [--parts speed,samplers,mixed,pow2]
        [--trials 120] [--repeats 3] [--sizes 0,0.1,0.5,0.9,0.98]

Four tables:

1. speed: the trials of real searches, a second, beside rebuilding candidates (plan, scales, a
   session compiled for each) and running all samples; the same candidates, medians of repeats.
2. samplers: full evaluations (samples run over samples in the set) and trials until a sampler keeps
   the accuracy (one point below float at most) at the cost that greedy ends with, or a lower one.
3. mixed: 4 and 8 bits, searched on calibration images for the least divergence within a size,
   scored on 5,000 test images beside uniform 8 bits and uniform 4 bits (weights and activations).
4. pow2: ResNet-20 with scales that are powers of two and its first convolution quantized.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import intact
from intact.api import FoundStrategy
from intact.calibrate.assign import Method, assign
from intact.calibrate.collect import collect
from intact.calibrate.statistics import Statistics
from intact.data.sources import open_samples
from intact.engines.simulate import Simulator
from intact.graph import load_model, normalize
from intact.plan import build_plan
from intact.search.cost import make_cost
from intact.search.measuring.evaluator import Evaluator
from intact.search.measuring.objective import Objective
from intact.search.measuring.trial_data import TrialData
from intact.search.plans import required
from intact.search.roundings import Roundings, beside
from intact.search.space import Candidate, Space
from intact.search.trial import Ask, Trial
from intact.targets import load_target
from zoo import CALIBRATION, MODELS, TEST, ZooModel

TARGETS = {
    "resnet20": ("tvm", "onnxruntime", "integer-pow2"),
    "mobilenetv2": ("tvm", "onnxruntime"),
    "vit": ("onnxruntime",),
}
SAMPLERS = ("sensitivity", "batched-greedy", "annealing", "tpe", "nsga2", "random")
_REBUILT = 5
"""Candidates that are rebuilt for each repeat; each costs a second or more."""


@dataclass(frozen=True)
class Images:
    """Preprocessed images with labels."""

    feeds: dict[str, npt.NDArray[Any]]

    @staticmethod
    def of(model: ZooModel, path: Path, count: int) -> Images:
        """Return the first images of a file."""
        data = np.load(path)
        images = model.preprocess("image", data["image"][:count].astype(np.float32))
        return Images({"image": np.asarray(images), "labels": data["labels"][:count]})


def searched(model: ZooModel, images: Images, **options: Any) -> FoundStrategy:
    """Search with a log on disk, as users do."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        return intact.search_strategy(model.path, images.feeds, log=log, **options)


# ---- speed ---------------------------------------------------------------------------------------


def rebuild_seconds(
    space: Space, known: Statistics, method: Method, images: Images, candidates: list[Candidate]
) -> list[float]:
    """Return what it takes to make a plan, scales and a session, and to run all samples."""
    found = []
    pixels = images.feeds["image"]
    for candidate in candidates:
        start = time.perf_counter()
        plan = build_plan(space.plan.graph, space.plan.target, space.requests(candidate))
        simulator = Simulator(assign(plan, known, method))
        for first in range(0, len(pixels), 64):
            simulator.run({"image": pixels[first : first + 64]})
        found.append(time.perf_counter() - start)
    return found


def speed(model: ZooModel, target: str, images: Images, trials: int, repeats: int) -> Iterator[str]:
    """Yield a row for each sampler."""
    for sampler in ("sensitivity", "greedy", "random"):
        paces, rebuilt, evaluations = [], [], []
        for _ in range(repeats):
            found = searched(
                model,
                images,
                target=target,
                max_drop=1.0,
                minimize="bitops",
                sampler=sampler,
                budget=f"{trials}trials",
            )
            standing, space = found.standing, found.space
            paces.append(standing.seconds / len(standing.trials))
            evaluations.append(standing.evaluations / len(standing.trials))
            opened = open_samples(images.feeds, space.plan.graph)
            known = collect(space.plan.graph, opened, required(space))
            step = max(1, len(standing.trials) // _REBUILT)
            candidates = [trial.candidate for trial in standing.trials[::step][:_REBUILT]]
            method = Method.of(space.plan.target)
            rebuilt += rebuild_seconds(space, known, method, images, candidates)
        pace, rebuild = statistics.median(paces), statistics.median(rebuilt)
        yield (
            f"{model.name} {target} {sampler} {1 / pace:.1f} {1 / rebuild:.2f} "
            f"{rebuild / pace:.1f} {statistics.median(evaluations):.2f}"
        )


# ---- samplers ------------------------------------------------------------------------------------


def evaluations_until(found: FoundStrategy, cost: float) -> tuple[float, int] | None:
    """Return full evaluations and trials until a trial holds the limit at no higher cost."""
    standing, spent = found.standing, 0
    for trial in standing.trials:
        spent += trial.measured.samples
        whole = trial.counts(standing.samples)
        if whole and standing.goal.accepts(trial) and trial.cost <= cost:
            return spent / standing.samples, trial.number + 1
    return None


def samplers(model: ZooModel, target: str, images: Images, trials: int) -> Iterator[str]:
    """Yield a row for each sampler, greedy first."""
    options: dict[str, Any] = {"target": target, "max_drop": 1.0, "minimize": "bitops"}
    greedy = searched(model, images, sampler="greedy", budget="2000trials", **options)
    best = greedy.standing.best
    if best is None:
        yield f"{model.name} {target} greedy found nothing"
        return
    spent = evaluations_until(greedy, best.cost)
    first = spent[0] if spent is not None else float("nan")
    yield f"{model.name} {target} greedy {_part(greedy, best)} {_reached(spent, first)}"
    for sampler in SAMPLERS:
        found = searched(model, images, sampler=sampler, budget=f"{trials}trials", **options)
        reached = evaluations_until(found, best.cost)
        yield (
            f"{model.name} {target} {sampler} {_part(found, found.standing.best)} "
            f"{_reached(reached, first)}"
        )


def _part(found: FoundStrategy, best: Trial | None) -> str:
    if best is None or found.base is None:
        return "- -"
    return f"{best.score:.2f} {100 * best.cost / found.base.cost:.1f}"


def _reached(reached: tuple[float, int] | None, greedy: float) -> str:
    if reached is None:
        return "not - -"
    return f"{reached[0]:.1f} {reached[1]} {reached[0] / greedy:.3f}"


# ---- mixed ---------------------------------------------------------------------------------------


def test_scores(
    model: ZooModel,
    space: Space,
    images: Images,
    candidates: list[Candidate],
    roundings: Roundings,
) -> dict[Candidate, float]:
    """Return top-1 of candidates on the test images.

    Scales are those of the calibration images, weights of few bits are rounded as in the search.
    """
    graph, method = space.plan.graph, Method.of(space.plan.target)
    known = collect(graph, open_samples(images.feeds, graph), required(space))
    test = open_samples(Images.of(model, TEST, 5000).feeds, graph)
    objective = Objective.of("accuracy")
    evaluator = Evaluator(TrialData.of(space, known, method, test, objective, roundings=roundings))
    return {each: evaluator.measure(Ask(each)).score for each in candidates}


def mixed(model: ZooModel, target: str, images: Images, sizes: list[float]) -> Iterator[str]:
    """Yield a row for the best of each size, and for the uniform ones, by size."""
    if target != "onnxruntime":  # the format that packs 4 bits
        return
    graph = normalize(load_model(model.path))
    space = Space.of(graph, load_target(target), widths=(8, 4))
    cost = make_cost("bytes", space)
    uniform = {f"uniform-{bits}": space.uniform(bits) for bits in (8, 4)}
    low, high = cost.lowest(), cost.of(space.default)
    chosen: dict[str, Candidate] = {}
    roundings = Roundings()
    for part, allow_float in product(sizes, (False, True)):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "search.jsonl"
            found = intact.search_strategy(
                model.path,
                images.feeds,
                target=target,
                widths=(8, 4),
                allow_float=allow_float,
                max_cost=low + part * (high - low),
                minimize="bytes",
                objective="kl",
                log=log,
            )
            if beside(log).exists():  # the same for all sizes: they follow from the model alone
                roundings = Roundings.load(beside(log))
        chosen[f"{part:.0%}{'-float' if allow_float else ''}"] = found.best.candidate
    candidates = [*chosen.values(), *uniform.values()]
    scores = test_scores(model, space, images, candidates, roundings)
    for name, candidate in sorted({**chosen, **uniform}.items(), key=lambda row: cost.of(row[1])):
        beaten = [
            other
            for other, choices in uniform.items()
            if scores[candidate] >= scores[choices]
            and cost.of(candidate) <= cost.of(choices)
            and (scores[candidate], cost.of(candidate)) != (scores[choices], cost.of(choices))
        ]
        yield (
            f"{model.name} {target} {name} {scores[candidate]:.2f} {cost.of(candidate):.0f} "
            f"{','.join(beaten) or '-'}"
        )


# ---- powers of two -------------------------------------------------------------------------------


def pow2(model: ZooModel, target: str, images: Images) -> Iterator[str]:
    """Yield what is lost on the test images, by integers, with the first convolution quantized."""
    if target != "integer-pow2":
        return
    found = searched(
        model,
        images,
        target=target,
        objective="kl",
        allow_float=False,
        budget="400trials",
    )
    plan = found.result.plan
    first = next(node for node in plan.graph.nodes if node.op_type == "Conv")
    evaluation = intact.evaluate(found.result, Images.of(model, TEST, 5000).feeds)
    if evaluation.accuracy is not None:
        before, after = evaluation.accuracy.top1
        yield (
            f"{model.name} {target} {before:.2f} {after:.2f} {after - before:+.2f} "
            f"{plan.is_quantized(first)} {len(found.standing.trials)}"
        )


TABLES = {
    "speed": "model target sampler trials/s rebuilt/s ratio evaluations/trial",
    "samplers": "model target sampler score cost% evaluations trials of-greedy's",
    "mixed": "model target strategy test-top-1 cost dominates",
    "pow2": "model target float integers change first-conv-quantized trials",
}


def rows_of(
    part: str, model: ZooModel, target: str, images: Images, arguments: argparse.Namespace
) -> Iterator[str]:
    """Return the rows of a table, made when they are asked for."""
    if part == "speed":
        return speed(model, target, images, arguments.trials, arguments.repeats)
    if part == "samplers":
        return samplers(model, target, images, arguments.trials)
    if part == "mixed":
        sizes = [float(size) for size in arguments.sizes.split(",")]
        return mixed(model, target, images, sizes)
    return pow2(model, target, images)


def main() -> None:
    """Print the tables that are asked for, each row when it is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="resnet20,mobilenetv2,vit")
    parser.add_argument("--targets", default="tvm,onnxruntime,integer-pow2")
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--parts", default=",".join(TABLES))
    parser.add_argument(
        "--sizes",
        default="0,0.1,0.5,0.9,0.98",
        help="of mixed: from the least bytes that are possible (0) to 8 bits everywhere (1)",
    )
    parser.add_argument("--trials", type=int, default=120)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    samples = arguments.samples
    for part in arguments.parts.split(","):
        print(f"{part}: {TABLES[part]}", flush=True)
        for model in MODELS:
            if model.name not in arguments.models.split(","):
                continue
            for target in set(TARGETS[model.name]) & set(arguments.targets.split(",")):
                images = Images.of(model, CALIBRATION, samples)
                for row in rows_of(part, model, target, images, arguments):
                    print(f"  {row}", flush=True)


if __name__ == "__main__":
    main()
