"""Runs functions in threads of this process, where the interpreter is released."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Found = TypeVar("Found")


def map_ahead(
    work: Callable[[Item], Found], items: Iterable[Item], threads: int, ahead: int
) -> Iterator[Found]:
    """Yield what a function makes of items, in their order.

    Items are taken in the caller's thread. Leaving the iterator, or an error, gives up what has not
    begun, and waits for what has.

    Args:
        work: Called in threads.
        items: The items.
        threads: How many.
        ahead: Items that are begun before the first is waited for: memory for so many is needed.
    """
    begun: deque[Future[Found]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="intact-map")
    try:
        for item in items:
            begun.append(pool.submit(work, item))
            if len(begun) >= ahead:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
