"""Say what differs between results."""

from __future__ import annotations

from intact.analyze import result_comparison as flow
from intact.analyze.compare import Comparison
from intact.recipe.declare import public
from intact.recipe.reports import CompareOptions


@public(CompareOptions)
def compare(options: CompareOptions) -> Comparison:
    """Compare results of quantization: decisions, errors, cost and, with labels, accuracy.

    Results may be of different targets and float models: then what they share is compared, and
    ``remarks`` of the comparison says what is not comparable.

    Raises:
        UsageError: There are fewer than two results.
        IntactError: A folder is wrong, or the data fits none of the results.
    """
    return flow.compare(options)
