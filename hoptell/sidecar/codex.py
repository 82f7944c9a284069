"""Waking Codex: `codex queue --thread THREAD --message NOTICE`.

An idle session starts a turn with the notice at once; a busy one gets it at the turn's end;
an open approval stays open. Which thread is ours, every tool call tells (`_meta.threadId`);
before the first one, as after `/clear`, Codex's daemon may (codex_daemon.py), else there is no way.

Exit code 0 proves no more than that the notice is queued. After the user has interrupted a
turn the queue stands still, whatever else is queued, and nobody runs the queue of a thread
that is not loaded. So a moment later we look: as long as our notice is unread, Codex's daemon
is asked over its control socket to start it, ours alone and nothing that the user has queued
(`thread/queue/start`, which refuses while a turn runs or an approval is open). Where there is
no daemon, or one that does not know this, the notice is queued once more. If that does not
help either, `stalled` says that this session has to be told otherwise.

The command is an argument list, never a shell's line. Codex's own executable, found among our
ancestors, is preferred to whatever PATH has, and gets the `CODEX_HOME` that Codex runs with.
"""

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from hoptell import processes
from hoptell.errors import HoptellError
from hoptell.programs import USUAL_FOLDERS, codex_home, find_program, search_path
from hoptell.sidecar import codex_daemon
from hoptell.sidecar.codex_daemon import CONTROL_SOCKET, Queued
from hoptell.sidecar.wake import Notice

logger = logging.getLogger(__name__)

FIRST_LOOK = 1.0
"""Seconds after a notice was queued in which an idle session has begun to act on it: 0.2."""
LOOK_INTERVAL = 8.0
READ_WAIT = 60.0
"""Seconds that a model may take to read, once its turn has begun with the notice."""
ALONE_WAIT = 12.0
"""Seconds in which a session without a daemon has looked into its queue: 5 to 9."""
MAX_LOOKS = 200
"""Half an hour; by then the reminders are over too."""
QUEUE_TIMEOUT = 20.0
"""Seconds that the command may take: a tenth, but 9 where Codex runs without its daemon."""
FIND_WAITS = (0.2, 0.5, 1.0, 2.0, 4.0)
"""Seconds before the daemon is asked for our thread, which it may still be starting."""

_is_thread = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{7,63}", re.ASCII).fullmatch


class NotWoken(HoptellError):
    """The notice could not be queued, or there is no thread yet to queue it for."""


class Codex(NamedTuple):
    """How to run Codex: its executable, and the environment that it is to get."""

    program: str
    environment: dict[str, str]


Act = Callable[[str, str], Awaitable[Any]]
"""What is done with a thread and a notice; raises HoptellError."""


