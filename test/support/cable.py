"""A TCP connection's way to the relay, which a test can cut, or which cuts itself.

async with Cable(relay.port) as cable:
    RelayClient(settings(cable.url))
    cable.swallow_answers()     # the relay still hears the client, the client hears nothing
    cable.cut()                 # both sides lose their connection without a word
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

_ENDLESS = 1 << 60


class Cable:
    """Forwards to a port of this machine."""

    def __init__(
        self,
        port: int,
        *,
        idle_limit: float | None = None,
        length: Callable[[], int] | None = None,
    ) -> None:
        """`idle_limit`: seconds without a byte after which it cuts, as some proxies do.
        `length` says of each connection after how many bytes for the relay it breaks.
        """
        self._port_behind = port
        self._idle_limit = idle_limit
        self._length = length
        self._ends: set[asyncio.StreamWriter] = set()
        self._swallow = False
        self.cuts = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"ws://127.0.0.1:{self.port}"
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        """Lose all connections at once; new ones work again in both directions."""
        self._swallow = False
        for end in self._ends:
            end.transport.abort()

    def swallow_answers(self) -> None:
        """From now on until the next cut, nothing that the relay says gets through."""
        self._swallow = True

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port_behind)
        ends = {writer, back}
        self._ends |= ends
        length = self._length() if self._length else _ENDLESS
        with suppress(OSError, TimeoutError):
            await asyncio.gather(
                self._copy(reader, back, length),
                self._copy(there, writer, _ENDLESS, answers=True),
            )
        self.cuts += 1
        self._ends -= ends
        for end in ends:
            end.transport.abort()

    async def _copy(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        length: int,
        *,
        answers: bool = False,
    ) -> None:
        while length:
            async with asyncio.timeout(self._idle_limit):
                data = await source.read(min(length, 65_536))
            if not data:
                break
            length -= len(data)
            if not (answers and self._swallow):
                target.write(data)
                await target.drain()
        raise ConnectionAbortedError  # ends the other direction too
