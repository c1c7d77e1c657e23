"""Writes and reads ``plan.json``: the plan as text; loading it gives the same bits.

Each config is one line, in graph order, so that ``diff`` can compare two plans.
Scales are float32; JSON carries their shortest decimal form, which reads back to the same bits.
Those of blocks, of which there are millions, are in a file beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from intact.config import (
    NEEDS_SCALE,
    Granularity,
    JsonValue,
    PerBlock,
    PerChannel,
    PerRow,
    PerTensor,
    QuantPolicy,
    QuantState,
    Rounding,
    TensorQuantConfig,
    parse_policy,
)
from intact.errors import IntactError, PlanError
from intact.graph import Graph
from intact.graph.files.regular import read_file
from intact.plan.provenance import Provenance
from intact.plan.quantized_graph import (
    Decision,
    Float16Nodes,
    Note,
    NoteKind,
    QuantizedGraph,
    TensorEnd,
)
from intact.plan.schemes import unquantized
from intact.targets import target_from_json, target_to_json

PLAN_VERSION = 4

"""The version of files that are written and read."""

WEIGHTS = "weights.npz"

"""The file beside the plan for the integers of constants; written only if there are any."""

SCALES = "scales.npz"

"""The file beside the plan for scales of blocks; written only if there are any."""

_MAX_BYTES = 1 << 30

_UNQUANTIZED = (QuantState.FP32, QuantState.SOI)


class _Record(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One config as written to the file; ends that are never quantized have only a state.

    ``before`` is the state that a DEQUANTIZED config goes back to.
    """

    end: str
    state: QuantState
    before: QuantState | None = None
    follows: str = ""
    policy: str = ""
    rounding: Rounding = Rounding.HALF_EVEN
    bits: int = 0
    range: tuple[int, int] = (0, 0)
    axis: int | None = None
    block: int | None = None
    steps_per_octave: int | None = None
    channels: tuple[tuple[int, int], ...] = ()
    observer: str = ""
    scale: float | list[float] | None = None
    offset: int | list[int] | None = None
    inplace: bool = False
    detail: dict[str, Any] = {}


class _Decision(msgspec.Struct, forbid_unknown_fields=True):
    node: str
    quantized: bool
    reason: str


class _Note(msgspec.Struct, forbid_unknown_fields=True):
    kind: NoteKind
    node: str
    message: str
    remedy: str


