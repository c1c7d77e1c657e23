"""Training goes on from integers that rounding has put into a plan."""

from __future__ import annotations

import numpy as np
import torch

from intact.data.sources import open_samples
from intact.engines.session import FloatModel
from intact.improve.learn.bits import PlanEngine
from intact.improve.learn.constants import without_integers
from intact.improve.learn.losses import by_weights, teacher_of
from intact.improve.learn.module import QuantizedModule
from intact.improve.learn.write_back import trained_plan
from intact.improve.refine.rounding import refine_rounding
from intact.plan import Overrides, QuantizedGraph, quantization_points
from tests.improve.learn.nets import tensors, trained
from tests.models import random_inputs, residual_net
from tests.plans import calibrate, planned

MODEL = residual_net()


def rounded() -> QuantizedGraph:
    feeds = random_inputs(MODEL, batch=40, seed=1)
    plan = calibrate(planned(MODEL, "tflite", Overrides(weight_bits=4)), feeds)
    found = refine_rounding(plan, open_samples(feeds, plan.graph), threads=1)
    assert found.baked
    return found


def codes(plan: QuantizedGraph) -> dict[str, np.ndarray]:
    points = [each for each in quantization_points(plan) if each.is_constant]
    return {str(each.end): each.constant_codes() for each in points}


def test_it_starts_with_the_integers_of_the_plan() -> None:
    plan = rounded()
    module = QuantizedModule(plan)
    wanted, found = codes(plan), codes(trained_plan(module))
    assert wanted.keys() == found.keys()
    assert all(np.array_equal(wanted[end], found[end]) for end in wanted)
    feeds = random_inputs(MODEL, batch=4, seed=5)
    exact = PlanEngine(plan).codes(feeds)
    inside = module.eval().double().codes(*tensors(MODEL))
    assert exact.keys() == inside.keys()
    assert all(np.array_equal(exact[end], inside[end].numpy()) for end in exact)


def test_rounded_weights_are_trained_and_the_plan_stays() -> None:
    plan = rounded()
    before = codes(plan)
    after = codes(trained_plan(trained(QuantizedModule(plan), MODEL)))
    assert all(not np.array_equal(before[end], after[end]) for end in map(str, plan.baked))
    assert all(np.array_equal(before[end], each) for end, each in codes(plan).items())
    assert QuantizedModule(plan).plan.graph is plan.graph


def test_the_teacher_has_the_weights_before() -> None:
    module = QuantizedModule(rounded())
    batch = {"image": tensors(MODEL)[0]}
    wanted = FloatModel(module.plan.graph).run({"image": batch["image"].numpy()})
    for teacher in (teacher_of(module), by_weights(module)):
        for found, array in zip(teacher(batch), wanted.values(), strict=True):
            torch.testing.assert_close(found, torch.from_numpy(array), rtol=1e-4, atol=1e-5)


def test_integers_of_a_model_that_was_read_stay() -> None:
    plan = rounded()
    plan.provenance = plan.provenance.read("another tool")
    assert without_integers(plan) == (plan, {})
