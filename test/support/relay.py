"""A real relay for tests, in this process or as one of its own, and raw clients of it.

In this process, on a free port, with whatever the test wants to set:

    async with running_relay(rate=Rate(3, 10)) as relay:
        alice = await relay.login("alice")
        await alice.send(type="send", id=1, to="bob", text="hi")
        assert (await alice.receive())["type"] == "error"
        relay.events("refused")                     # the log, as dicts

As a process (`hoptell relay`), which can be stopped, killed and started again:

    with relay_process(tmp_path) as relay:          # relay.environment: for other commands
        async with running_client(relay.url) ...
        relay.kill(); relay.start()                 # the same port, token and settings
        assert relay.stop() == 0

Both have `url`, `port` and `token`. Clients speak raw frames as dicts, and every wait of theirs
ends after PATIENCE seconds.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from hoptell.relay.credentials import Credentials
from hoptell.relay.listening import listen
from hoptell.relay.log import EventLog
from hoptell.relay.model import Limits
from hoptell.relay.server import RelayServer, Timing
from hoptell.settings import Rate, RelaySettings, relay_url

TOKEN = "a-token-for-tests-only"
PATIENCE = 5.0


class Client:
    """A WebSocket to a relay, without any of hoptell's client."""

    def __init__(self, websocket: ClientConnection) -> None:
        self.websocket = websocket

    async def send(self, **frame: Any) -> None:
        await self.websocket.send(json.dumps(frame))

    async def receive(self) -> dict[str, Any]:
        """The next frame."""
        async with asyncio.timeout(PATIENCE):
            frame: dict[str, Any] = json.loads(await self.websocket.recv())
            return frame

    async def receive_type(self, type: str) -> dict[str, Any]:
        """The next frame of this type; others before it are dropped."""
        while (frame := await self.receive())["type"] != type:
            pass
        return frame

    async def ask(self, **frame: Any) -> dict[str, Any]:
        """Send a request, and return the next frame."""
        await self.send(**frame)
        return await self.receive()

    async def got(self, message: dict[str, Any]) -> None:
        await self.send(type="got", id=message["id"])

    async def close_code(self) -> int | None:
        """Wait until the relay closes this connection; 1006 if it did without a close frame."""
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(ConnectionClosed):
                while True:
                    await self.websocket.recv()
            return self.websocket.close_code

    @property
    def close_reason(self) -> str | None:
        return self.websocket.close_reason

    async def close(self) -> None:
        await self.websocket.close()

    def abort(self) -> None:
        """Lose the connection, without a word."""
        self.websocket.transport.abort()


async def open_client(url: str, **options: Any) -> Client:
    """Connect without a hello."""
    options = {"compression": None, "proxy": None, "max_size": None} | options
    return Client(await connect(url, **options).__aenter__())


async def login(url: str, name: str, token: str = TOKEN, **hello: Any) -> Client:
    """Connect and log in."""
    client = await open_client(url)
    answer = await client.ask(type="hello", name=name, token=token, **hello)
    assert answer == {"type": "welcome", "name": name}, answer
    return client


class RunningRelay:
    """A relay in this process."""

    def __init__(self, server: RelayServer, token: str, output: list[bytes]) -> None:
        self.server = server
        self.token = token
        host, self.port = server.addresses[0]
        self.url = relay_url(host, self.port, tls=server._settings.tls_cert is not None)
        self._output = output
        self._clients: list[Client] = []

    async def open(self, **options: Any) -> Client:
        """Connect without a hello; closed with the relay."""
        client = await open_client(self.url, **options)
        self._clients.append(client)
        return client

    async def login(self, name: str, token: str | None = None, **hello: Any) -> Client:
        """Connect and log in; closed with the relay."""
        client = await login(self.url, name, token or self.token, **hello)
        self._clients.append(client)
        return client

    def events(self, event: str | None = None) -> list[dict[str, Any]]:
        """The log so far, or one kind of event of it."""
        self.server._log.flush()  # a relay writes it some times a second only
        lines = [json.loads(line) for line in b"".join(self._output).splitlines()]
        return [line for line in lines if event in (None, line["event"])]

    async def event(self, event: str) -> dict[str, Any]:
        """The first event of this kind, as soon as there is one."""
        async with asyncio.timeout(PATIENCE):
            while not (found := self.events(event)):
                await asyncio.sleep(0.005)
            return found[0]

    async def close_clients(self) -> None:
        for client in self._clients:
            client.abort()
            await client.websocket.wait_closed()


