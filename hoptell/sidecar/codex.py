"""Waking Codex: `codex queue --thread THREAD --message NOTICE`.

An idle session starts a turn with the notice at once; a busy one gets it at the turn's end;
an open approval stays open. Which thread is ours, every tool call tells (`_meta.threadId`);
before the first one there is no way.

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
import json
import logging
import os
import re
from collections.abc import Awaitable, Callable
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from hoptell.errors import HoptellError
from hoptell.programs import USUAL_FOLDERS, codex_home, find_program, search_path
from hoptell.sidecar.wake import Notice

logger = logging.getLogger(__name__)

FIRST_LOOK = 1.0
"""Seconds after a notice was queued in which an idle session has begun to act on it: 0.2."""
LOOK_INTERVAL = 8.0
ALONE_WAIT = 12.0
"""Seconds in which a session without a daemon has looked into its queue: 5 to 9."""
MAX_LOOKS = 200
"""Half an hour; by then the reminders are over too."""
QUEUE_TIMEOUT = 20.0
"""Seconds that the command may take: a tenth, but 9 where Codex runs without its daemon."""
CONTROL_TIMEOUT = 5.0
CONTROL_SOCKET = Path("app-server-control", "app-server-control.sock")
"""Where Codex's daemon listens, below CODEX_HOME."""

_is_thread = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{7,63}", re.ASCII).fullmatch


class NotWoken(HoptellError):
    """The notice could not be queued or started, or there is no thread yet to queue it for."""


class Codex(NamedTuple):
    """How to run Codex: its executable, and the environment that it is to get."""

    program: str
    environment: dict[str, str]


class Queued(Enum):
    """What became of a notice in the queue."""

    STARTED = "it stood still, and runs now"
    LATER = "a turn runs or an approval is open: it is next"
    RAN = "it is not in the queue any more"


Act = Callable[[str, str], Awaitable[Any]]
"""What is done with a thread and a notice; raises NotWoken."""


class CodexWake:
    """Wakes the Codex session whose thread the tool calls told.

    `unread` says whether messages wait that nobody has read; `on_change` is called when the
    thread is known, and when `proven` has changed. `queue` and `start` are what is asked of
    Codex, for tests.
    """

    def __init__(
        self,
        unread: Callable[[], bool],
        *,
        queue: Act | None = None,
        start: Act | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._unread = unread
        self._queue = queue or _queue
        self._start = start or _start
        self._sleep = sleep
        self._on_change = on_change
        self._thread: str | None = None
        self._looking: asyncio.Task[None] | None = None
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
        if not isinstance(thread, str) or not _is_thread(thread):
            return
        if thread != self._thread:
            self._thread = thread
            self._on_change()

    async def announce(self, notice: Notice) -> None:
        """Queue the notice, and see to it that it does not stay in the queue.

        Raises:
            NotWoken: no tool call has told the thread yet, or the command failed.
        """
        if self._thread is None:
            raise NotWoken("Codex has not called a tool yet, so its thread is not known")
        self.close()
        await self._queue(self._thread, str(notice))
        self._looking = asyncio.create_task(self._look(self._thread, str(notice)))

    async def _look(self, thread: str, notice: str) -> None:
        await self._sleep(FIRST_LOOK)
        for _ in range(MAX_LOOKS):
            if not self._unread():
                return
            try:
                if await self._start(thread, notice) is Queued.RAN:
                    return
            except NotWoken as error:
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
        except NotWoken as error:
            logger.warning("%s", error)
        await self._sleep(ALONE_WAIT)
        if self._unread():
            self._stalled = True
            self._on_change()
            logger.warning("the notice is queued with Codex, but has not woken it")

    def close(self) -> None:
        """Look after the last notice no longer."""
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
    return await start_queued(home / CONTROL_SOCKET, thread, notice)


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


async def start_queued(control: Path, thread: str, notice: str) -> Queued:
    """Ask Codex's daemon to start the notice, if it is still in the thread's queue.

    Raises:
        NotWoken: there is no daemon, or it does not know how.
    """
    from websockets.asyncio.client import unix_connect
    from websockets.exceptions import InvalidHandshake, WebSocketException

    try:
        async with (
            asyncio.timeout(CONTROL_TIMEOUT),
            unix_connect(str(control), "ws://localhost/", compression=None) as connection,
        ):

            async def ask(method: str, **parameters: object) -> Any:
                await connection.send(
                    json.dumps({"id": method, "method": method, "params": parameters})
                )
                while True:
                    answer = json.loads(await connection.recv())
                    if answer.get("id") == method and "method" not in answer:
                        return answer

            client = {"name": "hoptell", "version": "1"}
            await ask("initialize", clientInfo=client, capabilities={"experimentalApi": True})
            await connection.send(json.dumps({"method": "initialized"}))
            listed = await ask("thread/queue/list", threadId=thread)
            ours = [
                entry["id"]
                for entry in listed["result"]["data"]
                if notice in (part.get("text") for part in entry["input"])
            ]
            if not ours:
                return Queued.RAN
            started = await ask("thread/queue/start", threadId=thread, queuedSubmissionId=ours[-1])
    except (OSError, WebSocketException, InvalidHandshake) as error:
        raise NotWoken(f"Codex's daemon cannot be asked: {type(error).__name__}") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise NotWoken("Codex's daemon does not tell what is queued") from None
    if "error" not in started:
        return Queued.STARTED
    if "active" in str(started["error"].get("message")):
        return Queued.LATER
    raise NotWoken("Codex's daemon does not start what is queued")


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
