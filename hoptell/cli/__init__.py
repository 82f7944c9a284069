"""The command line: options in, one library call, words out (docs/commands.md).

The group knows its commands by a table and imports one only when it runs, so that
`hoptell send` loads neither the relay nor the MCP library, and `hoptell --help` loads nothing.
It is also the one place where errors become words and exit codes:

    0    done
    1    it failed: one line on standard error, `hoptell: <what to do>`
    2    wrong usage: the usage line and what was wrong with it
    3    nothing arrived in time (`wait`, `listen` and `ask` say so themselves)
    130  interrupted with Ctrl-C: no words

A reader that closes the pipe (`hoptell list | head -1`) ends a command with 1 and no words.
An exception that is none of ours is a bug: its type and place are shown in one line, its text
and traceback, which may hold anything, only with HOPTELL_DEBUG=1 in the environment.
"""

import errno
import gc
import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

# What imports make stays: looking through it for garbage again and again took a tenth of the
# time of `hoptell send`. Set before the imports that it is about.
gc.set_threshold(50_000)

import click  # noqa: E402

from hoptell import __version__  # noqa: E402
from hoptell.errors import HoptellError  # noqa: E402

COMMANDS = {
    "init": ("hoptell.cli.init:init_command", "Set up this machine and its agents."),
    "relay": ("hoptell.cli.relay:relay_command", "Run the relay."),
    "list": ("hoptell.cli.messages:list_command", "Show who is there."),
    "send": ("hoptell.cli.messages:send_command", "Send a message."),
    "ask": ("hoptell.cli.messages:ask_command", "Send a message and print the answer."),
    "wait": ("hoptell.cli.messages:wait_command", "Go online and print the next message."),
    "listen": ("hoptell.cli.listen:listen_command", "Wait on an inbox of this machine."),
    "mcp": ("hoptell.cli.mcp:mcp_command", "Run the MCP server beside one agent session."),
    "hooks": ("hoptell.cli.hook:hooks_command", "Print hook settings that wake Claude Code."),
    "hook": ("hoptell.cli.hook:hook_command", ""),
    "tmux": ("hoptell.cli.tmux:tmux_command", "Run an agent in tmux; type messages into it."),
    "members": ("hoptell.cli.members:members_group", "Give people and teams their own tokens."),
    "doctor": ("hoptell.cli.doctor:doctor_command", "Find out what does not work, and why."),
    "snapshot": ("hoptell.cli.snapshot:snapshot_command", "Frame a text file for a review."),
}
"""Each command: where it is, and its line in `hoptell --help` (none for what only programs
call); in the order shown."""


POSIX_ONLY = ("fcntl", "pwd", "resource", "termios")
"""Modules of Python's own that Windows does not have."""


class Failure(click.ClickException):
    """What the user is told when a command fails: one line, and exit code 1."""

    def show(self, file: Any = None) -> None:
        from hoptell.render import escape_invisible

        # It may quote a path, a library or the relay: one line, and nothing for the terminal.
        line = escape_invisible(" ".join(self.format_message().split("\n")))
        click.echo(f"hoptell: {line}", file=file, err=file is None)


class CommandLine(click.Group):
    """The group of all commands, each imported when it is asked for."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        # Here and not with the one group below: click has a command remember the help option of
        # whichever group asked it first.
        self.context_settings = {"help_option_names": ["-h", "--help"]}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # click looks for the nearest name in `self.commands`, which stays empty here.
        unknown = args[0] not in COMMANDS and not args[0].startswith("-")
        if unknown and not ctx.resilient_parsing:
            raise click.NoSuchCommand(args[0], possibilities=COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items() if line])

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _errors_in_words():  # --help and --version print while options are read
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _errors_in_words():
            return super().invoke(ctx)


@contextmanager
def _errors_in_words() -> Iterator[None]:
    try:
        yield
    except HoptellError as error:
        raise Failure(str(error)) from error
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except ModuleNotFoundError as error:
        if error.name not in POSIX_ONLY:
            _unexpected(error)
        raise Failure(
            f"this command needs Linux, macOS or WSL: the Python of this system has no {error.name}"
        ) from error
    except Exception as error:
        _unexpected(error)


def _unexpected(error: Exception) -> NoReturn:
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        raise error  # click ends quietly, and keeps Python from complaining while it exits
    if os.environ.get("HOPTELL_DEBUG", "").strip():
        click.echo(traceback.format_exc(), err=True, nl=False)
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f"{error.filename}: "
        raise Failure(f"{where}{error.strerror}") from error
    frame = traceback.extract_tb(error.__traceback__)[-1]
    raise Failure(
        f"this is a bug in hoptell: {type(error).__name__} at {os.path.basename(frame.filename)}"
        f" line {frame.lineno} (HOPTELL_DEBUG=1 in the environment shows more)"
    ) from error


EPILOG = """\b
Examples:
  hoptell relay                        start the relay on this machine
  HOPTELL_NAME=bob hoptell wait        be bob, and print the next message
  hoptell send bob "the tests pass"    tell bob
  hoptell COMMAND --help               more on each command, with examples

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 nothing arrived in time."""


@click.group(cls=CommandLine, epilog=EPILOG)
@click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")
def command_line() -> None:
    """A self-hosted relay that lets AI coding agents talk to each other."""


def main() -> NoReturn:
    """Run the `hoptell` command with this process's arguments, and exit."""
    if sys.stdout is None:
        # Closed, as by `>&-`: what cannot be printed is an error and not as good as printed,
        # and no socket may get the number of standard output.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 1)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    try:
        command_line.main(prog_name="hoptell")
    except SystemExit as end:
        problem = _flush_output()
        if problem is None or end.code:
            raise
        if problem.errno != errno.EPIPE:
            click.echo(f"hoptell: {problem.strerror}", err=True)
        sys.exit(1)


def _flush_output() -> OSError | None:
    # Left to the interpreter's shutdown, a full disk or a closed pipe would print
    # "Exception ignored in …" and exit with 120.
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None
