"""The runtime of a result, as the checks of `intact.analyze.diagnose` see it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from intact.analyze.diagnose.runtime import KernelTime, Runtime, multiplies
from intact.data.batching import Batch
from intact.errors import IntactError
from intact.formats.base.format import Deployed
from intact.formats.registry import FORMATS, ONNX_QDQ
from intact.results.result import Result

if TYPE_CHECKING:
    from intact.calibrate.choice import Run


def runtime_of(result: Result, in_float: dict[str, str] | None = None) -> Runtime:
    """Describe the runtime of what is deployed first.

    Args:
        result: The result.
        in_float: As of `products_in_float`, where that was asked.
    """
    name, exported = next(iter(result.exports.items()))
    return Runtime(
        exported.nbytes(),
        name == ONNX_QDQ,
        run=deployed_run(result),
        load=_loader(result),
        profile=_profiler(result),
        in_float=in_float or {},
    )


def products_in_float(result: Result, *, threads: int = 0) -> dict[str, str]:
    """Return the layers that are planned for integers and computed in float, with operators.

    Those of the first format; none where its runtime is not installed or does not tell.
    """
    name, exported = next(iter(result.exports.items()))
    row = FORMATS[name]
    if row.executed is None or not row.can_run(exported):
        return {}
    with contextlib.suppress(IntactError):  # a model that the runtime refuses: `verify` says it
        found = row.executed(Deployed(result.plan, exported, None, threads)).in_float
        return {name: op_type for name, op_type in found.items() if multiplies(op_type)}
    return {}


def deployed_run(result: Result) -> Run | None:
    """Return what runs the deployed model as applications do, on one thread; None if nothing does.

    The model is loaded when it is first run.
    """
    name, exported = next(iter(result.exports.items()))
    row = FORMATS[name]
    if row.run is None or not row.can_run(exported):
        return None
    deployed, load, run = Deployed(result.plan, exported, None, 1), row.runner, row.run
    if not row.runs_numbers or load is None:
        return lambda feeds: run(deployed, feeds)
    loaded, turn = cache(partial(load, deployed)), Lock()

    def as_loaded(feeds: Batch) -> Batch:
        with turn:  # OpenVINO runs one batch at a time
            outputs: Batch = loaded()(feeds)
        return outputs

    return as_loaded


def _alone(result: Result) -> Deployed | None:
    """Return what is deployed, on one thread; None where no runtime runs it and float models."""
    name, exported = next(iter(result.exports.items()))
    return Deployed(result.plan, exported, None, 1) if FORMATS[name].runs_float else None


def _loader(result: Result) -> Callable[[], Callable[[Batch], Any]] | None:
    deployed, row = _alone(result), FORMATS[next(iter(result.exports))]
    return None if deployed is None or row.runner is None else partial(row.runner, deployed)


def _profiler(result: Result) -> Callable[[Batch, int], Sequence[KernelTime]] | None:
    deployed, row = _alone(result), FORMATS[next(iter(result.exports))]
    if deployed is None or row.kernels_of is None:
        return None
    profile = partial(row.kernels_of, deployed)
    return lambda feeds, runs: [KernelTime(k.op_type, k.seconds) for k in profile(feeds, runs)]
