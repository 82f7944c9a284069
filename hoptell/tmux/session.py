"""Start an agent in a tmux session of its own, with the injector in a second window beside it.

    tmux session hoptell-<name>
      window agent      the agent, started through launch.py
      window hoptell    the injector: says what it does; ends with the agent
    $HOPTELL_HOME/tmux/<name>/
      settings.env      what the agent's sidecar and the injector run with, the token included
      session.json      pane, process and choices, for the injector
      status.json       what the injector does (status.py)

Both windows' command lines hold only paths into that private folder, and tmux is called without
any HOPTELL_… variable: the first such call becomes the server, which keeps its environment and
its command line for as long as it lives. Nothing rests on the user's tmux settings: sessions,
windows and panes are named by id, commands are given word by word, and the options that could
end the session or lose the agent's exit status are set on it.
"""

import contextlib
import json
import os
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

from hoptell.env_file import quoted
from hoptell.errors import ConfigurationError, HoptellError
from hoptell.programs import SERVER, codex_home
from hoptell.settings import PeerSettings
from hoptell.tmux.launch import write_plan
from hoptell.tmux.pane import Tmux

OLDEST_TMUX = "3.2"


class SessionError(HoptellError):
    """The agent's tmux session cannot be started or reached."""


class Session(msgspec.Struct):
    """A started session, as the injector needs to know it."""

    name: str
    """The peer name."""
    session: str
    """The session's id, `$3`."""
    pane: str
    """The agent's pane, `%5`."""
    pid: int
    """The process that tmux started in it."""
    tmux: str
    """The tmux program."""
    command: str
    """The agent's program, as the user wrote it."""
    notice: bool = False
    """Announce every message instead of typing its text."""

    @classmethod
    def load(cls, folder: Path) -> "Session":
        """Read what `start` wrote into its folder."""
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


def is_running(tmux: Tmux, name: str) -> bool:
    """Whether there is a session of exactly that peer."""
    return tmux.has_session(session_name(name), exact=True)


def folder_of(settings: PeerSettings, name: str) -> Path:
    """Where the files of a peer's session are."""
    return settings.home / "tmux" / name


def start(tmux: Tmux, request: Request) -> Session:
    """Start agent and injector, detached.

    Raises:
        SessionError: the name is in use, the command does not exist, or tmux refuses.
        ConfigurationError: the private folder cannot be made.
    """
    _check(tmux, request)
    folder = _private_folder(request.settings, request.name)
    plan = folder / f"launch-{os.getpid()}.json"
    settings_file = folder / "settings.env"
    _write_private(settings_file, _settings_text(request))
    plan.unlink(missing_ok=True)
    environ = agent_environment(request, settings_file)
    write_plan(plan, agent_command(request, settings_file), environ, request.cwd)
    try:
        with _without_settings():
            return _start(tmux, request, folder, plan)
    except BaseException:
        plan.unlink(missing_ok=True)
        raise


def attach(tmux: Tmux, session: Session, environ: Mapping[str, str]) -> None:
    """Show the session: here until the user detaches or it ends, or in the tmux around us."""
    if environ.get("TMUX"):
        tmux.cmd("switch-client", "-t", session.session)
        return
    with _without_settings():
        subprocess.run([*tmux.words(), "attach-session", "-t", session.session], check=False)


def agent_environment(request: Request, settings_file: Path) -> dict[str, str]:
    """The agent's environment: the caller's, with our settings replaced by the file's path."""
    environ = {
        name: value for name, value in request.environ.items() if not name.startswith("HOPTELL_")
    }
    return environ | _pointers(request, settings_file)


def agent_command(request: Request, settings_file: Path) -> list[str]:
    """The agent's command line.

    Codex gives MCP servers only the variables that its own configuration names, so it gets them
    named there, for this run. Without an `mcp_servers.hoptell` to add them to it would refuse
    to start.
    """
    program, *rest = request.command
    if os.path.basename(program) != "codex" or not _codex_knows_hoptell(request.environ):
        return list(request.command)
    pairs = ", ".join(
        f"{name} = {json.dumps(value, ensure_ascii=False)}"
        for name, value in _pointers(request, settings_file).items()
    )
    return [program, "-c", f"mcp_servers.{SERVER}.env={{{pairs}}}", *rest]


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


def _check(tmux: Tmux, request: Request) -> None:
    program = request.command[0]
    if shutil.which(program, path=request.environ.get("PATH")) is None:
        raise SessionError(f"{ascii(program)} is not installed, or not in PATH: nothing to start")
    if is_running(tmux, request.name):
        raise _in_use(request.name)


def _in_use(name: str) -> SessionError:
    session = session_name(name)
    return SessionError(
        f"{name} runs already, in the tmux session {session}: see it with"
        f" `tmux attach -t ={session}`, or choose another name"
    )


def _start(tmux: Tmux, request: Request, folder: Path, plan: Path) -> Session:
    columns, rows = request.size
    exactly = f"={session_name(request.name)}:"
    answer = tmux.cmd(
        "new-session", "-d", "-s", session_name(request.name), "-n", "agent",
        "-x", columns, "-y", rows, "-P", "-F", "#{session_id} #{pane_id} #{pane_pid}",
        *_program("launch", plan),
        ";", "set-option", "-t", exactly, "destroy-unattached", "off",
        ";", "set-option", "-w", "-t", exactly, "remain-on-exit", "on",
    )  # fmt: skip
    if answer.returncode or not answer.stdout:
        raise _in_use(request.name) if is_running(tmux, request.name) else _refused(answer.stderr)
    session_id, pane_id, pid = answer.stdout[0].split()
    session = Session(
        name=request.name,
        session=session_id,
        pane=pane_id,
        pid=int(pid),
        tmux=str(tmux.tmux_bin),
        command=request.command[0],
        notice=request.notice,
    )
    _write_private(folder / "session.json", msgspec.json.encode(session).decode())
    (folder / "status.json").unlink(missing_ok=True)
    answer = tmux.cmd(
        "new-window", "-d", "-t", f"{session_id}:", "-n", "hoptell", "-P", "-F", "#{window_id}",
        *_program("inject", folder),
    )  # fmt: skip
    if answer.returncode or not answer.stdout:
        tmux.cmd("kill-session", "-t", session_id)
        raise _refused(answer.stderr)
    tmux.cmd("set-option", "-w", "-t", answer.stdout[0], "remain-on-exit", "off")
    return session


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


def _private_folder(settings: PeerSettings, name: str) -> Path:
    folder = folder_of(settings, name).absolute()
    try:
        for part in (settings.home.absolute(), folder.parent, folder):
            part.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = os.lstat(folder)
        if folder.is_symlink() or status.st_uid != os.geteuid():
            raise ConfigurationError(
                f"{folder} is a link or another user's: move it away (see HOPTELL_HOME)"
            )
        os.chmod(folder, 0o700)
    except OSError as error:
        raise ConfigurationError(f"cannot use {folder}: {error.strerror}") from None
    return folder


def _write_private(file: Path, text: str) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    temporary.replace(file)


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
