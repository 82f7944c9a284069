"""Start an agent in a tmux session of its own, with the injector in a second window beside it;
and find that session again, to show it and to give it a new injector if the old one has ended.

    tmux session hoptell-<name>
      window agent      the agent, started through launch.py
      window hoptell    the injector: says what it does; ends with the agent
    $HOPTELL_HOME/tmux/<name>/
      settings.env      what the agent's sidecar and the injector run with, the token included
      session.json      pane, process and choices, for the injector
      status.json       what the injector does (status.py)
      unfinished.json   what it is typing (unfinished.py)
      lock              held by who starts the session, then by the injector

Both windows' command lines hold only paths into that private folder, and tmux is called without
any HOPTELL_… variable: the first such call becomes the server, which keeps its environment and
its command line for as long as it lives. Nothing rests on the user's tmux settings: sessions,
windows and panes are named by id, as hooks may rename and split them; commands are given word
by word; and the options that could end the session or lose the agent's exit status are set on it.

A session that is found again is the one that was started if the process is (pid, start time and
boot, in session.json), and if tmux says that it started that pid in that pane.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from libtmux import exc
from libtmux.common import get_version, has_gte_version

from hoptell import files, processes
from hoptell.env_file import quoted
from hoptell.errors import HoptellError
from hoptell.programs import SERVER, codex_home
from hoptell.settings import PeerSettings
from hoptell.tmux import status
from hoptell.tmux.folder import (
    LOCK_TIMEOUT,
    PLAN_PREFIX,
    SETTINGS_FILE,
    folder_of,
    forget_secrets,
    locked,
    make_folder,
)
from hoptell.tmux.launch import write_plan
from hoptell.tmux.pane import Tmux

OLDEST_TMUX = "3.2"
CODEX_TITLE = 'tui.terminal_title=["activity", "run-state", "thread-title", "project-name"]'
"""Codex's own title, with "Ready" or "Working" in it besides the spinner."""
_STARTED = re.compile(r"started (?P<session>\$\d+) (?P<pane>%\d+) (?P<pid>\d+)")


class SessionError(HoptellError):
    """The agent's tmux session cannot be started or reached."""


class Session(msgspec.Struct):
    """A started session, as the injector needs to know it."""

    name: str
    """The peer name."""
    pane: str
    """The agent's pane, `%5`."""
    pid: int
    """The process that tmux started in it."""
    process: str
    """Its identity, `str` of a `processes.Process`; empty if it ended at once."""
    tmux: str
    """The tmux program."""
    command: str
    """The agent's program, as the user wrote it."""
    notice: bool = False
    """Announce every message instead of typing its text."""
    kind: str | None = None
    """Which agent the command is, where its program has another name."""

    @classmethod
    def load(cls, folder: Path) -> "Session":
        """Read what `start` wrote into its folder.

        Raises:
            OSError, msgspec.DecodeError: there is nothing that can be read.
        """
        return msgspec.json.decode((folder / "session.json").read_bytes(), type=cls)


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    name: str
    command: Sequence[str]
    settings: PeerSettings
    """With the name and roles that the agent is to have."""
    environ: Mapping[str, str]
    """The caller's environment: the agent gets it, without the HOPTELL_… variables."""
    cwd: str
    notice: bool = False
    kind: str | None = None
    size: tuple[int, int] = (80, 24)


def session_name(name: str) -> str:
    """The tmux session of a peer."""
    return f"hoptell-{name}"


def find_tmux(environ: Mapping[str, str]) -> Tmux:
    """The user's tmux.

    Raises:
        SessionError: there is none, or it is too old.
    """
    program = shutil.which("tmux", path=environ.get("PATH"))
    if program is None:
        raise SessionError(f"tmux is not installed: install tmux {OLDEST_TMUX} or newer")
    tmux = Tmux(tmux_bin=program)
    try:
        if not has_gte_version(OLDEST_TMUX, tmux_bin=program):
            version = get_version(tmux_bin=program)
            raise SessionError(f"{program} is tmux {version}: install {OLDEST_TMUX} or newer")
    except exc.LibTmuxException:
        raise SessionError(f"{program} does not say its version: is it tmux?") from None
    return tmux


def start(tmux: Tmux, request: Request) -> Session:
    """Start agent and injector, detached.

    Raises:
        SessionError: the name is in use, the command does not exist, or tmux refuses; nothing
            that was started for it runs.
        ConfigurationError: the private folder cannot be made.
    """
    program = request.command[0]
    if shutil.which(program, path=request.environ.get("PATH")) is None:
        raise SessionError(f"{ascii(program)} is not installed, or not in PATH: nothing to start")
    folder = make_folder(request.settings, request.name)
    if _known(folder) is not None:
        raise _in_use(request.name)
    with locked(folder, LOCK_TIMEOUT) as held:
        if not held or _known(folder) is not None:
            raise _in_use(request.name)
        _clear(tmux, folder, request.name)
        try:
            with _without_settings():
                return _start(tmux, request, folder)
        except BaseException:
            forget_secrets(folder)
            (folder / "session.json").unlink(missing_ok=True)
            raise


