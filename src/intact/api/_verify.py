"""Compare what was deployed with its plan."""

from __future__ import annotations

from intact.analyze.verification import verify as flow
from intact.formats.base.report import Verification
from intact.recipe.declare import public
from intact.recipe.reports import VerifyAllOptions, VerifyOptions


@public(VerifyOptions)
def verify(options: VerifyOptions) -> Verification:
    """Compare what was deployed with the integers of its plan, layer by layer.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    return flow.verify(options)


@public(VerifyAllOptions)
def verify_all(options: VerifyAllOptions) -> list[Verification]:
    """Verify everything that was deployed: each format of a result, of each result in a folder.

    Where there are several, a runtime that is missing or refuses a model is no error: its entry
    says why. The samples are read for each format anew, so give arrays or files.

    Raises:
        IntactError: A folder or the data is wrong, or nothing in it can be run.
    """
    return flow.verify_all(options)
