"""What one of several targets refuses is kept, so that the others are made all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import msgspec

from intact.errors import ExportError, IntactError, UsageError


class Refusals(msgspec.Struct):
    """Errors by the name of the target that they are of.

    Attributes:
        collects: Whether errors are kept; otherwise they go on to whoever called.
        errors: Those that were kept.
    """

    collects: bool = True
    errors: dict[str, IntactError] = msgspec.field(default_factory=dict)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Keep what is wrong with one target; a wrong call is wrong for all of them."""
        try:
            yield
        except UsageError:
            raise
        except IntactError as error:
            if not self.collects:
                raise
            self.errors[name] = error

    def refuse_all(self, done: str = "made") -> NoReturn:
        """Raise what was kept, where nothing else is left.

        Args:
            done: What could be done with none of the targets, in a word.

        Raises:
            IntactError: The one error, or all of them as one.
        """
        said = {error.with_flags for error in self.errors.values()}
        if len(said) == 1:
            raise next(iter(self.errors.values()))
        named = [f"{name}: {error.with_flags}" for name, error in self.errors.items()]
        raise ExportError(f"none of the targets can be {done}: {'; '.join(named)}", listed=named)
