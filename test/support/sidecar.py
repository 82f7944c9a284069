"""A sidecar (`hoptell mcp`) as a process, driven over its real standard input and output.

As raw JSON-RPC, where the bytes matter:

    async with raw_sidecar(relay.for_peers(HOPTELL_NAME="alice")) as alice:
        await alice.handshake()
        call = await alice.start("tools/call", name="wait_for_message", arguments={})
        await alice.notify("notifications/cancelled", requestId=call.id)

And by the mcp package's own client, as an agent's program would:

    async with agent(relay.for_peers(HOPTELL_NAME="alice")) as alice:
        text = await alice.call("send_message", to="bob", message="hi")
        alice.kill()

Every wait ends after PATIENCE seconds, and no process outlives its context.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psutil
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

COMMAND = [sys.executable, "-m", "hoptell", "mcp"]
PATIENCE = 10.0
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "a test", "version": "0"},
}


class Call:
    """A request on its way."""

    def __init__(self, id: int) -> None:
        self.id = id
        self.reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    async def answer(self) -> dict[str, Any]:
        """The whole JSON-RPC answer."""
        async with asyncio.timeout(PATIENCE):
            return await asyncio.shield(self.reply)

    async def text(self) -> str:
        """The text of a tool's result that is no error."""
        result = (await self.answer())["result"]
        assert not result.get("isError"), result
        return text_of(result)


class RawSidecar:
    """The process, and the JSON-RPC lines that went over its pipes.

    Attributes:
        lines: everything that it wrote to standard output.
        stderr: everything that it wrote to standard error.
        notifications: what it sent unasked.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[bytes] = []
        self.stderr = ""
        self.notifications: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._calls: dict[int, Call] = {}
        self._last_id = 0
        self._readers = [
            asyncio.create_task(self._read_stdout()),
            asyncio.create_task(self._read_stderr()),
        ]

    @property
    def pid(self) -> int:
        return self.process.pid

    async def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        await self.process.stdin.drain()

    async def notify(self, method: str, **params: Any) -> None:
        await self._put({"method": method, "params": params})

    async def start(self, method: str, **params: Any) -> Call:
        """Send a request without waiting for its answer."""
        self._last_id += 1
        call = self._calls[self._last_id] = Call(self._last_id)
        await self._put({"id": call.id, "method": method, "params": params})
        return call

    async def request(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request, and return the whole answer."""
        return await (await self.start(method, **params)).answer()

    async def handshake(self, **initialize: Any) -> dict[str, Any]:
        """Introduce a client, and return the result of `initialize`."""
        answer = await self.request("initialize", **{**INITIALIZE, **initialize})
        await self.notify("notifications/initialized")
        result: dict[str, Any] = answer["result"]
        return result

    async def start_tool(self, tool: str, **arguments: Any) -> Call:
        return await self.start("tools/call", name=tool, arguments=arguments)

    async def result(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool, and return its result, be it an error or not."""
        answer = await (await self.start_tool(tool, **arguments)).answer()
        result: dict[str, Any] = answer["result"]
        return result

    async def call(self, tool: str, **arguments: Any) -> str:
        """Call a tool, and return the text of its result, which is no error."""
        return await (await self.start_tool(tool, **arguments)).text()

    async def cancel(self, call: Call) -> None:
        await self.notify("notifications/cancelled", requestId=call.id, reason="a test")

    async def notification(self) -> dict[str, Any]:
        """The next thing that it sends unasked."""
        async with asyncio.timeout(PATIENCE):
            return await self.notifications.get()

    async def close_stdin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        with contextlib.suppress(ConnectionError):
            await self.process.stdin.wait_closed()

    async def wait(self) -> int:
        """Its exit code, once it has ended and all that it wrote has been read."""
        async with asyncio.timeout(PATIENCE):
            code = await self.process.wait()
            await asyncio.gather(*self._readers)
            return code

    async def _put(self, message: dict[str, Any]) -> None:
        await self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def _read_stdout(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line)
            if line.endswith(b"\n"):  # else it was killed, and no client takes it
                with contextlib.suppress(ValueError):
                    self._take(json.loads(line))

    def _take(self, message: dict[str, Any]) -> None:
        if "method" in message:
            self.notifications.put_nowait(message)
        elif (call := self._calls.get(message.get("id", -1))) and not call.reply.done():
            call.reply.set_result(message)

    async def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.stderr += line.decode(errors="replace")


@contextlib.asynccontextmanager
async def raw_sidecar(
    environment: dict[str, str], *command: str, **options: Any
) -> AsyncIterator[RawSidecar]:
    """Start a sidecar (or `command`), and end it whatever happens."""
    process = await asyncio.create_subprocess_exec(
        *(command or COMMAND),
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        limit=1 << 24,
        **options,
    )
    sidecar = RawSidecar(process)
    try:
        yield sidecar
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await sidecar.wait()
        await sidecar.close_stdin()


class Agent:
    """An agent's program with its sidecar, which the mcp package started."""

    def __init__(self, session: ClientSession, pid: int) -> None:
        self.session = session
        self.pid = pid

    async def call(self, tool: str, **arguments: Any) -> str:
        """Call a tool, and return the text of its result, which is no error."""
        async with asyncio.timeout(PATIENCE):
            result = await self.session.call_tool(tool, arguments)
        text = result.content[0].text  # type: ignore[union-attr]
        assert not result.is_error, text
        return text

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def agent(environment: dict[str, str]) -> AsyncIterator[Agent]:
    """Start a sidecar through the mcp package's client, and initialize it."""
    parameters = StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], env=environment)
    before = {child.pid for child in psutil.Process().children()}
    with open(os.devnull, "w") as nowhere:
        async with stdio_client(parameters, errlog=nowhere) as streams:
            (pid,) = {child.pid for child in psutil.Process().children()} - before
            async with ClientSession(*streams) as session:
                await session.initialize()
                yield Agent(session, pid)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if the block takes longer."""
    began_at = time.monotonic()
    yield
    took = time.monotonic() - began_at
    assert took < seconds, f"it took {took:.2f} s"


def text_of(result: dict[str, Any]) -> str:
    (content,) = result["content"]
    text: str = content["text"]
    return text


def texts_in(answer: str) -> list[str]:
    """The texts of the messages that a tool's answer shows, without their frames."""
    texts = []
    for frame in answer.split(" begins]\n")[1:]:
        body = frame.split("\n\n", 1)[1]
        texts.append(body.split("\n[hoptell message")[0])
    return texts
