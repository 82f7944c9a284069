"""How `hoptell hook` and the sidecar of one Claude Code session find each other.

Both are started by the same Claude Code process, at the same moment and in any order, and
know nothing of each other; the session id is no help, since it changes on /clear and resume.
What they share is the process they descend from, so that names the meeting place: files under
`$HOPTELL_HOME/run/` (0700), each 0600.

    sidecar.<claude>.<sidecar>    JSON: this sidecar's peer name, and the socket on which it
                                  awaits the listener
    listener.<claude>             locked by the one listener of this session; says which it is
    socket.<sidecar>.…            that socket, unless its path would be too long

`<claude>` and `<sidecar>` are process identities (pid and start time, processes.py), so a
leftover file names nobody that lives. One Claude Code may run several sidecars (the plugin's
and a project's): the listener hears all of them. Neither side polls: the sidecar writes its
file, then signals the listener if there is one; the listener names itself, then looks for
sidecars. Whoever comes second sees the first.

Standard library only, and no asyncio: the hook starts at every turn of the session.
"""

import fcntl
import json
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from hoptell import files, processes
from hoptell.errors import InboxError
from hoptell.processes import Process

LAUNCHERS = ("sh", "bash", "dash", "zsh", "ash", "busybox", "fish", "env", "uv", "uvx", "pipx")
"""What may stand between an agent and hoptell. An interpreter does too: `python3.12`."""
INIT = 1
"""The pid of an agent that is all that its container runs; else of what adopts orphans."""
MAX_SOCKET_PATH = 100
"""Bytes that every system takes in a socket's path (104 to 108, with the final zero)."""
TAKE_OVER_TIMEOUT = 2.0
NEWS = signal.SIGUSR1
"""Tells the listener that a sidecar has registered."""


class Kin(NamedTuple):
    """An ancestor of this process."""

    process: Process
    name: str
    """The kernel's short name of it."""
    program: str
    """The path of its executable; empty where that cannot be seen."""


def ancestors(pid: int | None = None) -> Iterator[Kin]:
    """The parent, its parent and so on, as far as they can be seen; nearest first."""
    pid = os.getpid() if pid is None else pid
    while (pid := processes.parent_of(pid) or 0) > 0:
        process = processes.of(pid)
        if process is None:
            return
        yield Kin(process, *_names(pid))


def agent_process() -> Process | None:
    """The nearest ancestor that is an agent, and not what an agent starts hoptell with."""
    for kin in ancestors():
        base = os.path.basename(kin.program or kin.name)
        if kin.name.startswith("claude"):
            return kin.process
        if kin.process.pid == INIT and base != "node":
            return None
        if base not in LAUNCHERS and not base.startswith("python"):
            return kin.process
    return None


def parents_up_to(agent: Process) -> list[Process]:
    """Our parent, its parent and so on, up to and with `agent`; none if it is not among them."""
    parents = []
    for kin in ancestors():
        parents.append(kin.process)
        if kin.process == agent:
            return parents
    return []


def claude_code() -> Process | None:
    """The Claude Code process that this one belongs to; None beside any other agent."""
    return agent_process() if os.environ.get("CLAUDECODE") else None


class Registration(NamedTuple):
    """A sidecar that awaits its listener."""

    file: Path
    sidecar: Process
    name: str
    """The peer name."""
    socket: Path


def register(home: Path, claude: Process, name: str, socket: Path) -> Registration:
    """Say that this process is the sidecar `name` of `claude`, listening on `socket`, and tell
    the hook.

    Raises:
        InboxError: the folder cannot be used.
    """
    me = processes.current()
    file = run_folder(home) / f"sidecar.{claude}.{me}"
    with _private(file, os.O_WRONLY | os.O_TRUNC) as stream:
        json.dump({"name": name, "socket": str(socket)}, stream)
    listener = listener_of(home, claude)
    if listener is not None:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(listener.pid, NEWS)
    return Registration(file, me, name, socket)


def sidecars(home: Path, claude: Process) -> list[Registration]:
    """The living sidecars of `claude`, the newest first; what dead ones left is removed."""
    found = []
    for file in run_folder(home).glob(f"sidecar.{claude}.*"):
        sidecar = processes.parse(file.name.rpartition(".")[2])
        if sidecar is None or processes.is_alive(sidecar) is False:
            file.unlink(missing_ok=True)
            continue
        with suppress(OSError, ValueError, KeyError, TypeError):
            said = json.loads(file.read_text())
            found.append(Registration(file, sidecar, said["name"], Path(said["socket"])))
    return sorted(found, key=lambda one: one.sidecar.started, reverse=True)


def new_socket_path(home: Path) -> Path:
    """Where this sidecar can listen: under the state folder, unless that path is too long."""
    path = run_folder(home) / f"socket.{processes.current()}.{secrets.token_hex(2)}"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
        return path
    return Path(tempfile.mkdtemp(prefix="hoptell-")) / "s"


class Meeting(NamedTuple):
    """One Claude Code session that hoptell's hook or sidecars run for."""

    claude: Process
    listener: Process | None
    listening_since: float
    """Unix time in seconds; 0 without a listener."""
    sidecars: tuple[Process, ...]


