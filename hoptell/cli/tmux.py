"""`hoptell tmux`: an agent in a terminal, and messages typed into its prompt."""

import dataclasses
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING

import click

from hoptell.errors import ConfigurationError, HoptellError
from hoptell.names import name_problem, roles_problem, split_roles
from hoptell.settings import PeerSettings, load_peer_settings
from hoptell.tmux.screen import AGENTS

if TYPE_CHECKING:  # imported where it is used: `hoptell tmux --help` needs no libtmux
    from hoptell.tmux.pane import Tmux
    from hoptell.tmux.session import Request, Session

KINDS = [agent.name for agent in AGENTS]
START_WAIT = 1.0
"""Seconds after which an agent that nobody sees, and that is not recognized, counts as running."""
LONGEST_START = 10.0
"""Seconds that its injector may take to say anything."""


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
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    help="Which agent COMMAND is, if its program has another name.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def tmux_command(
    name: str,
    roles: tuple[str, ...] | None,
    notice: bool,
    kind: str | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND, an agent, in tmux, and type arriving messages into its prompt.

    The peer NAME is online from now until the agent ends. A message is typed only while the
    agent is idle, its prompt is empty and nobody is typing; never into a question, a shell or
    a draft. Until then it waits in the inbox, and the window "hoptell" of the session says why.

    It knows Claude Code, Codex, opencode, Gemini CLI and Antigravity, by their programs' names
    and by their prompts; --kind says which of them a program with another name is. Into others
    nothing is ever typed, nor into what runs within ssh, script, docker, sudo, screen and the
    like, since nobody can see from here who has the keyboard there: run `hoptell tmux` inside.

    Codex is started so that its title says whether it works. Where another program starts it,
    or your -c sets the title, nothing is typed before its title has shown a spinner or "Ready".

    Without COMMAND it shows the agent that runs as NAME. If what types its messages (the
    injector, in the window "hoptell") has ended or was killed, a new one goes on where it
    stopped, with the settings that the agent was started with.
    """
    from hoptell.tmux import session

    if not command and (roles is not None or notice or kind is not None):
        raise click.UsageError("the options are for a COMMAND that is to be started")
    has_terminal = _has_terminal()
    tmux = session.find_tmux(os.environ)
    if command:
        shown = session.start(tmux, _request(name, roles, notice, kind, command))
    else:
        shown, renewed = session.find(tmux, load_peer_settings(), name)
        if renewed:
            click.echo(f"nothing typed the messages for {name} any more: now a new injector does")
    _show(tmux, shown, has_terminal, started=bool(command))


def _has_terminal() -> bool:
    # They are None where the caller closed them.
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def _show(tmux: "Tmux", shown: "Session", has_terminal: bool, *, started: bool) -> None:
    from hoptell.tmux import session

    inside = bool(os.environ.get("TMUX"))
    if inside or has_terminal:
        session.attach(tmux, shown, os.environ)
    if inside:
        return
    has_ended = started and not has_terminal and _ends_at_once(shown)
    if not has_ended and session.shown_in(tmux, shown) is not None:
        name = shown.name
        click.echo(f"{name} runs in tmux, and stays online: see it with `hoptell tmux {name}`")
    else:
        _report_end(shown)
        if not has_terminal:
            click.echo(f"{shown.name} has ended")


def _ends_at_once(shown: "Session") -> bool:
    """Wait until an agent runs that nobody sees, or has ended; tell whether it has."""
    from hoptell.tmux.folder import PLAN_PREFIX, folder_of
    from hoptell.tmux.status import agent_runs, read_status

    folder = folder_of(load_peer_settings(), shown.name)
    started_at = now = time.monotonic()
    runs_since = None
    while now < started_at + LONGEST_START:
        status = read_status(folder)
        if status is not None and (status.agent or status.ended_at is not None):
            return status.ended_at is not None and not agent_runs(status)
        if status is not None and agent_runs(status) and not any(folder.glob(f"{PLAN_PREFIX}*")):
            runs_since = runs_since or now
            if now - runs_since > START_WAIT:
                return False
        time.sleep(0.05)
        now = time.monotonic()
    return False


def _request(
    name: str,
    roles: tuple[str, ...] | None,
    notice: bool,
    kind: str | None,
    command: tuple[str, ...],
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
        kind=kind,
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