class _PlanFile(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    model_hash: str
    weights: str
    provenance: Provenance
    target: dict[str, Any]
    notes: list[_Note]
    decisions: list[_Decision]
    configs: list[_Record]
    scales: str = ""
    float16: Float16Nodes | None = None


class _Head(msgspec.Struct):
    format: str = ""
    version: int = 0


def plan_to_json(plan: QuantizedGraph) -> bytes:
    """Encode the plan as UTF-8 JSON; equal plans give equal bytes."""
    file = _PlanFile(
        format="intact-plan",
        version=PLAN_VERSION,
        model_hash=plan.graph.hash,
        weights=_weights_hash(plan),
        provenance=plan.provenance,
        target=target_to_json(plan.target),
        notes=[_Note(note.kind, note.node, note.message, note.remedy) for note in plan.notes],
        decisions=[_Decision(name, d.quantized, d.reason) for name, d in plan.decisions.items()],
        configs=_records(plan),
        scales=_scales_hash(plan),
        float16=plan.float16,
    )
    return _one_line_each(file)


def save_plan(plan: QuantizedGraph, path: Path) -> None:
    """Write ``plan.json``, and beside it integers and scales of blocks that the plan holds."""
    path.write_bytes(plan_to_json(plan))
    if _has_blocks(plan):
        from intact.plan.block_scales_file import block_scales_to_bytes

        path.with_name(SCALES).write_bytes(block_scales_to_bytes(plan.configs))
    if plan.baked:
        from intact.plan.baked_file import baked_to_bytes

        path.with_name(WEIGHTS).write_bytes(baked_to_bytes(plan.baked))


def load_plan(path: Path, graph: Graph) -> QuantizedGraph:
    """Read a plan and check it against its model.

    Args:
        path: The file; integers that the plan keeps are read from ``weights.npz`` beside it, and
            scales of blocks from ``scales.npz``.
        graph: The normalized model that lies beside it.

    Raises:
        PlanError: A file is missing, damaged, of another version or of another model.
    """
    file = _read(path)
    if file.model_hash != graph.hash:
        raise PlanError(
            f"{path}: the plan is for model {file.model_hash[:12]}, this one is {graph.hash[:12]}",
            remedy="keep plan.json beside the model.onnx it was written with",
        )
    try:
        configs = _configs(file.configs, _block_scales(path, graph, file))
        target = target_from_json(file.target)
    except (IntactError, OverflowError) as error:
        raise PlanError(f"{path}: {error}", remedy="quantize again") from error
    # Every end of the model and no other: a plan that was cut short would else leave ends without a
    # config, far from here.
    _check_keys(path, "tensor ends", [each.end for each in file.configs], map(str, _ends(graph)))
    nodes = [str(node.name) for node in graph.nodes]
    _check_keys(path, "decisions", [each.node for each in file.decisions], nodes)
    baked = {}
    if file.weights:
        from intact.plan.baked_file import load_baked

        baked = load_baked(path.with_name(WEIGHTS), graph, configs, file.weights)
    plan = QuantizedGraph(
        graph=graph,
        target=target,
        configs=configs,
        decisions={d.node: Decision(d.quantized, d.reason) for d in file.decisions},
        notes=tuple(Note(n.kind, n.node, n.message, n.remedy) for n in file.notes),
        provenance=file.provenance,
        baked=baked,
        float16=file.float16,
    )
    if plan.float16 is not None:
        from intact.plan.float16 import refuse_others  # which few plans need

        refuse_others(plan)
    return plan


def _read(path: Path) -> _PlanFile:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise PlanError(f"{path}: larger than {_MAX_BYTES >> 20} MiB", remedy="this is no plan")
        data = read_file(path)
        # The head by itself: a file of another version has other fields, and the message should say
        # that.
        head = msgspec.json.decode(data, type=_Head)
        if head.format != "intact-plan":
            raise PlanError(f"{path}: not a plan of intact", remedy="give a plan.json")
        if head.version != PLAN_VERSION:
            raise PlanError(
                f"{path}: plan version {head.version}, this intact reads {PLAN_VERSION}",
                remedy="update intact" if head.version > PLAN_VERSION else "quantize again",
            )
        return msgspec.json.decode(data, type=_PlanFile)
    except (OSError, ValueError, RecursionError) as error:  # msgspec's are ValueErrors
        raise PlanError(f"{path}: cannot be read as a plan ({error})") from error


def _weights_hash(plan: QuantizedGraph) -> str:
    if not plan.baked:
        return ""
    from intact.plan.baked_file import baked_hash

    return baked_hash(plan.baked)


def _has_blocks(plan: QuantizedGraph) -> bool:
    """Tell whether scales are in a file of their own."""
    return any(_has_own_scales(config) for config in plan.configs.values())


def _has_own_scales(config: TensorQuantConfig) -> bool:
    is_own = config.dominator is config and config.params is not None
    return isinstance(config.granularity, PerBlock) and is_own


def _scales_hash(plan: QuantizedGraph) -> str:
    if not _has_blocks(plan):
        return ""
    from intact.plan.block_scales_file import block_scales_hash

    return block_scales_hash(plan.configs)


def _records(plan: QuantizedGraph) -> list[_Record]:
    # Reversed, so that of several ends with one config the first one names it.
    names = {id(config): str(end) for end, config in reversed(plan.configs.items())}
    return [_record(str(end), config, names) for end, config in plan.configs.items()]


def _record(end: str, config: TensorQuantConfig, names: dict[int, str]) -> _Record:
    if _is_plain(config):
        return _Record(end=end, state=config.state)
    is_root = config.dominator is config
    own = config.params if is_root and not _has_own_scales(config) else None
    return _Record(
        end=end,
        state=config.state,
        before=_state_before(config),
        follows="" if is_root else names[id(config.dominator)],
        policy=config.policy.spelled,
        rounding=config.rounding,
        bits=config.bits,
        range=(config.quant_min, config.quant_max),
        axis=config.granularity.axis,
        block=config.grid.block,
        steps_per_octave=config.steps_per_octave,
        channels=config.grid.channel_codes,
        observer=config.observer,
        scale=_numbers(own.scale) if own else None,
        offset=_numbers(own.zero_point) if own else None,
        inplace=config.inplace,
        detail=dict(sorted(config.detail.items())),
    )


def _is_plain(config: TensorQuantConfig) -> bool:
    """Tell whether a config only states that its end is not quantized."""
    return (
        config.state in _UNQUANTIZED
        and config.same_grid(unquantized(config.state))
        and config.params is None
        and len(config.group()) == 1
        and not config.detail
    )


def _state_before(config: TensorQuantConfig) -> QuantState | None:
    if config.state is not QuantState.DEQUANTIZED:
        return None
    twin = config.copy()
    twin.requantize()
    return twin.state


def _numbers(array: np.ndarray[Any, Any]) -> Any:
    """Return a scalar or list; float32 as the shortest decimal that reads back to its bits."""
    if array.dtype == np.float32:
        shortest = [float(str(number)) for number in array.reshape(-1)]
        return shortest if array.ndim else shortest[0]
    return array.tolist()


_Scales: TypeAlias = dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]
"""Scales and zero points of blocks, by the ends that own them."""


