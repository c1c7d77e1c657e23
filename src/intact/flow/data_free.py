"""Draws samples from what BatchNormalizations remember, where the user has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import onnx_ir as ir

from intact._extras import install_hint, is_installed
from intact.calibrate.noise import matched_noise
from intact.calibrate.remembered import remembered
from intact.data.progress import begin
from intact.data.signature import InputSpec, input_specs
from intact.errors import DataError, UsageError
from intact.flow.shapes import with_shapes
from intact.graph.passes.input_shapes import shown_option
from intact.plan import Note, NoteKind
from intact.results.request import refuse_options_of_data

if TYPE_CHECKING:
    from intact.recipe.options import QuantizationOptions

MOST_SAMPLES = 32
"""Images that are drawn."""
_USUAL = 224
"""Rows and columns of an example."""
_GIVE_DATA = "give samples with --data"
_FAR = 0.5
"""Deviations by which statistics may be off before the user should be told to look."""


class DrawnData(msgspec.Struct, frozen=True):
    """Samples that were drawn.

    Attributes:
        data: Inputs by name, ``[N, ...]``, as the model takes them.
        count: How many.
        notes: What the user should know of them.
    """

    data: dict[str, Any]
    count: int
    notes: tuple[Note, ...]


def drawn_data(model: ir.Model, options: QuantizationOptions) -> DrawnData:
    """Draw samples for a model with BatchNormalizations; always the same for a model.

    Raises:
        UsageError: An option is for data, or a size of the input is open.
        DataError: The model has no BatchNormalization that tells something, or takes something
            else than one input of floats.
    """
    refuse_options_of_data(options)
    graph = with_shapes(model, options.input_shape)
    name, spec = _only_input(input_specs(graph))
    known = remembered(graph)
    if not known:
        raise DataError(
            "--data-free: the model has no BatchNormalization to draw images from: it never had "
            "any, or its export folded them",
            remedy=f"give the model before that, or {_GIVE_DATA}",
        )
    wanted = min(MOST_SAMPLES, options.samples or MOST_SAMPLES)
    chunk = spec.fixed_batch or wanted
    # Whole batches of what the model takes.
    count = -(-wanted // chunk) * chunk
    sizes = (count, *(size for size in spec.shape[1:] if size is not None))
    begin(options.progress, "drawing images")
    # Both ways begin alike, so that torch only makes it better.
    start = matched_noise(graph, known, spec, sizes)
    layers = f"{len(known)} BatchNormalization{'s' * (len(known) > 1)}"
    if not is_installed("torch"):
        noise, mean, deviation = start
        images = noise * np.float32(deviation) + mean
        note = _note(
            f"calibrated on {count} images of noise, with the mean and deviation that the first of "
            f"{layers} remember: torch is not installed, which draws better ones",
            install_hint("train"),
        )
    else:
        from intact.improve.learn.drawing import drawn

        found = drawn(graph, known, start, chunk, progress=options.progress)
        images = found.images
        message = (
            f"calibrated on {count} images drawn in {found.steps} steps: what {layers} remember is "
            f"off by {found.after:.2g} deviations ({found.before:.2g} with noise)"
        )
        note = _note(message, _GIVE_DATA if found.after > _FAR else "")
    if not np.isfinite(images).all():
        raise DataError(
            "--data-free: what the BatchNormalizations remember gives images that are not finite",
            remedy=_GIVE_DATA,
        )
    return DrawnData({name: images.astype(spec.dtype)}, count, (note,))


def _only_input(specs: dict[str, InputSpec]) -> tuple[str, InputSpec]:
    """Return the one input that can be drawn."""
    if len(specs) > 1:
        raise DataError(
            f"--data-free draws one input, and the model has {len(specs)} "
            f"({', '.join(map(repr, specs))})",
            remedy=_GIVE_DATA,
        )
    ((name, spec),) = specs.items()
    if spec.dtype.kind != "f":
        raise DataError(
            f"--data-free draws floats, and input {name!r} takes {spec.dtype}", remedy=_GIVE_DATA
        )
    if len(spec.shape) < 2:
        raise DataError(
            f"--data-free: input {name!r} of shape {list(spec.shape)} has no axis for samples and "
            "one for channels",
            remedy=_GIVE_DATA,
        )
    if None in spec.shape[1:]:
        sizes = (None, *(size or _USUAL for size in spec.shape[1:]))
        raise UsageError(
            f"--data-free: input {name!r} leaves sizes open",
            remedy=f"give them, for instance {shown_option(name, sizes)}",
        )
    return name, spec


def _note(message: str, remedy: str) -> Note:
    return Note(NoteKind.CALIBRATION, "", message, remedy=remedy)
