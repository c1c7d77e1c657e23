"""Lets several configs share scale and offset, as a union-find."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Self

import numpy as np
import numpy.typing as npt

from intact.config.grid import FloatArray, Grid, OnGrid
from intact.errors import ConfigError
from intact.numerics.affine_params import QuantParams


class SharedScale(OnGrid):
    """A member of a group that reads scale and offset through its root, the *dominator*.

    Members read through the root and only the root can be written, so they always agree.
    """

    __slots__ = ("_followers", "_params", "_parent")

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self._parent: Self | None = None
        self._followers: list[Self] = []
        self._params: QuantParams | None = None

    @property
    def dominator(self) -> Self:
        """The root of the group, whose scale and offset apply; the config itself if it is the
        root.
        """
        root = self
        while root._parent is not None:
            root = root._parent
        # Path compression: chains stay short, however configs were joined.
        config = self
        while config._parent is not None:
            config._parent, config = root, config._parent
        return root

    @property
    def params(self) -> QuantParams | None:
        """Scale (float32) and zero point (int64) of the dominator, read-only; or ``None``."""
        return self.dominator._params

    @property
    def scale(self) -> FloatArray | None:
        """Scale of the dominator, float32 ``[]`` or ``[channels]``; ``None`` while unknown."""
        params = self.params
        return None if params is None else params.scale

    @property
    def offset(self) -> npt.NDArray[np.int64] | None:
        """Offset (zero point) of the dominator, shaped like the scale; or ``None``."""
        params = self.params
        return None if params is None else params.zero_point

    @property
    def key(self) -> Hashable:
        """A key that is equal for configs that quantize alike: of grid, scale and offset."""
        params = self.params
        if params is None:
            return (self.grid,)
        scale, offset = params
        return self.grid, scale.shape, scale.tobytes(), offset.tobytes()

    def set_params(self, scale: npt.ArrayLike, offset: npt.ArrayLike | None = None) -> None:
        """Set scale and offset; they are checked against the grid and each other.

        Raises:
            ConfigError: If the config is not the root, or the values do not fit the grid.
        """
        self._require_root()
        self._params = self.grid.check_params(scale, offset)

    def set_checked(self, params: QuantParams) -> None:
        """Set scale and offset that ``check_params`` of an equal grid returned.

        Raises:
            ConfigError: If the config is not the root.
        """
        self._require_root()
        self._params = params

    def adopt(self, root: Self) -> None:
        """Add another group to this dominator's group, without checks.

        For copies of checked groups; others call :meth:`TensorQuantConfig.dominate`.
        """
        root._parent = self
        root._params = None
        # Kept as a list at the root, since passes ask for a whole group at each step.
        self._followers.extend((root, *root._followers))
        root._followers = []

    def group(self) -> tuple[Self, ...]:
        """Return all configs that share this config's scale, the dominator first."""
        root = self.dominator
        return (root, *root._followers)

    def _require_root(self) -> None:
        if self._parent is not None:
            raise ConfigError(
                "scale and offset of a config with a dominator are read-only",
                remedy="set them on the dominator",
            )
