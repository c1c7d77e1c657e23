"""A Relax module compiled for this machine's processor and run, sample by sample."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

import numpy as np

from intact.errors import ExportError
from intact.formats.base.format import require_packages
from intact.formats.tvm.write import TvmModule
from intact.program import Array

TARGET = {"kind": "llvm"}
"""Any processor: "native" is no name of one."""
PACKAGES = ("tvm",)


class TvmRuntime:
    """A module built with TVM.

    Args:
        module: What was written; its text is compiled, so that it must be our own.

    Raises:
        MissingExtraError: apache-tvm is not installed.
        ExportError: TVM refuses the module.
    """

    def __init__(self, module: TvmModule) -> None:
        require_packages("running a TVM module", PACKAGES, "tvm")
        self.name = f"TVM {metadata.version('apache-tvm')}, llvm"
        self._module = module
        try:
            self._main = _compiled(module)
        except Exception as error:  # TVM raises a dozen unrelated classes
            raise ExportError(
                f"{self.name} refuses the written module: {_first_line(error)}"
            ) from error

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run arrays of one module call: one sample, or the model's own batch.

        Raises:
            ExportError: The module fails on these inputs.
        """
        from tvm import runtime

        try:
            given = [runtime.tensor(np.ascontiguousarray(feeds[n])) for n in self._module.inputs]
            results = self._main(*given)
        except Exception as error:  # see above
            raise ExportError(f"{self.name} fails on this input: {_first_line(error)}") from error
        names = self._module.outputs
        return {name: result.numpy() for name, result in zip(names, results, strict=True)}


def _compiled(module: TvmModule) -> Any:
    import tvm
    from tvm import relax
    from tvm.script import from_source

    parsed = from_source(module.text)
    bound = relax.transform.BindParams("main", dict(module.arrays))(parsed)
    executable = tvm.compile(bound, target=tvm.target.Target(TARGET))
    return relax.VirtualMachine(executable, tvm.cpu())["main"]


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]
