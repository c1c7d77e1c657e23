"""Declares the public functions that report on results.

Each carries out the options that it is declared with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intact.recipe.declare import public
from intact.recipe.reports import (
    CompareOptions,
    DiagnoseOptions,
    ReportOptions,
    VerifyAllOptions,
    VerifyOptions,
)

if TYPE_CHECKING:
    from intact.analyze.compare import Comparison
    from intact.analyze.diagnose.diagnosis import Diagnosis
    from intact.analyze.report.figures import Report
    from intact.formats.base.report import Verification


@public(DiagnoseOptions)
def diagnose(options: DiagnoseOptions) -> Diagnosis:
    """Find out why a result loses: findings with cause, evidence and remedy, worst first.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    # Imported at the call, as each function here does: a verification loads no diagnosis.
    from intact.analyze.diagnose.result_diagnosis import diagnose as run

    return run(options)


@public(CompareOptions)
def compare(options: CompareOptions) -> Comparison:
    """Compare results of quantization: decisions, errors, cost and, with labels, accuracy.

    Results may be of different targets and float models: then what they share is compared, and
    ``remarks`` of the comparison says what is not comparable.

    Raises:
        UsageError: There are fewer than two results.
        IntactError: A folder is wrong, or the data fits none of the results.
    """
    from intact.analyze.result_comparison import compare as run

    return run(options)


@public(ReportOptions)
def report(options: ReportOptions) -> Report:
    """Write all that is known of a result as one page: report.html in its folder.

    Returns:
        What the page shows, as figures.

    Raises:
        MissingExtraError: The extra ``report`` is not installed.
        IntactError: The folder or the data is wrong, or the page cannot be written.
    """
    from intact.analyze.report.gather import report as run

    return run(options)


@public(VerifyOptions)
def verify(options: VerifyOptions) -> Verification:
    """Compare what was deployed with the integers of its plan, layer by layer.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    from intact.analyze.verification.verify import verify as run

    return run(options)


@public(VerifyAllOptions)
def verify_all(options: VerifyAllOptions) -> list[Verification]:
    """Verify everything that was deployed: each format of a result, of each result in a folder.

    Where there are several, a runtime that is missing or refuses a model is no error: its entry
    says why. The samples are read for each format anew, so give arrays or files.

    Raises:
        IntactError: A folder or the data is wrong, or nothing in it can be run.
    """
    from intact.analyze.verification.verify import verify_all as run

    return run(options)
