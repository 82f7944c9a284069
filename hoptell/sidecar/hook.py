"""The listener that Claude Code runs as a hook: it waits, and its end wakes the session.

Claude Code runs `asyncRewake` hooks beside the session and wakes it, even when idle, with
what a hook wrote to standard error before it exited 2. So this process connects to the
sidecar of the same session (registry.py) and blocks until the sidecar has something to
announce. It reads no inbox and keeps no schedule: the sidecar decides, since only the sidecar
knows what has been read.

It blocks in one `select` on the sidecar's socket, on Claude Code's death and on signals: no
timer, no CPU. It leaves when Claude Code is gone, when another listener took over, or when
the sidecar is gone and no other one has come (Claude Code starts a new one on /mcp).

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
"""Seconds after the end of a sidecar in which another may take its place."""
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
        self._leave_at: float | None = None

    def run(self) -> str | None:
        """Go from sidecar to sidecar until there is a notice or a reason to leave."""
        while True:
            sidecar = self._connect()
            if sidecar is None:
                if not self._until(self._news):
                    return None
                self._drain()
                continue
            with sidecar:
                notice = self._hear(sidecar)
            if notice is not None:
                return notice
            if self._is_orphan():
                return None
            self._leave_at = time.monotonic() + SUCCESSOR_TIMEOUT

    def _connect(self) -> socket.socket | None:
        for registration in registry.sidecars(self._home, self._claude):
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(registration.socket))
                connection.sendall(HELLO)
            except OSError:
                connection.close()
                continue
            self._leave_at = None
            return connection
        return None

    def _hear(self, sidecar: socket.socket) -> str | None:
        """The sidecar's notice; None once the sidecar or a parent is gone."""
        data = b""
        while self._until(sidecar):
            try:
                part = sidecar.recv(MAX_NOTICE_BYTES)
            except OSError:
                return None
            data += part
            if data.endswith(b"\n"):
                # From here on the sidecar may count it as announced: nothing may stop us.
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
                with suppress(OSError):
                    sidecar.sendall(TAKEN)
                return data.decode(errors="replace").strip()
            if not part or len(data) > MAX_NOTICE_BYTES:
                return None
        return None

    def _until(self, wanted: socket.socket) -> bool:
        """Wait for `wanted`; False once a parent is gone or it is time to leave."""
        sources: list[_Readable] = [wanted, self._news, *self._deaths]
        while True:
            ready, _, _ = select.select(sources, [], [], self._timeout())
            if wanted in ready:
                return True
            if self._news in ready:
                self._drain()
            if self._is_orphan():
                return False
            if self._leave_at is not None and time.monotonic() >= self._leave_at:
                return False

    def _timeout(self) -> float | None:
        if self._leave_at is not None:
            return max(0.0, self._leave_at - time.monotonic())
        return None if self._sees_deaths else 5.0

    def _is_orphan(self) -> bool:
        """Whether Claude Code, or what would tell it of our end, is gone."""
        return not all(processes.is_alive(parent) for parent in self._parents)

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            while self._news.recv(64):
                pass


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
