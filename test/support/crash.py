"""A relay and a receiver as processes that are killed, over and over, and quickly.

They are forked from a server that has imported everything already, so that one more life costs
some 20 ms instead of 300. Nothing of them is a stand-in: a relay on a real socket with a real
journal, hoptell's client, a real inbox.
"""

import asyncio
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

TOKEN = "a-token-for-tests-only"

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        *("hoptell.client", "hoptell.inbox", "hoptell.relay.daemon", "hoptell.relay.credentials"),
        *("ctypes", "encodings.idna", "resource", "uvloop"),  # what they import when they run
    ]
)


def die(*_: Any) -> None:
    """End this process the way `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def start(run: Any, *arguments: Any) -> BaseProcess:
    """Run a function of this module in a process of its own."""
    process = _context.Process(target=run, args=arguments, daemon=True)
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")  # else each one imports pytest first
    try:
        process.start()
    finally:
        sys.modules["__main__"] = main
    return process


def relay(port: int, journal: Path, fault: str) -> None:
    """A relay; with a `fault`, one that dies at just that point when it first gets there."""
    from hoptell.relay import daemon, listening
    from hoptell.relay.credentials import Credentials
    from hoptell.relay.log import EventLog
    from hoptell.settings import Rate, RelaySettings

    if fault:
        _relay_fault(fault)
    settings = RelaySettings("127.0.0.1", port, TOKEN, None, Rate(0), journal)
    sockets = listening.listen(settings.host, settings.port)
    daemon.run(settings, Credentials.load(settings), EventLog(lambda lines: None), sockets)


def _relay_fault(fault: str) -> None:
    from hoptell.relay.journal import SqliteJournal
    from hoptell.relay.server import RelayServer
    from hoptell.relay.store import Store

    commit, flush = Store.commit, SqliteJournal.flush
    deliver, settle = RelayServer._deliver, RelayServer._settle
    is_delivered = False

    def commit_a_message(self: Store, batch: Any) -> None:
        if batch.accepted and fault == "recorded, not committed":
            die()
        commit(self, batch)
        if batch.accepted:
            die()

    def note_delivery(self: RelayServer, effect: Any) -> None:
        nonlocal is_delivered
        deliver(self, effect)
        is_delivered = is_delivered or effect.delivery.sent

    def settle_a_delivery(self: RelayServer) -> None:
        settle(self)  # writes to the sockets at its end; what they answer comes in a later turn
        if is_delivered:
            time.sleep(0.05)  # meanwhile the journal's thread commits whatever it was given
            die()

    def flush_a_confirmation(self: SqliteJournal) -> None:
        if self._next.done:
            die()
        flush(self)

    match fault:
        case "recorded, not committed" | "committed, not written":
            Store.commit = commit_a_message  # type: ignore[method-assign]
        case "written, not confirmed":
            RelayServer._deliver = note_delivery  # type: ignore[method-assign]
            RelayServer._settle = settle_a_delivery  # type: ignore[method-assign]
        case "confirmed, not recorded":
            SqliteJournal.flush = flush_a_confirmation  # type: ignore[method-assign]
        case _:
            raise ValueError(fault)


def receiver(port: int, home: Path, name: str, fault: str) -> None:
    """A peer that stores what arrives, then confirms it: the sidecar's way."""
    asyncio.run(_receive(port, home, name, fault))


async def _receive(port: int, home: Path, name: str, fault: str) -> None:
    from hoptell.inbox import Inbox

    inbox = Inbox(home, name)
    async with client(port, name) as peer:
        async for delivery in peer:
            if fault == "received, not stored":
                die()
            await asyncio.to_thread(inbox.store, delivery.message)
            if fault == "stored, not confirmed":
                die()
            await delivery.confirm()


def client(port: int, name: str) -> Any:
    """hoptell's client, which comes back in a thousandth of its usual time."""
    from hoptell.client import RelayClient
    from hoptell.settings import PeerSettings

    settings = PeerSettings(relay=f"ws://127.0.0.1:{port}", token=TOKEN, name=name)
    return RelayClient(settings, sleep=lambda seconds: asyncio.sleep(seconds / 1000))
