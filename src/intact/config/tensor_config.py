"""Declares the quantization of one tensor end, the *Tensor Quantization Config* of [ppq].

A config belongs to a (node, slot) and not to a tensor, because two consumers may quantize one
tensor differently. Configs that share one scale form a union-find: each reads scale and offset from
its root, the *dominator*, and only the root can be written.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeAlias, TypeVar

import numpy.typing as npt

from intact.config.grid import FloatArray, Grid, IntegerArray
from intact.config.policy import Granularity, PerTensor, QuantPolicy
from intact.config.shared_scale import SharedScale
from intact.config.state import (
    LEGAL_TRANSITIONS,
    MEANING,
    NEEDS_SCALE,
    UNBAKED,
    QuantState,
    StateMeaning,
)
from intact.errors import ConfigError
from intact.numerics.affine_params import QuantParams
from intact.numerics.levels import Rounding

_WIDEST = 32
"""Bits of what has a scale of its own."""
_PASSIVE = frozenset({QuantState.PASSIVE_INIT, QuantState.PASSIVE, QuantState.PASSIVE_BAKED})

JsonValue: TypeAlias = bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"] | None


class TensorQuantConfig(SharedScale):
    """The quantization of one tensor end.

    The grid (policy, rounding, bits, range, granularity) does not change: :meth:`replace` makes
    another config. State, scale and offset change through checked methods.

    Args:
        policy: A valid set of properties.
        bits: 2 to 32. Biases, which have no scale of their own (the PASSIVE states), may have 48
            or 64.
        quant_min: Smallest integer used.
        quant_max: Largest integer used.
        rounding: Rounding mode.
        granularity: ``PerTensor()``, ``PerChannel(axis)``, ``PerBlock(axis, size)`` or
            ``PerRow()``, consistent with the policy.
        steps_per_octave: Density of EXPONENTIAL levels, 16 unless given; None for LINEAR ones.
        channel_codes: Ranges of single channels, see `Grid`.
        scale: Shape ``[]``, ``[channels]`` or, per block, that of the tensor with one for each
            block along the axis; ``None`` while unknown.
        offset: Same shape as the scale (also called zero point); ``None`` for zeros.
        observer: Name of the threshold method of the scale.
        detail: Data of passes about this tensor; JSON values only.
        inplace: Whether :meth:`fake_quantize` writes over the array that it is given.
        state: The initial state.

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
        steps_per_octave: int | None = None,
        channel_codes: tuple[tuple[int, int], ...] = (),
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
                steps_per_octave=steps_per_octave,
                channel_codes=channel_codes,
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
        _check_state(self.grid, state, has_scale=self._params is not None)
        self._state = state

    @classmethod
    def on_grid(
        cls, grid: Grid, *, observer: str = "minmax", state: QuantState = QuantState.INITIAL
    ) -> TensorQuantConfig:
        """Make a config without scale on a grid.

        Raises:
            ConfigError: The state needs a scale, or is not one of so many bits.
        """
        _check_state(grid, state, has_scale=False)
        made = object.__new__(cls)
        SharedScale.__init__(made, grid)  # frozen and checked, so shared
        made.observer, made.detail, made.inplace = observer, {}, False
        made._remembered, made._state = None, state
        return made

    # ---- state -------------------------------------------------------------------------------

    @property
    def state(self) -> QuantState:
        """The current state; changed by :meth:`transition`."""
        return self._state

    @property
    def meaning(self) -> StateMeaning:
        """How an executor or a format treats the tensor in the current state."""
        return MEANING[self._state]

    def transition(self, state: QuantState) -> None:
        """Change the state; the current state is always allowed.

        Raises:
            ConfigError: If the transition is not legal, or the state needs a scale and neither this
                config nor its dominator has one.
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
        # What was OVERLAPPED may be on another grid than its dominator.
        if state in NEEDS_SCALE:
            _check_sharing(self.dominator.grid, self)
        if state is QuantState.DEQUANTIZED:
            self._remembered = self._state
        self._state = state

    def requantize(self) -> None:
        """Change from DEQUANTIZED back to the state before.

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
        """Remove scale and offset, to calibrate again.

        Raises:
            ConfigError: If the config is not the root, or a config of its group is in a state that
                needs a scale.
        """
        self._require_root()
        for member in self.group():
            # What is dequantized comes back to the state that it remembers.
            if (member._remembered or member._state) in NEEDS_SCALE:
                raise ConfigError(
                    f"a config of this group is {member._state.name} and needs its scale",
                    remedy="move it to INITIAL or PASSIVE_INIT first",
                )
        self._params = None

    def dominate(self, other: TensorQuantConfig) -> None:
        """Make ``other`` and its group share scale and offset of this config's dominator.

        The scale and offset of ``other``'s group are dropped. If both are in one group already,
        nothing changes.

        Raises:
            ConfigError: If spacing or granularity differ, or a config in a state other than
                OVERLAPPED is on another grid.
        """
        root, follower = self.dominator, other.dominator
        # Also where a follower is to dominate its own root: they share a scale already.
        if root is follower:
            return
        for member in follower.group():
            _check_sharing(root.grid, member)
        root.adopt(follower)

    def move_to(self, grid: Grid) -> None:
        """Change the grid of a config without scale; other configs of the group do not change.

        Raises:
            ConfigError: There is a scale, or spacing or granularity differ.
        """
        if self.params is not None:
            raise ConfigError(
                "the grid of a config with a scale cannot change", remedy="clear the scale first"
            )
        # Only the width, the range and the rounding may change: whoever shares the scale relies on
        # the rest.
        mine = (self.grid.steps_per_octave, self.grid.granularity)
        if (grid.steps_per_octave, grid.granularity) != mine:
            raise ConfigError(
                "the new grid has another spacing or granularity", remedy="use one policy"
            )
        self.grid = grid

    # ---- arithmetic --------------------------------------------------------------------------

    def quantize(self, values: FloatArray) -> IntegerArray:
        """Quantize floats to integers of the grid, saturating.

        Raises:
            ConfigError: If the state is INITIAL or PASSIVE_INIT, or there is no scale.
        """
        return self.grid.quantize(values, self._usable_params())

    def dequantize(self, quantized: IntegerArray) -> FloatArray:
        """Dequantize integers of the grid to float32.

        Raises:
            ConfigError: If the state is INITIAL or PASSIVE_INIT, or there is no scale.
        """
        return self.grid.dequantize(quantized, self._usable_params())

    def fake_quantize(self, values: FloatArray, *, inplace: bool | None = None) -> FloatArray:
        """Quantize and dequantize.

        Args:
            values: An array of any shape. One that can be written and has the dtype of the result
                is overwritten, and returned, if that is asked for.
            inplace: Whether to do so; None for what the config says.

        Raises:
            ConfigError: If the state is INITIAL or PASSIVE_INIT, or there is no scale.
        """
        found = self.grid.fake_quantize(values, self._usable_params())
        wanted = self.inplace if inplace is None else inplace
        if not wanted or not values.flags.writeable or values.dtype != found.dtype:
            return found
        values[...] = found
        return values

    def value_range(self) -> tuple[float, float]:
        """Return the values of the lowest and the highest code, over all channels.

        Raises:
            ConfigError: If the state is INITIAL or PASSIVE_INIT, or there is no scale.
        """
        return self.grid.value_range(self._usable_params())

    # ---- copies ------------------------------------------------------------------------------

    def copy(self) -> TensorQuantConfig:
        """Copy the config as the root of its own group, with the scale that it reads now."""
        # Plans are copied often: this takes a third of the time of copy.copy.
        twin = object.__new__(type(self))
        twin.grid = self.grid  # frozen and checked, so shared
        twin.observer, twin.detail, twin.inplace = self.observer, dict(self.detail), self.inplace
        twin._state, twin._remembered = self._state, self._remembered
        twin._parent, twin._followers = None, []
        # A follower on a narrower grid may read a scale that is not valid on its own grid.
        params = self.params
        is_own = params is not None and self.dominator.grid == self.grid
        twin._params = params if is_own else None
        return twin

    def unbaked(self) -> TensorQuantConfig:
        """Copy the config of quantized values as one that quantizes: for the values before."""
        twin = self.copy()
        # Set directly: going back from baked is illegal, for the values of a plan itself are lost.
        twin._state = UNBAKED.get(self._state, self._state)
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
        """Make an INITIAL config on another grid, with the same observer, detail and inplace.

        Raises:
            ConfigError: If the new grid is impossible.
        """
        chosen = self.policy if policy is None else policy
        return TensorQuantConfig(
            policy=chosen,
            steps_per_octave=self.steps_per_octave if QuantPolicy.EXPONENTIAL in chosen else None,
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


def _check_state(grid: Grid, state: QuantState, *, has_scale: bool) -> None:
    if grid.bits > _WIDEST and state not in _PASSIVE:
        raise ConfigError(
            f"bits is {grid.bits} in state {state.name}",
            remedy="use 2 to 32; only biases, which are PASSIVE, have 48 or 64",
        )
    if state in NEEDS_SCALE and not has_scale:
        raise ConfigError(f"state {state} needs a scale", remedy="start in INITIAL")


def _check_sharing(grid: Grid, follower: TensorQuantConfig) -> None:
    theirs = follower.grid
    if grid is theirs:
        return
    if grid.exponential != theirs.exponential:
        raise ConfigError(
            "a linear and a logarithmic config cannot share a scale", remedy="use one policy"
        )
    if grid.steps_per_octave != theirs.steps_per_octave:
        raise ConfigError(
            f"configs with {grid.steps_per_octave} and {theirs.steps_per_octave} steps an octave "
            "cannot share a scale",
            remedy="use one number of steps",
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
    """Copy configs with their shared scales.

    A dominator that is not among ``configs`` is copied too. A config under two keys stays one
    config under two keys.
    """
    twins: dict[int, TensorQuantConfig] = {}

    def twin(config: TensorQuantConfig) -> TensorQuantConfig:
        found = twins.get(id(config))
        if found is None:
            root = config.dominator
            # The root first, so that the follower is adopted into a group that is there.
            above = None if root is config else twin(root)
            found = twins[id(config)] = config.copy()
            if above is not None:
                above.adopt(found)
        return found

    return {key: twin(config) for key, config in configs.items()}