class CodexWake:
    """Wakes the Codex session whose thread the tool calls told.

    `unread` says whether messages wait that nobody has read; `on_change` is called when the
    thread is known, and when `proven` has changed. `queue`, `start` and `find_thread` are what is
    asked of Codex, for tests.
    """

    def __init__(
        self,
        unread: Callable[[], bool],
        *,
        queue: Act | None = None,
        start: Act | None = None,
        find_thread: Callable[[bool], Awaitable[str | None]] | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._unread = unread
        self._queue = queue or _queue
        self._start = start or _start
        self._find_thread = find_thread or _find_thread
        self._sleep = sleep
        self._on_change = on_change
        self._thread: str | None = None
        self._looking: asyncio.Task[None] | None = None
        self._finding: asyncio.Task[None] | None = None
        self._stalled = False

    @property
    def proven(self) -> bool:
        """Whether there is a thread to wake, and waking it has not failed."""
        return self._thread is not None and not self.stalled

    @property
    def stalled(self) -> bool:
        """Whether what was queued has moved nobody to read: queued, not woken.

        Asked after every tool call, so that it is over once all is read.
        """
        if self._stalled and not self._unread():
            self._stalled = False
            self._on_change()
        return self._stalled

    def learn(self, meta: object) -> None:
        """Take the thread from a tool call's `_meta`, if it has one."""
        thread = meta.get("threadId") if isinstance(meta, dict) else None
        if isinstance(thread, str):
            self._take(thread)

    def _take(self, thread: str) -> None:
        if _is_thread(thread) and thread != self._thread:
            self._thread = thread
            self._on_change()

    def find(self) -> None:
        """Begin to look for the thread where no tool call has told it."""
        self._finding = asyncio.create_task(self._find())

    async def _find(self) -> None:
        for wait in FIND_WAITS:
            await self._sleep(wait)
            thread = None
            with suppress(HoptellError):
                thread = await self._find_thread(wait == FIND_WAITS[-1])
            if self._thread is not None:  # a tool call has told it meanwhile
                return
            if thread is not None:
                self._take(thread)
                return

    async def announce(self, notice: Notice) -> None:
        """Queue the notice, and see to it that it does not stay in the queue.

        Raises:
            NotWoken: no tool call has told the thread yet, or the command failed.
        """
        if self._thread is None:
            raise NotWoken("Codex has not called a tool yet, so its thread is not known")
        self._look_no_more()
        await self._queue(self._thread, str(notice))
        self._looking = asyncio.create_task(self._look(self._thread, str(notice)))

    async def _look(self, thread: str, notice: str) -> None:
        await self._sleep(FIRST_LOOK)
        for _ in range(MAX_LOOKS):
            if not self._unread():
                return
            try:
                if await self._start(thread, notice) is Queued.RAN:
                    await self._sleep(READ_WAIT)
                    self._stall_if_unread("the notice has reached Codex, but nobody has read")
                    return
            except HoptellError as error:
                logger.info("%s", error)
                await self._again(thread, notice)
                return
            await self._sleep(LOOK_INTERVAL)

    async def _again(self, thread: str, notice: str) -> None:
        await self._sleep(ALONE_WAIT)
        if not self._unread():
            return
        try:
            await self._queue(thread, notice)
        except HoptellError as error:
            logger.warning("%s", error)
        await self._sleep(ALONE_WAIT)
        self._stall_if_unread("the notice is queued with Codex, but has not woken it")

    def _stall_if_unread(self, why: str) -> None:
        if self._unread():
            self._stalled = True
            self._on_change()
            logger.warning(why)

    def close(self) -> None:
        """Look after nothing any longer."""
        self._look_no_more()
        if self._finding is not None:
            self._finding.cancel()
            self._finding = None

    def _look_no_more(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None


# What is asked of Codex -----------------------------------------------------------------------


async def _queue(thread: str, notice: str) -> None:
    codex = await asyncio.to_thread(find)
    if codex is None:
        raise NotWoken("cannot wake Codex: the codex command was not found, put it on PATH")
    await run(codex, "queue", "--thread", thread, "--message", notice)


async def _start(thread: str, notice: str) -> Queued:
    codex = await asyncio.to_thread(find)
    if codex is None:
        raise NotWoken("cannot look after Codex's queue: the codex command was not found")
    home = codex_home(codex.environment)
    if home is None:
        raise NotWoken("cannot look after Codex's queue: there is no home folder, set CODEX_HOME")
    return await codex_daemon.start_queued(home / CONTROL_SOCKET, thread, notice)


async def _find_thread(or_only: bool) -> str | None:
    control = await asyncio.to_thread(daemon)
    if control is None:
        return None
    began_at = processes.began_at(processes.current())
    return await codex_daemon.thread_begun_at(control, began_at, or_only=or_only)


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


async def left_alone() -> None:
    """Return once nobody is at Codex any more; where that cannot be seen, never."""
    control = await asyncio.to_thread(daemon)
    if control is None:
        await asyncio.Event().wait()
    else:
        await codex_daemon.left_alone(control)


def daemon() -> Path | None:
    """The control socket of Codex's daemon, if this process runs beneath that."""
    if os.name != "posix":
        return None
    from hoptell.sidecar import registry

    beneath = process()
    arguments = [] if beneath is None else registry.arguments(beneath.pid)
    if "app-server" not in arguments or not any(one.startswith("unix:") for one in arguments):
        return None
    codex = find()
    home = None if codex is None else codex_home(codex.environment)
    return None if home is None else home / CONTROL_SOCKET


def process(pid: int | None = None) -> processes.Process | None:
    """The Codex that a process, by default this one, runs beneath."""
    if os.name != "posix":
        return None
    from hoptell.sidecar import registry

    for kin in registry.ancestors(pid):
        if os.path.basename(kin.program).startswith("codex"):
            return kin.process
    return None


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
    program = find_program("codex", environ=environment, folders=USUAL_FOLDERS)
    # The command may be a script that looks for its interpreter on PATH.
    environment["PATH"] = search_path(environment, USUAL_FOLDERS)
    return Codex(program, environment) if program else None
