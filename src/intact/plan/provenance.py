"""Declares the provenance of a plan: what gave its scales and integers.

Each stage (reading, calibrating, improving, searching, writing) returns the provenance with its own
fields filled in; only the methods here fill them. The given options are in the result's
``recipe.toml``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from intact.plan.gains import Improvement

READ = "quantized model"
CHANNELS_LAST = "channels-last"
"""The layout of images in written files where nothing else is asked for."""

COMPLETED = "quantized model, completed"


class Provenance(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Where a plan comes from. Fields that do not apply are empty.

    Attributes:
        drawn: Number of samples that were drawn from BatchNormalizations, in the place of data.
        formats: Names of the formats that were written, the best first.
        improve: The improvement passes, in the order in which they were run.
        improvements: What each of them did.
        input_shapes: What calibration saw of inputs with sizes of their own: the shapes of most
            samples, the smallest of equally many.
        io: Name of the ``Io`` of the written files: the types of their inputs and outputs.
        layout: In which order written files take and give images; "" is channels last.
        mask: The array that is 0 where samples are padded.
        method: Threshold method of activations; ``given`` if every scale was given.
        method_options: Options given for ``method``.
        no_batch: Inputs that have no axis for samples.
        preprocess: SHA-256 of the preprocessing file beside the plan.
        producer: The tool that quantized the model that was read.
        read_from: The format of the file that was read, if it has a layout of its own.
        scales: Name of the table of given scales.
        scales_hash: SHA-256 of that table.
        search: The search, trial, score and cost that gave the plan.
        source: ``quantized model`` if one was read and not changed since; ``quantized model,
            completed`` if it was calibrated further.
        states: Inputs by the output that is fed to them in the next sample.
        statistics: SHA-256 of the statistics beside the plan.
        trained: What was learned in training, and in which epoch.
        weight_method: Threshold method of weights.
    """

    drawn: int = 0
    formats: tuple[str, ...] = ()
    improve: tuple[str, ...] = ()
    improvements: tuple[Improvement, ...] = ()
    input_shapes: dict[str, tuple[int, ...]] = {}
    io: str = ""
    layout: str = ""
    mask: str = ""
    method: str = ""
    method_options: dict[str, float] = {}
    no_batch: tuple[str, ...] = ()
    preprocess: str = ""
    producer: str = ""
    read_from: str = ""
    scales: str = ""
    scales_hash: str = ""
    search: str = ""
    source: str = ""
    states: dict[str, str] = {}
    statistics: str = ""
    trained: str = ""
    weight_method: str = ""

    def read(self, producer: str, file_format: str = "") -> Provenance:
        """Add the tool that quantized the model, and the format of a file with its own layout."""
        return msgspec.structs.replace(self, source=READ, producer=producer, read_from=file_format)

    def completed(self) -> Provenance:
        """Add that the model that was read is calibrated further."""
        return msgspec.structs.replace(self, source=COMPLETED)

    def calibrated(self, method: str, weight_method: str, statistics: str = "") -> Provenance:
        """Add the methods, and the hash of the statistics in place of an earlier one."""
        return msgspec.structs.replace(
            self, method=method, weight_method=weight_method, statistics=statistics
        )

    def given(self, scales: str, scales_hash: str) -> Provenance:
        """Add the table of given scales."""
        return msgspec.structs.replace(self, scales=scales, scales_hash=scales_hash)

    def observed(
        self, mask: str | None, method_options: Mapping[str, float] | None = None
    ) -> Provenance:
        """Add the mask and the method's options."""
        options = dict(sorted((method_options or {}).items()))
        return msgspec.structs.replace(self, mask=mask or "", method_options=options)

    def drawn_from(self, samples: int) -> Provenance:
        """Add how many samples were drawn, if they were."""
        return msgspec.structs.replace(self, drawn=samples)

    def fed(
        self,
        no_batch: Iterable[str],
        states: Mapping[str, str],
        input_shapes: Mapping[str, tuple[int, ...]],
    ) -> Provenance:
        """Add how samples were fed, and in which shapes."""
        return msgspec.structs.replace(
            self, no_batch=tuple(no_batch), states=dict(states), input_shapes=dict(input_shapes)
        )

    def improved(self, found: Iterable[Improvement]) -> Provenance:
        """Add what improvement passes did."""
        # As a plan keeps them, so that a plan in memory equals the same one read again.
        stored = tuple(each.stored for each in found)
        names = tuple(each.name for each in stored)
        return msgspec.structs.replace(self, improve=names, improvements=stored)

    def searched(self, search: str) -> Provenance:
        """Add the search that found the plan."""
        return msgspec.structs.replace(self, search=search)

    def trained_by(self, how: str) -> Provenance:
        """Add how scales and weights were trained; the statistics are of the weights before."""
        return msgspec.structs.replace(self, trained=how, statistics="")

    def written(self, formats: Iterable[str], io: str, layout: str = CHANNELS_LAST) -> Provenance:
        """Add the formats, the ``Io`` and the layout of the written files."""
        named = "" if layout == CHANNELS_LAST else layout
        return msgspec.structs.replace(self, formats=tuple(formats), io=io, layout=named)

    def preprocessed(self, file_hash: str) -> Provenance:
        """Add the preprocessing file."""
        return msgspec.structs.replace(self, preprocess=file_hash)

    @property
    def is_read(self) -> bool:
        """Whether the plan was read from a quantized model and not changed since."""
        return self.source == READ

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are not empty, as JSON values."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found