def find(tmux: Tmux, settings: PeerSettings, name: str) -> tuple[Session, bool]:
    """The session of an agent that runs; with a new injector if it has none, which is told.

    Raises:
        SessionError: no agent runs under that name, or none that this tmux knows.
    """
    folder = folder_of(settings, name)
    session = _known(folder)
    if session is None:
        raise SessionError(
            f"no agent runs as {name} here: start one with `hoptell tmux {name} -- COMMAND`"
        )
    if shown_in(tmux, session) is None:
        raise SessionError(
            f"the agent of {name}, process {session.pid}, is in no pane of this tmux server: look"
            f" for it on the server that it was started on, or end it"
        )
    with locked(folder, 0) as held:
        if held and _agent_runs(folder):
            with _without_settings():
                _inject(tmux, session, folder)
            return session, True
    return session, False


def shown_in(tmux: Tmux, session: Session) -> str | None:
    """The id of the tmux session in which the agent's pane is now; None if there is none."""
    found = tmux.cmd(
        "display-message", "-p", "-t", session.pane, "#{session_id} #{pane_id} #{pane_pid}"
    )
    where, _, what = "".join(found.stdout).partition(" ")
    return where if what == f"{session.pane} {session.pid}" else None


def attach(tmux: Tmux, session: Session, environ: Mapping[str, str]) -> None:
    """Show the agent: here until the user detaches or it ends, or in the tmux around us."""
    where = shown_in(tmux, session)
    if where is None:
        return  # it has ended already
    if environ.get("TMUX"):
        tmux.cmd("switch-client", "-t", where)
        return
    with _without_settings():
        subprocess.run([*tmux.words(), "attach-session", "-t", where], check=False)


def agent_environment(request: Request, settings_file: Path) -> dict[str, str]:
    """The agent's environment: the caller's, with our settings replaced by the file's path."""
    environ = {
        name: value for name, value in request.environ.items() if not name.startswith("HOPTELL_")
    }
    return environ | _pointers(request, settings_file)


def agent_command(request: Request, settings_file: Path) -> list[str]:
    """The agent's command line.

    Codex has nothing on its screen while it streams that tells it from an idle one, but its
    title does, if it is set so. And it gives MCP servers only the variables that its own
    configuration names, so it gets them named there, for this run. Without an
    `mcp_servers.hoptell` to add them to it would refuse to start.
    """
    program, *rest = request.command
    if os.path.basename(program) != "codex":
        return list(request.command)
    if not _codex_knows_hoptell(request.environ):
        return [program, "-c", CODEX_TITLE, *rest]
    pairs = ", ".join(
        f"{name} = {json.dumps(value, ensure_ascii=False)}"
        for name, value in _pointers(request, settings_file).items()
    )
    return [program, "-c", CODEX_TITLE, "-c", f"mcp_servers.{SERVER}.env={{{pairs}}}", *rest]


def _pointers(request: Request, settings_file: Path) -> dict[str, str]:
    # All but the file's path is in the file too. It stands here as well, since a variable
    # in an MCP server's own configuration may point to another file.
    return {
        "HOPTELL_ENV": str(settings_file),
        "HOPTELL_NAME": request.name,
        "HOPTELL_PUSH": "tmux",
        "HOPTELL_HOME": str(request.settings.home.absolute()),
    }


