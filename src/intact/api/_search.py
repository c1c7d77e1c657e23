"""Search for a strategy, and realize one that a search wrote down."""

from __future__ import annotations

from intact.flow import search as flow
from intact.flow.search import FoundStrategy
from intact.recipe.declare import public
from intact.recipe.options import ReplayOptions, SearchOptions
from intact.results.result import Result


@public(SearchOptions)
def search_strategy(options: SearchOptions) -> FoundStrategy:
    """Find the best strategy: which tensors are quantized, with how many bits.

    With ``max_drop`` or ``min_score`` that is the cheapest strategy that keeps the score, with
    ``max_cost`` the one of the highest score that is not dearer, with neither the one of the
    highest score. The float model is observed once; a trial then costs a run of what differs.

    Raises:
        SearchError: Nothing holds the limits (it says how near the nearest came), or the log is
            not one of this search.
        IntactError: Another of its children, naming what is wrong and how to mend it.
    """
    return flow.search(options)


@public(ReplayOptions)
def replay_strategy(options: ReplayOptions) -> Result:
    """Realize a strategy that a search wrote down; no data is needed.

    Raises:
        SearchError: The log is of another model or target.
        IntactError: The log is damaged, or has no such trial.
    """
    return flow.replay(options)
