"""What must outlive the process: nothing (the default), or a SQLite file (docs/operations.md).

The core says what to record (model.Record). A message is durable once its record is on disk;
only then does the shell let anybody hear of it. Everything else that is recorded (a confirmed
or expired delivery, a known peer) is allowed to be late: lost, it costs a redelivery that the
recipient's inbox drops, or a name that is not listed.

One thread owns the database (store.py). What arrives while it commits becomes its next commit,
so a slow disk makes commits larger and acknowledgements later, and never holds up the event
loop. What cannot be written is refused; the rest of its batch waits for the next try.
"""

import asyncio
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from hoptell.relay.database import lock_file, one_name
from hoptell.relay.model import (
    Accepted,
    Confirmed,
    Expired,
    Forgotten,
    Known,
    Limits,
    Record,
    Restored,
)
from hoptell.relay.store import Batch, Store

logger = logging.getLogger(__name__)

RETRY_INTERVAL = 1.0
"""Seconds until a file that could not be written is tried again."""
MAINTENANCE_INTERVAL = 60.0
"""Seconds between two rounds of dropping old keys and giving free pages back."""


class Journal(Protocol):
    """Where the shell brings records; their receipts become durable once they are on disk."""

    def record(self, record: Record) -> None:
        """Note one record of the effects, in their order; returns at once."""

    def flush(self) -> None:
        """Everything of this loop turn was noted: write it."""

    async def close(self) -> None:
        """Write what was noted, and let go of the file; nothing is recorded any more.

        Whoever waits no longer for a slow disk may cancel this: it goes on, and the file is
        kept from other relays until it is done or the process ends.
        """


class NullJournal:
    """No journal: what the relay holds lives as long as its process."""

    def record(self, record: Record) -> None:
        if type(record) is Accepted:
            record.receipt.durable = True

    def flush(self) -> None:
        pass

    async def close(self) -> None:
        pass


class SqliteJournal:
    """The journal in a SQLite file, in WAL mode with full sync.

    Args:
        file: made with mode 0600 when it is not there.
        loop: the event loop whose thread calls `record` and `flush`, and is called back.
        on_durable: called with the accepted messages that are on disk now, in order.
        on_failed: called with those that could not be written, and never will be.
        on_commit: called with the seconds that each commit took.
        key_lifetime: seconds after which an idempotency key is dropped from the file.

    Raises:
        ConfigurationError: the file cannot be used; it was left as it was.
    """

    def __init__(
        self,
        file: Path,
        *,
        loop: asyncio.AbstractEventLoop,
        on_durable: Callable[[list[Accepted]], None],
        on_failed: Callable[[list[Accepted]], None],
        on_commit: Callable[[float], None] = lambda seconds: None,
        key_lifetime: float = Limits.key_lifetime,
    ) -> None:
        file = one_name(file)
        self._file = file
        self._loop = loop
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._on_commit = on_commit
        self._lock = lock_file(file)
        try:
            self._store = Store(file, key_lifetime=key_lifetime)
        except BaseException:
            os.close(self._lock)
            raise
        self._next = Batch()
        self._writing = False
        self._failing = False
        self._closed = asyncio.Event()
        self._batches: queue.Queue[Batch | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="hoptell-journal", daemon=True)

    def restore(self, *, epoch: float) -> Restored:
        """Read what an earlier relay kept, and begin to write; once, before anything else.

        `epoch` is Unix time minus the relay's `now`.
        """
        kept = self._store.load(epoch)
        self._thread.start()
        return kept

    def record(self, record: Record) -> None:
        batch = self._next
        if type(record) is Accepted:
            batch.accepted.append(record)
        elif type(record) is Confirmed or type(record) is Expired:
            batch.done.append(record.delivery)
        elif type(record) is Known:
            batch.peers[record.peer.name] = record.peer
        elif type(record) is Forgotten:
            batch.peers[record.name] = None

    def flush(self) -> None:
        # While the disk fails, what arrives waits for the next try instead of failing alone.
        if self._next and not self._writing and not self._failing:
            self._write()

    async def close(self) -> None:
        batch, self._next = self._next, Batch()
        if batch:
            self._batches.put(batch)
        self._batches.put(None)
        await self._closed.wait()

    def _write(self) -> None:
        batch, self._next = self._next, Batch()
        self._writing = True
        self._batches.put(batch)

    def _written(self, batch: Batch, seconds: float) -> None:
        self._writing = False
        self._on_commit(seconds)
        if self._failing:
            logger.warning("the journal %s can be written again", self._file)
            self._failing = False
        self._on_durable(batch.accepted)
        self.flush()

    def _not_written(self, batch: Batch, reason: str) -> None:
        """Give the batch's messages up; keep the rest for the next commit."""
        self._writing = False
        if not self._failing:
            logger.error("the journal %s cannot be written: %s", self._file, reason)
        self._failing = True
        self._next.done = batch.done + self._next.done
        self._next.peers = batch.peers | self._next.peers
        self._loop.call_later(RETRY_INTERVAL, self._write)
        self._on_failed(batch.accepted)

    def _run(self) -> None:
        """The journal's thread."""
        while True:
            try:
                batch = self._batches.get(timeout=MAINTENANCE_INTERVAL)
            except queue.Empty:
                self._store.maintain()
                continue
            if batch is None:
                break
            start = time.perf_counter()
            try:
                self._store.commit(batch)
            except sqlite3.Error as error:
                self._tell(self._not_written, batch, str(error))
            except Exception as bug:  # without this thread nobody would ever be answered
                self._tell(self._not_written, batch, f"a bug, {type(bug).__name__}")
            else:
                self._tell(self._written, batch, time.perf_counter() - start)
                self._store.maintain(every=MAINTENANCE_INTERVAL)
        self._store.close()
        os.close(self._lock)  # not before: another relay would read what is still being written
        self._tell(self._closed.set)

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits to hear it
            self._loop.call_soon_threadsafe(callback, *args)
