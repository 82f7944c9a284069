"""What must outlive the relay's process: nothing (the default), or a SQLite file (SPEC.md, 3).

The core says what to record (model.Record). A message is durable once its record is on disk;
only then does the shell let anybody hear of it. Everything else that is recorded (a confirmed
or expired delivery, a known peer) is allowed to be late: lost, it costs a redelivery that the
recipient's inbox drops, or a name that is not listed.

One thread owns the database. What arrives while it commits becomes its next commit, so a slow
disk makes commits larger and acknowledgements later, and never holds up the event loop. A batch
reaches SQLite as one JSON array a statement (`json_each`), not row by row: every step of a
statement takes Python's lock again, and under load a thread waits up to 5 ms for it each time.

Schema (`PRAGMA user_version` 1, `PRAGMA application_id` 0x686f7074, "hopt"); times are Unix ms:

    peers       name, host, roles (JSON array), wake
    messages    reference, sender, member, host, recipient (the address), text, ts, reply_to,
                expires, no_reply; one row a message that has deliveries
    deliveries  seq (the order of acceptance), id, reference, peer; one row a copy that is not
                confirmed yet
    keys        sender, key, reference, accepted_at, expires, state (NULL: it was in flight),
                count, skipped (JSON array)

Migrations run in `MIGRATIONS`, each in a transaction of its own.
"""

import asyncio
import errno
import logging
import os
import queue
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from hoptell.errors import ConfigurationError
from hoptell.relay.model import (
    Accepted,
    Confirmed,
    Delivery,
    Expired,
    Forgotten,
    Known,
    Limits,
    Message,
    Peer,
    Receipt,
    Record,
    Restored,
)

logger = logging.getLogger(__name__)

APPLICATION_ID = 0x686F7074
MIGRATIONS = (
    """
    CREATE TABLE peers (
        name TEXT PRIMARY KEY, host TEXT NOT NULL, roles TEXT NOT NULL, wake TEXT
    ) WITHOUT ROWID;
    CREATE TABLE messages (
        reference TEXT PRIMARY KEY, sender TEXT NOT NULL, member TEXT, host TEXT NOT NULL,
        recipient TEXT NOT NULL, text TEXT NOT NULL, ts INTEGER NOT NULL, reply_to TEXT,
        expires INTEGER, no_reply INTEGER NOT NULL
    );
    CREATE TABLE deliveries (
        seq INTEGER PRIMARY KEY, id TEXT NOT NULL, reference TEXT NOT NULL, peer TEXT NOT NULL
    );
    CREATE UNIQUE INDEX deliveries_by_message ON deliveries (reference, peer);
    CREATE TABLE keys (
        sender TEXT NOT NULL, key TEXT NOT NULL, reference TEXT NOT NULL,
        accepted_at INTEGER NOT NULL, expires INTEGER, state TEXT, count INTEGER, skipped TEXT,
        PRIMARY KEY (sender, key)
    ) WITHOUT ROWID
    """,
)
SCHEMA_VERSION = len(MIGRATIONS)

RETRY_INTERVAL = 1.0
"""Seconds until a file that could not be written is tried again."""
CLOSE_TIMEOUT = 1.0
"""Seconds that the end of the relay waits for the last commit, of which nobody waits to hear."""
MAINTENANCE_INTERVAL = 60.0
"""Seconds between two rounds of dropping old keys and giving free pages back."""
FREE_PAGES = 256
"""Pages (of 4 KiB) that may stay free in the file for the next messages."""
WAL_SIZE_LIMIT = 4 * 1024 * 1024
"""Bytes that the write-ahead log keeps after a checkpoint."""


def _insert(table: str, columns: str, values: str | None = None) -> str:
    """A statement that inserts the rows of a JSON array of arrays."""
    count = columns.count(",") + 1
    values = values or ", ".join(f"json_extract(value, '$[{n}]')" for n in range(count))
    return f"INSERT OR REPLACE INTO {table} ({columns}) SELECT {values} FROM json_each(?1)"


