"""The rows of the journal's database: read once, then written a batch at a time.

The schema is in database.py, where the file is opened.

Each step of a statement takes Python's lock again, and while the event loop is busy a thread
waits up to 5 ms for it. So a whole batch is one step: a statement with room for so many rows,
filled up with rows that it skips. (As JSON arrays, `json_each`, it took twice the CPU.) Rows
are found by the numbers that they were given, which Message and Delivery carry: an index on
references cost as much as the rows.

What a repeat of a key is answered is recorded with the message. While that is still open,
nothing is; nor is `delivered` recorded when it comes: a message of this journal that leaves it
was confirmed, or its key is told otherwise in the same commit.
"""

import logging
import sqlite3
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from hoptell import frames
from hoptell.relay.database import open_database
from hoptell.relay.model import Accepted, Delivery, Message, Peer, Receipt, Restored

logger = logging.getLogger(__name__)

FREE_PAGES = 256
"""Pages (of 4 KiB) that may stay free in the file for the next messages."""
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
SELECT_MESSAGES = (
    "SELECT id, reference, sender, member, host, recipient, text, ts, reply_to, expires, no_reply"
    " FROM messages WHERE id IN (SELECT message FROM deliveries)"
)
SELECT_DELIVERIES = "SELECT seq, id, message, peer FROM deliveries ORDER BY seq"
SELECT_KEYS = (
    "SELECT sender, key, reference, accepted_at, expires, state, count, skipped FROM keys"
    " ORDER BY accepted_at"
)
# SQLite keeps any type in any column, and anybody may have changed the file by hand.
PeerRow = tuple[str, str, str, str | None, Literal[0, 1]]
MessageRow = tuple[
    int, str, str, str | None, str, str, str, int, str | None, int | None, Literal[0, 1]
]
DeliveryRow = tuple[int, str, int, str]
KeyRow = tuple[str, str, str, int, int | None, frames.AckState | None, int | None, str | None]
SETTLE_KEYS = (
    "INSERT OR REPLACE INTO keys SELECT sender, keys.key, reference, accepted_at, expires,"
    " json_extract(value, '$[3]'), count, skipped FROM json_each(?) CROSS JOIN keys"
    " ON sender = json_extract(value, '$[0]') AND keys.key = json_extract(value, '$[1]')"
    " AND reference = json_extract(value, '$[2]')"
)
"""Few messages are not simply delivered: here arrays of JSON are good enough."""


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
        ConfigurationError: the file cannot be used, and was left as it was.
    """

    def __init__(self, file: Path, *, key_lifetime: float) -> None:
        self._key_lifetime = key_lifetime
        self._maintained_at = time.monotonic()
        self._database, self._kept = open_database(file, _read)
        self._last_message = max((d.message.row for d in self._kept.deliveries), default=0)
        self._last_delivery = max((d.row for d in self._kept.deliveries), default=0)

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._database.close()

    def load(self, epoch: float) -> Restored:
        """Hand over everything, once; deliveries in the order of acceptance."""
        kept, self._kept = self._kept, Restored([], [], [])
        for _, _, receipt in kept.keys:
            receipt.accepted_at -= epoch
        return kept

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
        keys: list[object] = []
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
            if entry.key is not None:
                state = entry.receipt.state or ""
                keys += _key_row(entry, state)
                message.key = None if state else entry.key
        self._last_message, self._last_delivery = row, seq
        self._insert("messages", messages)
        self._insert("deliveries", deliveries)
        self._insert("keys", keys)

    def _forget(self, done: list[Delivery]) -> None:
        settled = [
            (delivery.message.sender, delivery.message.key, delivery.receipt.reference, state)
            for delivery in done
            if delivery.message.key is not None and (state := delivery.receipt.state) != "delivered"
        ]
        if settled:
            self._database.execute(SETTLE_KEYS, (_json(settled),))
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


def _json(rows: object) -> str:
    return msgspec.json.encode(rows).decode()


def _names(text: str) -> list[str]:
    return msgspec.json.decode(text, type=list[str])


def _key_row(accepted: Accepted, state: str) -> tuple[object, ...]:
    message, receipt = accepted.message, accepted.receipt
    return (
        message.sender,
        accepted.key,
        receipt.reference,
        message.ts,
        receipt.expires or 0,
        state,
        receipt.count or 0,
        "" if receipt.skipped is None else _json(receipt.skipped),
    )


# Reading ------------------------------------------------------------------------------------


def _read(database: sqlite3.Connection) -> Restored:
    """Read everything; the times of keys are Unix time.

    Raises:
        sqlite3.Error: also for what hoptell would not have written.
    """

    table = ""

    def rows(name: str, query: str, kind: Any) -> Any:
        nonlocal table
        table = name
        return msgspec.convert(database.execute(query).fetchall(), list[kind])

    try:
        peers = {row[0]: _peer(*row) for row in rows("peers", SELECT_PEERS, PeerRow)}
        messages = {row[0]: _message(row) for row in rows("messages", SELECT_MESSAGES, MessageRow)}
        deliveries = _deliveries(
            rows("deliveries", SELECT_DELIVERIES, DeliveryRow), messages, peers
        )
        keys = _keys(rows("keys", SELECT_KEYS, KeyRow), deliveries)
    except (msgspec.DecodeError, ValueError) as error:
        raise sqlite3.DatabaseError(f"in {table}: {error}") from None
    except sqlite3.OperationalError as error:
        if hasattr(error, "sqlite_errorcode"):
            raise
        # Python's own error, which quotes the text.
        raise sqlite3.DatabaseError(f"in {table}: a text is not UTF-8") from None
    return Restored(list(peers.values()), deliveries, keys)


def _peer(name: str, host: str, roles: str, wake: str | None, transient: int) -> Peer:
    peer = Peer(name)
    peer.host, peer.roles, peer.wake = host, _names(roles), wake
    peer.transient = bool(transient)
    return peer


def _message(row: tuple[Any, ...]) -> Message:
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


def _deliveries(
    rows: list[tuple[int, str, int, str]], messages: dict[int, Message], peers: dict[str, Peer]
) -> list[Delivery]:
    receipts = {
        row: Receipt(message.reference, 0.0, message.expires, "queued", (), durable=True)
        for row, message in messages.items()
    }
    deliveries = []
    for seq, id, row, name in rows:
        message = messages.get(row)
        if message is None:
            raise ValueError(f"the message of delivery {seq} is missing")
        message.copies += 1
        peer = peers.setdefault(name, Peer(name))
        deliveries.append(Delivery(id, message, peer, receipts[row], row=seq))
    return deliveries


def _keys(
    rows: list[tuple[Any, ...]], deliveries: list[Delivery]
) -> list[tuple[str, str, Receipt]]:
    waiting = {delivery.receipt.reference: delivery for delivery in deliveries}
    keys = []
    for sender, key, reference, accepted_at, expires, state, count, skipped in rows:
        if (delivery := waiting.get(reference)) is not None:
            receipt = delivery.receipt  # queued now, whatever it was
            delivery.message.key = None if state else key
        else:
            receipt = Receipt(reference, 0.0, expires, "delivered", (), durable=True)
        receipt.accepted_at = accepted_at / 1000
        if state is not None:
            receipt.state = state
            receipt.count = count
            receipt.skipped = None if skipped is None else _names(skipped)
        keys.append((sender, key, receipt))
    return keys
