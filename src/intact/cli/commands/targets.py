"""Declares the commands about what ships with intact: ``targets`` and ``demo``."""

from __future__ import annotations

import click

from intact.cli.parameters import COMPLETE, Command, GivenOptions
from intact.recipe.declare import options_of
from intact.recipe.reports import DemoCommand, ShowTargetCommand

JSON_HELP = options_of(ShowTargetCommand)["as_json"].help


@click.pass_context
def list_targets(ctx: click.Context, as_json: bool) -> None:
    """Print the list where no command follows."""
    if ctx.invoked_subcommand is None:
        from intact.cli import show
        from intact.targets import load_target, target_names

        show.targets([load_target(name) for name in target_names()], as_json=as_json)


def _show_target(given: GivenOptions[ShowTargetCommand]) -> None:
    """Print a target: its file, or with --json all fields of it."""
    from intact.cli import show
    from intact.targets import load_target, target_source

    name = given.options.name
    show.target(load_target(name), target_source(name), as_json=given.options.as_json)


def _demo(given: GivenOptions[DemoCommand]) -> None:
    """Quantize the small model that ships with intact and compare both versions of it."""
    from intact import api
    from intact.cli import show
    from intact.demo import calibration_path, model_path, test_path

    threads = given.options.threads
    result = api.quantize(model_path(), calibration_path(), threads=threads)
    found = api.evaluate(result, test_path(), threads=threads)
    show.evaluation(found, as_json=given.options.as_json)


@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def _complete(context: click.Context, shell: str) -> None:
    """Print what makes a shell complete commands, flags and names.

    Examples:

    eval "$(intact completion bash)", in ~/.bashrc; likewise zsh

    intact completion fish > ~/.config/fish/completions/intact.fish
    """
    from intact.cli.completion import script

    click.echo(script(context.find_root().command, COMPLETE, shell))


COMPLETION = click.command(
    "completion", short_help="Print what makes a shell complete commands and names."
)(_complete)
SHOW = Command("show", ShowTargetCommand, _show_target)
DEMO = Command("demo", DemoCommand, _demo)
