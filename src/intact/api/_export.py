"""Make a result of one that is there, or of a model that others quantized."""

from __future__ import annotations

from intact.flow import quantize as flow
from intact.recipe.declare import public
from intact.recipe.options import ExportOptions, ImportOptions
from intact.results.result import Result


@public(ImportOptions)
def read_quantized(options: ImportOptions) -> Result:
    """Read a model that others quantized; its scales stay as they are.

    With data, what the model left float and the target computes with integers is calibrated too.

    Raises:
        IntactError: One of its children, naming what is wrong and how to mend it.
    """
    return flow.read_quantized(options)


@public(ExportOptions)
def export(options: ExportOptions) -> Result:
    """Write the plan of a result in other formats; nothing is calibrated again.

    Raises:
        IntactError: The folder is wrong, or a format cannot express the plan.
    """
    return flow.export(options)
