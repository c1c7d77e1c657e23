"""Say what is wrong with a result."""

from __future__ import annotations

from intact.analyze.diagnose import result_diagnosis as flow
from intact.analyze.diagnose.diagnosis import Diagnosis
from intact.recipe.declare import public
from intact.recipe.reports import DiagnoseOptions


@public(DiagnoseOptions)
def diagnose(options: DiagnoseOptions) -> Diagnosis:
    """Find out why a result loses: findings with cause, evidence and remedy, worst first.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    return flow.diagnose(options)
