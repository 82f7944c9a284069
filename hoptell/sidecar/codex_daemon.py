"""What Codex's daemon tells, over its control socket: JSON-RPC in WebSocket frames.

Codex's terminal is a client of a daemon that it starts. The daemon runs the conversations, its
"threads", and for each its MCP servers, so us; and it goes on when the terminal ends. It does
not tell who looks at which thread. The kernel tells how many clients the daemon has (on Linux):
if there is none, nobody looks at any.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from hoptell.errors import HoptellError

CONTROL_SOCKET = Path("app-server-control", "app-server-control.sock")
"""Where the daemon listens, below CODEX_HOME."""
CONTROL_TIMEOUT = 5.0
ALONE_INTERVAL = 3.0
"""Seconds between looks whether the daemon has a client. The second look without one counts."""
BEGUN_BEFORE, BEGUN_AFTER = 2.0, 0.5
"""Seconds before and after a thread's MCP server began in which the thread itself did: 0.1."""
APART = 0.5
"""Seconds between two threads that are told from each other by when they began."""


class NotAnswered(HoptellError):
    """There is no daemon, or it does not know how."""


class Queued(Enum):
    """What became of a notice in the queue."""

    STARTED = "it stood still, and runs now"
    LATER = "a turn runs or an approval is open: it is next"
    RAN = "it is not in the queue any more"


class Ask(Protocol):
    """Asks the daemon one thing; returns the whole answer."""

    async def __call__(self, method: str, **parameters: object) -> Any: ...


async def start_queued(control: Path, thread: str, notice: str) -> Queued:
    """Have the notice started, if it is still in the thread's queue.

    Raises:
        NotAnswered: there is no daemon, or it does not know how.
    """
    async with _asking(control) as ask:
        listed = await ask("thread/queue/list", threadId=thread)
        ours = [
            entry["id"]
            for entry in listed["result"]["data"]
            if notice in (part.get("text") for part in entry["input"])
        ]
        if not ours:
            return Queued.RAN
        started = await ask("thread/queue/start", threadId=thread, queuedSubmissionId=ours[-1])
        if "error" not in started:
            return Queued.STARTED
        if "active" in str(started["error"].get("message")):
            return Queued.LATER
    raise NotAnswered("Codex's daemon does not start what is queued")


async def thread_begun_at(control: Path, time: float, *, or_only: bool = False) -> str | None:
    """The thread of a person's that began just before an MCP server of it did (Unix time);
    with `or_only` also one that is resumed, if there is no other. None if it is not sure.

    Other threads may be there already while the one asked for still starts.

    Raises:
        NotAnswered: there is no daemon, or it does not know how.
    """
    async with _asking(control) as ask:
        persons = [
            thread["id"]
            for thread in await _threads(ask)
            if not thread["ephemeral"]
            and not thread.get("parentThreadId")
            and thread.get("threadSource") in (None, "user")
        ]
    if or_only and len(persons) == 1:
        return str(persons[0])
    earliest, latest = time - BEGUN_BEFORE, time + BEGUN_AFTER
    found = sorted(
        (thread for thread in persons if earliest <= _begun_at(thread) <= latest), key=_begun_at
    )
    if not found or (found[1:] and _begun_at(found[-1]) - _begun_at(found[-2]) < APART):
        return None
    return str(found[-1])


async def left_alone(
    control: Path, *, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> None:
    """Return once nobody is at the daemon any more: it has no client, no turn runs, and it cannot
    be controlled from afar.
    """
    looks = 0
    while True:
        await sleep(ALONE_INTERVAL)
        looks = looks + 1 if clients(control) == 0 else 0
        if looks >= 2 and not await _is_in_use(control):
            return


def clients(control: Path) -> int | None:
    """How many are connected to the daemon's socket; None where that cannot be seen."""
    try:
        lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()
    except OSError:
        return None
    place = os.path.realpath(control)
    # Num RefCount Protocol Flags Type St Inode Path: the socket that listens has state 1, what
    # it has accepted has state 3 and the same path.
    sockets = [fields for line in lines if (fields := line.split(maxsplit=7))[7:] == [place]]
    states = [fields[5] for fields in sockets]
    return states.count("03") if "01" in states else None


async def _is_in_use(control: Path) -> bool:
    """Whether a turn runs, or somebody may be there from afar, as far as the daemon tells."""
    try:
        async with _asking(control) as ask:
            remote = (await ask("remoteControl/status/read")).get("result")
            if remote is not None and remote["status"] != "disabled":
                return True
            return any(one["status"]["type"] == "active" for one in await _threads(ask))
    except NotAnswered:
        return True


async def _threads(ask: Ask) -> list[Any]:
    loaded = (await ask("thread/loaded/list"))["result"]["data"]
    return [
        (await ask("thread/read", threadId=thread, includeTurns=False))["result"]["thread"]
        for thread in loaded
    ]


def _begun_at(thread: str) -> float:
    """The Unix time in a thread's id, which is a UUID of version 7."""
    digits = thread.replace("-", "")
    return int(digits[:12], 16) / 1000 if digits[12:13] == "7" else 0.0


@asynccontextmanager
async def _asking(control: Path) -> AsyncIterator[Ask]:
    """Connect; what goes wrong while asking becomes NotAnswered."""
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
            yield ask
    except (OSError, WebSocketException, InvalidHandshake) as error:
        raise NotAnswered(f"Codex's daemon cannot be asked: {type(error).__name__}") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise NotAnswered("Codex's daemon does not tell what it was asked") from None
