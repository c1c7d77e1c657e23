"""Runs one command line from start to exit code, and words whatever goes wrong."""

from __future__ import annotations

import codecs
import contextlib
import errno
import gc
import io
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from intact import __version__
from intact._extras import explained
from intact.cli.commands import make, targets, tell
from intact.cli.parameters import COMPLETE
from intact.cli.phases import Phases, process_began
from intact.errors import ClusterError, ExportError, IntactError, SearchError, nearest

_NOT_GOOD, _INTERNAL, _STOPPED = 1, 70, 130
_OF_RESULTS = (ClusterError, ExportError, SearchError, MemoryError)
"""What right calls may end in."""
# Windows has no quotas.
_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EIO, getattr(errno, "EDQUOT", errno.ENOSPC))
_WRONG_PATHS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.ENAMETOOLONG)
_LONGEST_REASON = 200
_FLAG = re.compile(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*(?![\w-])")


_IMPORTED = time.perf_counter()
"""When this module was loaded: about when the process began, where the system does not say."""


def run(arguments: Sequence[str] | None = None, *, began: float | None = None) -> int:
    """Run one command line; whatever a user did wrong becomes one line on stderr.

    Args:
        arguments: What stands behind ``intact``; None takes the process's own.
        began: When the process of this command alone began, by ``time.perf_counter``; None where
            the process does other things too: its time counts from now.

    Returns:
        The exit code: 0 done; 1 the call was right, and what came of it is not good: a target, a
        format or a runtime cannot take the model, nothing holds the limits, something is lost
        while it is written; 2 the call is wrong: an option, a path, a file, a package that is not
        installed; 70 intact itself is wrong, and a file named in the line says where; 130 stopped
        by Ctrl-C.
    """
    if not sys.warnoptions:  # what matters is an error or a note; Python's -W shows the rest
        warnings.simplefilter("ignore")
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if began is None:
            return _run(given, Phases(time.perf_counter()))
        # What packages made stays until the end: the collector need not look at it again.
        return _run(given, Phases(began, loaded=gc.freeze))
    except Exception as error:  # that nobody foresaw: the user gets a line, we the traceback
        # A package that is installed and broken raises in our imports: no mistake of ours.
        missing = explained(error) if isinstance(error, ImportError) else None
        return (
            _internal(error, given) if missing is None else _complain(missing.with_flags, WRONG_USE)
        )


def _run(given: Sequence[str], phases: Phases) -> int:
    """Run a command line; raise only what nobody foresaw."""
    context: click.Context | None = None
    try:
        context = app.make_context("intact", list(given), obj=phases)
        with context:
            app.invoke(context)
        # Flushed here, where a full disk or a closed pipe still decides the exit code.
        if sys.stdout is not None:  # as it is where whoever started the process closed it
            sys.stdout.flush()
        return 0
    except (IntactError, MemoryError) as error:
        ran = "" if context is None else context.invoked_subcommand or ""
        if isinstance(error, ExportError):
            for each in error.unsaid:
                click.echo(f"  {each}", err=True)
        return _complain(_said(error, ran), _code_of(error))
    except OSError as error:
        return _not_written(error)
    except click.exceptions.Exit as done:  # after --help, say
        return done.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _complain("stopped; nothing was written", _STOPPED)
    except click.ClickException as error:
        where: click.Context | None = getattr(error, "ctx", None)
        command = where.command_path if where else "intact"
        said = error.format_message()
        if not said.endswith("..."):  # a list that goes on keeps its dots
            said = said.rstrip(".")
        if isinstance(error, click.NoSuchOption):
            said = _of_others(error.option_name, where) or said
        elif "unexpected extra argument" in said and where is not None and _takes(where, "--data"):
            said += "; samples are given with --data"
        return _complain(f"{said}; see `{command} --help`", WRONG_USE)


def _takes(where: click.Context, flag: str) -> bool:
    return any(flag in each.opts for each in where.command.params)


def _of_others(flag: str, where: click.Context | None) -> str:
    """Say that a flag is one of another command or tool, or of an argument; "" where it is none."""
    from intact.recipe.commands import RECIPES, flags_of
    from intact.recipe.declare import ELSEWHERE

    for each in () if where is None else where.command.params:
        if isinstance(each, click.Argument) and f"--{each.name}" == flag:
            return f"{flag}: the {each.name} is given without a flag"
    here = ELSEWHERE.get(flag.removeprefix("--").replace("-", "_"), "").replace("_", "-")
    if here and where is not None and _takes(where, f"--{here}"):
        return f"no option {flag}; here it is called --{here}"
    owners = [f"`intact {name}`" for name, recipe in RECIPES.items() if flag in flags_of(recipe)]
    return f"{flag} is an option of {', '.join(owners)} only" if owners else ""


def _internal(error: Exception, given: Sequence[str]) -> int:
    """Say that intact has a mistake, where the traceback is, and what to send."""
    # Only failures need these.
    import platform
    import tempfile
    import traceback

    reason = IntactError(f"{type(error).__name__}: {error}"[:_LONGEST_REASON]).with_flags
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    log = [
        f"intact {__version__}, Python {platform.python_version()}, {platform.platform()}",
        f"arguments: {list(given)}",
        *traceback.format_exception(error),
    ]
    try:
        # The name cannot be foreseen and nobody else may read the file: arguments name what a user
        # has.
        with tempfile.NamedTemporaryFile(
            "w", prefix="intact-", suffix=".log", encoding="utf-8", errors="replace", delete=False
        ) as file:
            file.write("\n".join(log))
        attached = f"report it with {file.name} and, if you can, the files that you gave"
    except OSError as failure:  # a full disk
        attached = f"report it with this line; no log could be written ({failure.strerror})"
    return _complain(f"internal error: {reason}{place}; nothing is finished; {attached}", _INTERNAL)


def _not_written(error: OSError) -> int:
    """Say what cannot be written; nothing where whoever read the output has seen enough."""
    _give_up_stdout()
    if isinstance(error, BrokenPipeError):
        return _NOT_GOOD
    place = f"{error.filename}: " if error.filename else ""
    is_wrong = error.errno in _WRONG_PATHS
    return _complain(f"{place}{error.strerror or error}", WRONG_USE if is_wrong else _NOT_GOOD)


def _code_of(error: Exception) -> int:
    if isinstance(error.__cause__, KeyboardInterrupt):
        return _STOPPED  # and something was written
    # The error says what could not be written; that the disk was full stands in what it was raised
    # from.
    is_full = any(getattr(each, "errno", None) in _NO_ROOM for each in _causes(error))
    return _NOT_GOOD if is_full or isinstance(error, _OF_RESULTS) else WRONG_USE


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield what an error was raised from, and so on."""
    cause = error.__cause__
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _said(error: IntactError | MemoryError, ran: str) -> str:
    """Return a message for whoever ran a command."""
    if isinstance(error, MemoryError):
        return _out_of_memory(error, ran)
    return error.with_flags + _elsewhere(error.with_flags, ran)


def _elsewhere(message: str, ran: str) -> str:
    """Say of the flags in a message which command has them, where the one that ran has not."""
    from intact.recipe.commands import owner_of

    owners: dict[str, list[str]] = {}
    for flag in dict.fromkeys(_FLAG.findall(message)):
        owner = owner_of(flag, ran)
        if owner and f"intact {owner}" not in message:
            owners.setdefault(owner, []).append(flag)
    said = [f"{' and '.join(flags)}: of `intact {owner}`" for owner, flags in owners.items()]
    return f" ({'; '.join(said)})" if said else ""


_LESS = {"--batch": "a smaller --batch", "--threads": "fewer --threads", "--max-memory": ""}
"""Flags that save memory, and how to ask for them."""


def _out_of_memory(error: MemoryError, ran: str) -> str:
    from intact.recipe.commands import RECIPES, flags_of

    known = flags_of(RECIPES[ran]) if ran in RECIPES else frozenset()
    remedies = [text or flag for flag, text in _LESS.items() if flag in known]
    reason = f" ({error})" if str(error) else ""
    remedy = f"; give {' or '.join(remedies)}" if remedies else ""
    return f"out of memory{reason}{remedy}"


def _complain(message: str, code: int) -> int:
    click.echo(f"intact: {' '.join(message.split())}", err=True)  # one line, whatever is in it
    return code


def _give_up_stdout() -> None:
    """Send what cannot be written to stdout nowhere, so that exiting does not fail on it again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_PLAIN = str.maketrans({"\u2500": "-", "\u2501": "-", "\u2026": "."})
"""What lines of tables are where they cannot be printed."""


def _print_anywhere() -> None:
    """Let every character be printed, where a console or a pipe has an encoding of a few.

    That is so on Windows: output that goes to a file is in the encoding of the system.
    """

    def plain(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        text = error.object[error.start : error.end].translate(_PLAIN)
        return text.encode("ascii", "replace").decode(), error.end

    codecs.register_error("intact.plain", plain)
    for stream in (sys.stdout, sys.stderr):
        # Tests and notebooks put other objects in the place of streams.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="intact.plain")


def main() -> None:
    """Run the process's command line and exit.

    A short process pays for tidiness that nobody sees: on a small model a third of its 1.5 s was
    collecting cyclic garbage while packages load, and taking all of them down again at the end.
    So the collector runs seldom, and the process ends as soon as its output is out.
    """
    _print_anywhere()
    gc.set_threshold(100_000, 20, 100)
    os.environ.setdefault("PYTHONWARNINGS", "ignore")  # in the processes of a search too
    # A shell asks at every Tab, and waits for the answer.
    if COMPLETE in os.environ:
        from intact.cli.completion import answer

        answered = answer(app, COMPLETE)
        if answered is not None:
            sys.exit(answered)
    began = process_began()
    code = run(began=_IMPORTED if began is None else began)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # None where it is closed
            stream.flush()
    os._exit(code)


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
            if len(self.commands) == 1 and "did you mean" not in hint:
                hint = f"write `{ctx.command_path} {next(iter(self.commands))} {args[0]}`"
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
