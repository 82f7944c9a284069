"""A relay that does what a test tells it to, one step at a time, on a real socket.

Nothing happens by itself: a connection waits in `accept` until the test takes it, and from
then on the test reads its frames and writes the answers, drops it, or leaves it in silence.

    async with ScriptedRelay() as relay, RelayClient(relay.settings()) as client:
        session = await relay.accept()
        sending = asyncio.create_task(client.send("bob", "hi"))
        frame = await session.receive(frames.Send)
        session.abort()
"""

import asyncio
import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from hoptell import frames
from hoptell.settings import PeerSettings

TOKEN = "scripted-relay-token"
F = TypeVar("F", bound=frames.ClientFrame)


class Session:
    """The relay's end of one connection."""

    def __init__(self, websocket: ServerConnection, hello: frames.Hello) -> None:
        self.websocket = websocket
        self.hello = hello

    async def receive(self, kind: type[F]) -> F:
        """The next frame, which must be of this kind."""
        frame = frames.decode_client_frame(await self.websocket.recv())
        assert isinstance(frame, kind), frame
        return frame

    async def send(self, frame: frames.RelayFrame | str | bytes) -> None:
        """Write a frame, or any text or binary frame as it is."""
        if isinstance(frame, str | bytes):
            await self.websocket.send(frame)
        else:
            await self.websocket.send(frames.encode(frame), text=True)

    async def ack(self, frame: frames.Send, reference: str = "ref", state: Any = "queued") -> None:
        await self.send(frames.Ack(frame.id, state, reference))

    async def deliver(self, id: str, text: str = "hello", **fields: Any) -> frames.Message:
        """Write a message from alice; `id` is the delivery's, `ref-<id>` its reference."""
        defaults: dict[str, Any] = {
            "message_id": f"ref-{id}",
            "sender": "alice",
            "host": "laptop",
            "to": self.hello.name,
            "ts": 1_700_000_000_000,
        }
        message = frames.Message(id, text=text, **(defaults | fields))
        await self.send(message)
        return message

    async def ping(self) -> None:
        """Ping and wait for the answer."""
        await (await self.websocket.ping())

    async def close(self, code: int = 1001, reason: str = "") -> None:
        await self.websocket.close(code, reason)

    def abort(self) -> None:
        """Cut the connection, as when the relay's machine loses power."""
        self.websocket.transport.abort()

    async def wait_closed(self) -> int | None:
        """Wait for the client to close; its close code."""
        try:
            while True:
                await self.websocket.recv()
        except ConnectionClosed as closed:
            return None if closed.rcvd is None else closed.rcvd.code


class ScriptedRelay:
    """Listens on a free port of 127.0.0.1, and on the same one again after `stop`."""

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        respond: Callable[[ServerConnection, Request], Response | None] | None = None,
    ) -> None:
        """`respond` may answer the HTTP request instead of opening a WebSocket."""
        self._tls = tls
        self._respond = respond
        self._server: Server | None = None
        self._waiting: asyncio.Queue[ServerConnection] = asyncio.Queue()
        self.port = 0

    @property
    def url(self) -> str:
        return f"{'wss' if self._tls else 'ws'}://127.0.0.1:{self.port}"

    def settings(self, name: str = "bob", **fields: Any) -> PeerSettings:
        return PeerSettings(**({"relay": self.url, "token": TOKEN, "name": name} | fields))

    def environ(self, name: str = "bob") -> dict[str, str]:
        """What a command needs in its environment to find this relay."""
        return {"HOPTELL_RELAY": self.url, "HOPTELL_TOKEN": TOKEN, "HOPTELL_NAME": name}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = await serve(
            self._handle,
            "127.0.0.1",
            self.port,
            ssl=self._tls,
            process_request=self._respond,
            compression=None,
            ping_interval=None,
            max_size=frames.MAX_FRAME_BYTES,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening, and cut every connection."""
        assert self._server is not None
        for websocket in self._server.connections:
            websocket.transport.abort()
        self._server.close()
        await self._server.wait_closed()

    async def connect(self) -> Session:
        """Take the next connection that stands as far as its hello; it is not let in yet."""
        while (websocket := await self._waiting.get()).close_code is not None:
            pass
        hello = frames.decode_client_frame(await websocket.recv())
        assert isinstance(hello, frames.Hello), hello
        return Session(websocket, hello)

    async def accept(self) -> Session:
        """Take the next connection and let it in."""
        session = await self.connect()
        await session.send(frames.Welcome(session.hello.name))
        return session

    async def _handle(self, websocket: ServerConnection) -> None:
        self._waiting.put_nowait(websocket)
        await websocket.wait_closed()


class Pauses:
    """A `sleep` that records how long it was asked to, and ends when the test says so."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self._begun: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def sleep(self, seconds: float) -> None:
        end = asyncio.Event()
        self.asked.append(seconds)
        self._begun.put_nowait(end)
        await end.wait()

    async def begun(self) -> Callable[[], None]:
        """Wait until a pause begins, and return what ends it."""
        return (await self._begun.get()).set

    async def skip(self) -> None:
        """Wait until a pause begins, and end it."""
        (await self.begun())()
