"""What one of several targets refuses is kept, so that the others are made all the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from intact.errors import ExportError, IntactError, UsageError


@dataclass
class Refusals:
    """Errors by the name of the target that they are of.

    Attributes:
        collects: Whether errors are kept; otherwise they go on to whoever called.
        errors: Those that were kept.
    """

    collects: bool = True
    errors: dict[str, IntactError] = field(default_factory=dict)

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

    def refuse_all(self) -> None:
        """Raise what was kept, where nothing else is left.

        Raises:
            IntactError: The one error, or all of them as one.
        """
        if len(self.errors) == 1:
            raise next(iter(self.errors.values()))
        listed = list(said(self.errors).values())
        named = [f"{name}: {text}" for name, text in zip(self.errors, listed, strict=True)]
        raise ExportError(f"none of the targets can be made: {'; '.join(named)}", listed=named)


def said(errors: Mapping[str, IntactError]) -> dict[str, str]:
    """Write errors as the command line prints them, by the same names."""
    return {name: error.with_flags for name, error in errors.items()}
