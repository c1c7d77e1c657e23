"""Makes commands of the declared options: flags, help, and values from a recipe file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import click
import msgspec
from click.core import ParameterSource

from intact.cli.phases import LOADING, QUIET, current
from intact.errors import UsageError
from intact.recipe.declare import Option, Options, options_of, shown_default
from intact.recipe.groups import RESULT, RUNNABLE
from intact.recipe.kinds import Flag

O = TypeVar("O", bound=Options)  # noqa: E741

_ARGUMENTS, _OTHER = "Arguments", "Options"
_WIDTH = 100
_COLUMN, _SHORT_COLUMN = 34, 26
"""How wide the flags' column may be."""
ALL = "intact.help_all"
"""Says in a context that all options are shown."""
COMPLETE = "_INTACT_COMPLETE"
"""The variable of the environment by which shells ask what may follow."""
_SENTENCE_END = re.compile(r"(?<=\.)\s(?=[A-Z`])")


class GivenOptions(msgspec.Struct, Generic[O], frozen=True):
    """What a command line and its recipe give.

    Attributes:
        options: All options, checked.
        values: What was given, by name.
    """

    options: O
    values: Mapping[str, Any]

    def of(self, recipe: type[Options]) -> dict[str, Any]:
        """Pick what a public function takes, by the names of its recipe's options."""
        names = options_of(recipe)
        return {name: value for name, value in self.values.items() if name in names}

    def call(
        self, function: str, recipe: type[Options], what: str = LOADING, **others: object
    ) -> Any:
        """Call a public function with what was given, and show how far it is.

        Args:
            function: Its name in `intact.api`.
            recipe: Its options.
            what: What is done first.
            **others: Arguments that replace what was given.
        """
        from intact.cli.printing import progress

        options = self.options
        quiet, most = getattr(options, "as_json", False), getattr(options, "samples", None)
        with progress(what, quiet=quiet, at_most=most) as shown:
            # Imported inside the block: loading packages is the first thing that takes time.
            from intact import api

            arguments = {**self.of(recipe), "progress": shown, **others}
            return getattr(api, function)(**arguments)


class Command(click.Command, Generic[O]):
    """A command whose flags are the options of a recipe.

    Args:
        name: On the command line.
        recipe: Its options.
        run: What it does; the documentation is its help.
        timed: On terminals, it says at its end what took how long.
    """

    def __init__(
        self,
        name: str,
        recipe: type[O],
        run: Callable[[GivenOptions[O]], None],
        *,
        timed: bool = False,
    ) -> None:
        super().__init__(
            name,
            help=run.__doc__,
            callback=lambda **_: None,
            context_settings={"max_content_width": _WIDTH},
        )
        self.recipe = recipe
        self.run = run
        self.timed = timed

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Make the flags when they are first needed."""
        # `intact --help` lists the commands and needs no flags of theirs.
        if not self.params:
            self.params = [
                _parameter(each)
                for each in options_of(self.recipe).values()
                if each.flag or each.positional
            ]
            self.params += [_QUIET, _HELP_ALL]
        return super().get_params(ctx)

    def get_short_help_str(self, limit: int = 45) -> str:  # noqa: ARG002
        """Give the first sentence of the help, whole."""
        return str(self.help).partition("\n\n")[0]

    def invoke(self, ctx: click.Context) -> None:
        """Read what is given and run."""
        given = self.given(ctx)
        code: click.exceptions.Exit | None = None
        try:
            self.run(given)
        except click.exceptions.Exit as done:  # it has printed what it found
            code = done
        # Printed before the exit is raised again: results that are not good took their time too.
        if self.timed and not getattr(given.options, "as_json", False):
            from intact.cli.printing import say_aside

            say_aside(str(current()))
        if code is not None:
            raise code

    def given(self, ctx: click.Context) -> GivenOptions[O]:
        """Join what the flags and the recipe give; flags win.

        Raises:
            UsageError: A value is wrong, or one is missing.
        """
        options = options_of(self.recipe)
        values = {
            name: _parsed(options[name], value)
            for name, value in ctx.params.items()
            # Defaults are left out: they would win over what the recipe gives.
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        }
        if values.get("recipe") is not None:
            from intact.recipe.file import read_recipe

            stored = read_recipe(values["recipe"], str(self.name), self.recipe)
            values = {**stored, **values}
        for name, each in options.items():
            if each.required and name not in values:
                _refuse_no_result(options, values)
                raise UsageError(
                    f"{each.kind.metavar if each.positional else each.flag} is missing",
                    remedy=f"see `{ctx.command_path} --help`",
                )
        return GivenOptions(self.recipe(**values), values)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options that people need first, or all under the headings of their groups."""
        is_short = bool(self.recipe.first) and ALL not in ctx.meta
        sections = self._first() if is_short else self._all()
        quiet = None if is_short else _QUIET
        shown = [quiet, self.get_help_option(ctx), _HELP_ALL if self.recipe.first else None]
        records = [each.get_help_record(ctx) for each in shown if each is not None]
        sections[_OTHER] = [*sections.pop(_OTHER), *(each for each in records if each is not None)]
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows, col_max=_SHORT_COLUMN if is_short else _COLUMN)
        if is_short:
            formatter.write_paragraph()
            formatter.write_text(f"`{ctx.command_path} --help-all` shows all options.")

    def _first(self) -> dict[str, list[tuple[str, str]]]:
        """List the options of the short help, each with the first sentence of its own."""
        options = options_of(self.recipe)
        return {
            _ARGUMENTS: _positional(options.values()),
            _OTHER: [
                (_flags(each), _help(each, _SENTENCE_END.split(each.help, maxsplit=1)[0]))
                for each in map(options.__getitem__, self.recipe.first)
            ],
        }

    def _all(self) -> dict[str, list[tuple[str, str]]]:
        """List all options by heading."""
        options = options_of(self.recipe).values()
        sections = {_ARGUMENTS: _positional(options), _OTHER: []}
        for each in options:
            if each.flag:
                rows = sections.setdefault(each.section or _OTHER, [])
                rows.append((_flags(each), _help(each, each.help)))
        return sections


