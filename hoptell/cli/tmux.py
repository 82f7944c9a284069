"""`hoptell tmux`: an agent in a terminal, and messages typed into its prompt."""

import dataclasses
import os
import shutil
import sys
from typing import TYPE_CHECKING

import click

from hoptell.errors import ConfigurationError, HoptellError
from hoptell.names import name_problem, roles_problem, split_roles
from hoptell.settings import PeerSettings, load_peer_settings

if TYPE_CHECKING:  # imported where it is used: `hoptell tmux --help` needs no libtmux
    from hoptell.tmux.pane import Tmux
    from hoptell.tmux.session import Request, Session


def _name(_: click.Context, __: click.Parameter, value: str) -> str:
    if problem := name_problem(value):
        raise click.BadParameter(problem)
    return value


def _roles(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    roles = split_roles(value)
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
  hoptell tmux bob                          show bob again

Detach with tmux's own key (Ctrl-b d): the agent goes on, and stays online.""",
)
@click.argument("name", callback=_name)
@click.option("--roles", metavar="A,B", callback=_roles, help="Roles to be reached by as @role.")
@click.option("--notice", is_flag=True, help="Only announce messages, never type their text.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def tmux_command(
    name: str, roles: tuple[str, ...] | None, notice: bool, command: tuple[str, ...]
) -> None:
    """Run COMMAND, an agent, in tmux, and type arriving messages into its prompt.

    The peer NAME is online from now until the agent ends. A message is typed only while the
    agent is idle, its prompt is empty and nobody is typing; never into a question, a shell or
    a draft. Until then it waits in the inbox, and the window "hoptell" of the session says why.

    It knows the prompts of Claude Code, Codex, opencode, Gemini CLI and Antigravity. Into
    another program's nothing is ever typed.

    Without COMMAND it shows the agent that runs as NAME. If what types its messages (the
    injector, in the window "hoptell") has ended or was killed, a new one goes on where it
    stopped, with the settings that the agent was started with.
    """
    from hoptell.tmux import session

    if not command and (roles is not None or notice):
        raise click.UsageError("--roles and --notice are for a COMMAND that is to be started")
    tmux = session.find_tmux(os.environ)
    if command:
        shown = session.start(tmux, _request(name, roles, notice, command))
    else:
        shown, renewed = session.find(tmux, load_peer_settings(), name)
        if renewed:
            click.echo(f"nothing typed the messages for {name} any more: now a new injector does")
    _show(tmux, shown)


def _show(tmux: "Tmux", shown: "Session") -> None:
    from hoptell.tmux import session

    inside = bool(os.environ.get("TMUX"))
    if inside or (sys.stdin.isatty() and sys.stdout.isatty()):
        session.attach(tmux, shown, os.environ)
    if inside:
        return
    if session.shown_in(tmux, shown) is not None:
        name = shown.name
        click.echo(f"{name} runs in tmux, and stays online: see it with `hoptell tmux {name}`")
    else:
        _report_end(shown)


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


def _report_end(session: "Session") -> None:
    from hoptell.tmux.folder import folder_of
    from hoptell.tmux.status import read_status

    status = read_status(folder_of(load_peer_settings(), session.name))
    if status is None or not status.exit_status:
        return
    for line in status.last_words:
        click.echo(line, err=True)
    raise HoptellError(f"{session.command} ended with exit status {status.exit_status}")
