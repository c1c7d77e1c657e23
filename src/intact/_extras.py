"""Tells whether optional packages (the extras of pip) are there, and what installs them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from intact.errors import MissingExtraError

DISTRIBUTION = "intact-quantizer"
"""What pip calls this package; the name ``intact`` in the package index is another project's."""

_EXTRAS = {
    "PIL": "image",
    "ai_edge_litert": "tflite",
    "fast_sugiyama": "report",
    "flatbuffers": "tflite",
    "ncnn": "ncnn",
    "openvino": "openvino",
    "optuna": "search",
    "ray": "distributed",
    "torch": "train",
    "tvm": "tvm",
}
"""Extras by the top-level modules that they bring."""


def install_hint(extra: str) -> str:
    """Return the command that installs the packages of an extra.

    It needs no index for the package itself: pip takes the extra's packages from what is installed
    already, from a clone or from a wheel. Double quotes are those of every shell.

    >>> install_hint("train")
    'pip install "intact-quantizer[train]"'
    """
    return f'pip install "{DISTRIBUTION}[{extra}]"'


def is_installed(package: str) -> bool:
    """Tell whether a package can be found; it is not imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # a loader that refuses, or a module without a spec
        return False


def missing(what: str, packages: Iterable[str], extra: str) -> MissingExtraError:
    """Return the error of what needs packages that are not there."""
    names = list(packages)
    verb = "are" if len(names) > 1 else "is"
    return MissingExtraError(
        f"{what} needs {' and '.join(names)}, which {verb} not installed",
        remedy=install_hint(extra),
    )


def require(what: str, packages: Iterable[str], extra: str) -> None:
    """Refuse what cannot be done for want of a package.

    Args:
        what: What needs them, for the message.
        packages: What must be there, by the names of their modules.
        extra: The extra of this package that brings them.

    Raises:
        MissingExtraError: One is not installed; with the line that installs it.
    """
    for package in packages:
        if not is_installed(package):
            raise missing(what, [package], extra)


def explained(error: ImportError) -> MissingExtraError | None:
    """Return what to tell of a package that is there and cannot be imported, or was not looked for.

    Returns:
        None where no extra brings the module.
    """
    package = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(package)
    if extra is None:
        return None
    return MissingExtraError(
        f"{package} cannot be imported ({error})",
        remedy=f"install or repair it: {install_hint(extra)}",
    )
