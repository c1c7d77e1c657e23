"""Copying many configs at once without losing who follows whom."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

from intact.config.tensor_config import TensorQuantConfig

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
