"""The listener that Claude Code runs as a hook: it waits, and its end wakes the session.

Claude Code runs `asyncRewake` hooks beside the session and wakes it, even when idle, with
what a hook wrote to standard error before it exited 2. So this process connects to the
sidecar of the same session (registry.py), or to all of them if there are several, and blocks
until one has something to announce. It reads no inbox and keeps no schedule: the sidecar
decides, since only the sidecar knows what has been read.

It blocks in one `select` on the sidecars' sockets, on Claude Code's death and on signals: no
timer, no CPU. It leaves when Claude Code is gone, when another listener took over, or when
the last sidecar is gone and no other one has come (Claude Code starts a new one on /mcp).

What started it for Claude Code (a shell, uvx) hands its exit code on. Once one of these is gone
nobody learns of it any more, so it leaves then too, and the next hook's listener is heard.
"""

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from hoptell import processes
from hoptell.processes import Process
from hoptell.sidecar import registry

SUCCESSOR_TIMEOUT = 10.0
"""Seconds after the end of the last sidecar in which another may take its place."""
TAKES_OVER = ("SessionStart",)
"""Hook events whose listener replaces one that is there. Listeners outlive /clear and still
wake the session, but nothing promises that they do after every way of starting one anew."""
HELLO = b"hoptell-listener 1\n"
TAKEN = b"taken\n"
MAX_NOTICE_BYTES = 65_536


class _Readable(Protocol):
    def fileno(self) -> int: ...


def listen(home: Path, claude: Process, *, take_over: bool) -> str | None:
    """Wait until the sidecar of this session announces something, and return its notice.

    None: there is nothing to wait for, since another listener is there, or Claude Code, what
    started us for it, or the sidecar has gone. The caller must exit at once with what it is
    told: the sidecar counts a notice that was returned as announced, and SIGTERM is blocked
    from then on.

    Raises:
        InboxError: the state folder cannot be used.
    """
    with _signals() as news:
        parents = registry.parents_up_to(claude)
        if not parents:
            return None
        lock = registry.lock_listener(home, claude, take_over=take_over)
        if lock is None:
            return None
        with lock, ExitStack() as stack:
            deaths = [stack.enter_context(_death_of(parent)) for parent in parents]
            return _Wait(home, parents, news, deaths).run()


class _Sidecar:
    """The connection to one sidecar, and what it has said so far."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.is_gone = False
        self._said = b""

    def fileno(self) -> int:
        return self.connection.fileno()

    def hear(self) -> str | None:
        """Read what there is, without waiting: the notice, once it is whole.

        The sidecar may count it as announced from here on: nothing may stop us any more.
        """
        try:
            part = self.connection.recv(MAX_NOTICE_BYTES)
        except OSError:
            part = b""
        self._said += part
        if self._said.endswith(b"\n"):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
            with suppress(OSError):
                self.connection.sendall(TAKEN)
            return self._said.decode(errors="replace").strip()
        self.is_gone = not part or len(self._said) > MAX_NOTICE_BYTES
        return None


class _Wait:
    def __init__(
        self,
        home: Path,
        parents: list[Process],
        news: socket.socket,
        deaths: list[_Readable | None],
    ) -> None:
        self._home = home
        self._parents = parents
        self._claude = parents[-1]
        self._news = news
        self._deaths = [death for death in deaths if death is not None]
        self._sees_deaths = None not in deaths
        self._sidecars: dict[Path, _Sidecar] = {}
        """By their sockets."""
        self._leave_at: float | None = None

    def run(self) -> str | None:
        """Hear every sidecar until one has a notice or there is a reason to leave."""
        try:
            while True:
                self._connect()
                ready = self._select()
                for place, sidecar in list(self._sidecars.items()):
                    if sidecar in ready and (notice := sidecar.hear()) is not None:
                        return notice
                    if sidecar.is_gone:
                        self._close(place)
                if self._is_orphan() or self._is_late():
                    return None
        finally:
            for place in list(self._sidecars):
                self._close(place)

    def _connect(self) -> None:
        """Connect to the sidecars that have come."""
        for registration in registry.sidecars(self._home, self._claude):
            if registration.socket in self._sidecars:
                continue
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(registration.socket))
                connection.sendall(HELLO)
            except OSError:
                connection.close()
            else:
                self._sidecars[registration.socket] = _Sidecar(connection)
        if self._sidecars:
            self._leave_at = None

    def _close(self, place: Path) -> None:
        self._sidecars.pop(place).connection.close()
        if not self._sidecars:
            self._leave_at = time.monotonic() + SUCCESSOR_TIMEOUT

    def _select(self) -> list[_Readable]:
        """Wait for a sidecar, for a signal, for the end of a parent, or until it is late."""
        sources: list[_Readable] = [self._news, *self._deaths, *self._sidecars.values()]
        ready, _, _ = select.select(sources, [], [], self._timeout())
        with suppress(BlockingIOError):
            while self._news.recv(64):
                pass
        return ready

    def _timeout(self) -> float | None:
        if self._leave_at is not None:
            return max(0.0, self._leave_at - time.monotonic())
        return None if self._sees_deaths else 5.0

    def _is_late(self) -> bool:
        return self._leave_at is not None and time.monotonic() >= self._leave_at

    def _is_orphan(self) -> bool:
        """Whether Claude Code, or what would tell it of our end, is gone."""
        return not all(processes.is_alive(parent) for parent in self._parents)


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """A socket that gets readable when the sidecar signals, so that no signal is missed."""
    ours, pythons = socket.socketpair()
    ours.setblocking(False)
    pythons.setblocking(False)
    before = signal.signal(registry.NEWS, lambda number, frame: None)
    fd_before = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
    try:
        yield ours
    finally:
        signal.set_wakeup_fd(fd_before)
        signal.signal(registry.NEWS, before)
        ours.close()
        pythons.close()


@contextmanager
def _death_of(process: Process) -> Iterator[_Readable | None]:
    """Something that gets readable when `process` ends; None where the system has no such."""
    if sys.platform == "linux":
        try:
            handle = os.pidfd_open(process.pid)
        except OSError:  # no such process any more, or a kernel before 5.3
            yield None
            return
        with open(handle, "rb", buffering=0) as file:
            yield file
    elif hasattr(select, "kqueue"):
        with select.kqueue() as queue:
            event = select.kevent(
                process.pid,
                filter=select.KQ_FILTER_PROC,
                flags=select.KQ_EV_ADD | select.KQ_EV_ONESHOT,
                fflags=select.KQ_NOTE_EXIT,
            )
            try:
                queue.control([event], 0)
            except OSError:
                yield None
                return
            yield queue
    else:
        yield None
