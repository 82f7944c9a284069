"""Waking Codex: `codex queue --thread THREAD --message NOTICE`.

An idle session starts a turn with the notice at once; a busy one gets it at the turn's end;
an open approval stays open. Which thread is ours, every tool call tells (`_meta.threadId`);
before the first one there is no way.

Exit code 0 proves no more than that the notice is queued: after an interrupted turn the queue
stands still until something else is queued, and nobody runs the queue of a thread that is not
loaded. So if nothing has been read some seconds later, the notice is queued once more, and
after that `stalled` says that this session has to be told otherwise.

The command is an argument list, never a shell's line. Codex's own executable, found among our
ancestors, is preferred to whatever PATH has, and gets the `CODEX_HOME` that Codex runs with.
"""

import asyncio
import logging
import os
import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from hoptell.errors import HoptellError
from hoptell.sidecar.wake import Notice

logger = logging.getLogger(__name__)

SECOND_WAIT = 8.0
"""Seconds after a notice was queued in which it should have been acted on."""
QUEUE_TIMEOUT = 20.0
"""Seconds that the command may take: a tenth, but 9 where Codex runs without its daemon."""
USUAL_FOLDERS = ("~/.local/bin", "/opt/homebrew/bin", "/usr/local/bin")

_is_thread = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{7,63}", re.ASCII).fullmatch


class NotWoken(HoptellError):
    """The notice could not be queued, or there is no thread yet to queue it for."""


class Codex(NamedTuple):
    """How to run Codex: its executable, and the environment that it is to get."""

    program: str
    environment: dict[str, str]


Queue = Callable[[str, str], Awaitable[None]]
"""Queue a notice for a thread; raises NotWoken."""


class CodexWake:
    """Wakes the Codex session whose thread the tool calls told.

    `unread` says whether messages wait that nobody has read.
    """

    def __init__(
        self,
        unread: Callable[[], bool],
        *,
        queue: Queue | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        on_thread: Callable[[], None] = lambda: None,
    ) -> None:
        self._unread = unread
        self._queue = queue or _queue
        self._sleep = sleep
        self._on_thread = on_thread
        self._thread: str | None = None
        self._follow_up: asyncio.Task[None] | None = None
        self._stalled = False

    @property
    def proven(self) -> bool:
        """Whether there is a thread to wake, and waking it has not failed."""
        return self._thread is not None and not self.stalled

    @property
    def stalled(self) -> bool:
        """Whether what was queued, twice, has moved nobody to read: queued, not woken."""
        self._stalled = self._stalled and self._unread()
        return self._stalled

    def learn(self, meta: object) -> None:
        """Take the thread from a tool call's `_meta`, if it has one."""
        thread = meta.get("threadId") if isinstance(meta, dict) else None
        if not isinstance(thread, str) or not _is_thread(thread):
            return
        if thread != self._thread:
            self._thread = thread
            self._on_thread()

    async def announce(self, notice: Notice) -> None:
        """Queue the notice, and once more if it is still unread some seconds later.

        Raises:
            NotWoken: no tool call has told the thread yet, or the command failed.
        """
        if self._thread is None:
            raise NotWoken("Codex has not called a tool yet, so its thread is not known")
        self.close()
        await self._queue(self._thread, str(notice))
        self._follow_up = asyncio.create_task(self._again(self._thread, notice))

    async def _again(self, thread: str, notice: Notice) -> None:
        await self._sleep(SECOND_WAIT)
        if not self._unread():
            return
        try:
            await self._queue(thread, str(notice))
        except NotWoken as error:
            logger.warning("%s", error)
        await self._sleep(SECOND_WAIT)
        if self._unread():
            self._stalled = True
            logger.warning("the notice is queued with Codex, but has not woken it")

    def close(self) -> None:
        """Give up on repeating the last notice."""
        if self._follow_up is not None:
            self._follow_up.cancel()
            self._follow_up = None


async def _queue(thread: str, message: str) -> None:
    codex = await asyncio.to_thread(find)
    if codex is None:
        raise NotWoken("cannot wake Codex: the codex command was not found, put it on PATH")
    await run(codex, "queue", "--thread", thread, "--message", message)


async def run(codex: Codex, *arguments: str) -> None:
    """Run a Codex command to its end.

    Raises:
        NotWoken: it cannot be started, fails, or takes too long.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            codex.program,
            *arguments,
            env=codex.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise NotWoken(f"cannot run {codex.program}: {error.strerror}") from None
    try:
        async with asyncio.timeout(QUEUE_TIMEOUT):
            _, said = await process.communicate()
    except TimeoutError:
        raise NotWoken(f"codex queue did not end within {QUEUE_TIMEOUT:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        reason = said.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
        raise NotWoken(f"codex queue failed ({process.returncode}): {ascii(reason[0][:200])}")


def find() -> Codex | None:
    """The Codex that this process runs beneath, else the one that is installed."""
    environment = dict(os.environ)
    if os.name == "posix":
        from hoptell.sidecar import registry

        for kin in registry.ancestors():
            name = os.path.basename(kin.program)
            if name.startswith("codex") and os.access(kin.program, os.X_OK):
                home = registry.variable(kin.process.pid, "CODEX_HOME")
                if home and "CODEX_HOME" not in environment:
                    environment["CODEX_HOME"] = home
                return Codex(kin.program, environment)
    folders = [str(Path(folder).expanduser()) for folder in USUAL_FOLDERS]
    path = os.pathsep.join([os.environ.get("PATH", ""), *folders])
    program = shutil.which("codex", path=path)
    # The command may be a script that looks for its interpreter on PATH.
    return Codex(program, {**environment, "PATH": path}) if program else None
