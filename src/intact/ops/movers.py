"""Declares operators whose results hold elements of what they read: see `intact.ops.operators`."""

# ruff: noqa: D101 - the specification says what the operators are

from __future__ import annotations

from typing import Any

from intact.ops.declaration import Integers, Operator, OpKind, Role, declare

DATA, _, _, SHAPE, PARAMETER = Role

# ---- values of several inputs side by side -------------------------------------------------------


# A join has one scale for all that it joins; see `intact.plan.untie` for where that loses much.
class Concat(Operator, kind=OpKind.JOIN, roles=(), variadic=DATA, selects=True, keeps_sign=True):
    axis: int = 0


declare("Where", OpKind.JOIN, SHAPE, DATA, DATA, selects=True, numpy="where")


class ScatterND(Operator, kind=OpKind.JOIN, roles=(DATA, SHAPE, DATA), fails_by=1):
    reduction: str = "none"


class ScatterElements(ScatterND):
    axis: int = 0


class Scatter(Operator, kind=OpKind.JOIN, roles=(DATA, SHAPE, DATA)):
    axis: int = 0


declare("TensorScatter", OpKind.JOIN, DATA, DATA, SHAPE)

# ---- values of one input, moved ------------------------------------------------------------------
# Pad, Resize and GridSample move only in some modes.


class Mover(
    Operator,
    kind=OpKind.MOVE,
    roles=(DATA,),
    variadic=SHAPE,
    moves_values=True,
    abstract=True,
):
    """An operator that reorders, selects or repeats; all further inputs steer it."""


def _mover(names: str, *roles: Role, **facts: Any) -> None:
    row = {"variadic": SHAPE, "moves_values": True, **facts}
    declare(names, OpKind.MOVE, *(roles or (DATA,)), **row)


_mover("Identity", variadic=None, reshapes=True)
_mover("Dropout", DATA, PARAMETER, SHAPE, variadic=None, reshapes=True)
_mover("Expand Tile", moves_axes=True)


class Reshape(Mover, reshapes=True, moves_axes=True):
    allowzero: int = 0


class Flatten(Mover, variadic=None, reshapes=True, moves_axes=True):
    axis: int = 1


class Squeeze(Mover, reshapes=True, moves_axes=True):
    axes: Integers = ()


class Unsqueeze(Squeeze):
    pass


class Transpose(Mover, variadic=None, moves_axes=True):
    perm: Integers = ()


class Slice(Mover):
    starts: Integers = ()
    ends: Integers = ()
    axes: Integers = ()


class Split(Mover):
    axis: int = 0
    split: Integers = ()


class Gather(Mover, moves_axes=True, fails_by=1):
    axis: int = 0


class GatherElements(Gather):
    pass


class GatherND(Mover, moves_axes=True, fails_by=1):
    batch_dims: int = 0


class TopK(Mover, decides=True, moves_axes=True):
    axis: int = -1
    largest: int = 1


class Compress(Mover, decides=True):
    axis: int | None = None


# The value is a parameter: it is quantized with the data that it stands beside.
class Pad(Mover, roles=(DATA, SHAPE, PARAMETER, SHAPE), variadic=None):
    mode: str = "constant"
    pads: Integers = ()
    value: float = 0.0


class Resize(Mover):
    mode: str = "nearest"
    coordinate_transformation_mode: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    exclude_outside: int = 0
    extrapolation_value: float = 0.0
    antialias: int = 0
    axes: Integers = ()
    keep_aspect_ratio_policy: str = "stretch"


class DepthToSpace(Mover, variadic=None):
    blocksize: int = 1
    mode: str = "DCR"


class SpaceToDepth(Mover, variadic=None):
    blocksize: int = 1


class Trilu(Mover):
    upper: int = 1


class ReverseSequence(Mover):
    time_axis: int = 0
    batch_axis: int = 1


class CenterCropPad(Mover):
    axes: Integers = ()


class MaxUnpool(Mover):
    kernel_shape: Integers = ()
    strides: Integers = ()
    pads: Integers = ()
