"""Every error that intact raises on purpose, under one root.

::

    IntactError
    ├── UsageError          a command line or call that cannot be carried out as written
    ├── ModelError          a model file or graph that cannot be read or normalized
    ├── DataError           samples, labels or preprocessing that do not fit the model
    ├── TargetError         a hardware description that is unknown or contradicts itself
    ├── ConfigError         an impossible quantization policy, state transition or parameter
    ├── CalibrationError    statistics or a threshold method that cannot give a scale
    ├── PlanError           a plan file that cannot be read, or does not fit its model
    ├── ClusterError        a cluster that is not there, or whose workers fail
    ├── SearchError         a search that finds nothing within its limits, or a log of another one
    ├── ExportError         a plan that a format cannot express
    ├── OutputError         a result that cannot be written
    └── MissingExtraError   an optional package that is not installed

Each message is one line that says what is wrong, where, and how to mend it. The command line
prints it without a traceback; a library caller catches ``IntactError``. What is no error, and
weighs, is an ``IntactWarning``, with Python's own `warnings`.

A message names an option by its flag, ``--max-memory``. An error says it in the words of Python,
``max_memory``; the command line, which catches it, prints the message with the flags.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class IntactWarning(UserWarning):
    """What a caller should know of a result: accuracy that is lost, samples that are too few ..."""


FLAGS: dict[str, str] = {}
"""Flags and the Python names of their options, as `intact.recipe` declares them; for other flags
the name is the flag's with underscores."""

_COMMAND = re.compile(
    r"\bintact (?:compare|convert-ranges|diagnose|evaluate|export|import|inspect|quantize|report"
    r"|run|search|targets|train|verify) [^;]*"
)
"""A command stays one: its flags are none of Python's words. Sentences may begin with our name."""
_FLAG = re.compile(r"(?<![^\s(;,])--([a-z]+(?:-[a-z]+)*)(?![\w=/.-])")

_LONGEST = 900
"""Characters of a message; a name in a damaged file may be a megabyte long."""


class IntactError(Exception):
    """Root of all deliberate errors.

    Args:
        message: What is wrong and where, without a final full stop.
        remedy: How to mend it, as a phrase; printed after a semicolon.

    Attributes:
        with_flags: The whole message as the command line prints it.
        remedy: How to mend it, in the words of Python.
        problem: What is wrong, without the remedy, with flags.
    """

    def __init__(self, message: str, *, remedy: str = "") -> None:
        self.with_flags = _one_line(f"{message}; {remedy}" if remedy else message)
        super().__init__(python_words(self.with_flags))
        self.remedy = python_words(remedy)
        self.problem = _one_line(message)


class UsageError(IntactError):
    """A command line or call that cannot be carried out as written."""


class ModelError(IntactError):
    """A model file or graph that cannot be read or normalized."""


class DataError(IntactError):
    """Samples, labels or preprocessing that do not fit the model."""


class TargetError(IntactError):
    """A hardware description that is unknown or contradicts itself."""


class ConfigError(IntactError):
    """An impossible quantization policy, state transition or parameter."""


class CalibrationError(IntactError):
    """Statistics or a threshold method that cannot give a scale."""


class PlanError(IntactError):
    """A plan file that cannot be read, or does not fit its model."""


class ClusterError(IntactError):
    """A cluster that cannot be reached, has other versions, or workers that do not start."""


class SearchError(IntactError):
    """A search that finds nothing within its limits, or a log that is not of this search."""


class ExportError(IntactError):
    """A plan that a format cannot express.

    Args:
        message: What is wrong.
        remedy: How to mend it.
        listed: All that the message tells of, one phrase each.

    Attributes:
        unsaid: What is listed, if the message was too long to be told whole.
    """

    def __init__(self, message: str, *, remedy: str = "", listed: Iterable[str] = ()) -> None:
        super().__init__(message, remedy=remedy)
        is_whole = fits(message, remedy)
        self.unsaid = () if is_whole else tuple(_one_line(each) for each in listed)


class Unsupported(Exception):  # noqa: N818 - a reason, collected with others before anything fails
    """What a format, a target or a reader cannot express; caught where all reasons are collected.

    Args:
        reason: Why.
        remedy: What to do instead, if there is more to say than for every other reason.
        node: Which node or tensor, if who catches it does not know.
        operator: Its operator, likewise.
    """

    def __init__(
        self, reason: str, remedy: str = "", *, node: str = "", operator: str = ""
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.node = node
        self.operator = operator


class OutputError(IntactError):
    """A result that cannot be written."""


class MissingExtraError(IntactError):
    """An optional package that is not installed."""


def fits(message: str, remedy: str) -> bool:
    """Check whether a message is told whole, with its remedy."""
    return len(message) + len(remedy) + 2 <= _LONGEST


def _within(name: str, names: list[str]) -> list[str]:
    """List names all of whose words a longer one has, the longest first."""
    words = set(re.split(r"[\W_]+", name))
    found = [each for each in names if words > set(re.split(r"[\W_]+", each))]
    return sorted(found, key=len, reverse=True)


def python_words(text: str) -> str:
    """Name options as Python does.

    >>> python_words("--max-memory 'x'; give samples with --data")
    "max_memory 'x'; give samples with data"
    >>> python_words("no --output; make one: intact quantize MODEL --output out")
    'no output; make one: intact quantize MODEL --output out'
    >>> python_words("intact writes no open lengths: give --input-shape")
    'intact writes no open lengths: give input_shape'
    """
    commands = [*_COMMAND.findall(text), ""]
    parts = [_FLAG.sub(_python_word, part) for part in _COMMAND.split(text)]
    return "".join(word + command for word, command in zip(parts, commands, strict=True))


def _python_word(flag: re.Match[str]) -> str:
    return FLAGS.get(flag[0], flag[1].replace("-", "_"))


def _one_line(text: str) -> str:
    r"""Return what can be printed anywhere: names and library messages hold line ends and worse.

    >>> _one_line("node 'a\nb' is \x1b[31mred")
    "node 'a b' is \\x1b[31mred"
    """
    if len(text) > _LONGEST:  # both ends say more than the middle: the place, and the remedy
        text = f"{text[: 2 * _LONGEST // 3]} ... {text[-_LONGEST // 3 + 5 :]}"
    if text.isprintable():
        return text
    return "".join(
        " " if each.isspace() else each if each.isprintable() else repr(each)[1:-1] for each in text
    )


def nearest(name: str, known: Iterable[str], *, listed_by: str = "") -> str:
    """Return a phrase that offers the known name closest to a misspelt one.

    Args:
        name: As it was written.
        known: The names that there are; of many, the first are shown.
        listed_by: A command that lists all.

    >>> nearest("onnxruntme", ["onnxruntime", "tensorrt"])
    "did you mean 'onnxruntime'?"
    >>> nearest("calibration_method", ["method", "bits"])
    "did you mean 'method'?"
    >>> nearest("x", ["b", "a"])
    'known: a, b'
    """
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6) or _within(name, names)
    if close:
        return f"did you mean {close[0]!r}?"
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    more = f"; see `{listed_by}`" if listed_by else ""
    return f"known: {shown}{more}" if names else "there are none"
