"""Joins options to what they mean together: widths, steps, samples, scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import onnx_ir as ir

from intact.data.batching import Batch
from intact.data.feeding import Arrays, Feeding, Step
from intact.data.preprocess import Preprocess, preprocess_with, read_preprocess
from intact.data.sources import Reading, open_samples
from intact.data.stream import Samples
from intact.engines.session import FloatModel
from intact.errors import UsageError
from intact.formats.scales import scales_of_model, tensor_names
from intact.graph import Graph
from intact.plan import Overrides
from intact.plan.given_scales import ScaleTable
from intact.plan.provenance import Provenance
from intact.recipe.declare import Options, options_of
from intact.recipe.file import write_recipe
from intact.recipe.groups import BlockOptions, WidthOptions
from intact.recipe.options import COMMANDS
from intact.recipe.samples import ArrayStepOptions, ImageStepOptions
from intact.targets import Target, load_target
from intact.targets.activations import Activations
from intact.targets.advice import with_dynamic_activations, with_float16

if TYPE_CHECKING:
    from intact.calibrate.shards import SampleMap
    from intact.recipe.groups import ClusterOptions, DataSource, ScaleSource, TargetSource
    from intact.recipe.samples import FeedOptions
    from intact.results.result import Result


def overrides_of(options: WidthOptions) -> Overrides | None:
    """Join the options of widths and nodes in float with the object that Python may give."""
    given = options.overrides or Overrides()
    joined = msgspec.structs.replace(
        given,
        keep_float=(*given.keep_float, *options.keep_float),
        bits={**given.bits, **(options.bits or {})},
        blocks={**given.blocks, **(options.node_block or {})},
        weight_bits=_first(options.weight_bits, given.weight_bits),
        activation_bits=_first(options.activation_bits, given.activation_bits),
    )
    return None if joined == Overrides() else joined


def target_as_asked(target: Target, options: BlockOptions) -> Target:
    """Describe a target as a call wants it: with weights in blocks, with a kind of activations.

    Raises:
        UsageError: It has none of these blocks, or options contradict each other.
        TargetError: It has no kernels for such activations.
    """
    target = _with_caches(target, options)
    if options.float_type == "float16":
        target = with_float16(target)
    kind = None if options.activations is None else Activations(options.activations)
    if options.block is None:
        is_float = kind is Activations.FLOAT
        has_use = options.cache_bits is not None or options.float_type == "float16"
        if options.zero_points or (is_float and not has_use):
            flag = "--zero-points" if options.zero_points else "--activations float"
            raise UsageError(
                f"{flag} is for weights in blocks", remedy="give --block too, or leave it out"
            )
        if is_float:
            from intact.targets.blockwise import in_float  # which few calls need

            if options.cache_bits is None:
                return in_float(target, "no integers were asked for")
            return in_float(target)
        return with_dynamic_activations(target) if kind is Activations.DYNAMIC else target
    overrides = overrides_of(options) or Overrides()
    if kind is Activations.STATIC or overrides.activation_bits is not None:
        flag = f"--activation-bits {overrides.activation_bits}"
        raise UsageError(
            f"--block {options.block} and "
            f"{'--activations static' if kind is Activations.STATIC else flag}: activations are "
            "float, or quantized while the model runs",
            remedy="leave one out",
        )
    from intact.targets.blockwise import in_blocks  # which few calls need

    return in_blocks(
        target,
        options.block,
        overrides.weight_bits,
        zero_points=options.zero_points,
        dynamic=None if kind is None else kind is Activations.DYNAMIC,
    )


def _with_caches(target: Target, options: BlockOptions) -> Target:
    """Describe a target as it keeps caches of a width, where that is asked for."""
    bits, scales = options.cache_bits, options.cache_scales
    if bits is None:
        if scales is not None:
            raise UsageError(
                f"--cache-scales {scales} is for caches of codes",
                remedy="give --cache-bits too, or leave it out",
            )
        return target
    from intact.targets.caches import CacheScales, with_caches  # which few calls need

    kind = CacheScales(scales or CacheScales.CHANNEL)
    caches = with_caches(target.cache, target.name, bits, kind)
    return msgspec.structs.replace(target, cache=caches)


def preprocess_of(options: ArrayStepOptions, kept: Preprocess | None = None) -> Preprocess | None:
    """Join the steps of a file or object with those given one by one.

    Args:
        options: What was given.
        kept: The steps of the calibration, which hold where no file or object is given.

    Returns:
        The steps; None where none are given.
    """
    given = options.preprocess
    base = read_preprocess(given) if isinstance(given, str | Path) else given
    changes = _steps(options)
    if not changes:
        return base
    return preprocess_with(base or kept or Preprocess(), changes)


def _steps(options: ArrayStepOptions) -> dict[str, Any]:
    """List the steps that are given one by one."""
    groups: list[type[Options]] = [ArrayStepOptions, ImageStepOptions]
    names = [
        each
        for group in groups
        if isinstance(options, group)
        for each in options_of(group)
        if each != "preprocess"
    ]
    given = {name: getattr(options, name) for name in names}
    # `is`, because 0 equals False, and is no number of pixels, which the steps then say.
    return {
        name: value
        for name, value in given.items()
        if value is not False and value is not None and value != ()
    }


def recipe_of(
    command: str, options: Options, result: Result | None = None, **effective: object
) -> str:
    """Write the recipe of a result: what was given, and what was chosen for what was not.

    Args:
        command: The command that makes it.
        options: As they were given.
        result: What was made, if it is one.
        effective: Values by option, instead of those given.
    """
    values = dict(effective)
    if result is not None:
        values["formats"] = [str(name) for name in result.exports]
    if isinstance(options, WidthOptions):
        overrides = overrides_of(options) or Overrides()
        found = () if result is None or result.fastest is None else result.fastest.kept_float
        # What was measured to be faster becomes an ordinary option: the recipe then gives the same
        # plan without measuring, on any machine.
        faster = (name for name in found if name not in overrides.keep_float)
        widths = {str(end): bits for end, bits in overrides.widths.items()}
        values |= {
            "keep_float": (*overrides.keep_float, *faster) or None,
            "bits": {**overrides.bits, **widths} or None,
            "weight_bits": overrides.weight_bits,
            "activation_bits": overrides.activation_bits,
            # An object of Python cannot stand in a file; its parts are among the options above.
            "overrides": None,
        }
        if found and result is not None and not result.plan.quantized_nodes:
            values["allow_empty"] = True  # float is the fastest throughout
    if isinstance(options, ArrayStepOptions):
        values |= _recorded_steps(options)
    return write_recipe(command, COMMANDS[command], options, values)


def _recorded_steps(options: ArrayStepOptions) -> Mapping[str, object]:
    """List the steps as options, whatever they were given as."""
    if options.preprocess is None:
        return {}
    steps = preprocess_of(options) or Preprocess()
    # The steps are written out, because the file that they came from may change or vanish.
    values: dict[str, object] = {"preprocess": None, "normalize": None, "std": None}
    values |= {"mean": steps.mean or None, "scale": steps.scale or None}
    if isinstance(options, ImageStepOptions):
        given = steps.image.given
        values |= {
            name: _plain(getattr(steps.image, name)) if name in given else None
            for name in options_of(ImageStepOptions)
        }
    elif steps.image.given:
        return {"preprocess": options.preprocess}
    return values


def _plain(value: object) -> object:
    return (
        tuple(value)
        if isinstance(value, tuple)
        else str(value)
        if isinstance(value, str)
        else value
    )


def target_named(target: TargetSource) -> object:
    """Find what names a target in a recipe; an object has its name if that gives it again."""
    if isinstance(target, Path):
        return target
    from intact.targets import is_target_name

    name = target.lower() if isinstance(target, str) else target.name
    # An object of a shipped name whose fields were changed is another target.
    if not is_target_name(name) or (isinstance(target, Target) and load_target(name) != target):
        return target
    return name


def _first(one: int | None, other: int | None) -> int | None:
    return other if one is None else one


def open_fed(
    data: DataSource,
    graph: Graph,
    options: FeedOptions,
    kept: Provenance | None = None,
    **how: Any,
) -> Samples:
    """Open samples, with the states that the float model gives.

    Args:
        data: The samples.
        graph: The float model.
        options: As a call gave them.
        kept: How the samples of the calibration were fed, which holds where nothing is given.
        **how: The other arguments of `open_samples`.

    Raises:
        IntactError: As in `open_samples`; or the model has no such input or output.
    """
    kept = kept or Provenance()
    feeding = Feeding(tuple(options.no_batch) or kept.no_batch, options.state or kept.states)
    step = _state_step(graph, feeding)
    reading = Reading(options.tokenizer, options.context, options.sample_rate)
    how = {"transform": options.transform, "reading": reading, **how}
    return open_samples(data, graph, feeding=feeding, step=step, **how)


def _state_step(graph: Graph, feeding: Feeding) -> Step | None:
    """Return what runs the float model for its states alone; None where it has none.

    What it gives for one sample, the next one takes. It has one thread, so that the states do not
    depend on how many there are.

    Raises:
        UsageError: The model has no such input or output.
    """
    outputs = list(feeding.of_graph(graph).states)
    if not outputs:
        return None

    # Made when the first sample needs it: an iterator without samples costs no session.
    @cache
    def model() -> FloatModel:
        return FloatModel(graph, outputs, threads=1)

    takes = {str(value.name) for value in graph.inputs}

    def step(feed: Batch) -> Arrays:
        return model().run({name: array for name, array in feed.items() if name in takes})

    return step


def cluster_of(options: ClusterOptions) -> AbstractContextManager[SampleMap | None]:
    """Return the cluster of the options that samples are mapped over, if they name one.

    Raises:
        UsageError: There are workers and no cluster.
        MissingExtraError: Ray is not installed.
    """
    if options.cluster is None:
        if options.workers is not None:
            raise UsageError(
                "--workers are those of a cluster, and there is none",
                remedy="give --cluster local, or --threads instead",
            )
        return nullcontext()
    from intact.calibrate.shards import SampleMap

    return SampleMap(options.cluster, options.workers)


def given_scales(
    scales: ScaleSource | Sequence[ScaleSource] | None, model: ir.Model, graph: Graph
) -> ScaleTable | None:
    """Return the scales that need no calibration: those of tables, or else the model's own."""
    if scales is None:
        return scales_of_model(model)
    from intact.formats.scales import read_scales  # few give tables

    sources = [scales] if isinstance(scales, str | Path | ScaleTable) else scales
    tables = [
        each if isinstance(each, ScaleTable) else read_scales(each, graph) for each in sources
    ]
    if not tables:
        return None
    table = reduce(ScaleTable.joined, tables)
    table.refuse_unknown(tensor_names(model) | {str(value.name) for value in graph.values})
    return table
