"""Who measures the candidates: this process, processes beside it, or a cluster."""

from intact.search.workers.make import make_pool
from intact.search.workers.pool import Pool

__all__ = ["Pool", "make_pool"]
