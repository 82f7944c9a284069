"""What the injector does and why it holds: one line in its window, one file for the doctor."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from hoptell import files, processes

WRITE_INTERVAL = 10.0
"""Seconds after which the file is written again though only numbers changed."""


class Status(msgspec.Struct):
    """The content of status.json; times are Unix times in seconds."""

    name: str
    pid: int
    """The injector's."""
    pane: str
    injector: str
    """Its identity; this and the next two are `str` of a `processes.Process`."""
    process: str
    """What tmux started in the pane."""
    agent: str = ""
    """The agent proper, once its screen was recognized."""
    connected: bool = False
    problem: str | None = None
    """Why it is not connected to the relay."""
    state: str = "starting"
    """What it does, or why it does not type what waits."""
    since: float = 0.0
    """When that began."""
    waiting: int = 0
    oldest_at: float | None = None
    """When the oldest waiting message was stored."""
    announced: int = 0
    """Messages that were announced and are not read yet."""
    updated_at: float = 0.0
    ended_at: float | None = None
    exit_status: int | None = None
    """The agent's, once it ended, where it is known."""
    last_words: list[str] = []
    """The last rows of its screen, if it failed."""


def agent_runs(status: Status) -> bool:
    """Whether the agent still runs, as far as can be seen from here."""
    return runs(status.process) and (not status.agent or runs(status.agent))


def runs(identity: str) -> bool:
    """Whether a process still runs, as far as can be seen from here."""
    process = processes.parse(identity)
    return process is not None and processes.is_alive(process) is not False


def read_status(folder: Path) -> Status | None:
    """The status in a session's folder; None if there is none that can be read."""
    try:
        return msgspec.json.decode((folder / "status.json").read_bytes(), type=Status)
    except (OSError, msgspec.DecodeError):
        return None


class Reporter:
    """Keeps one Status up to date on disk and in the window."""

    def __init__(self, status: Status, folder: Path, say: Callable[[str], object] = print) -> None:
        self.status = status
        self._file = folder / "status.json"
        self._say = say
        self._written_at = float("-inf")

    def update(
        self, *, connected: bool | None = None, problem: str | None = None, state: str | None = None
    ) -> None:
        """Take in what is given; write and say it if it is news."""
        status, news = self.status, list[str]()
        if connected is not None and (connected, problem) != (status.connected, status.problem):
            status.connected, status.problem = connected, problem
            news.append("online at the relay" if connected else f"not online: {problem}")
        if state is not None and state != status.state:
            status.state, status.since = state, time.time()
            waiting = f" ({status.waiting} waiting)" if status.waiting else ""
            news.append(state + waiting)
        if news or time.monotonic() - self._written_at > WRITE_INTERVAL:
            self.write()
        for text in news:
            self.tell(text)

    def write(self) -> None:
        """Replace the file; where the disk refuses, the window still tells."""
        self.status.updated_at = time.time()
        self._written_at = time.monotonic()
        with contextlib.suppress(OSError):
            files.replace(self._file, msgspec.json.encode(self.status))

    def tell(self, text: str) -> None:
        """Say it in the window, if there still is one."""
        with contextlib.suppress(OSError):
            self._say(f"{time.strftime('%H:%M:%S')}  {text}")
