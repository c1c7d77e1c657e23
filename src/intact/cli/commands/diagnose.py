"""The command that says what is wrong: ``diagnose``."""

from __future__ import annotations

from pathlib import Path

from intact.cli.parameters import Command, Given
from intact.recipe.reports import DiagnoseCommand, DiagnoseOptions


def _diagnose(given: Given[DiagnoseCommand]) -> None:
    """Say why a result loses accuracy: cause, evidence and a command that may mend it.

    Looked for are wrong preprocessing, unlike calibration samples, clipping, rounding, outliers,
    dead channels, scales of BatchNormalizations, unlike ranges and masks. --try measures the gain.

    Example: intact diagnose out/ --data test.npz
    """
    options, found = given.options, given.call("diagnose", DiagnoseOptions)
    from intact.cli import show_diagnosis

    was_tried = options.seconds is not None
    folder = Path(options.result)
    show_diagnosis.diagnosis(found, folder, as_json=options.as_json, was_tried=was_tried)


DIAGNOSE = Command("diagnose", DiagnoseCommand, _diagnose, timed=True)
