"""The command that says what differs between results: ``compare``."""

from __future__ import annotations

from intact.cli.parameters import Command, Given
from intact.recipe.reports import CompareCommand, CompareOptions


def _compare(given: Given[CompareCommand]) -> None:
    """Compare results: what differs in decisions, errors, cost and accuracy.

    Results may be of different targets and float models: then what they share is compared, and
    what cannot be compared is said.

    Example: intact compare out/ other/ --data test.npz
    """
    options, found = given.options, given.call("compare", CompareOptions)
    from intact.cli import show_comparison

    show_comparison.comparison(
        found, page=options.output, every=options.every, as_json=options.as_json
    )


COMPARE = Command("compare", CompareCommand, _compare, timed=True)
