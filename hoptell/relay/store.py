"""The journal's database: a schema that any SQLite tool reads, written a batch at a time.

Schema (`PRAGMA user_version` 1, `PRAGMA application_id` 0x686f7074, "hopt"); times are Unix ms:

    peers       name, host, roles (JSON array), wake, transient (1: it will not come back)
    messages    id, reference, sender, member, host, recipient (the address), text, ts,
                reply_to, expires, no_reply; one row a message that has deliveries
    deliveries  seq (the order of acceptance), id, message (messages.id), peer; one row a copy
                that is not confirmed yet
    keys        sender, key, reference, accepted_at, expires, state (NULL: it was in flight),
                count, skipped (JSON array)

Migrations run in `MIGRATIONS`, each in a transaction of its own.

Each step of a statement takes Python's lock again, and while the event loop is busy a thread
waits up to 5 ms for it. So a whole batch is one step: a statement with room for so many rows,
filled up with rows that it skips. (As JSON arrays, `json_each`, it took twice the CPU.) Rows
are found by the numbers that they were given, which Message and Delivery carry: an index on
references cost as much as the rows.
"""

import errno
import logging
import os
import sqlite3
import stat
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from hoptell.errors import ConfigurationError
from hoptell.relay.model import Accepted, Delivery, Message, Peer, Receipt, Restored

logger = logging.getLogger(__name__)

APPLICATION_ID = 0x686F7074
MIGRATIONS = (
    """
    CREATE TABLE peers (
        name TEXT PRIMARY KEY, host TEXT NOT NULL, roles TEXT NOT NULL, wake TEXT,
        transient INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE messages (
        id INTEGER PRIMARY KEY, reference TEXT NOT NULL, sender TEXT NOT NULL, member TEXT,
        host TEXT NOT NULL, recipient TEXT NOT NULL, text TEXT NOT NULL, ts INTEGER NOT NULL,
        reply_to TEXT, expires INTEGER, no_reply INTEGER NOT NULL
    );
    CREATE TABLE deliveries (
        seq INTEGER PRIMARY KEY, id TEXT NOT NULL, message INTEGER NOT NULL, peer TEXT NOT NULL
    );
    CREATE TABLE keys (
        sender TEXT NOT NULL, key TEXT NOT NULL, reference TEXT NOT NULL,
        accepted_at INTEGER NOT NULL, expires INTEGER, state TEXT, count INTEGER, skipped TEXT,
        PRIMARY KEY (sender, key)
    ) WITHOUT ROWID
    """,
)
SCHEMA_VERSION = len(MIGRATIONS)

FREE_PAGES = 256
"""Pages (of 4 KiB) that may stay free in the file for the next messages."""
WAL_SIZE_LIMIT = 4 * 1024 * 1024
"""Bytes that the write-ahead log keeps after a checkpoint."""


INSERTED = {
    "peers": "TTTtI",
    "messages": "ITTtTTTItiI",
    "deliveries": "ITIT",
    "keys": "TTTIitit",
}
"""Each table's columns: integers and texts; small letters are NULL where they are 0 or empty.
Python's sqlite3 takes a microsecond for each None or bool that it binds, a tenth for others."""
ROWS = (8, 64, 512)
"""How many rows a statement has room for; a batch takes the smallest that holds it."""

SELECT_PEERS = "SELECT name, host, roles, wake, transient FROM peers"
SELECT_DELIVERIES = (
    "SELECT seq, deliveries.id, peer, messages.id, reference, sender, member, host, recipient,"
    " text, ts, reply_to, expires, no_reply"
    " FROM deliveries JOIN messages ON messages.id = message ORDER BY seq"
)
SELECT_KEYS = (
    "SELECT sender, key, reference, accepted_at, expires, state, count, skipped FROM keys"
    " ORDER BY accepted_at"
)


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


