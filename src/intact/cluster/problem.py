"""Errors of workers as messages."""

from __future__ import annotations

import traceback
from typing import NoReturn

import msgspec

from intact import errors
from intact.errors import IntactError


class Problem(msgspec.Struct, tag=True, frozen=True):
    """An error that ends the work.

    Attributes:
        kind: Class of `intact.errors`; empty for other exceptions, which are bugs.
        text: Its message.
        trace: Its traceback.
    """

    kind: str
    text: str
    trace: str

    @staticmethod
    def of(error: BaseException) -> Problem:
        """Convert an exception to a message."""
        trace = "".join(traceback.format_exception(error))
        if isinstance(error, IntactError):
            return Problem(type(error).__name__, error.with_flags, trace)
        return Problem("", f"{type(error).__name__}: {error}", trace)

    def throw(self) -> NoReturn:
        """Raise the exception.

        Raises:
            IntactError: The exception was one; of the same class.
            WorkerError: It was another exception.
        """
        kind = getattr(errors, self.kind, None) if self.kind else None
        if isinstance(kind, type) and issubclass(kind, IntactError):
            raise kind(self.text)
        error = WorkerError(self.text)
        error.add_note(f"In the worker:\n{self.trace}")
        raise error


class WorkerError(RuntimeError):
    """An unexpected exception in a worker; its note holds the worker's traceback."""
