"""A written model in ncnn, with its blobs on request."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from intact.errors import ExportError
from intact.formats.base.format import Feeds, require_packages
from intact.formats.ncnn.model import NcnnModel
from intact.plan import QuantizedGraph

_Array: TypeAlias = npt.NDArray[Any]

_REDUCED = (
    "use_fp16_arithmetic",
    "use_fp16_packed",
    "use_fp16_storage",
    "use_bf16_packed",
    "use_bf16_storage",
)
_FASTER = ("use_packing_layout", "use_winograd_convolution")
"""Options that change how int8 layers compute (see the notes in the targets' files)."""


def ncnn_version() -> str:
    """Name the runtime and its version.

    Raises:
        MissingExtraError: It is not installed.
    """
    require_packages("running ncnn", ("ncnn",), "ncnn")
    return f"ncnn {version('ncnn')}"


class NcnnRuntime:
    """A loaded model; one sample at a time.

    Args:
        param: The ``.param``.
        weights: The ``.bin``.
        threads: Threads inside one layer; 0 takes one. Where other programs hold cores too, small
            layers wait for their threads longer than they compute: ResNet-8 takes 4 times as long
            with two.
        plain: Without packing layouts and Winograd's algorithm, and in float32 throughout: every
            blob is what the integers of its layer give. Otherwise ncnn's own defaults hold.

    Raises:
        ExportError: ncnn refuses the model.
        MissingExtraError: ncnn is not installed.
    """

    def __init__(
        self, param: str, weights: bytes, *, threads: int = 0, plain: bool = False
    ) -> None:
        self.name = ncnn_version()
        import ncnn

        self._ncnn = ncnn
        self._net = ncnn.Net()
        self._net.opt.num_threads = max(threads, 1)
        self._net.opt.openmp_blocktime = 0  # idle threads do not hold the cores of others
        self._net.opt.use_vulkan_compute = False
        self._net.opt.lightmode = False  # else blobs go once they are read
        if plain:
            for name in (*_REDUCED, *_FASTER):
                setattr(self._net.opt, name, False)
        with tempfile.TemporaryDirectory() as folder:
            files = Path(folder) / "model.param", Path(folder) / "model.bin"
            files[0].write_text(param, encoding="ascii")
            files[1].write_bytes(weights)
            if self._net.load_param(str(files[0])) or self._net.load_model(str(files[1])):
                raise ExportError(
                    f"{self.name} refuses the written model",
                    remedy="keep the node whose layer it names on the terminal out of the model",
                )

    def run(self, feeds: Mapping[str, _Array], blobs: Iterable[str]) -> dict[str, _Array]:
        """Run one sample.

        Args:
            feeds: By blob, without a batch: int32 where the layer looks up, else float32.
            blobs: Which to read.

        Returns:
            float32 (int8 of a ``Quantize`` layer) by blob, without a batch.

        Raises:
            ExportError: ncnn fails on this input.
        """
        extractor = self._net.create_extractor()
        held = {}  # ncnn reads the arrays when a blob is asked for
        for blob, array in feeds.items():
            dtype = np.int32 if array.dtype.kind in "iu" else np.float32
            held[blob] = self._ncnn.Mat(np.ascontiguousarray(array, dtype)).clone()
            if extractor.input(blob, held[blob]):
                raise ExportError(f"{self.name} has no input {blob!r}")
        found = {}
        for blob in blobs:
            failed, mat = extractor.extract(blob)
            if failed:
                raise ExportError(f"{self.name} fails on this input, at blob {blob!r}")
            found[blob] = np.array(mat)
        return found


def run_ncnn(
    plan: QuantizedGraph, model: NcnnModel, feeds: Feeds, *, threads: int = 0
) -> dict[str, _Array]:
    """Run a written model in ncnn with its default options; the outputs by name.

    Args:
        plan: The plan.
        model: What was written from it.
        feeds: Inputs by name; ncnn runs their samples one by one.
        threads: Threads inside one layer; 0 takes one.

    Raises:
        ExportError: ncnn refuses the model, or fails on it.
    """
    runtime = NcnnRuntime(model.param, model.weights, threads=threads)
    given = model.fed(feeds)
    found = run_samples(runtime, given, model.outputs.values())
    shapes = {str(value.name): value.shape for value in plan.graph.outputs}
    outputs = {}
    for name, blob in model.outputs.items():
        array = found[blob]
        lengths = [each if isinstance(each, int) else -1 for each in (shapes[name] or ())][1:]
        outputs[name] = array.reshape(len(array), *lengths) if lengths.count(-1) < 2 else array
    return outputs


def run_samples(
    runtime: NcnnRuntime, feeds: Mapping[str, _Array], blobs: Iterable[str]
) -> dict[str, _Array]:
    """Run the samples of a batch one by one; return their blobs, ``[N, ...]``."""
    wanted = tuple(blobs)
    count = len(next(iter(feeds.values())))
    runs = [runtime.run({blob: a[k] for blob, a in feeds.items()}, wanted) for k in range(count)]
    return {blob: np.stack([run[blob] for run in runs]) for blob in wanted}
