"""Applies a table of given scales to the groups of configs that it names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
import numpy as np

from intact.calibrate.scales.roles import is_fixed, is_parameter, needs_range, point_role
from intact.config import TensorQuantConfig
from intact.errors import CalibrationError, ConfigError
from intact.graph import Role
from intact.numerics.affine_params import QuantParams
from intact.plan import Note, NoteKind, QuantPoint
from intact.plan.given_scales import GIVEN, ScaleTable


class PrescribedScales(msgspec.Struct, frozen=True):
    """The groups of configs whose scale is given.

    Attributes:
        params: Scale and offset by ``id`` of the dominator.
        roots: The dominators, likewise.
        notes: What of the table does not hold in this plan.
    """

    params: Mapping[int, QuantParams] = msgspec.field(default_factory=dict)
    roots: Mapping[int, TensorQuantConfig] = msgspec.field(default_factory=dict)
    notes: tuple[Note, ...] = ()

    def __contains__(self, config: TensorQuantConfig) -> bool:
        """Tell whether the scale that a config reads is given."""
        return id(config.dominator) in self.params

    def apply(self) -> None:
        """Write the scales to the dominators."""
        for key, params in self.params.items():
            self.roots[key].set_params(params.scale, params.zero_point)
            self.roots[key].observer = GIVEN


def prescribe(
    points: Iterable[QuantPoint], table: ScaleTable | None, kept: Iterable[str] = ()
) -> PrescribedScales:
    """Hold a table against the quantization points of a plan; nothing is written yet.

    Ends that share a scale take that of the tensor that owns it. Where the owner has none, or
    several tensors own it together (the inputs of a Concat, say), the largest one given holds:
    then nothing saturates that the table did not mean to. Biases are never given: their scale is
    the product of those of input and weight.

    Args:
        points: The points of the plan.
        table: The table.
        kept: Tensors whose own scale the plan keeps, also where another's is in effect.

    Returns:
        What is given, with notes that count the tensors whose scale gave way to another, the
        names that this plan does not quantize, and what the table's reader left out.

    Raises:
        CalibrationError: A scale does not fit the place where it is used; tensor and table are
            named.
    """
    if table is None:
        return PrescribedScales()
    params: dict[int, QuantParams] = {}
    roots: dict[int, TensorQuantConfig] = {}
    gave_way: list[str] = []
    used: set[str] = set(kept)
    known = frozenset(used)
    for members in _groups(points, table):
        root = members[0].config.dominator
        used.update(str(point.value.name) for point in members)
        # The hardware has that scale in its code: a table cannot change it.
        if is_fixed(root):
            gave_way += [str(p.value.name) for p in members if not _prescribes(root, p, table)]
            continue
        given = [(point, given_params(point, table)) for point in members]
        owners = [each for point, each in given if needs_range(point.config)]
        # The largest: a smaller one would saturate values for which the table gave room.
        chosen = max(owners or [each for _, each in given], key=lambda each: each.scale.max())
        gave_way += [str(point.value.name) for point, each in given if not _equal(each, chosen)]
        params[id(root)], roots[id(root)] = chosen, root
    # Tensors in `kept` lose nothing: their own scale is stored beside the one in effect.
    gave_way = [name for name in dict.fromkeys(gave_way) if name not in known]
    return PrescribedScales(params, roots, tuple(_notes(table, used, gave_way)))


def _groups(points: Iterable[QuantPoint], table: ScaleTable) -> Iterable[list[QuantPoint]]:
    """Return the points that the table names, by the dominator of their scale."""
    groups: dict[int, list[QuantPoint]] = {}
    for point in points:
        is_bias = is_parameter(point) and point_role(point) is Role.BIAS
        if point.value.name in table and not is_bias:
            groups.setdefault(id(point.config.dominator), []).append(point)
    return groups.values()


def given_params(point: QuantPoint, table: ScaleTable) -> QuantParams:
    """Return what a table gives a point, on the point's grid.

    Raises:
        CalibrationError: It does not fit; tensor and table are named.
    """
    name = str(point.value.name)
    try:
        return _on_grid(point, table)
    except ConfigError as error:
        raise CalibrationError(
            f"{table.source}: the scale of {name!r} does not fit {point.end}: {error}"
        ) from error


def _on_grid(point: QuantPoint, table: ScaleTable) -> QuantParams:
    sizes = point.value.shape or ()
    shape = tuple(size if isinstance(size, int) else 0 for size in sizes)
    return table[str(point.value.name)].on_grid(point.config.dominator.grid, shape)


def _prescribes(root: TensorQuantConfig, point: QuantPoint, table: ScaleTable) -> bool:
    """Check whether the scale that the target prescribes is the one of the table."""
    try:
        return root.params is not None and _equal(root.params, _on_grid(point, table))
    except ConfigError:
        return False


def _equal(left: QuantParams, right: QuantParams) -> bool:
    return bool(np.all(left.scale == right.scale) and np.all(left.zero_point == right.zero_point))


def _notes(table: ScaleTable, used: set[str], gave_way: list[str]) -> Iterator[Note]:
    if gave_way:
        yield _note(
            f"{table.name}: the scales of {len(gave_way)} tensor(s) give way, to a tensor's that "
            f"has one scale with them or to a prescribed one (first: {gave_way[0]!r})"
        )
    unused = [name for name in table.scales if name not in used]
    if unused:
        yield _note(
            f"{table.name}: {len(unused)} of {len(table.scales)} scales are not used, their "
            "tensors are biases or are not quantized on this target, or normalizing removed them "
            f"(first: {unused[0]!r})"
        )
    for reason, count in table.ignored.items():
        yield _note(f"{table.name}: {count} encoding(s) left out: {reason}")


def _note(message: str) -> Note:
    return Note(NoteKind.CALIBRATION, "", message)