def _block_scales(path: Path, graph: Graph, file: _PlanFile) -> _Scales:
    owners = {
        record.end: PerBlock(record.axis or 0, record.block)
        for record in file.configs
        if record.block is not None and not record.follows and record.state in NEEDS_SCALE
    }
    if not file.scales and not owners:
        return {}
    from intact.plan.block_scales_file import load_block_scales

    return load_block_scales(path.with_name(SCALES), graph, owners, file.scales)


def _configs(records: list[_Record], scales: _Scales) -> dict[TensorEnd, TensorQuantConfig]:
    by_end = {record.end: record for record in records}
    configs = {record.end: _config(record, _master(record, by_end), scales) for record in records}
    for record in records:
        if not record.follows:
            continue
        master, follower = configs[record.follows], configs[record.end]
        if record.state in NEEDS_SCALE:
            master.dominate(follower)
        else:  # what does not quantize now may be on another grid
            master.adopt(follower)
    return {TensorEnd.parse(end): config for end, config in configs.items()}


def _master(record: _Record, by_end: dict[str, _Record]) -> _Record:
    """Return the record that owns the scale of another."""
    if not record.follows:
        return record
    master = by_end.get(record.follows)
    # One step and no chain: a hostile file could make a circle of them.
    if master is None or master.follows:
        raise PlanError(f"{record.end} follows {record.follows}, which is no dominator of the plan")
    return master


def _config(record: _Record, master: _Record, scales: _Scales) -> TensorQuantConfig:
    if not record.policy:
        if record.state not in _UNQUANTIZED:
            raise PlanError(f"{record.end} is {record.state.name} but has no policy")
        return unquantized(record.state)
    granularity: Granularity = PerTensor() if record.axis is None else PerChannel(record.axis)
    policy = parse_policy(record.policy)
    if QuantPolicy.PER_ROW in policy:
        granularity = PerRow(record.block)
    elif record.block is not None:
        granularity = PerBlock(record.axis or 0, record.block)
    detail: dict[str, JsonValue] = dict(record.detail)
    state = record.state if record.before is None else record.before
    own = master if state in NEEDS_SCALE else record
    scale, offset = scales.get(own.end, (own.scale, own.offset))
    config = TensorQuantConfig(
        policy=policy,
        rounding=record.rounding,
        bits=record.bits,
        quant_min=record.range[0],
        quant_max=record.range[1],
        granularity=granularity,
        steps_per_octave=record.steps_per_octave,
        channel_codes=record.channels,
        scale=scale,
        offset=offset,
        observer=record.observer,
        detail=detail,
        inplace=record.inplace,
        state=state,
    )
    # Through the state before, since a config can only be made in states that it can begin in.
    config.transition(record.state)
    return config


def _ends(graph: Graph) -> Iterator[TensorEnd]:
    for node in graph.nodes:
        name = str(node.name)
        yield from (TensorEnd.input(name, k) for k, v in enumerate(node.inputs) if v is not None)
        yield from (TensorEnd.output(name, k) for k, _ in enumerate(node.outputs))


def _check_keys(path: Path, what: str, found: Sequence[str], expected: Iterable[str]) -> None:
    """Refuse a list that lacks a key of the model, has one too many, or one twice."""
    present, wanted = set(found), set(expected)
    twice = {key for key, count in Counter(found).items() if count > 1}
    odd = sorted(present ^ wanted | twice)
    if odd:
        raise PlanError(
            f"{path}: its {what} do not match the model, first {odd[0]!r}", remedy="quantize again"
        )


def _one_line_each(file: _PlanFile) -> bytes:
    """Encode with one line for each config, decision and note."""
    fields = []
    for name in _PlanFile.__struct_fields__:
        value = getattr(file, name)
        # Plans without blocks and float16 keep the bytes that they had before there were any.
        if name in {"scales", "float16"} and not value:
            continue
        if name in {"notes", "decisions", "configs"} and value:
            lines = b",\n  ".join(msgspec.json.encode(item) for item in value)
            body = b"[\n  " + lines + b"\n ]"
        elif name == "target":
            body = msgspec.json.format(msgspec.json.encode(value), indent=1).replace(b"\n", b"\n ")
        else:
            body = msgspec.json.encode(value)
        fields.append(b' "%s": %s' % (name.encode(), body))
    return b"{\n" + b",\n".join(fields) + b"\n}\n"
