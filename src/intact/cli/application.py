"""The application: its commands in the order of the help, and how wrong use ends it."""

from __future__ import annotations

from typing import Annotated

import typer

from intact import __version__
from intact.cli import commands, converting, quantizing, running, searching

WRONG_USE = 2
"""Exit code of a command line that cannot be carried out as written."""

app = typer.Typer(
    name="intact",
    help="Turn float neural networks into low-precision ones, and prove their bits.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"intact {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001  its callback has printed it
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Turn float neural networks into low-precision ones, and prove their bits."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(WRONG_USE)


app.command()(quantizing.quantize)
app.command()(searching.search)
app.command("import")(quantizing.import_quantized)
app.command()(commands.inspect)
app.command()(commands.evaluate)
app.command()(converting.export)
app.command()(running.run)
app.command()(running.verify)
app.command()(converting.convert_ranges)
app.add_typer(commands.targets_app, name="targets")
app.command()(commands.demo)