def _refuse_no_result(options: Mapping[str, Option], values: Mapping[str, Any]) -> None:
    """Name a result that is not there before anything that is missing: it is the first mistake."""
    for name, value in values.items():
        each = options[name]
        is_result = each.positional and each.kind in (RESULT, RUNNABLE)
        if is_result and isinstance(value, str) and not Path(value).exists():
            from intact.results.folder import no_result  # with much else

            raise no_result(Path(value))


def _show_all(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        ctx.meta[ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


_HELP_ALL = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    help="Show all options and exit.",
    callback=_show_all,
)


def _be_quiet(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        ctx.meta[QUIET] = True


_QUIET = click.Option(
    ["--quiet"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    help="Show no progress, and where files are written no summary; errors and --json stay.",
    callback=_be_quiet,
)


def _positional(options: Iterable[Option]) -> list[tuple[str, str]]:
    return [(each.kind.metavar, each.help) for each in options if each.positional]


def _parameter(each: Option) -> click.Parameter:
    # Click reads no value and requires none: the kinds do that for recipes and Python too, in the
    # same words, and what is missing here may stand in the recipe.
    if each.positional:
        return click.Argument(
            [each.name],
            metavar=f"{each.kind.metavar}{'...' if each.kind.repeated else ''}",
            type=click.UNPROCESSED,
            required=False,
            nargs=-1 if each.kind.repeated else 1,
            shell_complete=_completing(each),
        )
    flags = [f"{each.flag}/{each.off}" if each.off else each.flag, each.name]
    if each.short:
        flags.append(each.short)
    if isinstance(each.kind, Flag):
        return click.Option(flags, is_flag=True, default=each.default)
    return click.Option(
        flags,
        metavar=each.kind.metavar,
        type=click.UNPROCESSED,
        multiple=each.kind.repeated,
        shell_complete=_completing(each),
    )


def _completing(each: Option) -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    """Return what lists the values of an option for a shell."""

    def listed(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[Any]:
        from intact.cli.completion import values

        return values(each, begun)

    return listed


def _parsed(each: Option, value: Any) -> Any:
    """Read the text, or the texts, of a flag."""
    if isinstance(each.kind, Flag):
        return value
    # Click gives a tuple where an option may be repeated.
    texts = list(value) if isinstance(value, tuple) else [value]
    with each.refusing(texts[0] if len(texts) == 1 else texts):
        return each.kind.parse_all(texts)


def _flags(each: Option) -> str:
    names = f"{each.short}, {each.flag}" if each.short else each.flag
    names += f" / {each.off}" if each.off else ""
    return f"{names} {each.kind.metavar}".rstrip()


def _help(each: Option, text: str) -> str:
    shown = shown_default(each)
    if each.required:
        return f"{text}  [required]"
    return f"{text}  [default: {shown}]" if shown else text
