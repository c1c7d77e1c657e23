"""Describes the runtime of a result for the checks: its times, its float nodes, its runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from intact.analyze.diagnose.runtime import KernelTime, multiplies
from intact.analyze.diagnose.runtime import Runtime as Shown
from intact.data.batching import Batch
from intact.errors import IntactError
from intact.formats.base.format import Deployed, Runtime
from intact.formats.registry import FORMATS, ONNX_QDQ
from intact.graph import Graph
from intact.results.result import Result

if TYPE_CHECKING:
    from intact.engines.executor import Run


def runtime_of(result: Result, in_float: dict[str, str] | None = None) -> Shown:
    """Describe the runtime of what is deployed first.

    Args:
        result: The result.
        in_float: What `products_in_float` returned, where that was asked.
    """
    name, exported = next(iter(result.exports.items()))
    return Shown(
        exported.nbytes,
        name == ONNX_QDQ,
        run=deployed_run(result),
        load=_loader(result),
        load_float=_float_loader(result),
        profile=_profiler(result),
        in_float=in_float or {},
    )


def products_in_float(result: Result, *, threads: int = 0) -> dict[str, str]:
    """Return the layers that are planned for integers and computed in float, with operators.

    Those of the first format; none where its runtime is not installed or does not tell.
    """
    name, exported = next(iter(result.exports.items()))
    runtime = FORMATS[name].runtime
    if runtime is None or not runtime.can_run(exported):
        return {}
    with contextlib.suppress(IntactError):  # a model that the runtime refuses: `verify` says it
        found = runtime.executed(Deployed(result.plan, exported, None, threads))
        in_float = {} if found is None else found.in_float
        return {name: op_type for name, op_type in in_float.items() if multiplies(op_type)}
    return {}


def deployed_run(result: Result) -> Run | None:
    """Return what runs the deployed model as applications do, on one thread; None if nothing does.

    The model is loaded when it is first run.
    """
    name, exported = next(iter(result.exports.items()))
    runtime = FORMATS[name].runtime
    if runtime is None or not runtime.can_run(exported):
        return None
    deployed = Deployed(result.plan, exported, None, 1)
    if not runtime.runs_numbers:
        return partial(runtime.run, deployed)
    # Loaded once, and only if a check runs it at all.
    loaded, turn = cache(partial(runtime.runner, deployed)), Lock()

    def run_loaded(feeds: Batch) -> Batch:
        with turn:  # OpenVINO runs one batch at a time
            outputs: Batch = loaded()(feeds)
        return outputs

    return run_loaded


def _runtime_alone(result: Result) -> tuple[Runtime, Deployed] | None:
    """Return a runtime and what it runs on one thread; None where none runs it and float models."""
    name, exported = next(iter(result.exports.items()))
    runtime = FORMATS[name].runtime
    if runtime is None or not runtime.runs_float or not runtime.can_run(exported):
        return None
    return runtime, Deployed(result.plan, exported, None, 1)


def _loader(result: Result) -> Callable[[], Callable[[Batch], Any]] | None:
    found = _runtime_alone(result)
    if found is None or not found[0].is_timed:
        return None
    return partial(found[0].runner, found[1])


def _float_loader(result: Result) -> Callable[[Graph], Callable[[Batch], Any]] | None:
    found = _runtime_alone(result)
    if found is None:
        return None
    return lambda graph: found[0].float_runner(graph, found[1])


def _profiler(result: Result) -> Callable[[Batch, int], Sequence[KernelTime]] | None:
    found = _runtime_alone(result)
    if found is None or not found[0].is_profiled:
        return None
    profile = partial(found[0].profile, found[1])
    # Rewritten, because checks know of no format's types.
    return lambda feeds, runs: [KernelTime(k.op_type, k.seconds) for k in profile(feeds, runs)]
