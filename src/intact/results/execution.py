"""Runs a model, or a plan, by any executor: float, simulated, or on integers."""

from __future__ import annotations

import enum
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from intact._files import whole_file
from intact.calibrate.statistics import Statistics
from intact.data.batching import Batch, joined, real_samples
from intact.data.feeding import Carried
from intact.data.images.reader import ImageFolder
from intact.data.items import Items
from intact.data.preprocess import Preprocess
from intact.data.stream import Samples
from intact.engines.executor import float_run, simulated_run
from intact.errors import DataError, UsageError, nearest
from intact.graph import Graph, normalize
from intact.numerics.affine import dequantize
from intact.plan import QuantizedGraph
from intact.plan.points import has_logarithmic_levels
from intact.program import Encoding, Program, Tensor
from intact.recipe.runs import ExecuteOptions
from intact.results.preprocessing import steps_for
from intact.results.recipes import open_fed
from intact.results.sources import FloatSource, is_result, load_result, open_source, target_of

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

_MUCH_LARGER = 4.0
"""Times the largest input of the calibration that other pictures of the same steps do not reach."""


class Executor(enum.StrEnum):
    """An executor: how a model or a plan is computed."""

    INTEGER = "integer"
    """The integer engine: the bits of the target."""
    SIMULATE = "simulate"
    """Quantized values in float32."""
    FLOAT = "float"
    """The float model."""