def meetings(home: Path) -> list[Meeting]:
    """Every living session, as its files say, those with a listener first; changes nothing."""
    listeners: dict[Process, tuple[Process, float]] = {}
    sidecars: dict[Process, list[Process]] = {}
    names: list[str] = []
    with suppress(OSError):
        names = sorted(files.names(home / "run"))
    for name in names:
        kind, _, rest = name.partition(".")
        owners = [owner for part in rest.split(".") if (owner := _living(part)) is not None]
        match kind, owners:
            case "listener", [claude]:
                file = home / "run" / name
                with suppress(OSError, UnicodeDecodeError):
                    if (holder := _living(file.read_text())) is not None:
                        listeners[claude] = holder, file.lstat().st_mtime
            case "sidecar", [claude, sidecar]:
                sidecars.setdefault(claude, []).append(sidecar)
    found = []
    for claude in dict.fromkeys([*listeners, *sidecars]):
        listener, since = listeners.get(claude, (None, 0.0))
        found.append(Meeting(claude, listener, since, tuple(sidecars.get(claude, ()))))
    return found


def _living(text: str) -> Process | None:
    process = processes.parse(text)
    return None if process is None or processes.is_alive(process) is False else process


def sweep(home: Path) -> None:
    """Remove what processes that are gone have left in the folder."""
    for file in run_folder(home).iterdir():
        kind, _, rest = file.name.partition(".")
        owners = [processes.parse(part) for part in rest.split(".")]
        gone = any(owner is not None and processes.is_alive(owner) is False for owner in owners)
        if kind in ("sidecar", "listener", "socket") and gone:
            file.unlink(missing_ok=True)


# The listener's lock ------------------------------------------------------------------------


def lock_listener(home: Path, claude: Process, *, take_over: bool) -> IO[str] | None:
    """Become the one listener of `claude`: hold the returned file open for as long.

    Another one that is there stays, and the answer is None; with `take_over` it is ended.

    Raises:
        InboxError: the folder cannot be used.
    """
    stream = _private(run_folder(home) / f"listener.{claude}", os.O_RDWR)
    end = time.monotonic() + (TAKE_OVER_TIMEOUT if take_over else 0)
    asked: Process | None = None
    while True:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= end:
                stream.close()
                return None
            asked = _ask_to_leave(home, claude, asked)
            time.sleep(0.01)
            continue
        stream.seek(0)
        stream.truncate()
        stream.write(str(processes.current()))
        stream.flush()
        return stream


def listener_of(home: Path, claude: Process) -> Process | None:
    """The living listener of `claude`, if there is one."""
    try:
        text = (run_folder(home) / f"listener.{claude}").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    listener = processes.parse(text)
    return listener if listener is not None and processes.is_alive(listener) else None


def _ask_to_leave(home: Path, claude: Process, asked: Process | None) -> Process | None:
    holder = listener_of(home, claude)
    if holder is not None and holder != asked:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(holder.pid, signal.SIGTERM)
    return holder or asked


# Files and processes ------------------------------------------------------------------------


def run_folder(home: Path) -> Path:
    """The folder of all this, made if it is not there.

    Raises:
        InboxError: it cannot be made, is a link, or belongs to somebody else.
    """
    try:
        return files.private_folder(home, "run")
    except OSError as error:
        raise InboxError(f"cannot use {home / 'run'}: {error.strerror}") from None


def _private(file: Path, flags: int) -> IO[str]:
    try:
        handle = files.open_private(file, flags)
    except OSError as error:
        raise InboxError(f"cannot open {file}: {error.strerror}") from None
    return open(handle, "w" if flags & os.O_WRONLY else "r+", encoding="utf-8")


if sys.platform == "linux":

    def _names(pid: int) -> tuple[str, str]:
        name = program = ""
        with suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")
        with suppress(OSError):
            program = os.readlink(f"/proc/{pid}/exe")
        return name, program

    def arguments(pid: int) -> list[str]:
        """The command line of a process; empty where it cannot be seen."""
        try:
            data = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return []
        return [part.decode(errors="replace") for part in data.split(b"\0")]

    def variable(pid: int, name: str) -> str | None:
        """What a process found in its environment; None where it cannot be seen."""
        try:
            data = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return None
        for part in data.split(b"\0"):
            if part.startswith(f"{name}=".encode()):
                return os.fsdecode(part.partition(b"=")[2])
        return None

else:

    def _names(pid: int) -> tuple[str, str]:
        import psutil

        name = program = ""
        with suppress(psutil.Error):
            name = psutil.Process(pid).name()
        with suppress(psutil.Error):
            program = psutil.Process(pid).exe()
        return name, program

    def arguments(pid: int) -> list[str]:
        """The command line of a process; empty where it cannot be seen."""
        import psutil

        with suppress(psutil.Error):
            return psutil.Process(pid).cmdline()
        return []

    def variable(pid: int, name: str) -> str | None:
        """What a process found in its environment; None where it cannot be seen."""
        import psutil

        with suppress(psutil.Error):
            return psutil.Process(pid).environ().get(name)
        return None
