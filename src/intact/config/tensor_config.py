"""How one tensor end is quantized, following [ppq]'s *Tensor Quantization Config*.

A config belongs to a (node, slot) and not to a tensor, because two consumers may quantize one
tensor differently. Configs that share one scale form a union-find: each reads scale and offset
through its root, the *dominator*, and only the root can be written.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeAlias, TypeVar

import numpy.typing as npt

from intact.config.grid import FloatArray, Grid, IntegerArray
from intact.config.policy import Granularity, PerTensor, QuantPolicy
from intact.config.shared_scale import SharedScale
from intact.config.state import LEGAL_TRANSITIONS, MEANING, NEEDS_SCALE, QuantState, StateMeaning
from intact.errors import ConfigError
from intact.numerics.affine_params import QuantParams
from intact.numerics.levels import Rounding

JsonValue: TypeAlias = bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"] | None


class TensorQuantConfig(SharedScale):
    """All that decides how one tensor end is quantized.

    The grid (policy, rounding, bits, range, granularity) never changes: :meth:`replace` makes
    another config. State, scale and offset change through methods that check.

    Args:
        policy: A possible set of properties.
        bits: 2 to 32.
        quant_min: Smallest integer used.
        quant_max: Largest integer used.
        rounding: How a quotient becomes an integer.
        granularity: ``PerTensor()`` or ``PerChannel(axis)``, as the policy says.
        scale: Shape ``[]`` or ``[channels]``; ``None`` while unknown.
        offset: Same shape as the scale (also called zero point); ``None`` for zeros.
        observer: Name of the threshold method that decides the scale.
        detail: What passes note about this tensor; JSON values only.
        inplace: Whether an executor may overwrite the tensor.
        state: Where the config starts.

    Raises:
        ConfigError: If the arguments contradict each other.
    """

    __slots__ = ("_remembered", "_state", "detail", "inplace", "observer")

    def __init__(
        self,
        *,
        policy: QuantPolicy,
        bits: int,
        quant_min: int,
        quant_max: int,
        rounding: Rounding = Rounding.HALF_EVEN,
        granularity: Granularity = PerTensor(),  # noqa: B008  (frozen, without fields)
        scale: npt.ArrayLike | None = None,
        offset: npt.ArrayLike | None = None,
        observer: str = "minmax",
        detail: dict[str, JsonValue] | None = None,
        inplace: bool = False,
        state: QuantState = QuantState.INITIAL,
    ) -> None:
        super().__init__(
            Grid(
                policy=policy,
                granularity=granularity,
                rounding=rounding,
                bits=bits,
                quant_min=quant_min,
                quant_max=quant_max,
            )
        )
        self.observer = observer
        self.detail: dict[str, JsonValue] = dict(detail or {})
        self.inplace = inplace
        self._remembered: QuantState | None = None
        if scale is not None:
            self._params = self.grid.check_params(scale, offset)
        elif offset is not None:
            raise ConfigError("offset is given without a scale", remedy="give both or neither")
        self._state = state
        if state in NEEDS_SCALE and self._params is None:
            raise ConfigError(f"state {state} needs a scale", remedy="start in INITIAL")

    @classmethod
    def on_grid(cls, grid: Grid, *, observer: str = "minmax") -> TensorQuantConfig:
        """A new INITIAL config on an existing grid."""
        return cls(
            policy=grid.policy,
            bits=grid.bits,
            quant_min=grid.quant_min,
            quant_max=grid.quant_max,
            rounding=grid.rounding,
            granularity=grid.granularity,
            observer=observer,
        )

    # ---- state -------------------------------------------------------------------------------

    @property
    def state(self) -> QuantState:
        """The state now; changed by :meth:`transition`."""
        return self._state

    @property
    def meaning(self) -> StateMeaning:
        """What an executor or a format does with the tensor now."""
        return MEANING[self._state]

    def transition(self, state: QuantState) -> None:
        """Move to another state; staying in the same one is no move and always allowed.

        Raises:
            ConfigError: If the table has no such transition, or the state needs a scale and
                neither this config nor its dominator has one.
        """
        if state is self._state:
            return
        if state not in LEGAL_TRANSITIONS[self._state]:
            raise ConfigError(
                f"state cannot go from {self._state.name} to {state.name}", remedy=self._ways_on()
            )
        if state in NEEDS_SCALE and self.params is None:
            raise ConfigError(
                f"state cannot go from {self._state.name} to {state.name} without a scale",
                remedy="set the scale first",
            )
        if state in NEEDS_SCALE:
            _check_sharing(self.dominator.grid, self)
        if state is QuantState.DEQUANTIZED:
            self._remembered = self._state
        self._state = state

    def requantize(self) -> None:
        """Return from DEQUANTIZED to the state before it.

        Raises:
            ConfigError: If the config is not dequantized.
        """
        if self._state is not QuantState.DEQUANTIZED:
            raise ConfigError(
                f"state is {self._state.name}, not DEQUANTIZED",
                remedy="requantize only what was dequantized",
            )
        # A config created in DEQUANTIZED has no history.
        self._state = self._remembered or QuantState.INITIAL
        self._remembered = None

    # ---- sharing a scale ---------------------------------------------------------------------

    def clear_params(self) -> None:
        """Forget scale and offset, to calibrate again.

        Raises:
            ConfigError: If the config follows a dominator, or a config of its group is in a
                state that needs a scale.
        """
        self._require_root()
        for member in self.group():
            if (member._remembered or member._state) in NEEDS_SCALE:
                raise ConfigError(
                    f"a config of this group is {member._state.name} and needs its scale",
                    remedy="move it to INITIAL or PASSIVE_INIT first",
                )
        self._params = None

    def dominate(self, other: TensorQuantConfig) -> None:
        """Let this config's dominator decide scale and offset of ``other`` and its group.

        What ``other``'s group knew of scale and offset is dropped. Dominating a config of the
        same group changes nothing.

        Raises:
            ConfigError: If spacing or granularity differ, or a config that would keep
                quantizing (any state but OVERLAPPED) is on another grid.
        """
        root, follower = self.dominator, other.dominator
        if root is follower:
            return
        for member in follower.group():
            _check_sharing(root.grid, member)
        root.adopt(follower)

    def move_to(self, grid: Grid) -> None:
        """Move to another grid while there is no scale yet; the group is moved one by one.

        Raises:
            ConfigError: The scale is known, or spacing or granularity would differ.
        """
        if self.params is not None:
            raise ConfigError(
                "a config with a scale keeps its grid", remedy="clear the scale first"
            )
        if (grid.exponential, grid.granularity) != (self.grid.exponential, self.grid.granularity):
            raise ConfigError("the new grid is of another kind", remedy="use one policy")
        self.grid = grid

    # ---- arithmetic --------------------------------------------------------------------------

    def quantize(self, values: FloatArray) -> IntegerArray:
        """Turn floats into integers of the grid, saturating.

        Raises:
            ConfigError: If the state is INITIAL or PASSIVE_INIT, or there is no scale.
        """
        return self.grid.quantize(values, self._usable_params())

    def dequantize(self, quantized: IntegerArray) -> FloatArray:
        """Turn integers of the grid into the float32 values they stand for.

        Raises:
            ConfigError: If the state is INITIAL or PASSIVE_INIT, or there is no scale.
        """
        return self.grid.dequantize(quantized, self._usable_params())

    def fake_quantize(self, values: FloatArray) -> FloatArray:
        """Quantize and dequantize: the float32 values that survive the grid.

        Raises:
            ConfigError: If the state is INITIAL or PASSIVE_INIT, or there is no scale.
        """
        return self.grid.fake_quantize(values, self._usable_params())

    # ---- copies ------------------------------------------------------------------------------

    def copy(self) -> TensorQuantConfig:
        """An equal config that follows nobody and keeps the scale it reads now."""
        # Plans are copied all the time: slot by slot takes a third of what copy.copy does.
        twin = object.__new__(type(self))
        twin.grid = self.grid  # frozen and checked: it is shared
        twin.observer, twin.detail, twin.inplace = self.observer, dict(self.detail), self.inplace
        twin._state, twin._remembered = self._state, self._remembered
        twin._parent, twin._followers = None, []
        # A follower on a narrower grid reads a scale that need not be possible on its own.
        params = self.params
        is_own = params is not None and self.dominator.grid == self.grid
        twin._params = params if is_own else None
        return twin

    def replace(
        self,
        *,
        bits: int,
        quant_min: int,
        quant_max: int,
        policy: QuantPolicy | None = None,
        rounding: Rounding | None = None,
    ) -> TensorQuantConfig:
        """A new INITIAL config on another grid, with this one's observer, detail and inplace.

        Raises:
            ConfigError: If the new grid is impossible.
        """
        return TensorQuantConfig(
            policy=self.policy if policy is None else policy,
            bits=bits,
            quant_min=quant_min,
            quant_max=quant_max,
            rounding=self.rounding if rounding is None else rounding,
            granularity=self.granularity,
            observer=self.observer,
            detail=self.detail,
            inplace=self.inplace,
        )

    def __repr__(self) -> str:
        span = f"{self.quant_min}..{self.quant_max}"
        parts = [self._state.name, self.policy.spelled, f"{self.bits} bits {span}"]
        if self._parent is not None:
            parts.append("follows another")
        scale = self.scale
        if scale is not None:
            parts.append(f"scale {scale}" if scale.ndim == 0 else f"{scale.size} scales")
        return f"<TensorQuantConfig {', '.join(parts)}>"

    def _usable_params(self) -> QuantParams:
        if self.meaning is StateMeaning.REFUSED:
            raise ConfigError(
                f"a config in state {self._state.name} cannot be used", remedy="calibrate first"
            )
        params = self.params
        if params is None:
            raise ConfigError(
                f"a config in state {self._state.name} has no scale", remedy="calibrate first"
            )
        return params

    def _ways_on(self) -> str:
        if self._state is QuantState.DEQUANTIZED:
            return "call requantize() first"
        names = sorted(state.name for state in LEGAL_TRANSITIONS[self._state])
        return f"possible: {', '.join(names)}"


def _check_sharing(grid: Grid, follower: TensorQuantConfig) -> None:
    theirs = follower.grid
    if grid.exponential != theirs.exponential:
        raise ConfigError(
            "a linear and a logarithmic config cannot share a scale", remedy="use one policy"
        )
    if grid.granularity != theirs.granularity:
        raise ConfigError(
            f"configs with {grid.granularity} and {theirs.granularity} cannot share a scale",
            remedy="use one granularity",
        )
    if follower.state is not QuantState.OVERLAPPED and grid != theirs:
        raise ConfigError(
            f"a config on {theirs.bits} bits {theirs.quant_min}..{theirs.quant_max} cannot share "
            f"the scale of one on {grid.bits} bits {grid.quant_min}..{grid.quant_max}",
            remedy="give both the same grid, or move the follower to OVERLAPPED first",
        )


Key = TypeVar("Key", bound=Hashable)


def copy_configs(configs: Mapping[Key, TensorQuantConfig]) -> dict[Key, TensorQuantConfig]:
    """Copy configs and their ties, so that a pass can change its own copies.

    A dominator that is not among ``configs`` is copied too; its followers keep it alive.
    A config listed under two keys stays one config under two keys.
    """
    twins: dict[int, TensorQuantConfig] = {}
    for config in configs.values():
        for member in (config.dominator, config):
            if id(member) not in twins:
                twins[id(member)] = member.copy()
                if member.dominator is not member:
                    twins[id(member.dominator)].adopt(twins[id(member)])
    return {key: twins[id(config)] for key, config in configs.items()}
