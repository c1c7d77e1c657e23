"""intact: post-training quantization of ONNX models whose numbers agree with the hardware's.

The public names live in other modules and are imported when they are first asked for, so that
``import intact`` costs next to nothing::

    import intact

    result = intact.quantize("model.onnx", "calib.npz", target="onnxruntime", output="out")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from intact._lazy import defer
from intact._version import __version__ as __version__
from intact.api import HOMES as _API

# onnx-ir needs sympy for arithmetic on symbolic dimensions alone, and sympy takes 0.3 s to load.
defer("onnx_ir", ("sympy", "onnx_ir._symbolic_shapes"))
# onnx imports what generates its own source (argparse, subprocess) and what unpacks archives.
defer("onnx", ("onnx.gen_proto", "onnx.utils"))

# The public names and the modules that hold them: those of intact.api, and these, which are also
# imported below for type checkers. No module of the package may be called like a public name,
# because importing it would put the module in the name's place.
_HOMES = {
    **{name: home for name, home in _API.items() if home.startswith("intact.api.")},
    "load_result": _API["load_result"],
    "ImageSteps": "intact.data.images.steps",
    "IntactError": "intact.errors",
    "IntactWarning": "intact.errors",
    "Overrides": "intact.plan",
    "Preprocess": "intact.data.preprocess",
    "load_plan": "intact.plan",
    "read_preprocess": "intact.data.preprocess",
}

# Modules of public names that belong together: intact.hago.Hardware.
_MODULES = ("hago",)

__all__: list[str] = list(_HOMES)

if TYPE_CHECKING:
    from intact import hago as hago
    from intact.api import *  # noqa: F403
    from intact.data.images.steps import ImageSteps as ImageSteps
    from intact.data.preprocess import Preprocess as Preprocess
    from intact.data.preprocess import read_preprocess as read_preprocess
    from intact.errors import IntactError as IntactError
    from intact.errors import IntactWarning as IntactWarning
    from intact.plan import Overrides as Overrides
    from intact.plan import load_plan as load_plan
else:

    def __getattr__(name: str) -> object:
        """Import a public name at its first use and keep it."""
        if name in _MODULES:
            return importlib.import_module(f"{__name__}.{name}")
        home = _HOMES.get(name)
        if home is None:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        value = getattr(importlib.import_module(home), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """List the public names, imported or not, and nothing else."""
        return sorted({"__doc__", "__file__", "__name__", "__version__", *__all__, *_MODULES})
