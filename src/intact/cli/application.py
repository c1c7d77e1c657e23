"""Assembles the command line of its commands, in the order of the help."""

from __future__ import annotations

import click

from intact import __version__
from intact.cli.commands import make, targets, tell
from intact.errors import nearest

WRONG_USE = 2
"""Exit code of a command line that cannot be carried out as written."""

_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Application(click.Group):
    """The commands, in the order in which they were added."""

    def list_commands(self, _: click.Context) -> list[str]:
        """Name the commands."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command, or name the nearest."""
        # A flag in the place of a command is left to click, which names the flag.
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            hint = nearest(args[0], self.commands)
            raise click.UsageError(f"no command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.pass_context
def _listed(ctx: click.Context, /, **_: object) -> None:
    """Show the help where no command is given."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        ctx.exit(WRONG_USE)


app = Application(
    "intact",
    help="Turn float neural networks into low-precision ones, and prove their bits.",
    invoke_without_command=True,
    context_settings=_HELP,
    callback=_listed,
)
app.params.append(
    click.Option(
        ["--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        help="Print the version.",
        callback=lambda ctx, _, wanted: _version(ctx) if wanted else None,
    )
)
TARGETS = Application(
    "targets",
    help="List the targets, or print one.",
    invoke_without_command=True,
    callback=targets.list_targets,
    params=[click.Option(["--json", "as_json"], is_flag=True, help=targets.JSON_HELP)],
)
TARGETS.add_command(targets.SHOW)
for _command in (
    make.QUANTIZE,
    make.SEARCH,
    make.TRAIN,
    make.IMPORT,
    tell.INSPECT,
    tell.EVALUATE,
    tell.DIAGNOSE,
    tell.COMPARE,
    tell.REPORT,
    make.EXPORT,
    tell.RUN,
    tell.VERIFY,
    tell.CONVERT_RANGES,
    TARGETS,
    targets.DEMO,
    targets.COMPLETION,
):
    app.add_command(_command)


def _version(ctx: click.Context) -> None:
    click.echo(f"intact {__version__}")
    ctx.exit()