class Store:
    """The database itself; used by one thread at a time.

    Raises:
        ConfigurationError: from the constructor and `load`; the file cannot be used, and was left
            as it was.
    """

    def __init__(self, file: Path, *, key_lifetime: float) -> None:
        self._file = file
        self._key_lifetime = key_lifetime
        self._maintained_at = time.monotonic()
        try:
            os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
            if file.stat().st_size:
                _check(file)
            if os.name == "posix":
                file.chmod(0o600)
            self._database = _open(file)
            self._last_message = self._largest("messages", "id")
            self._last_delivery = self._largest("deliveries", "seq")
        except (sqlite3.Error, OSError) as error:
            raise _unusable(file, _words(error)) from None

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._database.close()

    def load(self, epoch: float) -> Restored:
        """Read everything; deliveries in the order of acceptance."""
        try:
            return self._load(epoch)
        except (sqlite3.Error, msgspec.DecodeError, TypeError, ValueError, AttributeError) as error:
            # SQLite keeps any type in any column: somebody changed the file by hand.
            self.close()
            raise _unusable(self._file, f"it is damaged: {_words(error)}") from None

    def _load(self, epoch: float) -> Restored:
        execute = self._database.execute
        peers = {row[0]: _peer(*row) for row in execute(SELECT_PEERS)}
        receipts: dict[str, Receipt] = {}
        messages: dict[int, Message] = {}
        deliveries = []
        for seq, id, name, *row in execute(SELECT_DELIVERIES):
            message = messages.setdefault(row[0], _message(row))
            message.copies += 1
            receipt = receipts.setdefault(
                message.reference,
                Receipt(message.reference, 0.0, message.expires, "queued", (), durable=True),
            )
            peer = peers.setdefault(name, Peer(name))
            deliveries.append(Delivery(id, message, peer, receipt, row=seq))
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
                receipt.skipped = None if skipped is None else _names(skipped)
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
        for delivery in batch.done:  # not before: what failed is tried again
            delivery.message.copies -= 1

    def maintain(self, *, every: float = 0.0) -> None:
        """Drop keys that are too old to matter; give back what the file does not need.

        Does nothing if the last time was less than `every` seconds ago.
        """
        if time.monotonic() - self._maintained_at < every:
            return
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
        self._delete("peers", "name", [name for name, peer in peers.items() if peer is None])
        known: list[object] = []
        for peer in peers.values():
            if peer is not None:
                known += (
                    peer.name,
                    peer.host,
                    _json(peer.roles),
                    peer.wake or "",
                    int(peer.transient),
                )
        self._insert("peers", known)

    def _write_accepted(self, accepted: list[Accepted]) -> None:
        # Flat lists from the start: this and SQLite are most of what a journal costs.
        messages: list[object] = []
        deliveries: list[object] = []
        row, seq = self._last_message, self._last_delivery
        for entry in accepted:
            message = entry.message
            row += 1
            message.row = row
            message.copies = len(entry.deliveries)
            messages += (
                row,
                message.reference,
                message.sender,
                message.member or "",
                message.host,
                message.to,
                message.text,
                message.ts,
                message.reply_to or "",
                message.expires or 0,
                int(message.no_reply),
            )
            for delivery in entry.deliveries:
                seq += 1
                delivery.row = seq
                deliveries += (seq, delivery.id, row, delivery.peer.name)
        self._last_message, self._last_delivery = row, seq
        self._insert("messages", messages)
        self._insert("deliveries", deliveries)
        keys = [_key_row(entry) for entry in accepted if entry.key is not None]
        self._insert("keys", [value for row in keys for value in row])

    def _forget(self, done: list[Delivery]) -> None:
        self._delete("deliveries", "seq", [delivery.row for delivery in done])
        # Many confirmations in one batch may be of one message: @all.
        counts = Counter(delivery.message.row for delivery in done)
        copies = {delivery.message.row: delivery.message.copies for delivery in done}
        self._delete("messages", "id", [row for row in counts if counts[row] >= copies[row]])

    def _insert(self, table: str, values: list[object]) -> None:
        """Insert rows, whose values stand one after the other."""
        columns = INSERTED[table]
        width = len(columns)
        filling = [0 if column in "Ii" else "" for column in columns]
        most = width * ROWS[-1]
        for start in range(0, len(values), most):
            part = values[start : start + most]
            room = _room(len(part) // width)
            part += filling * (room - len(part) // width)
            self._database.execute(_insert_statement(table, room), part)

    def _delete(self, table: str, column: str, keys: list[Any]) -> None:
        filling = [""] if table == "peers" else [0]  # no name, no number
        for start in range(0, len(keys), ROWS[-1]):
            part = keys[start : start + ROWS[-1]]
            room = _room(len(part))
            part += filling * (room - len(part))
            self._database.execute(_delete_statement(table, column, room), part)

    def _largest(self, table: str, column: str) -> int:
        (largest,) = self._database.execute(
            f"SELECT coalesce(max({column}), 0) FROM {table}"
        ).fetchone()
        return int(largest)


def _room(rows: int) -> int:
    return next(room for room in ROWS if rows <= room)


@cache
def _insert_statement(table: str, room: int) -> str:
    columns = INSERTED[table]
    values = ", ".join([f"({', '.join('?' * len(columns))})"] * room)
    nothing = {"i": "0", "t": "''", "I": "0", "T": "''"}
    shown = ", ".join(
        f"nullif(column{number}, {nothing[column]})" if column in "it" else f"column{number}"
        for number, column in enumerate(columns, 1)
    )
    return (
        f"INSERT OR REPLACE INTO {table} SELECT {shown} FROM (VALUES {values})"
        f" WHERE column1 <> {nothing[columns[0]]}"
    )


@cache
def _delete_statement(table: str, column: str, room: int) -> str:
    return f"DELETE FROM {table} WHERE {column} IN ({', '.join('?' * room)})"


def one_name(file: Path) -> Path:
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


def _names(text: str) -> list[str]:
    return msgspec.json.decode(text, type=list[str])


def _peer(name: str, host: str, roles: str, wake: str | None, transient: int) -> Peer:
    peer = Peer(name)
    peer.host, peer.roles, peer.wake = host, _names(roles), wake
    peer.transient = bool(transient)
    return peer


def _message(row: list[Any]) -> Message:
    id, reference, sender, member, host, to, text, ts, reply_to, expires, no_reply = row
    return Message(
        reference=reference,
        sender=sender,
        member=member,
        host=host,
        to=to,
        text=text,
        size=len(text.encode()),
        ts=ts,
        reply_to=reply_to,
        expires=expires,
        no_reply=bool(no_reply),
        row=id,
    )


def _key_row(accepted: Accepted) -> tuple[object, ...]:
    message, receipt = accepted.message, accepted.receipt
    return (
        message.sender,
        accepted.key,
        receipt.reference,
        message.ts,
        receipt.expires or 0,
        receipt.state or "",
        receipt.count or 0,
        "" if receipt.skipped is None else _json(receipt.skipped),
    )


def _unusable(file: Path, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"the journal {file} cannot be used ({problem}): repair or move it, or give another file"
    )


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or "input/output error"
    return " ".join(str(error).split())
