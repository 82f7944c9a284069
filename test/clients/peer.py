"""A peer of the test itself: online in a thread, driven by plain calls."""

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from hoptell.client import RelayClient
from hoptell.frames import Ack, Message, PeerInfo
from hoptell.settings import PeerSettings

Result = TypeVar("Result")


class Peer:
    """Sends at once and keeps what arrives, in `received`. A context manager."""

    def __init__(self, name: str, *, relay: str, token: str, home: Path) -> None:
        self.name = name
        self.received: list[Message] = []
        self._settings = PeerSettings(relay=relay, token=token, name=name, home=home)
        self._loop = asyncio.new_event_loop()
        self._news = threading.Condition()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._run()))

    def __enter__(self) -> "Peer":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(10)
        self._loop.close()

    async def _run(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        try:
            async with RelayClient(self._settings) as self._client:
                await self._client.wait_connected(10)
                self._ready.set()
                async for delivery in self._client:
                    await delivery.confirm()
                    with self._news:
                        self.received.append(delivery.message)
                        self._news.notify_all()
        except asyncio.CancelledError:
            pass

    def _do(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def send(self, to: str, text: str, **more: Any) -> Ack:
        return self._do(self._client.send(to, text, **more))

    def peers(self) -> dict[str, PeerInfo]:
        return {peer.name: peer for peer in self._do(self._client.list_peers())}

    def wait(self, count: int, *, timeout: float = 20) -> list[Message]:
        """What arrived, once that is `count` messages or more."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.received) >= count, timeout), self.received
            return list(self.received)
