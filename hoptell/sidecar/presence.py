"""What a running sidecar says of itself to `hoptell doctor`.

    $HOPTELL_HOME/run/session.<sidecar>   JSON (0600): peer name, wake mode, what was announced

Written when something changes, removed at the end; one whose process is gone counts for
nothing, and the next sidecar removes it. Nothing waits for it, and where it cannot be written
the sidecar goes on without.
"""

import contextlib
import time
from pathlib import Path

import msgspec

from hoptell import files, processes
from hoptell.errors import InboxError
from hoptell.processes import Process
from hoptell.sidecar.wake import Notice, Wake


class Session(msgspec.Struct):
    """One running sidecar; times are Unix times in seconds."""

    name: str
    """The peer name."""
    started_at: float
    mode: str = ""
    """How this session is woken, one of the wake modes."""
    proven: bool = False
    """Whether that has shown that it works here."""
    announced_at: float | None = None
    """When it was last told that messages wait."""
    failure: str | None = None
    """Why the last announcement did not get through."""


class Presence:
    """Keeps the file of this process's session up to date, and is the `Wake` that notes it.

    Without a state folder, `home`, there is no file.
    """

    def __init__(self, home: Path | None, name: str, wake: Wake) -> None:
        self._wake = wake
        self._session = Session(name, time.time())
        self._file = None if home is None else home / "run" / f"session.{processes.current()}"
        self._written: Session | None = None

    def update(self, mode: str, proven: bool) -> None:
        """Say how the session is woken."""
        self._session.mode, self._session.proven = mode, proven
        self._write()

    async def announce(self, notice: Notice) -> None:
        """Announce as the session's way of waking does, and note what became of it."""
        try:
            await self._wake.announce(notice)
        except Exception as error:
            self._session.failure = str(error)
            self._write()
            raise
        self._session.announced_at, self._session.failure = time.time(), None
        self._write()

    def _write(self) -> None:
        if self._file is None or self._session == self._written:
            return
        with contextlib.suppress(OSError, InboxError):
            folder = files.private_folder(self._file.parent.parent, self._file.parent.name)
            if self._written is None:
                _sweep(folder)
            files.replace(self._file, msgspec.json.encode(self._session))
            self._written = msgspec.structs.replace(self._session)

    def close(self) -> None:
        """The session ends."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()


def sessions(home: Path) -> list[tuple[Process, Session]]:
    """The running sidecars of this state folder, the oldest first; changes nothing."""
    found = []
    for file in _files(home / "run"):
        process = processes.parse(file.name.partition(".")[2])
        if process is None or processes.is_alive(process) is False:
            continue
        with contextlib.suppress(OSError, msgspec.DecodeError):
            found.append((process, msgspec.json.decode(file.read_bytes(), type=Session)))
    return sorted(found, key=lambda one: one[1].started_at)


def _files(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [file for file in folder.iterdir() if file.name.startswith("session.")]
    return []


def _sweep(folder: Path) -> None:
    for file in _files(folder):
        process = processes.parse(file.name.partition(".")[2])
        if process is not None and processes.is_alive(process) is False:
            with contextlib.suppress(OSError):
                file.unlink()
