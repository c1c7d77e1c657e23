"""The trainer: what it keeps, how it goes on after a kill, and what it refuses."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto

from intact.data.sources import open_samples
from intact.errors import DataError, IntactError, UsageError
from intact.improve.learn import training
from intact.improve.learn.batches import Pool
from intact.improve.learn.checkpoints import read_checkpoint, write_checkpoint
from intact.improve.learn.module import QuantizedModule
from intact.improve.learn.training import Schedule, Trainer, rate_factor
from intact.improve.trained import Epoch, Trained
from intact.plan import Overrides, QuantizedGraph
from tests.improve.learn.nets import every_layer
from tests.models import MODELS, ModelBuilder, random_inputs, residual_net
from tests.plans import Arrays, calibrate, calibrated, planned

MODEL = residual_net()


def plan_of(bits: int = 4) -> QuantizedGraph:
    return calibrated(MODEL, "tensorrt", Overrides(weight_bits=bits))


def data(count: int = 21, *, labels: bool = False, model: onnx.ModelProto = MODEL) -> Arrays:
    found: Arrays = dict(random_inputs(model, batch=count, seed=4))
    return {**found, "labels": np.arange(count) % 5} if labels else found


def pool_of(
    plan: QuantizedGraph, given: Any, *, size: int = 4, seed: int = 0, memory: int = 1 << 30
) -> Pool:
    return Pool(open_samples(given, plan.graph), size, seed, memory)


def trainer_of(
    plan: QuantizedGraph,
    given: Any = None,
    *,
    checkpoint: Path | None = None,
    module: QuantizedModule | None = None,
    size: int = 4,
    **options: Any,
) -> tuple[QuantizedModule, Trainer]:
    schedule = Schedule(**{"epochs": 3, "rate": 0.1, **options})
    module = QuantizedModule(plan) if module is None else module
    pool = pool_of(plan, data() if given is None else given, size=size, seed=schedule.seed)
    return module, Trainer(module, pool, schedule, threads=1, checkpoint=checkpoint)


def same_state(left: QuantizedModule, right: QuantizedModule) -> bool:
    mine, theirs = left.state_dict(), right.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)


def figures(done: Trained) -> list[tuple[object, ...]]:
    """All but the seconds."""
    return [(e.number, e.loss, e.held_out, e.accuracy) for e in done.epochs]


def test_the_loss_falls_and_the_best_epoch_is_kept() -> None:
    reported: list[Epoch] = []
    module, trainer = trainer_of(plan_of(), epochs=6)
    done = trainer.run(report=reported.append)
    assert reported == done.epochs
    assert [each.number for each in done.epochs] == list(range(7))
    losses = [each.held_out for each in done.epochs]
    assert done.best > 0
    assert losses[done.best] == min(losses) < 0.7 * losses[0]
    _, again = trainer_of(plan_of(), module=module)
    assert again._measure()[0] == pytest.approx(min(losses), rel=1e-6)


def test_a_seed_decides_everything() -> None:
    (one, first), (two, second) = trainer_of(plan_of()), trainer_of(plan_of())
    assert figures(first.run()) == figures(second.run())
    assert same_state(one, two)
    other, third = trainer_of(plan_of(), seed=1)
    third.run()
    assert not same_state(one, other)
    assert first._done.best
    assert third._done.best
    pools = [pool_of(plan_of(), data(), seed=seed) for seed in (0, 0, 1)]
    orders = [[b.inputs["image"].sum() for b in pool.epoch(1)] for pool in pools]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != [b.inputs["image"].sum() for b in pools[0].epoch(2)]


class Killed(Exception):  # noqa: N818  a kill is no error
    """In the place of a kill."""


def killer(at: int) -> Callable[[int, int | None], None]:
    def progress(done: int, _: int | None) -> None:
        if done == at:
            raise Killed

    return progress


@pytest.mark.parametrize("every", [0.0, 1e9], ids=["each step", "each epoch"])
@pytest.mark.parametrize("at", [1, 4, 5, 7, 12])
def test_a_training_that_was_killed_goes_on_bit_for_bit(
    at: int, every: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_EVERY", every)
    options: dict[str, Any] = {"augment": ("flip", "shift")}
    plan = plan_of()
    whole, trainer = trainer_of(plan, **options)
    expected = trainer.run()
    assert expected.best > 0
    path = tmp_path / "state.pt"
    _, trainer = trainer_of(plan, checkpoint=path, **options)
    with pytest.raises(Killed):
        trainer.run(progress=killer(at))
    assert path.is_file() == (every == 0.0 or at > 4)
    module, trainer = trainer_of(plan, checkpoint=path, **options)
    assert figures(trainer.run(resume=True)) == figures(expected)
    assert same_state(module, whole)


def test_running_statistics_are_resumed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.improve.learn.nets import normed

    monkeypatch.setattr(training, "_EVERY", 0.0)
    plan, path = calibrated(normed()), tmp_path / "state.pt"
    given = data(model=normed())

    def make(checkpoint: Path | None) -> tuple[QuantizedModule, Trainer]:
        module = QuantizedModule(plan, batch_norm="live")
        return trainer_of(plan, given, module=module, checkpoint=checkpoint)

    whole, trainer = make(None)
    expected = trainer.run()
    _, trainer = make(path)
    with pytest.raises(Killed):
        trainer.run(progress=killer(6))
    module, trainer = make(path)
    assert figures(trainer.run(resume=True)) == figures(expected)
    assert same_state(module, whole)


@pytest.mark.parametrize("change", ["options", "plan", "data", "labels"])
def test_the_state_of_another_training_is_refused(change: str, tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    _, trainer = trainer_of(plan_of(), data(labels=True), checkpoint=path)
    trainer.run()
    plan, given = plan_of(), data(labels=True)
    options: dict[str, Any] = {}
    match change:
        case "options":
            options = {"rate": 0.2}
        case "plan":  # the same graph, with other scales
            plan = calibrated(MODEL, "tensorrt", Overrides(weight_bits=5))
        case "data":
            given["image"] = given["image"][::-1].copy()
        case "labels":
            given["labels"] = given["labels"][::-1].copy()
    _, trainer = trainer_of(plan, given, checkpoint=path, **options)
    with pytest.raises(UsageError, match="is of a training with other options"):
        trainer.run(resume=True)


class Malicious:
    """A pickle that would make a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_damaged_and_malicious_states_are_refused(tmp_path: Path) -> None:
    path, made = tmp_path / "state.pt", tmp_path / "made"
    _, trainer = trainer_of(plan_of(), checkpoint=path)
    trainer.run()
    whole = path.read_bytes()
    state = read_checkpoint(path)
    assert state is not None
    assert read_checkpoint(tmp_path / "none.pt") is None
    for damaged in (whole[:-100], whole[: len(whole) // 2], b"", b"text", whole[100:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="no state of a training"):
            trainer.run(resume=True)
    others: list[Any] = [{"of": Malicious(made)}, [1, 2], {"module": {}, "place": {}}, {}]
    for other in others:
        torch.save(other, path)
        with pytest.raises(DataError, match="no state of a training"):
            trainer.run(resume=True)
    path.write_bytes(pickle.dumps(Malicious(made)))
    with pytest.raises(DataError, match="no state of a training"):
        trainer.run(resume=True)
    assert not made.exists()
    for key in ("module", "place", "optimizer", "done", "best"):
        changes = [{k: v for k, v in state.items() if k != key}, {**state, key: {"epochs": 1}}]
        for changed in changes:
            write_checkpoint(path, changed)
            with pytest.raises(DataError, match="no state of a training"):
                trainer.run(resume=True)
    assert zipfile.is_zipfile(path)
    assert not list(path.parent.glob("*.partial"))


def test_a_state_is_written_in_the_place_of_a_link(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "state.pt"
    victim.write_bytes(b"mine")
    for name in ("state.pt", "state.pt.partial"):
        (tmp_path / name).symlink_to(victim)
    write_checkpoint(path, {"of": "a plan"})
    assert read_checkpoint(path) == {"of": "a plan"}
    assert not path.is_symlink()
    assert victim.read_bytes() == b"mine"


def test_a_state_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(IntactError, match="cannot be written"):
        write_checkpoint(tmp_path / "no" / "state.pt", {})


def test_numbers_that_are_not_finite_end_training() -> None:
    module, trainer = trainer_of(plan_of(), epochs=5)
    before = trainer._module.state_dict()
    seen: list[int] = []

    def break_it(done: int, _: int | None) -> None:
        seen.append(done)
        if done == 7:
            with torch.no_grad():
                next(iter(module.constants.learned().values())).view(-1)[0] = float("nan")

    done = trainer.run(progress=break_it)
    name = next(iter(module.constants.learned()))
    assert done.stopped.startswith("the loss is not finite in epoch 2, step 4, first in")
    assert repr(name) in done.stopped
    assert max(seen) == 7
    assert done.best in (0, 1)
    assert all(torch.isfinite(tensor).all() for tensor in before.values())


def test_a_sample_beyond_float32_is_named_by_its_tensor() -> None:
    given = data()
    given["image"][3:18] = 3e38
    module, trainer = trainer_of(calibrated(MODEL), given)
    module.enable_quantizers(False)
    done = trainer.run()
    assert "not finite" in done.stopped
    assert "first in 'Conv" not in done.stopped
    assert "first in" in done.stopped
    assert all(torch.isfinite(tensor).all() for tensor in module.state_dict().values())


def test_training_that_gains_nothing_ends() -> None:
    module, trainer = trainer_of(plan_of(8), epochs=50, rate=50.0, patience=2)
    done = trainer.run()
    assert done.stopped == "no gain in 2 epochs"
    assert len(done.epochs) == done.best + 3
    fresh = QuantizedModule(plan_of(8))
    assert done.best > 0 or same_state(module, fresh)


def test_labels_are_trained_on_where_there_are_some() -> None:
    with_labels, without = (trainer_of(plan_of(), data(labels=k), epochs=1) for k in (True, False))
    figures_of = [trainer.run().epochs[0] for _, trainer in (with_labels, without)]
    assert figures_of[0].held_out != figures_of[1].held_out
    assert all(each.accuracy is not None for each in figures_of)
    _, none = trainer_of(plan_of(), data(labels=True), epochs=1, label_weight=0.0)
    assert none.run().epochs[0].held_out < figures_of[1].held_out  # no squared error beside
    _, only = trainer_of(plan_of(), data(labels=True), epochs=4, label_weight=1.0)
    losses = [each.loss for each in only.run().epochs[1:]]
    assert losses[-1] is not None
    assert losses[0] is not None
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan")])
def test_shares_of_labels_are_bounded(weight: float) -> None:
    with pytest.raises(UsageError, match="weight"):
        Schedule(label_weight=weight)


def test_labels_that_are_no_classes_are_refused() -> None:
    given = data(labels=True)
    for bad, text in ((7, r"labels 0\.\.7 for 5 classes of output 'logits'"), (-1, r"-1\.\.4")):
        given["labels"][2] = bad
        with pytest.raises(DataError, match=text):
            trainer_of(plan_of(), given)


def test_labels_that_are_asked_for_must_be_there() -> None:
    with pytest.raises(UsageError, match="there are no labels"):
        trainer_of(plan_of(), asks_for_labels=True)
    b = ModelBuilder()
    b.node("Relu", b.conv(b.input("image", ["batch", 3, 8, 8]), 3, 4), out="map")
    b.output("map")
    plan = calibrated(b.build())
    with pytest.raises(UsageError, match="no output scores classes"):
        trainer_of(plan, data(labels=True), asks_for_labels=True)
    _, trainer = trainer_of(plan, data(labels=True), epochs=2)
    assert trainer.run().epochs[0].accuracy is None


def test_names_of_changes_are_checked_at_once() -> None:
    with pytest.raises(UsageError, match="'flop'") as caught:
        Schedule(augment=("shift", "flop"))
    assert "flip" in str(caught.value)


# ---- samples ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 5, 9, 21])
@pytest.mark.parametrize("size", [1, 4, 64])
def test_any_number_of_samples_fits_any_batch(count: int, size: int) -> None:
    pool = pool_of(plan_of(), data(count), size=size)
    batches, held = list(pool.epoch(1)), list(pool.held_out())
    assert len(batches) == pool.steps
    assert sum(b.size for b in held) == count - pool.count
    for each in (*batches, *held):
        assert each.inputs["image"].shape == (each.size, 3, 8, 8)
        assert 1 <= each.size <= max(size, 1)
    seen = [float(row.sum()) for b in (*batches, *held) for row in b.inputs["image"]]
    assert len(seen) == len(set(seen))


def test_one_sample_is_too_few() -> None:
    with pytest.raises(DataError, match="1 sample"):
        pool_of(plan_of(), data(1))


@pytest.mark.parametrize("memory", [1, 2000, 6000, 1 << 30])
def test_parts_that_fit_into_memory_cover_every_sample(memory: int) -> None:
    given = data(23, labels=True)
    given["labels"] = np.arange(23)
    pool = pool_of(plan_of(), given, size=5, memory=memory)
    held = np.concatenate([b.labels for b in pool.held_out() if b.labels is not None])
    orders = []
    for epoch in (1, 2, 2):
        batches = list(pool.epoch(epoch))
        labels = np.concatenate([b.labels for b in batches if b.labels is not None])
        for batch in batches:
            assert batch.labels is not None
            for row, label in zip(batch.inputs["image"], batch.labels, strict=True):
                np.testing.assert_array_equal(row, given["image"][label])
        assert len(labels) == 20
        assert len(set(labels.tolist())) == 20
        assert not set(labels.tolist()) & set(held.tolist())
        orders.append(labels.tolist())
    assert orders[0] != orders[1] == orders[2]


def test_a_generator_that_is_used_up_is_one_error() -> None:
    def rows() -> Any:
        for k in range(12):
            yield {"image": np.full((1, 3, 8, 8), k, np.float32)}

    pool = pool_of(plan_of(), rows())
    assert len(list(pool.epoch(1))) == pool.steps  # kept in memory
    pool = pool_of(plan_of(), rows(), memory=1)
    with pytest.raises(DataError, match="read a second time"):
        list(pool.epoch(1))


def test_a_source_that_changes_is_one_error() -> None:
    passes = iter([12, 0])

    def rows() -> Any:
        for k in range(next(passes, 0)):
            yield {"image": np.full((1, 3, 8, 8), k, np.float32)}

    pool = pool_of(plan_of(), rows, memory=1)
    with pytest.raises(DataError, match="no samples"):
        list(pool.epoch(1))


def fixed_net(batch: int) -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.node("Relu", b.conv(b.input("image", [batch, 3, 4, 4]), 3, 4))
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    b.node("Gemm", x, b.weight(4, 3), b.weight(3), out="logits")
    b.output("logits", [batch, 3])
    return b.build()


@pytest.mark.parametrize("count", [8, 11, 33])
def test_models_of_a_fixed_batch_are_trained_by_whole_batches(count: int) -> None:
    model = fixed_net(4)
    plan = calibrated(model)
    random = np.random.default_rng(0)
    given: Arrays = {"image": random.normal(size=(count, 3, 4, 4)).astype(np.float32)}
    _, trainer = trainer_of(plan, given, size=64)
    assert len(trainer.run().epochs) == 4
    with pytest.raises(DataError, match=r"3 sample\(s\)") as caught:
        trainer_of(plan, {"image": given["image"][:3]})
    assert "give at least 8" in str(caught.value)


def test_several_inputs_and_outputs() -> None:
    model = MODELS["sequence"].build(17)
    given = data(12, model=model)
    _, trainer = trainer_of(calibrated(model), given)
    done = trainer.run()
    assert all(np.isfinite(each.held_out) for each in done.epochs)
    _, trainer = trainer_of(calibrated(every_layer()), data(12, model=every_layer()))
    assert trainer.run().epochs[-1].loss is not None


def integers(*, only: bool) -> onnx.ModelProto:
    b = ModelBuilder()
    ids = b.input("ids", ["batch", 3], TensorProto.INT64)
    x = b.node("Relu", b.node("MatMul", b.node("Gather", b.weight(7, 4), ids), b.weight(4, 5)))
    b.node("ArgMax", x, out="best", axis=2, keepdims=0)
    b.output("best", dtype=TensorProto.INT64)
    if not only:
        b.output(x)
    return b.build()


def test_integers_in_and_out() -> None:
    given: Arrays = {"ids": np.arange(36, dtype=np.int64).reshape(12, 3) % 7}
    _, trainer = trainer_of(calibrate(planned(integers(only=False)), given), given)
    assert np.isfinite(trainer.run().epochs[-1].held_out)
    plan = calibrate(planned(integers(only=True)), given)
    with pytest.raises(UsageError, match="no output of real numbers"):
        trainer_of(plan, given)


def test_feeds_without_a_batch_axis() -> None:
    """An input without any axis, and one whose first axis is no batch."""
    b = ModelBuilder()
    x, gain = b.input("x", [6, 4]), b.input("gain", [])
    b.node("MatMul", b.node("Mul", x, gain), b.weight(4, 3), out="y")
    b.output("y", [6, 3])
    model = b.build()
    random = np.random.default_rng(2)
    given = [
        {"gain": np.float32(k + 1), "x": random.normal(size=(6, 4)).astype(np.float32)}
        for k in range(8)
    ]
    from intact.data.feeding import Feeding

    plan = planned(model)
    samples = open_samples(given, plan.graph, feeding=Feeding(no_batch=("gain", "x")))
    from intact.calibrate.assign import Method, assign, required_tensors
    from intact.calibrate.collect import collect

    found = collect(plan.graph, samples, required_tensors(plan) or ("x",), threads=1)
    plan = assign(plan, found, Method.of(plan.target, "minmax", "minmax"))
    trainer = Trainer(QuantizedModule(plan), Pool(samples, 4, 0), Schedule(epochs=2), threads=1)
    assert len(trainer.run().epochs) == 3


def test_a_model_without_anything_to_train_is_refused() -> None:
    b = ModelBuilder()
    b.node("Relu", b.input("image", ["batch", 3, 8, 8]), out="y")
    b.output("y")
    plan = calibrated(b.build())
    module = QuantizedModule(plan, learning="fixed")
    with pytest.raises(UsageError, match="nothing can be trained"):
        trainer_of(plan, module=module)


def test_learning_rates_rise_and_fall() -> None:
    factors = [rate_factor(step, 40) for step in range(40)]
    assert 0 < factors[0] < factors[1] == 1.0
    assert factors[1:] == sorted(factors[1:], reverse=True)
    assert factors[-1] > 0
    assert rate_factor(0, 1) == 1.0


@pytest.mark.parametrize("name", ["flip", "shift"])
def test_changes_of_images_leave_other_inputs_alone(name: str) -> None:
    from intact.improve.learn.training import augment_images

    images, table = torch.rand(16, 1, 8, 8), torch.rand(16, 5)
    given = {"image": images, "table": table}
    one, two = (augment_images(given, [name], torch.Generator().manual_seed(k)) for k in (1, 2))
    assert one["table"] is table
    assert one["image"].shape == images.shape
    assert not torch.equal(one["image"], two["image"])
    assert set(one["image"].unique().tolist()) <= {0.0, *images.unique().tolist()}
