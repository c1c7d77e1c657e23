"""Declares the stages that all targets of a call share, from a model to its plans.

They run once, and share what is equal for the targets: the model is opened, its graph simplified,
and each target plans. The stages behind are those of `intact.flow.stages`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from intact.data.preprocess import Preprocess
from intact.data.progress import begin
from intact.errors import UsageError
from intact.flow.shapes import ShapedModels, expand_graphs, prepare_graphs, shape_model
from intact.improve.presets import choose_passes
from intact.results.job import Job, Planner
from intact.results.recipes import given_scales, overrides_of
from intact.results.refusals import Refusals, refuse_structure
from intact.results.sources import QuantizedSource, open_source, target_of
from intact.results.values import refuse_nothing_to_do, values_in_samples, with_values

if TYPE_CHECKING:
    import onnx_ir as ir

    from intact.flow.data_free import DrawnData
    from intact.plan.given_scales import ScaleTable
    from intact.recipe.groups import DataSource
    from intact.recipe.options import QuantizationOptions
    from intact.results.request import Ready


@dataclass(frozen=True)
class Call:
    """All targets of a call, up to their plans.

    Attributes:
        options: The options of the call.
        preprocess: What is done to the samples.
        targets: What is quantized for.
        refusals: Takes what one target refuses.
        model: The opened model; None before that, and where nothing needs it any more.
        drawn: The samples, where they were drawn.
        data: The samples.
        models: The model for each target, with shapes.
        given: Scales that need no samples.
        jobs: What is made for each target that was not refused, with its plan.
    """

    options: QuantizationOptions
    preprocess: Preprocess
    targets: tuple[Ready, ...]
    refusals: Refusals
    model: ir.Model | None = None
    drawn: DrawnData | None = None
    data: DataSource | None = None
    models: ShapedModels | None = None
    given: ScaleTable | None = None
    jobs: tuple[Job, ...] = ()


class Open:
    """The model is opened, and samples are drawn where there are none."""

    def run(self, call: Call) -> Call:
        """Open the model; raises as `open_source`."""
        options = call.options
        source = open_source(options.model)
        if isinstance(source, QuantizedSource):
            # A damaged file is named as such, before the advice to read it with another command.
            source.plan(target_of(source.target))  # refuses what `import` would refuse as well
            raise UsageError(
                "the model is quantized already",
                remedy="`intact import` reads it, and completes it",
            )
        model = with_values(source.model, options.input_value)
        if not options.data_free:
            return replace(call, model=model, data=options.data)
        from intact.flow.data_free import drawn_data

        drawn = drawn_data(model, options)
        return replace(call, model=model, drawn=drawn, data=drawn.data)


class Shape:
    """The model is normalized, with the shapes that each target's formats need."""

    def run(self, call: Call) -> Call:
        """Normalize the model; raises as `shape_model`."""
        options, model = call.options, call.model
        if model is None:
            return call
        begin(options.progress, "simplifying the model")
        # Drawn samples are what the model takes, and no pixels.
        steps = call.preprocess if call.drawn is None else Preprocess()
        formats = [deployment.formats for _, _, deployment in call.targets]
        models = shape_model(model, options, options.input_shape, call.data, steps, formats)
        # Once for each graph and not for each target: targets with the same needs share one.
        originals = expand_graphs(models.graphs, options.expand)
        given = given_scales(options.scales, model, originals[id(models.graphs[0])])
        targets = [target for target, _, _ in call.targets]
        graphs = prepare_graphs(models.graphs, originals, targets, options.expand)
        models = msgspec.structs.replace(models, graphs=tuple(graphs))
        # The given model goes: its weights would be held twice.
        return replace(call, model=None, data=models.data, models=models, given=given)


class Plan:
    """Each target decides what it quantizes, and which improvement passes run."""

    def run(self, call: Call) -> Call:
        """Plan for each target; what one refuses goes to the refusals."""
        options, models = call.options, call.models
        if models is None:
            return call
        begin(options.progress, "planning")
        overrides = overrides_of(options)
        jobs = []
        for graph, (target, methods, deployment) in zip(models.graphs, call.targets, strict=True):
            # What one target refuses must not keep the others from their results.
            with call.refusals.of(target.name):
                planner = Planner(graph, target, models.overrides(overrides, graph))
                job = Job.of(planner, methods, deployment)
                jobs.append(self._choose_passes(call, models, job))
        return replace(call, jobs=tuple(jobs))

    def _choose_passes(self, call: Call, models: ShapedModels, job: Job) -> Job:
        """Choose the passes of a job, and note what was done so far."""
        options, drawn = call.options, call.drawn
        if not options.allow_empty:
            graph = job.plan.graph
            look = partial(values_in_samples, graph=graph, options=options, data=call.data)
            # Before the samples are read, which may take minutes.
            refuse_nothing_to_do(job.plan, look)
        refuse_structure(job.plan, job.deployment.formats, job.deployment.io)
        # Passes read the samples again.
        readable = call.data is not None and not isinstance(call.data, Iterator)
        passes = choose_passes(
            job.plan,
            options.improve,
            options.preset,
            readable=readable,
            drawn=drawn is not None,
        )
        notes = () if drawn is None else drawn.notes
        return msgspec.structs.replace(
            job,
            plan=job.plan.with_notes((*notes, *models.notes_of(job.plan.graph), *passes.notes)),
            requests=passes.requests,
            unasked=passes.unasked,
            adds_passes=passes.adds,
            floats_ends=not options.quantize_heads,
        )


SHARED = (Open(), Shape(), Plan())
"""The stages for all targets of a call at once."""
