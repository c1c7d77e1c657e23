"""Answers shells that complete a command line: commands, flags, and values of options."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from intact.recipe.declare import Option
from intact.recipe.kinds import File, Given, Name, Several

_LISTS = {
    "target": "intact.targets:target_names",
    "name": "intact.targets:target_names",
    "method": "intact.numerics.thresholds:METHODS",
    "weight_method": "intact.numerics.thresholds:METHODS",
    "formats": "intact.formats.registry:FORMATS",
    "improve": "intact.improve.passes:PASSES",
    "normalize": "intact.data.preprocess:NORMALIZATIONS",
    "sampler": "intact.search.samplers:SAMPLERS",
}
"""Tables of names, by the option that takes them; imported when they are asked for."""


def answer(app: click.Command, variable: str) -> int | None:
    """Answer a shell that asks what may follow, by a variable; None where none does."""
    asked = os.environ.get(variable)
    return None if not asked else shell_complete(app, {}, "intact", variable, asked)


def script(app: click.Command, variable: str, shell: str) -> str:
    """Return what a shell runs to ask from then on, by a variable."""
    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"no completion for {shell!r}")
    return made(app, {}, "intact", variable).source()


def values(option: Option, begun: str) -> list[CompletionItem]:
    """List what a value may be; files where it may be a path.

    Args:
        option: An option of a command.
        begun: What is written already.
    """
    found = [CompletionItem(name) for name in _names(option) if name.startswith(begun)]
    if isinstance(option.kind, File | Given | Several):
        # The type makes the shell list the files itself, so that `~` and quotes are read its way.
        found.append(CompletionItem(begun, type="file"))
    return found


def _names(option: Option) -> Iterable[str]:
    if isinstance(option.kind, Name) and option.kind.known:
        return option.kind.known
    module, _, name = _LISTS.get(option.name, "").partition(":")
    if not module:
        return ()
    table = getattr(importlib.import_module(module), name)
    return list(table() if callable(table) else table)
