"""`hoptell tmux`: an agent in a terminal, and messages typed into its prompt."""

import dataclasses
import os
import shutil
import sys
from typing import TYPE_CHECKING

import click

from hoptell.errors import ConfigurationError, HoptellError
from hoptell.names import name_problem, roles_problem
from hoptell.settings import PeerSettings, load_peer_settings

if TYPE_CHECKING:  # imported where it is used: `hoptell tmux --help` needs no libtmux
    from hoptell.tmux.session import Request, Session


def _name(_: click.Context, __: click.Parameter, value: str) -> str:
    if problem := name_problem(value):
        raise click.BadParameter(problem)
    return value


def _roles(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    roles = list(dict.fromkeys(role for part in value.split(",") if (role := part.strip())))
    if problem := roles_problem(roles):
        raise click.BadParameter(problem)
    return tuple(roles)


@click.command(
    "tmux",
    epilog="""\b
Examples:
  hoptell tmux alice-codex --roles backend -- codex
  hoptell tmux bob -- claude --continue
  hoptell tmux carol --notice -- gemini

Detach with tmux's own key (Ctrl-b d): the agent goes on, and stays online.""",
)
@click.argument("name", callback=_name)
@click.option("--roles", metavar="A,B", callback=_roles, help="Roles to be reached by as @role.")
@click.option("--notice", is_flag=True, help="Only announce messages, never type their text.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def tmux_command(
    name: str, roles: tuple[str, ...] | None, notice: bool, command: tuple[str, ...]
) -> None:
    """Run COMMAND, an agent, in tmux, and type arriving messages into its prompt.

    The peer NAME is online from now until the agent ends. A message is typed only while the
    agent is idle, its prompt is empty and nobody is typing; never into a question, a shell or
    a draft. Until then it waits in the inbox, and the window "hoptell" of the session says why.

    It knows the prompts of Claude Code, Codex, opencode, Gemini CLI and Antigravity. Into
    another program's nothing is ever typed.
    """
    from hoptell.tmux import session

    request = _request(name, roles, notice, command)
    tmux = session.find_tmux(os.environ)
    started = session.start(tmux, request)
    inside = bool(os.environ.get("TMUX"))
    if inside or (sys.stdin.isatty() and sys.stdout.isatty()):
        session.attach(tmux, started, os.environ)
    if inside:
        return
    if session.is_running(tmux, name):
        shown = f"tmux attach -t ={session.session_name(name)}"
        click.echo(f"{name} runs in tmux, and stays online: see it with `{shown}`")
    else:
        _report_end(started, request)


def _request(
    name: str, roles: tuple[str, ...] | None, notice: bool, command: tuple[str, ...]
) -> "Request":
    from hoptell.tmux.session import Request

    size = shutil.get_terminal_size()
    return Request(
        name=name,
        command=command,
        settings=_settings(name, roles),
        environ=dict(os.environ),
        cwd=os.getcwd(),
        notice=notice,
        size=(size.columns, max(2, size.lines - 1)),
    )


def _settings(name: str, roles: tuple[str, ...] | None) -> PeerSettings:
    settings = load_peer_settings(roles=roles)
    if settings.token is None:
        raise ConfigurationError(
            "there is no token: start `hoptell relay` once on this machine, which makes one, or"
            " set HOPTELL_RELAY and HOPTELL_TOKEN"
        )
    return dataclasses.replace(settings, name=name)


def _report_end(session: "Session", request: "Request") -> None:
    from hoptell.tmux.session import folder_of
    from hoptell.tmux.status import read_status

    status = read_status(folder_of(request.settings, session.name))
    if status is None or not status.exit_status:
        return
    for line in status.last_words:
        click.echo(line, err=True)
    raise HoptellError(f"{request.command[0]} ended with exit status {status.exit_status}")
