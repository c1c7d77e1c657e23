"""Delays imports until they are needed, of names of a package or of modules of others."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], list[str]]:
    """Make the ``__getattr__`` (PEP 562) and the ``__all__`` of a package.

    A name must not be the name of a module of the package: importing that module would put it in
    the name's place.

    Args:
        package: Full name of the package.
        homes: Names, separated by spaces, by the module of the package that defines them.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def get(name: str) -> object:
        home = home_of.get(name)
        if home is None:
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message)
        value = getattr(importlib.import_module(f"{package}.{home}"), name)
        # From here on the name is found without this function.
        setattr(sys.modules[package], name, value)
        return value

    return get, sorted(home_of)


class Module:
    """A module that is imported when something in it is first used.

    Args:
        name: Its full name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        value: object = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value


class _Deferral:
    """A finder that lets modules load when they are first used, if one package imports them."""

    def __init__(self, package: str, modules: Iterable[str]) -> None:
        self._package = package
        self._waiting = set(modules)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a deferred module while the package loads; see ``importlib.abc.MetaPathFinder``."""
        if name not in self._waiting or self._package not in sys.modules:
            return None
        from importlib.machinery import PathFinder
        from importlib.util import LazyLoader

        self._waiting.remove(name)
        # Every import of the process asks each finder: one that has nothing left to find is
        # removed.
        if not self._waiting:
            sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def defer(package: str, modules: Iterable[str]) -> None:
    """Let modules that a package imports load when something in them is first used.

    Nothing happens if the package is loaded already, or does not import them: they then load as
    ever.

    Args:
        package: Full name of the package.
        modules: Full names; the package must only import them, not use them while it loads.
    """
    if package not in sys.modules:
        sys.meta_path.insert(0, _Deferral(package, modules))