@contextlib.asynccontextmanager
async def running_relay(
    *,
    token: str = TOKEN,
    members: Path | None = None,
    host: str = "127.0.0.1",
    rate: Rate | None = None,
    limits: Limits | None = None,
    timing: Timing | None = None,
    journal: Path | None = None,
    tls: tuple[Path, Path] | None = None,
) -> AsyncIterator[RunningRelay]:
    """Start a relay on a free port, and stop it; the default has no limit of the rate."""
    certificate, key = tls or (None, None)
    settings = RelaySettings(
        host, 0, token or None, members, rate or Rate(0), journal, certificate, key
    )
    output: list[bytes] = []
    log = EventLog(output.append, "json")
    server = RelayServer(settings, Credentials.load(settings), log, limits=limits, timing=timing)
    await server.start(listen(host, 0))
    relay = RunningRelay(server, token, output)
    try:
        yield relay
    finally:
        await relay.close_clients()
        await server.stop()


class RelayProcess:
    """`hoptell relay` as a process. Its settings live in `folder`, nothing comes from outside."""

    def __init__(
        self, folder: Path, *options: str, token: str | None = TOKEN, **environment: str
    ) -> None:
        self.token = token
        self.port = 0
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._reader: threading.Thread | None = None
        home = folder / "home"
        home.mkdir(exist_ok=True)
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / ".config"),
            **({"HOPTELL_TOKEN": token} if token else {}),
            **environment,
        }
        """What a command needs to find this relay, but HOPTELL_RELAY; see `for_peers`."""

    @property
    def url(self) -> str:
        return relay_url("127.0.0.1", self.port)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def for_peers(self, **environment: str) -> dict[str, str]:
        """The environment for a peer's command."""
        return {**self.environment, "HOPTELL_RELAY": self.url, **environment}

    def start(self) -> "RelayProcess":
        """Start it, on the port that it had before if any, and wait until it listens."""
        options = self.options
        if "--port" not in options:
            options = ("--port", str(self.port), *options)
        self._lines = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hoptell", "relay", *options],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        line = self.wait_for("listening")
        self.port = int(line.rpartition(":")[2].rstrip('"}'))
        return self

    def lines(self) -> list[str]:
        """What it has written to standard error so far."""
        with self._news:
            return list(self._lines)

    def wait_for(self, text: str) -> str:
        """The first line of standard error that contains `text`, as soon as there is one."""
        deadline = time.monotonic() + 2 * PATIENCE
        with self._news:
            while True:
                for line in self._lines:
                    if text in line:
                        return line
                left = deadline - time.monotonic()
                if left <= 0 or (self._reader is not None and not self._reader.is_alive()):
                    raise AssertionError(f"no {text!r} in:\n" + "\n".join(self._lines))
                self._news.wait(min(left, 0.1))

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit code, once it has ended; all of its lines are there then."""
        assert self.process is not None and self._reader is not None
        code = self.process.wait(2 * PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def stop(self) -> int:
        """End it by SIGTERM, and return its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """End it by SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.wait()

    def _read(self) -> None:
        assert self.process is not None and self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                with self._news:
                    self._lines.append(line.decode(errors="replace").rstrip("\n"))
                    self._news.notify_all()


@contextlib.contextmanager
def relay_process(
    folder: Path, *options: str, token: str | None = TOKEN, **environment: str
) -> Iterator[RelayProcess]:
    """Start `hoptell relay` with these options and variables, and end it whatever happens."""
    relay = RelayProcess(folder, *options, token=token, **environment)
    try:
        yield relay.start()
    finally:
        if relay.process is not None:
            if relay.process.poll() is None:
                relay.process.kill()
            relay.wait()
