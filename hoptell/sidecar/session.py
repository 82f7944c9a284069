"""One sidecar, from its start to its end.

It answers `initialize` before it does anything else: the relay is connected to afterwards, so
that no slow or missing relay makes the client give up on the server.

It ends when the client closes standard input, when its parent is gone, or on a signal, and
within `EXIT_TIMEOUT` whatever hangs: a thread sees to that. What was claimed for an answer
that did not leave goes back to the inbox, and the name goes offline with the connection.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

from mcp.server.runner import serve_loop

from hoptell.errors import HoptellError
from hoptell.settings import PeerSettings, default_name, load_peer_settings, state_folder
from hoptell.sidecar import texts
from hoptell.sidecar.channel import CAPABILITY, ChannelWake
from hoptell.sidecar.delivery import RelaySide
from hoptell.sidecar.mailbox import Mailbox
from hoptell.sidecar.presence import Presence
from hoptell.sidecar.server import Tools, server
from hoptell.sidecar.stdio import Wire, claim_standard_streams
from hoptell.sidecar.waking import Waking

logger = logging.getLogger(__name__)

EXIT_TIMEOUT = 1.7
"""Seconds from the reason to end until the process is gone, at most."""
LEAVE_TIMEOUT = 1.0
"""Seconds of it for taking the name offline."""
FLUSH_TIMEOUT = 0.3
"""Seconds of it for the last answers, if the client still reads."""
PARENT_INTERVAL = 0.5
"""Seconds between looks whether the parent is still there, where its end cannot be waited for:
0.01 % of a core."""
END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(parent: int) -> None:
    """Serve the client on standard input and output until it goes; ends the process.

    `parent` is the process id of whoever started us, as early as it could be told.
    """
    asyncio.run(_to_the_end(claim_standard_streams(), parent))


async def _to_the_end(streams: tuple[int, int], parent: int) -> NoReturn:
    code = 0
    try:
        await run(streams, parent)
    except Exception:
        logger.exception("the sidecar ended by a bug")
        code = 1
    logging.shutdown()
    # From here, since asyncio and Python wait for their threads at the end, and one of them
    # may be asking a name server that does not answer.
    os._exit(code)


async def run(streams: tuple[int, int], parent: int) -> None:
    """Serve one client over two file descriptors; returns when it or its parent is gone."""
    wire = Wire(*streams)
    session = Session(wire)
    ending = asyncio.create_task(_reason_to_end(parent))
    serving = asyncio.create_task(session.serve())
    wire.start()
    await asyncio.wait([ending, serving], return_when=asyncio.FIRST_COMPLETED)
    _exit_soon()
    await session.close(serving)
    ending.cancel()


class Session:
    """The parts of one sidecar, put together for its client's `wire`."""

    def __init__(self, wire: Wire) -> None:
        settings, problem = _settings()
        self._settings = settings
        self._name = (settings and settings.name) or default_name()
        self._home = settings.home if settings else _home()
        push = settings.push if settings else None
        in_tmux = push == "tmux"

        self._wire = wire
        self._waking = Waking(
            push,
            self._home,
            ChannelWake(wire),
            name=self._name,
            listen_command=texts.listen_command(self._name, self._home),
            unread=self._unread,
            on_change=self._waking_changed,
        )
        self._presence = Presence(self._home, self._name, self._waking)
        self._mailbox = Mailbox(self._presence, fed_by_others=in_tmux)
        self._relay = RelaySide(load_peer_settings, self._mailbox, wake=None, send_only=in_tmux)
        self._tasks = [
            asyncio.create_task(_after(wire.handshaken, self._relay.run)),
            asyncio.create_task(_after(wire.initialized, self._mailbox.announcer.run)),
        ]
        if problem is not None:
            self._mailbox.problem = problem

    async def serve(self) -> None:
        """Answer the client until it closes its end."""
        if self._settings is not None:
            with contextlib.suppress(HoptellError):  # the relay's side tries it again, and says so
                await self._mailbox.use(self._settings.home, self._name)
        async with self._waking:
            self._relay.show_wake(self._waking.shown)
            self._presence.update(self._waking.mode, self._waking.proven)
            way = texts.way_of(self._waking.mode, self._name, self._home)
            descriptions = texts.descriptions(self._name, way)
            tools = Tools(self._relay, self._mailbox, descriptions, self._waking)
            answering = server(tools, texts.instructions(self._name, way))
            options = answering.create_initialization_options(
                experimental_capabilities={CAPABILITY: {}} if self._waking.has_channel else None
            )
            await serve_loop(
                answering, self._wire, self._wire, lifespan_state=None, init_options=options
            )

    def _unread(self) -> bool:
        try:
            return self._mailbox.inbox.waiting().count > 0
        except HoptellError:
            return False

    def _waking_changed(self) -> None:
        self._mailbox.announcer.retry()
        self._presence.update(self._waking.mode, self._waking.proven)
        self._relay.show_wake(self._waking.shown)

    async def close(self, serving: "asyncio.Task[None]") -> None:
        """Go offline; give back what no answer took along; let the last answers leave."""
        tasks = [serving, *self._tasks]
        for task in tasks:
            task.cancel()
        self._presence.close()
        await asyncio.wait(tasks, timeout=LEAVE_TIMEOUT)
        await self._wire.flush(FLUSH_TIMEOUT)
        self._wire.abandon()
        await self._mailbox.all_returned()
        for task in tasks:
            if task.done() and not task.cancelled() and (bug := task.exception()):
                logger.error("the sidecar ended by a bug", exc_info=bug)


async def _after(event: asyncio.Event, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await event.wait()
    await work()


def _settings() -> tuple[PeerSettings | None, HoptellError | None]:
    try:
        return load_peer_settings(), None
    except HoptellError as problem:
        return None, problem


def _home() -> Path | None:
    """Where the hook looks for this sidecar even while other settings are broken."""
    try:
        return state_folder()
    except HoptellError:
        return None


async def _reason_to_end(parent: int) -> None:
    """Return when a signal says to end, or the parent is gone."""
    loop = asyncio.get_running_loop()
    news = asyncio.Event()
    signalled = False

    def end(number: int, frame: object) -> None:
        nonlocal signalled
        signalled = True
        _exit_soon()

    for number in END_SIGNALS:
        # The loop's own handler wakes the loop, whichever thread the signal hits; ours runs
        # even when the loop hangs.
        loop.add_signal_handler(number, news.set)
        signal.signal(number, end)
    interval = None if _tells_death(parent, news) else PARENT_INTERVAL
    # Looked at after the watch began: the parent may have gone, and its pid to another, before.
    while not signalled and os.getppid() == parent:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(interval):
                await news.wait()


def _tells_death(pid: int, news: asyncio.Event) -> bool:
    """Have `news` set when the process ends; False where the system cannot do that.

    (A parent's death signal is no such way: it is sent when the thread that started us ends.)
    """
    if sys.platform != "linux":
        return False
    try:
        handle = os.pidfd_open(pid)
    except OSError:  # it is gone, or the kernel is older than 5.3
        return False
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(handle)
        news.set()

    loop.add_reader(handle, ended)
    return True


def _exit_soon() -> None:
    """Make sure that the process ends in time, whatever hangs."""
    last = threading.Timer(EXIT_TIMEOUT, os._exit, (0,))
    last.daemon = True
    last.start()
