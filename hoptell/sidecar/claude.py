"""Waking Claude Code from its sidecar: by the listener of its hooks (channel.py is the other way).

The listener (hook.py) connects to a socket of ours, and that it is there proves that this
session can be woken: nothing else could have connected. An announcement is made when the
listener has said that it took it. Between a wake-up and the next prompt there is none; an
announcement then fails, and `on_listener` is called as soon as one is there again.

Claude Code may run several sidecars beside one session. The listener hears all of them and
wakes for any; a notice then says whose messages they are.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from hoptell.errors import HoptellError
from hoptell.processes import Process
from hoptell.programs import PLUGIN, SERVER
from hoptell.sidecar import hook, registry
from hoptell.sidecar.wake import Notice

TAKEN_TIMEOUT = 2.0


class NotListening(HoptellError):
    """No listener is there to wake this session at the moment."""


class HookWake:
    """Wakes Claude Code through the listener of its hooks. An async context manager.

    `name` is the peer's. `on_listener` is called whenever a listener has come.
    """

    def __init__(
        self,
        home: Path,
        claude: Process,
        name: str,
        on_listener: Callable[[], None] = lambda: None,
    ) -> None:
        self._home = home
        self._claude = claude
        self._name = name
        self._on_listener = on_listener
        self._listener: _Listener | None = None
        self._arrived = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._registration: registry.Registration | None = None

    @property
    def proven(self) -> bool:
        """Whether a listener of this session has ever been here."""
        return self._arrived.is_set()

    async def wait_proven(self, timeout: float) -> bool:
        """Give the listener, which Claude Code starts at the same moment, time to come."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._arrived.wait()
        return self.proven

    async def __aenter__(self) -> Self:
        registry.sweep(self._home)
        await self._open()
        return self

    async def _open(self) -> None:
        """Listen on a socket, and say where."""
        path = registry.new_socket_path(self._home)
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._accept, path)
        path.chmod(0o600)
        self._registration = registry.register(self._home, self._claude, self._name, path)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()
        if self._listener is not None:
            self._listener.writer.close()

    def _close(self) -> None:
        assert self._server is not None and self._registration is not None
        self._registration.file.unlink(missing_ok=True)
        self._server.close()
        socket = self._registration.socket
        socket.unlink(missing_ok=True)
        if socket.parent != self._registration.file.parent:
            with suppress(OSError):
                socket.parent.rmdir()

    async def _come_back(self) -> None:
        """Be found again, if somebody removed the state folder meanwhile; tells a listener."""
        assert self._registration is not None
        if self._registration.file.exists() and self._registration.socket.exists():
            return
        with suppress(HoptellError, OSError):
            self._close()
            await self._open()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError):
            if await reader.readline() == hook.HELLO:
                await self._keep(_Listener(reader, writer))
        writer.close()

    async def _keep(self, listener: "_Listener") -> None:
        """Hold the newest listener until it is used or gone."""
        if self._listener is not None:
            self._listener.writer.close()
        self._listener = listener
        self._arrived.set()
        self._on_listener()
        try:
            # A listener that dies with our notice unread resets the connection.
            if await listener.reader.readline() == hook.TAKEN:
                listener.taken.set()
        finally:
            listener.gone.set()
            if self._listener is listener:
                self._listener = None

    async def announce(self, notice: Notice) -> None:
        """Hand the notice to the listener.

        Raises:
            NotListening: there is none, or it left without having taken the notice.
        """
        listener, self._listener = self._listener, None
        if listener is None:
            await self._come_back()
            raise NotListening("no hook of Claude Code is listening at the moment")
        listener.writer.write(f"{notice}{self._whose()}\n".encode())
        with suppress(TimeoutError):
            async with asyncio.timeout(TAKEN_TIMEOUT):
                await listener.gone.wait()
        listener.writer.close()
        if not listener.taken.is_set():
            raise NotListening("the hook of Claude Code left without taking the notice")

    def _whose(self) -> str:
        """Which server's read_inbox to call, if this session has those of several peers."""
        with suppress(HoptellError, OSError):
            here = registry.sidecars(self._home, self._claude)
            if any(sidecar.name != self._name for sidecar in here):
                return (
                    " This session has several hoptell servers: call read_inbox of the one in"
                    f' which you are "{self._name}".'
                )
        return ""


class _Listener:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.taken = asyncio.Event()
        self.gone = asyncio.Event()


def has_channel(arguments: Iterable[str], *, plugin: bool) -> bool:
    """Whether Claude Code was started with channels for this server.

    `arguments` is its command line; `plugin`: this server came from our plugin. The flags
    take several values: `server:NAME`, or `plugin:NAME@MARKETPLACE`.
    """
    taking = False
    for argument in arguments:
        flag, _, value = argument.partition("=")
        if flag.startswith("-"):
            taking = flag in ("--channels", "--dangerously-load-development-channels")
            argument = value
        if taking and any(
            _is_ours(one, plugin=plugin) for one in argument.replace(",", " ").split()
        ):
            return True
    return False


def _is_ours(entry: str, *, plugin: bool) -> bool:
    kind, _, name = entry.partition(":")
    if plugin:
        return kind == "plugin" and name.partition("@")[0] == PLUGIN
    return kind == "server" and name == SERVER
