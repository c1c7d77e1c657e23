"""Tensors that were recorded on a device, against the plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.comparing.subject import batches_of
from intact.errors import DataError
from intact.exporting import FORMATS, FORMATS_KEY, FormatName
from intact.formats.exported import WrittenFiles
from intact.formats.format import Io
from intact.formats.tflite.format import TFLITE_FILE
from intact.formats.tflite.reading.decode import open_tflite
from intact.plan import QuantizedGraph
from intact.program.lower import lower
from intact.samples.sources import load_arrays
from intact.samples.stream import Samples
from intact.verification import Verification, verify_observed


def compare_observed(
    plan: QuantizedGraph,
    samples: Samples,
    observed: str | Path | Mapping[str, npt.ArrayLike],
    *,
    threads: int = 0,
) -> Verification:
    """Compare tensors that were recorded on a device with the plan.

    Raises:
        DataError: The file cannot be read, or does not fit the plan.
    """
    name = str(observed) if isinstance(observed, str | Path) else "recorded"
    if isinstance(observed, str | Path):
        dump = load_arrays(Path(observed))
        if not isinstance(dump, Mapping):
            raise DataError(
                f"{observed}: one array without a name", remedy="give an .npz, keyed by tensor name"
            )
    else:
        dump = {key: np.asarray(array) for key, array in observed.items()}
    batches = list(batches_of(samples))
    feeds = {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}
    beside = _only_in_the_file(plan, dump)
    arrays: dict[str, npt.NDArray[Any]] = {
        key: np.asarray(array) for key, array in dump.items() if key not in beside
    }
    found = verify_observed(plan, feeds, arrays, threads=threads, device=name)
    found.not_compared |= dict.fromkeys(beside, "only the .tflite has it, the plan does not")
    return found


def _only_in_the_file(plan: QuantizedGraph, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of tensors that writing a ``.tflite`` adds, such as those of explicit pads.

    Who records every tensor of the file has them too.
    """
    program = lower(plan)
    known = {tensor.name for tensor in program.tensors()}
    known |= {tensor.value for tensor in program.tensors() if tensor.value}
    known |= {str(value.name) for node in plan.graph.nodes for value in node.outputs}
    unknown = [name for name in names if name not in known]
    formats = plan.provenance.get(FORMATS_KEY, "").split(",")
    if not unknown or FormatName.TFLITE not in formats:
        return ()
    written = FORMATS[FormatName.TFLITE].write(plan, Io.INT8)
    content = written.files[TFLITE_FILE] if isinstance(written, WrittenFiles) else b""
    inside = {tensor.name for tensor in open_tflite(content).tensors if tensor.data is None}
    return tuple(name for name in unknown if name in inside)
