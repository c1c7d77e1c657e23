"""Checks what a call asks of its targets, before a model or samples are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from intact.calibrate.method import Method
from intact.errors import MissingExtraError, UsageError
from intact.formats.registry import expressible
from intact.graph import Graph
from intact.improve.passes import requests_of
from intact.improve.presets import choose_passes
from intact.plan.preparation import graphs_for
from intact.recipe.declare import options_of
from intact.recipe.groups import (
    SpeedOptions,
)
from intact.recipe.options import (
    QuantizationOptions,
)
from intact.results.job import Deployment, Job, Planner
from intact.results.recipes import (
    overrides_of,
    preprocess_of,
    target_as_asked,
)
from intact.results.refusals import Refusals
from intact.results.sources import (
    deployment_of,
    target_of,
)
from intact.targets import Target
from intact.targets.schema import without_in_place

if TYPE_CHECKING:
    from intact.recipe.groups import TargetSource


Ready: TypeAlias = tuple[Target, tuple[Method, ...], Deployment]
"""A target, how scales may be chosen for it, and what is written."""


def ready_targets(
    options: QuantizationOptions, targets: Sequence[Target], refusals: Refusals
) -> list[Ready]:
    """Return the methods and the deployment of each target that has what is asked for.

    Raises:
        MissingExtraError: A package that one needs is not installed.
    """
    found = []
    given = (options.method, options.weight_method, options.method_options)
    for each in targets:
        with refusals.of(each.name):
            deployment = deployment_of(each, options.formats, options.io, options.layout)
            found.append((each, Method.candidates(each, *given), deployment))
    # A package is soon installed, and its target left out before: neither is to be told after
    # minutes of work for the others.
    for name, error in refusals.errors.items():
        if isinstance(error, MissingExtraError):
            remedy = f"{error.remedy}, or leave out --target {name}"
            raise MissingExtraError(error.problem, remedy=remedy)
    return found


def refuse_unlike(options: QuantizationOptions, target: TargetSource) -> None:
    """Refuse what could be seen to be wrong before a model or samples are read.

    Raises:
        IntactError: A name is wrong, options exclude each other, or the target has not what is
            asked for.
    """
    refuse_wrong(options)
    # Called for what they refuse; what they return is made again when it is used.
    preprocess_of(options)
    overrides_of(options)
    ready_targets(options, as_asked([target_of(target)], options), Refusals(collects=False))


def rehearsed(options: QuantizationOptions, graph: Graph, target: TargetSource) -> Job:
    """Plan a call on a graph that is normalized already, without samples.

    Args:
        options: What the call gave.
        graph: A result's graph.
        target: What is quantized for.

    Raises:
        IntactError: As in `quantize`, before samples are read.
    """
    refuse_unlike(options, target)
    ((described, methods, deployment),) = ready_targets(
        options, as_asked([target_of(target)], options), Refusals(collects=False)
    )
    wide = graph if expressible(deployment.formats).half_ends else graph.with_wide_ports()
    (own,) = graphs_for(wide, [described], options.expand)
    planner = Planner(own, described, overrides_of(options))
    plan = planner.plan()
    passes = choose_passes(plan, options.improve, options.preset, readable=True)
    return Job(plan, methods, deployment, planner, passes.requests)


def as_asked(targets: Sequence[Target], options: QuantizationOptions) -> list[Target]:
    """Describe the targets as a call wants them: activations, blocks, operators in place or not.

    Raises:
        UsageError: One has not what is asked for.
    """
    described = [target_as_asked(target, options) for target in targets]
    return described if options.in_place else _not_in_place(described)


def refuse_wrong(options: QuantizationOptions) -> None:
    """Refuse wrong names, and options that would have no effect, before anything is read.

    Raises:
        UsageError: See above.
    """
    requests_of(options.improve)
    if options.improve and options.preset is not None:
        raise UsageError(f"--improve and --preset {options.preset}", remedy="leave one out")
    if options.data_free:
        refuse_options_of_data(options)
    for name, declared in options_of(SpeedOptions).items():
        if not options.fastest and getattr(options, name) != declared.default:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} is for --fastest", remedy="give that too, or leave it out")


def _not_in_place(targets: Sequence[Target]) -> list[Target]:
    """Describe the targets without operators that work in place."""
    if not any(target.topology.in_place for target in targets):
        raise UsageError(
            f"--no-in-place: {', '.join(target.name for target in targets)} does nothing in place",
            remedy="leave it out",
        )
    return [without_in_place(target) for target in targets]


_DEVICES = frozenset(
    ["aux", "con", "nul", "prn", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))]
)
"""Names that Windows keeps for devices."""


def distinct_names(targets: Sequence[Target]) -> tuple[str, ...]:
    """List the names of the targets."""
    names = tuple(target.name for target in targets)
    if not names:
        raise UsageError("there is no target", remedy="name one: see `intact targets`")
    for name in names:
        # A target's name comes from a file of anyone and becomes a folder's: it must not lead
        # elsewhere, be hidden, or name a device.
        is_name = Path(name).name == name and not name.startswith(".") and "\\" not in name
        if not is_name or name.partition(".")[0].lower() in _DEVICES or name.endswith((".", " ")):
            raise UsageError(
                f"target {name!r} cannot give a folder its name", remedy="rename it in its file"
            )
        if [other.casefold() for other in names].count(name.casefold()) > 1:
            raise UsageError(  # some file systems do not tell cases apart
                f"target {name} is given twice", remedy="leave one out, or rename it in its file"
            )
    return names


def refuse_options_of_data(options: QuantizationOptions) -> None:
    """Refuse data, and options of how it is read, beside ``--data-free``.

    Raises:
        UsageError: One is given.
    """
    if options.data is not None:
        raise UsageError("--data and --data-free", remedy="leave one out")
    given = {
        "--mask": options.mask,
        "--no-batch": options.no_batch,
        "--state": options.state,
        "--skip-bad": options.skip_bad,
        "transform": options.transform,
    }
    for flag, value in given.items():
        if value:
            raise UsageError(f"{flag} is for data, and --data-free has none", remedy="leave it out")
