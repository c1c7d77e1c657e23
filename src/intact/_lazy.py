"""Names of a package that are imported when they are first asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


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
        setattr(sys.modules[package], name, value)
        return value

    return get, sorted(home_of)