@dataclass
class Run:
    """What a run gave.

    Attributes:
        outputs: By output name, all samples along axis 0: floats, or codes where the data were.
        tensors: What was observed, by tensor name, with axes as in the model; of the integer
            engine in codes where the tensor is quantized.
        codes: Inputs that were taken as codes.
        samples: How many there were.
        in_float: Nodes that the plan quantizes and the engine computes in float, with the reason.
        overflows: Steps in which sums left the accumulator: how many, of how many, the largest
            and what the accumulator holds.
        warnings: What makes the outputs doubtful.
    """

    outputs: Arrays = field(default_factory=dict)
    tensors: Arrays = field(default_factory=dict)
    codes: tuple[str, ...] = ()
    samples: int = 0
    in_float: Mapping[str, str] = field(default_factory=dict)
    overflows: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Name the outputs with their types and shapes."""
        outputs = (f"{name}: {each.dtype}{list(each.shape)}" for name, each in self.outputs.items())
        return f"Run({self.samples} samples, {', '.join(outputs)})"


def execute(options: ExecuteOptions) -> Run:
    """Run a model or a plan on data, by any executor.

    Raises:
        IntactError: The model or the data is wrong, or has no plan to be run by.
    """
    executor = Executor(options.executor)
    if executor != Executor.INTEGER and options.observe != ():
        raise UsageError(
            f"executor {executor} returns no intermediate tensors",
            remedy="take the integer engine",
        )
    graph, plan, steps, seen = _runnable(options)
    if plan is None and executor != Executor.FLOAT:
        raise UsageError(
            f"executor {executor}: the model is float, there is no plan to run",
            remedy="give the folder that `intact quantize` made of it, or run it in float",
        )
    opened = open_fed(
        options.data,
        graph,
        options,
        None if plan is None else plan.provenance,
        preprocess=steps_for(options, options.data, steps),
        limit=options.samples,
        skip_bad=options.skip_bad,
    )
    opened = replace(opened, progress=options.progress)
    batch, threads = options.batch, options.threads
    if plan is None or executor == Executor.FLOAT:
        found = run_float(graph, opened, batch=batch, threads=threads)
    elif executor == Executor.SIMULATE:
        found = run_simulated(plan, opened, batch=batch, threads=threads)
    else:
        found = run_integer(plan, opened, batch=batch, threads=threads, observe=options.observe)
    has_steps = steps_for(options, options.data, steps) != Preprocess()
    if seen is not None and isinstance(opened.reader, ImageFolder) and not has_steps:
        found.warnings = _unlike_pixels(seen, opened)
    return found


def _unlike_pixels(seen: Statistics, samples: Samples) -> tuple[str, ...]:
    """Warn of pixels that go in as they are, where calibration saw numbers of another size.

    So it is where a result was made of prepared tensors: it knows no steps for photos.
    """
    feeds, _ = next(iter(samples.first(1).batches(1)))
    for name, array in feeds.items():
        known = seen.tensors.get(name)
        if known is None or array.dtype.kind != "f" or not known.minimum <= known.maximum:
            continue
        largest = max(abs(known.minimum), abs(known.maximum))
        if float(np.abs(array).max()) > _MUCH_LARGER * largest:
            told = (
                f"input {name!r} gets pixels of {array.min():.4g} to {array.max():.4g} as they "
                f"are, and calibration saw {known.minimum:.4g} to {known.maximum:.4g}: the result "
                "was made from prepared data and knows no steps for photos; give them, as "
                "--normalize imagenet, or --mean and --std"
            )
            return (told,)
    return ()


def _runnable(
    options: ExecuteOptions,
) -> tuple[Graph, QuantizedGraph | None, Preprocess, Statistics | None]:
    """Open the float graph, the plan if there is one, and of its calibration steps and view."""
    if is_result(options.model):
        loaded = load_result(options.model)
        return loaded.plan.graph, loaded.plan, loaded.preprocess, loaded.statistics
    source = open_source(options.model)
    if isinstance(source, FloatSource):
        # Nobody else has the model that was just read: normalizing needs no clone.
        return normalize(source.model, in_place=True), None, Preprocess(), None
    target = source.target if options.target is None else options.target
    plan = source.plan(target_of(target))
    return plan.graph, plan, Preprocess(), None


def run_float(graph: Graph, samples: Samples, *, batch: int, threads: int) -> Run:
    """Run the float model."""
    return _outputs_of(float_run(graph, threads=threads), samples, batch)


def run_simulated(plan: QuantizedGraph, samples: Samples, *, batch: int, threads: int) -> Run:
    """Run the simulation of a plan."""
    return _outputs_of(simulated_run(plan, threads=threads), samples, batch)


def run_integer(
    plan: QuantizedGraph,
    samples: Samples,
    *,
    batch: int,
    threads: int,
    observe: Iterable[str] | None = (),
) -> Run:
    """Run a plan on integers.

    Data that is already in the integer type of an input is taken as its codes (unsigned bytes
    only where nothing is to be done to them, as pixels are such too); what goes in as codes comes
    out as codes.

    Args:
        plan: A calibrated plan.
        samples: The data.
        batch: Samples at once.
        threads: Threads of float islands; 0 lets their runtime choose.
        observe: Names of the model's tensors to return too; None returns all.

    Raises:
        UsageError: A name that no tensor has.
    """
    from intact.engines.integer import IntegerEngine  # compiled code, slow to load
    from intact.program.lower import lower

    program = lower(plan)
    if observe is not None:
        observe = [plan.graph.aliases.get(name, name) for name in observe]
    engine = IntegerEngine(program, threads=threads)
    samples = with_codes(samples, program)
    outputs = _output_codes(program) if samples.codes else dict(program.outputs)
    wanted = _observed(program, observe)
    # The engine frees every tensor after its last reader, but for those that are named.
    names = {tensor.name for tensor in (*outputs.values(), *wanted.values())}

    def once(feeds: Batch) -> tuple[Arrays, Arrays]:
        found = engine.run(feeds, names)
        results = {name: _array(tensor, found.tensors) for name, tensor in outputs.items()}
        return results, {name: _array(tensor, found.tensors) for name, tensor in wanted.items()}

    result = _collected(samples, batch, once)
    result.codes, result.in_float = samples.codes, program.in_float
    result.overflows = {
        name: (each.overflows, each.sums, each.largest, each.limit)
        for name, each in engine.overflows.items()
        if each.overflows
    }
    return result


def _array(tensor: Tensor, found: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    array = found[tensor.name] if tensor.data is None else tensor.data
    return tensor.as_in_model(array)


def _outputs_of(
    run: Callable[[Batch], Mapping[str, npt.NDArray[Any]]], samples: Samples, batch: int
) -> Run:
    return _collected(samples, batch, lambda feeds: (dict(run(feeds)), {}))


def _collected(samples: Samples, batch: int, once: Callable[[Batch], tuple[Arrays, Arrays]]) -> Run:
    """Run all samples and join what each batch gave."""
    parts: list[tuple[Arrays, Arrays]] = []
    total = 0
    size = samples.batch_size(batch)
    carried = Carried(samples.feeding.states, samples.specs)
    for part, count in samples.real_batches(size):
        # A graph of a fixed batch computes the padding too; `real_samples` cuts it off.
        rows = count if samples.fixed_batch is None else size
        outputs, tensors = once(carried.into(part))
        # States come from the batch before: batches cannot be run in another order or beside each
        # other.
        carried.keep(outputs)
        parts.append((real_samples(outputs, rows, count), real_samples(tensors, rows, count)))
        total += count
    outputs = joined([each for each, _ in parts])
    return Run(outputs, joined([each for _, each in parts]), samples=total)


def in_numbers(samples: Samples, plan: QuantizedGraph, *, pixels: bool = True) -> Samples:
    """Return the samples that a plan is compared on: codes as the numbers that they stand for.

    Args:
        samples: Numbers or codes.
        plan: A calibrated plan.
        pixels: See `with_codes`.
    """
    if has_logarithmic_levels(plan):  # there is no program, and no code of integers
        return samples
    arrays = (np.asarray(b.get(name)) for b in _batches(samples) or () for name in samples.specs)
    # Lowering takes long and loads compiled code: most data are floats, and need neither.
    types = {array.dtype for array in arrays if np.issubdtype(array.dtype, np.integer)}
    if types <= ({np.dtype(np.uint8)} if _are_pixels(samples, pixels=pixels) else set()):
        return samples
    from intact.program.lower import lower  # compiled code, slow to load

    return with_codes(samples, lower(plan), pixels=pixels)


def with_codes(samples: Samples, program: Program, *, pixels: bool = False) -> Samples:
    """Return the samples with those inputs that are codes as the numbers that they stand for.

    A number that a code stands for has that code again, so nothing is lost on the way.

    Args:
        samples: Numbers or codes.
        program: Says in which type each input has its codes.
        pixels: Take bytes for pixels, which are numbers, even where codes are bytes too. So they
            are in any case where a mean or scale is to be applied.
    """
    given = _batches(samples)
    if given is None:
        return samples
    encodings = _input_encodings(program)
    pixels = _are_pixels(samples, pixels=pixels)
    found: dict[str, None] = {}
    batches: list[Batch] = []
    for batch in given:
        fresh = dict(batch)
        for name, encoding in encodings.items():
            array = np.asarray(fresh.get(name))
            is_pixels = encoding.dtype == np.uint8 and pixels
            if array.dtype == encoding.dtype and not is_pixels:
                _refuse_other_codes(name, array, encoding)
                fresh[name] = dequantize(array, encoding.scale, encoding.zero_point)
                found[name] = None
        batches.append(fresh)
    if not found:
        return samples
    # Codes are what is left after all preprocessing, which must not be done twice.
    return replace(samples, reader=batches, preprocess=Preprocess(), codes=tuple(found))


def _are_pixels(samples: Samples, *, pixels: bool) -> bool:
    return pixels or samples.preprocess != Preprocess()


def _batches(samples: Samples) -> list[Batch] | None:
    """Return batches that are in memory; None for others, and for what is reported when read."""
    return samples.reader.stored() if isinstance(samples.reader, Items) else None


def _refuse_other_codes(name: str, array: npt.NDArray[Any], encoding: Encoding) -> None:
    if array.size and (array.min() < encoding.quant_min or array.max() > encoding.quant_max):
        raise DataError(
            f"input {name!r}: codes {array.min()}..{array.max()}, the plan's are "
            f"{encoding.quant_min}..{encoding.quant_max}",
            remedy="give codes of its range, or floats",
        )


def _input_encodings(program: Program) -> dict[str, Encoding]:
    """Return the encoding in which each input is first quantized."""
    found: dict[str, Encoding] = {}
    names = {tensor.name: name for name, tensor in program.inputs.items()}
    for step in program.steps:
        for tensor in step.activations:
            encoding = step.outputs[0].encoding
            if tensor.name in names and encoding is not None and tensor.encoding is None:
                # An input that several quantizers read has the codes of the first step, in every
                # run.
                found.setdefault(names[tensor.name], encoding)
    return found


def _output_codes(program: Program) -> dict[str, Tensor]:
    """Return the outputs as codes, where they are dequantized from such."""
    makers = {t.name: step for step in program.steps for t in step.outputs}
    found = {}
    for name, tensor in program.outputs.items():
        maker = makers.get(tensor.name)
        source = maker.activations[0] if maker is not None and maker.activations else None
        is_decoded = source is not None and source.encoding is not None and tensor.encoding is None
        found[name] = source if source is not None and is_decoded else tensor
    return found


def _observed(program: Program, observe: Iterable[str] | None) -> dict[str, Tensor]:
    """Return the tensors to return, by the names of the model's: codes before floats."""
    by_value: dict[str, Tensor] = {}
    for tensor in program.tensors():
        if tensor.is_constant:
            continue
        name = tensor.value or tensor.name
        # One value of the model may be codes in one step and floats behind a conversion.
        if name not in by_value or (by_value[name].encoding is None and tensor.encoding):
            by_value[name] = tensor
    if observe is None:
        return by_value
    for name in observe:
        if name not in by_value:
            raise UsageError(f"there is no tensor {name!r}", remedy=nearest(name, by_value))
    return {name: by_value[name] for name in observe}


def save_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays as ``.npz`` under their own names, whatever those are: whole, or not at all.

    Raises:
        OutputError: The file cannot be written.
    """
    with whole_file(path) as whole, zipfile.ZipFile(whole, "w") as archive:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")  # a fixed date: equal arrays, equal bytes
            with archive.open(member, "w", force_zip64=True) as file:
                stored = np.asarray(array)
                if stored.dtype == object:  # the runtime's strings
                    stored = stored.astype(str)
                np.lib.format.write_array(file, stored, allow_pickle=False)