_each = "SELECT value FROM json_each(?1)"
SELECT_PEERS = "SELECT name, host, roles, wake FROM peers"
INSERT_PEERS = _insert("peers", "name, host, roles, wake")
DELETE_PEERS = f"DELETE FROM peers WHERE name IN ({_each})"
# The texts come as one blob, cut by offset and length: SQLite's JSON functions end a text at a
# NUL character (U+0000), and a message is kept exactly.
INSERT_MESSAGES = _insert(
    "messages",
    "reference, sender, member, host, recipient, text, ts, reply_to, expires, no_reply",
    "json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),"
    " json_extract(value, '$[3]'), json_extract(value, '$[4]'),"
    " CAST(substr(?2, json_extract(value, '$[5]') + 1, json_extract(value, '$[6]')) AS TEXT),"
    " json_extract(value, '$[7]'), json_extract(value, '$[8]'), json_extract(value, '$[9]'),"
    " json_extract(value, '$[10]')",
)
DELETE_MESSAGES = (
    f"DELETE FROM messages WHERE reference IN ({_each}) AND NOT EXISTS"
    " (SELECT 1 FROM deliveries WHERE deliveries.reference = messages.reference)"
)
SELECT_DELIVERIES = (
    "SELECT id, peer, reference, sender, member, host, recipient, text, ts, reply_to, expires,"
    " no_reply FROM deliveries JOIN messages USING (reference) ORDER BY seq"
)
INSERT_DELIVERIES = _insert("deliveries", "id, reference, peer")
DELETE_DELIVERIES = (
    "DELETE FROM deliveries WHERE seq IN (SELECT seq FROM json_each(?1) AS done"
    " CROSS JOIN deliveries ON reference = json_extract(done.value, '$[0]')"
    " AND peer = json_extract(done.value, '$[1]'))"
)
SELECT_KEYS = (
    "SELECT sender, key, reference, accepted_at, expires, state, count, skipped FROM keys"
    " ORDER BY accepted_at"
)
INSERT_KEYS = _insert("keys", "sender, key, reference, accepted_at, expires, state, count, skipped")


class Journal(Protocol):
    """Where the shell brings records; it calls back when they are on disk, or cannot be."""

    def restore(self, *, epoch: float) -> Restored:
        """What an earlier relay kept. `epoch` is Unix time minus the relay's `now`."""

    def record(self, record: Record) -> None:
        """Note one record of the effects, in their order; returns at once."""

    def flush(self) -> None:
        """Everything of this loop turn was noted: write it."""

    def close(self) -> None:
        """Write what was noted, and let go of the file. Blocks until that is done."""


class NullJournal:
    """No journal: what the relay holds lives as long as its process."""

    def restore(self, *, epoch: float) -> Restored:
        return Restored([], [], [])

    def record(self, record: Record) -> None:
        if type(record) is Accepted:
            record.receipt.durable = True

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass
class Batch:
    """Records that become one commit, each kind as the rows of one statement."""

    accepted: list[Accepted] = field(default_factory=list)
    done: list[Delivery] = field(default_factory=list)
    """Confirmed or expired."""
    peers: dict[str, Peer | None] = field(default_factory=dict)
    """None: forgotten. The last word counts."""

    def __bool__(self) -> bool:
        return bool(self.accepted or self.done or self.peers)