def _codex_knows_hoptell(environ: Mapping[str, str]) -> bool:
    import tomllib

    home = codex_home(environ)
    if home is None:
        return False
    try:
        config = tomllib.loads((home / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    servers = config.get("mcp_servers")
    return isinstance(servers, dict) and SERVER in servers


def _known(folder: Path) -> Session | None:
    """What was started in the folder, if its process still runs."""
    try:
        session = Session.load(folder)
    except (OSError, msgspec.DecodeError):
        return None
    return session if status.runs(session.process) else None


def _agent_runs(folder: Path) -> bool:
    """False if the injector saw the agent's end: what runs on in its pane is only a shell."""
    found = status.read_status(folder)
    return found is None or status.agent_runs(found)


def _in_use(name: str) -> SessionError:
    return SessionError(
        f"{name} runs already: see it with `hoptell tmux {name}`, or choose another name"
    )


def _clear(tmux: Tmux, folder: Path, name: str) -> None:
    """Make sure that nothing is left of an earlier agent of that name.

    Raises:
        SessionError: somebody else's tmux session has its name.
    """
    with contextlib.suppress(OSError, msgspec.DecodeError):
        before = Session.load(folder)
        if shown_in(tmux, before) is not None:  # a dead pane, whose injector was killed
            tmux.cmd("kill-pane", "-t", before.pane)
    for file in ("session.json", "status.json", "unfinished.json"):
        (folder / file).unlink(missing_ok=True)
    forget_secrets(folder)
    session = session_name(name)
    if tmux.has_session(session, exact=True):
        raise SessionError(
            f"there is a tmux session {session} already, and no agent in it that is known here:"
            f" look at it with `tmux attach -t ={session}` and end it, or choose another name"
        )


def _start(tmux: Tmux, request: Request, folder: Path) -> Session:
    settings_file = folder / SETTINGS_FILE
    files.replace(settings_file, _settings_text(request).encode())
    plan = folder / f"{PLAN_PREFIX}{os.getpid()}.json"
    environ = agent_environment(request, settings_file)
    write_plan(plan, agent_command(request, settings_file), environ, request.cwd)
    columns, rows = request.size
    exactly = f"={session_name(request.name)}:"
    answer = tmux.cmd(
        "new-session", "-d", "-s", session_name(request.name), "-n", "agent",
        "-x", columns, "-y", rows, "-P", "-F", "started #{session_id} #{pane_id} #{pane_pid}",
        *_program("launch", plan),
        # By name, since before the next command it may be too late: with destroy-unattached set
        # for all sessions tmux would end this one. It fails if a hook has renamed it.
        ";", "set-option", "-t", exactly, "destroy-unattached", "off",
        ";", "set-option", "-w", "-t", exactly, "remain-on-exit", "on",
    )  # fmt: skip
    lines = map(_STARTED.fullmatch, answer.stdout)  # hooks may print, too
    started = next(filter(None, lines), None)
    if started is None:
        raise _refused(answer.stderr)
    try:
        pid = int(started["pid"])
        session = Session(
            name=request.name,
            pane=started["pane"],
            pid=pid,
            process=str(processes.of(pid) or ""),
            tmux=str(tmux.tmux_bin),
            command=request.command[0],
            notice=request.notice,
            kind=request.kind,
        )
        files.replace(folder / "session.json", msgspec.json.encode(session))
        _inject(tmux, session, folder)
        # Now the pane has it: others, which a hook may have split off, should close.
        tmux.cmd("set-option", "-wu", "-t", session.pane, "remain-on-exit")
    except BaseException:
        tmux.cmd("kill-session", "-t", started["session"])
        raise
    return session


def _inject(tmux: Tmux, session: Session, folder: Path) -> None:
    """Start the injector, in a window of its own; see to it that agent and session last.

    Raises:
        SessionError: tmux has ended the session, or refuses.
    """
    tmux.cmd(
        "set-option", "-p", "-t", session.pane, "remain-on-exit", "on",
        ";", "set-option", "-t", session.pane, "destroy-unattached", "off",
    )  # fmt: skip
    where = shown_in(tmux, session)
    if where is None:
        raise SessionError(
            "tmux ended the session as soon as it was there: look into its settings for hooks, and"
            " for destroy-unattached"
        )
    answer = tmux.cmd(
        "new-window", "-d", "-t", f"{where}:", "-n", "hoptell", "-P", "-F", "#{pane_id}",
        *_program("inject", folder),
    )  # fmt: skip
    if not answer.stdout:
        raise _refused(answer.stderr)
    tmux.cmd("set-option", "-p", "-t", answer.stdout[0], "remain-on-exit", "off")


def _program(role: str, path: Path) -> list[str]:
    return [sys.executable, "-P", "-m", "hoptell.tmux", role, str(path)]


def _refused(lines: Sequence[str]) -> SessionError:
    said = " ".join(lines) or "it gave no reason"
    return SessionError(f"tmux could not start the session: {ascii(said)[1:-1]}")


def _settings_text(request: Request) -> str:
    settings = request.settings
    values = {
        "HOPTELL_RELAY": settings.relay,
        "HOPTELL_TOKEN": settings.token,
        "HOPTELL_NAME": request.name,
        "HOPTELL_ROLES": ",".join(settings.roles),
        "HOPTELL_PUSH": "tmux",
        "HOPTELL_HOME": str(settings.home.absolute()),
    }
    return "".join(f"{name}={quoted(value)}\n" for name, value in values.items() if value)


@contextlib.contextmanager
def _without_settings() -> Iterator[None]:
    """Keep our variables from a tmux server that starts meanwhile."""
    taken: dict[str, Any] = {
        name: os.environ.pop(name) for name in list(os.environ) if name.startswith("HOPTELL_")
    }
    try:
        yield
    finally:
        os.environ.update(taken)