class SqliteJournal:
    """The journal in a SQLite file, in WAL mode with full sync.

    Args:
        file: made with mode 0600 when it is not there.
        loop: the event loop whose thread calls `record` and `flush`, and is called back.
        on_durable: called with the accepted messages that are on disk now, in order.
        on_failed: called with those that could not be written, and never will be.

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
        key_lifetime: float = Limits.key_lifetime,
    ) -> None:
        file = _one_name(file)
        self._file = file
        self._loop = loop
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._lock = lock_file(file)
        try:
            self._store = Store(file, key_lifetime=key_lifetime)
        except BaseException:
            os.close(self._lock)
            raise
        self._next = Batch()
        self._writing = False
        self._failing = False
        self._batches: queue.Queue[Batch | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="hoptell-journal", daemon=True)

    def restore(self, *, epoch: float) -> Restored:
        kept = self._store.load(epoch)
        self._thread.start()
        return kept

    def record(self, record: Record) -> None:
        batch = self._next
        match record:
            case Accepted():
                batch.accepted.append(record)
            case Confirmed() | Expired():
                batch.done.append(record.delivery)
            case Known():
                batch.peers[record.peer.name] = record.peer
            case Forgotten():
                batch.peers[record.name] = None

    def flush(self) -> None:
        # While the disk fails, what arrives waits for the next try instead of failing alone.
        if self._next and not self._writing and not self._failing:
            self._write()

    def close(self) -> None:
        if self._next:
            self._batches.put(self._next)
        self._batches.put(None)
        self._thread.join(CLOSE_TIMEOUT)
        os.close(self._lock)

    def _write(self) -> None:
        batch, self._next = self._next, Batch()
        self._writing = True
        self._batches.put(batch)

    def _written(self, batch: Batch) -> None:
        self._writing = False
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
            try:
                self._store.commit(batch)
            except sqlite3.Error as error:
                self._tell(self._not_written, batch, str(error))
            else:
                self._tell(self._written, batch)
                self._store.maintain_sometimes()
        self._store.close()

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits to hear it
            self._loop.call_soon_threadsafe(callback, *args)


class Store:
    """The database itself; used by one thread at a time.

    Raises:
        ConfigurationError: from the constructor; the file cannot be used, and was left as it was.
    """

    def __init__(self, file: Path, *, key_lifetime: float) -> None:
        self._key_lifetime = key_lifetime
        self._maintained_at = time.monotonic()
        try:
            os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
            if file.stat().st_size:
                _check(file)
            if os.name == "posix":
                file.chmod(0o600)
            self._database = _open(file)
        except (sqlite3.Error, OSError) as error:
            raise ConfigurationError(
                f"the journal {file} cannot be used ({_words(error)}): repair or move it, or give"
                " another file"
            ) from None

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._database.close()

    def load(self, epoch: float) -> Restored:
        """Read everything; deliveries in the order of acceptance."""
        execute = self._database.execute
        peers = {row[0]: _peer(*row) for row in execute(SELECT_PEERS)}
        receipts: dict[str, Receipt] = {}
        messages: dict[str, Message] = {}
        deliveries = []
        for id, name, *row in execute(SELECT_DELIVERIES):
            message = messages.setdefault(row[0], _message(row))
            receipt = receipts.setdefault(
                message.reference,
                Receipt(message.reference, 0.0, message.expires, "queued", (), durable=True),
            )
            peer = peers.setdefault(name, Peer(name))
            deliveries.append(Delivery(id, message, peer, receipt))
        keys = []
        for sender, key, reference, accepted_at, expires, state, count, skipped in execute(
            SELECT_KEYS
        ):
            # It was in flight when it was recorded: it is queued now, or has arrived.
            receipt = receipts.get(reference) or Receipt(
                reference, 0.0, expires, "delivered", (), durable=True
            )
            receipt.accepted_at = accepted_at / 1000 - epoch
            if state is not None:
                receipt.state = state
                receipt.count = count
                receipt.skipped = None if skipped is None else msgspec.json.decode(skipped)
            keys.append((sender, key, receipt))
        return Restored(list(peers.values()), deliveries, keys)

    def commit(self, batch: Batch) -> None:
        """Write a batch in one transaction.

        Raises:
            sqlite3.Error: nothing of it was written.
        """
        execute = self._database.execute
        execute("BEGIN IMMEDIATE")
        try:
            if batch.peers:
                self._write_peers(batch.peers)
            if batch.accepted:
                self._write_accepted(batch.accepted)
            if batch.done:
                self._forget(batch.done)
            execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # SQLite may have rolled back by itself
                execute("ROLLBACK")
            raise

    def maintain_sometimes(self) -> None:
        """`maintain`, if the last time is a while ago."""
        if time.monotonic() - self._maintained_at >= MAINTENANCE_INTERVAL:
            self.maintain()

    def maintain(self) -> None:
        """Drop keys that are too old to matter; give back what the file does not need."""
        self._maintained_at = time.monotonic()
        execute = self._database.execute
        try:
            since = (time.time() - self._key_lifetime) * 1000
            execute("DELETE FROM keys WHERE accepted_at < ?", (since,))
            (free,) = execute("PRAGMA freelist_count").fetchone()
            if free > FREE_PAGES:
                # A script runs to its end; `execute` gives up after the first page.
                self._database.executescript(f"PRAGMA incremental_vacuum({free - FREE_PAGES})")
                execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            logger.warning("the journal cannot be compacted: %s", error)

    def _write_peers(self, peers: dict[str, Peer | None]) -> None:
        gone = [name for name, peer in peers.items() if peer is None]
        known = [
            [peer.name, peer.host, _json(peer.roles), peer.wake]
            for peer in peers.values()
            if peer is not None
        ]
        self._database.execute(DELETE_PEERS, (_json(gone),))
        self._database.execute(INSERT_PEERS, (_json(known),))

    def _write_accepted(self, accepted: list[Accepted]) -> None:
        texts: list[bytes] = []
        rows = []
        offset = 0
        for message in (entry.message for entry in accepted):
            text = message.text.encode()
            texts.append(text)
            rows.append(
                [
                    message.reference,
                    message.sender,
                    message.member,
                    message.host,
                    message.to,
                    offset,
                    len(text),
                    message.ts,
                    message.reply_to,
                    message.expires,
                    message.no_reply,
                ]
            )
            offset += len(text)
        deliveries = [
            [delivery.id, delivery.message.reference, delivery.peer.name]
            for entry in accepted
            for delivery in entry.deliveries
        ]
        execute = self._database.execute
        execute(INSERT_MESSAGES, (_json(rows), b"".join(texts)))
        execute(INSERT_DELIVERIES, (_json(deliveries),))
        if keys := [_key_row(entry) for entry in accepted if entry.key is not None]:
            execute(INSERT_KEYS, (_json(keys),))

    def _forget(self, done: list[Delivery]) -> None:
        rows = [[delivery.message.reference, delivery.peer.name] for delivery in done]
        self._database.execute(DELETE_DELIVERIES, (_json(rows),))
        references = list({delivery.message.reference for delivery in done})
        self._database.execute(DELETE_MESSAGES, (_json(references),))


def _one_name(file: Path) -> Path:
    """The name by which every relay knows this journal: SQLite's and our lock are beside it.

    Raises:
        ConfigurationError: there cannot be just one, or it is not a file.
    """
    file = Path(os.path.realpath(file))
    try:
        found = file.stat()
    except FileNotFoundError:
        return file
    except OSError as error:
        raise ConfigurationError(
            f"the journal {file} cannot be used ({_words(error)}): give another file"
        ) from None
    if not stat.S_ISREG(found.st_mode):
        raise ConfigurationError(f"{file} is not a regular file: give another one as the journal")
    if found.st_nlink > 1:
        raise ConfigurationError(
            f"the journal {file} has another name too (a hard link), by which a second relay could"
            " use it: remove one of them, or give another file"
        )
    return file


def lock_file(file: Path) -> int:
    """Make this process the only relay on a journal, until the returned descriptor is closed.

    Raises:
        ConfigurationError: another relay has it; its pid is in the sentence.
    """
    try:
        import fcntl
    except ImportError:
        raise ConfigurationError("a journal needs a POSIX system: start without it") from None
    path = file.with_name(f"{file.name}.lock")
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        pid = os.pread(lock, 20, 0).decode(errors="replace").strip()
        os.close(lock)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise ConfigurationError(f"cannot lock {path}: {error.strerror}") from None
        raise ConfigurationError(
            f"the relay with pid {pid} uses the journal {file}: stop that one, or give this one"
            " another file"
        ) from None
    return lock


def _check(file: Path) -> None:
    """Look at an existing file without changing it.

    Raises:
        ConfigurationError: it is newer, or not a journal.
        sqlite3.Error: it is damaged, or not a database.
    """
    wal = file.with_name(f"{file.name}-wal")
    # Even a reader makes the files of the write-ahead log, where there is one to read.
    how = "mode=ro" if wal.exists() and wal.stat().st_size else "mode=ro&immutable=1"
    with closing(sqlite3.connect(f"file:{quote(str(file))}?{how}", uri=True)) as database:
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (application or version or tables):
        raise ConfigurationError(f"{file} is another program's database: give another file")
    if version > SCHEMA_VERSION:
        raise ConfigurationError(
            f"the journal {file} was written by a newer hoptell (schema {version}, this one knows"
            f" {SCHEMA_VERSION}): install that version, or give another file"
        )
    if verdict != "ok":
        raise sqlite3.DatabaseError(f"it is damaged: {verdict}")


def _open(file: Path) -> sqlite3.Connection:
    # Several threads, one at a time: the event loop's reads it, then the journal's has it.
    database = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    try:
        execute = database.execute
        execute("PRAGMA auto_vacuum = INCREMENTAL")
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        execute(f"PRAGMA journal_size_limit = {WAL_SIZE_LIMIT}")
        (version,) = execute("PRAGMA user_version").fetchone()
        for number, migration in enumerate(MIGRATIONS[version:], version + 1):
            execute("BEGIN IMMEDIATE")
            for statement in migration.split(";"):
                execute(statement)
            execute(f"PRAGMA application_id = {APPLICATION_ID}")
            execute(f"PRAGMA user_version = {number}")
            execute("COMMIT")
        execute("BEGIN IMMEDIATE")  # a file that cannot be written says so now
        execute("PRAGMA user_version = " + str(SCHEMA_VERSION))
        execute("COMMIT")
    except BaseException:
        database.close()
        raise
    return database


def _json(rows: object) -> str:
    return msgspec.json.encode(rows).decode()


def _peer(name: str, host: str, roles: str, wake: str | None) -> Peer:
    peer = Peer(name)
    peer.host, peer.roles, peer.wake = host, msgspec.json.decode(roles), wake
    return peer


def _message(row: list[Any]) -> Message:
    reference, sender, member, host, to, text, ts, reply_to, expires, no_reply = row
    return Message(
        reference,
        sender,
        member,
        host,
        to,
        text,
        len(text.encode()),
        ts,
        reply_to,
        expires,
        bool(no_reply),
    )


def _key_row(accepted: Accepted) -> list[object]:
    message, receipt = accepted.message, accepted.receipt
    return [
        message.sender,
        accepted.key,
        receipt.reference,
        message.ts,
        receipt.expires,
        receipt.state,
        receipt.count,
        None if receipt.skipped is None else _json(receipt.skipped),
    ]


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or "input/output error"
    return " ".join(str(error).split())
