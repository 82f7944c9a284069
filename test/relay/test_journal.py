"""The journal's file: what it keeps, what it refuses, and what it does when the disk fails."""

import asyncio
import errno
import os
import secrets
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.core import EPOCH, Driver, delivered, texts, written

from hoptell import frames
from hoptell.errors import ConfigurationError
from hoptell.relay import database, store, wal
from hoptell.relay import journal as module
from hoptell.relay.database import SCHEMA_VERSION, lock_file, unusable
from hoptell.relay.journal import NullJournal, SqliteJournal
from hoptell.relay.model import Accepted, Confirmed, Expired, Forgotten, Known
from hoptell.relay.store import Batch, Store

RECORDS = (Accepted, Confirmed, Expired, Known, Forgotten)


class Relay:
    """A core and its journal, with the commits done by hand: no thread, no loop."""

    def __init__(self, file: Path, **limits: int) -> None:
        self.store = Store(file, key_lifetime=600)
        self.driver = Driver(seed=secrets.token_hex(16), **limits)
        self.driver.relay.restore(self.store.load(EPOCH), now=self.driver.now)
        self.recorded = 0

    def commit(self) -> None:
        batch = Batch()
        for record in self.driver.records[self.recorded :]:
            match record:
                case Accepted():
                    batch.accepted.append(record)
                case Confirmed() | Expired():
                    batch.done.append(record.delivery)
                case Known():
                    batch.peers[record.peer.name] = record.peer
                case Forgotten():
                    batch.peers[record.name] = None
        self.recorded = len(self.driver.records)
        self.store.commit(batch)

    def end(self) -> None:
        self.store.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def rows(file: Path, query: str) -> list[tuple[object, ...]]:
    """What any SQLite tool sees."""
    with closing(sqlite3.connect(file)) as database:
        return database.execute(query).fetchall()


def test_a_restart_finds_unconfirmed_deliveries_with_their_order_ids_and_everything_else(file):
    relay = Relay(file)
    driver = relay.driver
    alice, bob = driver.login("alice", roles=["r"], wake="hook"), driver.login("bob")
    sent = [delivered(driver.send(bob, "alice", f"text {n}\0é", ttl=60))[0] for n in range(5)]
    driver.got(alice, sent[1].id)
    driver.close(alice)
    driver.send(bob, "alice", "queued", reply_to=sent[0].message_id)
    relay.commit()
    relay.end()

    relay = Relay(file)
    bob = relay.driver.login("bob")
    [info] = relay.driver.peers(bob)
    assert info == frames.PeerInfo("alice", "alice-host", ["r"], False, 5, "hook")
    alice = relay.driver.hello("alice")
    again = delivered(relay.driver.take(), alice)
    assert again[:4] == [sent[0], *sent[2:]]
    assert (again[4].text, again[4].reply_to) == ("queued", sent[0].message_id)
    relay.end()


def test_a_deadline_counts_over_a_restart(file):
    relay = Relay(file)
    bob = relay.driver.login("bob")
    relay.driver.close(relay.driver.login("alice"))
    relay.driver.send(bob, "alice", "brief", ttl=60)
    relay.driver.send(bob, "alice", "lasting")
    relay.commit()
    relay.end()

    relay = Relay(file)
    relay.driver.wait(61)
    relay.commit()
    relay.driver.hello("alice")
    assert texts(relay.driver.take()) == ["lasting"]
    relay.end()
    assert rows(file, "SELECT text FROM messages") == [("lasting",)]


def test_a_key_is_recognized_over_a_restart_and_answered_with_what_became_of_the_message(file):
    relay = Relay(file)
    driver = relay.driver
    bob, alice = driver.login("bob"), driver.login("alice")
    driver.close(driver.login("carol"))
    flying = delivered(driver.send(bob, "alice", key="in flight"))[0]
    arrived = delivered(driver.send(bob, "alice", key="arrived"))[0]
    fanned = written(driver.send(bob, "@all", key="fanned"))[0]
    queued = written(driver.send(bob, "carol", key="queued", ttl=60))[0]
    driver.got(alice, arrived.id)
    relay.commit()
    relay.end()

    relay = Relay(file)
    bob = relay.driver.login("bob")
    answers = {}
    for key in ("in flight", "arrived", "fanned", "queued"):
        [answers[key]] = written(relay.driver.send(bob, "alice", key=key))
    assert answers == {
        "in flight": frames.Ack(1, "queued", flying.message_id),
        "arrived": frames.Ack(1, "delivered", arrived.message_id),
        "fanned": fanned,
        "queued": queued,
    }
    assert (fanned.count, fanned.skipped) == (1, [])
    relay.end()


def test_a_message_that_was_dropped_is_never_acknowledged_as_delivered_after_a_restart(file):
    relay = Relay(file)
    driver = relay.driver
    bob, alice = driver.login("bob"), driver.login("alice")
    for key in ("left", "left before", "late"):
        driver.send(bob, "alice", key, ttl=60, key=key)
    relay.commit()  # all three were in flight when they were recorded
    driver.wait(6)
    driver.got(alice, list(alice.in_flight)[2])
    driver.close(alice)
    relay.commit()
    relay.end()

    relay = Relay(file)
    bob = relay.driver.login("bob")
    relay.driver.wait(61)
    before = {
        key: written(relay.driver.send(bob, "alice", key=key))[0].state
        for key in ("left", "left before", "late")
    }
    relay.commit()
    relay.end()
    assert before == {"left": "queued", "left before": "queued", "late": "unconfirmed"}

    relay = Relay(file)
    bob = relay.driver.login("bob")
    for key, state in before.items():
        assert written(relay.driver.send(bob, "alice", key=key))[0].state == state
    relay.end()


def test_an_old_message_that_is_dropped_changes_no_answer_to_a_newer_one_with_its_key(file):
    relay = Relay(file)
    driver = relay.driver
    bob, alice = driver.login("bob"), driver.login("alice")
    driver.send(bob, "alice", "old", ttl=700, key="k")
    relay.commit()
    driver.close(alice)
    driver.wait(601)
    alice = driver.login("alice")
    newer = delivered(driver.send(bob, "alice", "new", key="k"))[0]
    driver.got(alice, newer.id)
    driver.close(alice)
    relay.commit()
    driver.wait(100)
    relay.commit()
    assert rows(file, "SELECT reference, state FROM keys") == [(newer.message_id, "delivered")]
    relay.end()


def test_a_key_older_than_10_minutes_is_not_recognized_after_a_restart(file):
    relay = Relay(file)
    bob = relay.driver.login("bob")
    relay.driver.close(relay.driver.login("alice"))
    relay.driver.send(bob, "alice", key="k")
    relay.commit()
    relay.end()

    relay = Relay(file)
    relay.driver.wait(601)
    bob = relay.driver.login("bob")
    relay.driver.send(bob, "alice", key="k")
    relay.commit()
    assert rows(file, "SELECT count(*) FROM deliveries") == [(2,)]
    relay.end()


def test_a_transient_peer_is_forgotten_over_a_restart_too(file):
    relay = Relay(file)
    bob = relay.driver.login("bob")
    relay.driver.close(relay.driver.login("brief", transient=True))
    relay.driver.send(bob, "brief")
    relay.commit()
    relay.end()

    relay = Relay(file)
    relay.driver.wait(600)
    relay.commit()
    assert rows(file, "SELECT count(*) FROM messages") == [(0,)]
    assert rows(file, "SELECT name FROM peers") == [("bob",)]
    relay.end()


def test_confirmed_and_expired_deliveries_and_forgotten_peers_leave_the_file(file):
    relay = Relay(file)
    driver = relay.driver
    alice, bob = driver.login("alice"), driver.login("bob")
    driver.login("carol")
    both = delivered(driver.send(bob, "@all", "news"))
    driver.send(bob, "alice", "brief", ttl=1)
    relay.commit()
    driver.got(alice, both[0].id)
    driver.close(alice)
    driver.wait(2)
    relay.commit()
    assert rows(file, "SELECT peer FROM deliveries") == [("carol",)]
    assert rows(file, "SELECT text FROM messages") == [("news",)]
    driver.wait(7 * 3600)
    relay.commit()
    assert rows(file, "SELECT name FROM peers ORDER BY name") == [("bob",), ("carol",)]
    relay.end()


@pytest.mark.parametrize("count", [1, 8, 9, 65, 512, 513, 1300])
def test_a_batch_of_any_size_is_written_and_forgotten_whole(file, count):
    relay = Relay(file, queued_per_peer=2000, in_flight=2000)
    driver = relay.driver
    alice, bob = driver.login("alice"), driver.login("bob")
    sent = [delivered(driver.send(bob, "alice", f"text {n}"))[0] for n in range(count)]
    relay.commit()
    assert rows(file, "SELECT text FROM messages ORDER BY id") == [(m.text,) for m in sent]
    assert rows(file, "SELECT id FROM deliveries ORDER BY seq") == [(m.id,) for m in sent]
    for message in sent[1:]:
        driver.got(alice, message.id)
    relay.commit()
    assert rows(file, "SELECT text FROM messages") == [("text 0",)]
    driver.got(alice, sent[0].id)
    relay.commit()
    assert rows(file, "SELECT count(*) FROM messages") == [(0,)]
    relay.end()


def test_a_message_stays_until_its_last_copy_is_confirmed_over_restarts(file):
    relay = Relay(file)
    names = ("alice", "carol", "dave")
    peers = {name: relay.driver.login(name) for name in names}
    bob = relay.driver.login("bob")
    relay.driver.send(bob, "@all")
    relay.commit()
    relay.driver.got(peers["alice"], next(iter(peers["alice"].in_flight)))
    relay.commit()
    relay.end()

    relay = Relay(file)
    for name in ("carol", "dave"):
        assert rows(file, "SELECT count(*) FROM messages") == [(1,)]
        peer = relay.driver.login(name)
        relay.driver.got(peer, next(iter(peer.in_flight)))
        relay.commit()
    assert rows(file, "SELECT count(*) FROM messages") == [(0,)]
    relay.end()


def test_the_file_does_not_grow_with_traffic(file):
    relay = Relay(file)
    driver = relay.driver
    alice, bob = driver.login("alice"), driver.login("bob")
    sizes = []
    for _ in range(4):
        for _ in range(100):
            [message] = delivered(driver.send(bob, "alice", "x" * 10_000))
            driver.got(alice, message.id)
            relay.commit()
        sizes.append(file.stat().st_size)
    assert max(sizes) < 500_000
    relay.end()


def test_space_that_a_full_queue_took_is_given_back(file):
    relay = Relay(file, queued_per_peer=2000)
    driver = relay.driver
    bob = driver.login("bob")
    driver.close(driver.login("alice"))
    for _ in range(400):
        driver.send(bob, "alice", "x" * 10_000)
    relay.commit()
    alice = driver.login("alice")
    while alice.in_flight:
        driver.got(alice, next(iter(alice.in_flight)))
    relay.commit()
    relay.store.maintain()
    assert file.stat().st_size < 1_500_000
    relay.end()


def test_old_keys_leave_the_file(file, monkeypatch):
    relay = Relay(file)
    bob = relay.driver.login("bob")
    relay.driver.close(relay.driver.login("alice"))
    relay.driver.send(bob, "alice", key="old")
    relay.commit()
    sent_at = relay.driver.now + EPOCH
    monkeypatch.setattr(store, "time", SimpleNamespace(time=lambda: now, monotonic=time.monotonic))
    now = sent_at + 599
    relay.store.maintain()
    assert rows(file, "SELECT key FROM keys") == [("old",)]
    now = sent_at + 601
    relay.store.maintain()
    assert rows(file, "SELECT key FROM keys") == []
    relay.end()


# The file


def test_the_files_are_only_for_their_owner_and_a_loose_mode_is_tightened(file):
    file.touch(0o644)
    relay = Relay(file)
    relay.driver.login("alice")
    relay.commit()
    lock = lock_file(file)
    for made in file.parent.iterdir():
        assert stat.S_IMODE(made.stat().st_mode) == 0o600, made
    assert {made.name for made in file.parent.iterdir()} >= {"journal", "journal-wal"}
    os.close(lock)
    relay.end()


def test_a_second_relay_on_the_file_is_told_the_first_ones_pid(file):
    program = (
        "import pathlib, sys, hoptell.relay.database as j;"
        "lock = j.lock_file(pathlib.Path(sys.argv[1])); print('locked', flush=True); input()"
    )
    command = [sys.executable, "-c", program, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout.readline() == b"locked\n"
        with pytest.raises(ConfigurationError, match=f"pid {first.pid} "):
            lock_file(file)
        first.kill()
    os.close(lock_file(file))  # a relay that was killed does not hold it


def refused(file: Path) -> str:
    """Why a journal is not opened; the files must be as they were."""
    before = {path: path.read_bytes() for path in file.parent.iterdir() if path.is_file()}
    with pytest.raises(ConfigurationError) as refusal:
        Store(file, key_lifetime=600)
    after = {path: path.read_bytes() for path in file.parent.iterdir() if path.is_file()}
    assert after == before
    return str(refusal.value)


def test_a_newer_schema_is_left_untouched_and_explained(file):
    Relay(file).end()
    with closing(sqlite3.connect(file)) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    assert "newer hoptell" in refused(file)


def test_a_damaged_file_is_left_untouched_and_explained(file):
    relay = Relay(file, queued_per_peer=500)
    bob = relay.driver.login("bob")
    relay.driver.close(relay.driver.login("alice"))
    for _ in range(400):
        relay.driver.send(bob, "alice", "x" * 1000)
    relay.commit()
    relay.end()
    content = bytearray(file.read_bytes())
    content[4096:40960] = os.urandom(36864)
    file.write_bytes(content)
    assert "cannot be used" in refused(file)
    file.write_bytes(b"This is not a database, but it is long enough to be one." * 100)
    assert "not a database" in refused(file)


def test_another_programs_database_is_left_untouched(file):
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE theirs (a)")
        database.execute("PRAGMA user_version = 1")
    assert "another program" in refused(file)


def test_a_database_of_a_program_that_marks_nothing_is_left_untouched(file):
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE theirs (a)")
    assert "another program" in refused(file)


def test_what_is_wrong_with_a_damaged_file_is_one_line(file):
    relay = Relay(file, queued_per_peer=500)
    relay.driver.close(relay.driver.login("alice"))
    relay.commit()
    relay.end()
    content = bytearray(file.read_bytes())
    content[4096:8192] = os.urandom(4096)  # the page that tells where the others belong
    file.write_bytes(content)
    assert "damaged" in (why := refused(file)) and "\n" not in why


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE peers SET roles = 'dev'",
        "UPDATE peers SET roles = '[1]'",
        "UPDATE messages SET text = x'ff'",
        "UPDATE messages SET text = CAST(x'ff' || 'a secret' AS TEXT)",
        "UPDATE keys SET accepted_at = 'today'",
        "UPDATE keys SET state = 'fanout', skipped = '{'",
        "UPDATE keys SET state = 'lost'",
        "UPDATE messages SET ts = 'abc'",
        "UPDATE messages SET expires = 1.5",
        "UPDATE messages SET no_reply = 2",
        "UPDATE deliveries SET id = 5, peer = x'00'",
        "UPDATE deliveries SET message = 999",
        "DELETE FROM messages",
    ],
)
def test_values_that_hoptell_would_not_have_written_are_explained(file, change):
    relay = Relay(file)
    bob = relay.driver.login("bob")
    relay.driver.close(relay.driver.login("alice"))
    relay.driver.send(bob, "alice", "a secret", key="k")
    relay.commit()
    relay.end()
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(change)
    why = refused(file)
    assert "cannot be used (it is damaged: in " in why and "\n" not in why
    assert "a secret" not in why


def killed_relay(file: Path) -> None:
    """A journal with a message, as a relay leaves it that is killed: with its log and index."""
    relay = Relay(file)
    bob = relay.driver.login("bob")
    relay.driver.close(relay.driver.login("alice"))
    relay.driver.send(bob, "alice", "x" * 20_000)
    relay.commit()
    left = {path: path.read_bytes() for path in file.parent.iterdir()}
    relay.end()
    for path, content in left.items():
        path.write_bytes(content)
    assert len(left[file.with_name("journal-wal")]) > 20_000


def test_what_a_killed_relay_left_is_whole(file):
    killed_relay(file)
    relay = Relay(file)
    assert texts(relay.driver.take(), relay.driver.hello("alice")) == []
    assert texts(relay.driver.take()) == ["x" * 20_000]
    relay.end()


@pytest.mark.parametrize(
    "damage",
    [
        lambda log: log[:50],
        lambda log: log[:-1],
        lambda log: log[:12] + b"????" + log[16:],  # its header
        lambda log: log[:5000] + bytes([log[5000] ^ 1]) + log[5001:],
        lambda log: log[:-1] + bytes([log[-1] ^ 1]),
    ],
)
def test_a_damaged_write_ahead_log_hides_no_message(file, damage):
    killed_relay(file)
    log = file.with_name("journal-wal")
    log.write_bytes(damage(log.read_bytes()))
    assert "it is damaged: journal-wal does not hold all" in refused(file)


def test_a_journal_that_is_gone_without_its_write_ahead_log_is_explained(file):
    killed_relay(file)
    file.unlink()
    with pytest.raises(ConfigurationError, match="it is empty, but journal-wal is not"):
        Store(file, key_lifetime=600)
    assert file.with_name("journal-wal").stat().st_size > 0


def test_the_index_of_an_older_write_ahead_log_says_nothing_of_a_newer_one(file):
    """As after a loss of power: the index is not written to the disk in step with the log."""
    killed_relay(file)
    older = {name: file.with_name(name).read_bytes() for name in ("journal-shm", "journal-wal")}
    relay = Relay(file)
    relay.driver.close(relay.driver.login("carol"))
    relay.commit()
    newer = file.with_name("journal-wal").read_bytes()
    content = file.read_bytes()
    relay.end()
    for log in (newer, b"", older["journal-wal"] + b"half a frame"):
        file.write_bytes(content)
        file.with_name("journal-wal").write_bytes(log)
        file.with_name("journal-shm").write_bytes(older["journal-shm"])
        assert not wal.lost_commits(file)


def test_a_new_journal_has_its_tables_outside_of_the_write_ahead_log(file):
    relay = Relay(file)
    content = file.read_bytes()
    relay.end()
    file.write_bytes(content)
    assert rows(file, "SELECT count(*) FROM messages") == [(0,)]


def test_messages_without_deliveries_leave_the_file(file):
    relay = Relay(file)
    bob = relay.driver.login("bob")
    relay.driver.close(relay.driver.login("alice"))
    relay.driver.send(bob, "alice", "kept")
    relay.commit()
    relay.end()
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(
            "INSERT INTO messages SELECT 999, reference, sender, member, host, recipient,"
            " 'nobody''s', ts, reply_to, expires, no_reply FROM messages"
        )
    relay = Relay(file)
    assert rows(file, "SELECT text FROM messages") == [("kept",)]
    relay.end()


async def test_a_second_relay_is_refused_under_every_name_of_the_file(file):
    other = file.with_name("other")
    other.symlink_to(file)
    async with journal(file):
        assert "uses the journal" in unstartable(other)
        other.unlink()
        other.hardlink_to(file)
        assert "another name too" in unstartable(other)


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "loop"])
async def test_what_is_not_a_file_is_refused_and_nothing_is_left_beside_it(tmp_path, kind):
    path = tmp_path / "journal"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/null")
        case "loop":
            path.symlink_to(path)
    unstartable(path)
    assert list(tmp_path.iterdir()) == [path] and not Path("/dev/null.lock").exists()


def unstartable(file: Path) -> str:
    """Why no relay can start with this journal."""
    with pytest.raises(ConfigurationError) as refusal:
        SqliteJournal(
            file,
            loop=asyncio.get_running_loop(),
            on_durable=lambda _: None,
            on_failed=lambda _: None,
        )
    return str(refusal.value)


@pytest.mark.parametrize(
    ("problem", "advice"),
    [
        (OSError(errno.EACCES, "Permission denied"), "writable for this user"),
        (OSError(errno.EROFS, "Read-only file system"), "writable for this user"),
        (OSError(errno.ENOSPC, "No space left on device"), "make room"),
        (OSError(errno.EIO, "Input/output error"), "may be sound"),
        (sqlite3.SQLITE_READONLY, "writable for this user"),
        (sqlite3.SQLITE_CANTOPEN, "writable for this user"),
        (sqlite3.SQLITE_FULL, "make room"),
        (sqlite3.SQLITE_IOERR_SHMSIZE, "may be sound"),
        (sqlite3.SQLITE_BUSY, "end the program"),
        (sqlite3.SQLITE_CORRUPT, "move it"),
        (sqlite3.SQLITE_NOTADB, "move it"),
    ],
)
def test_only_a_damaged_journal_is_to_be_moved(file, problem, advice):
    error = problem
    if isinstance(problem, int):
        error = sqlite3.OperationalError("what SQLite says")
        error.sqlite_errorcode = problem
    sentence = str(unusable(file, error))
    assert advice in sentence
    assert ("lost then" in sentence) == (advice == "move it")


def test_a_file_that_sqlite_cannot_write_is_explained_at_the_start(file, monkeypatch):
    Relay(file).end()
    connect = sqlite3.connect

    def read_only(*_: object, **options: object) -> sqlite3.Connection:
        return connect(f"file:{file}?mode=ro&immutable=1", **{**options, "uri": True})

    monkeypatch.setattr(database.sqlite3, "connect", read_only)
    assert "readonly database): make it and its folder writable" in refused(file)


@pytest.mark.parametrize("failing", ["open", "pwrite"])
def test_a_lock_that_cannot_be_written_is_explained(file, monkeypatch, failing):
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(database.os, failing, fail)
        with pytest.raises(ConfigurationError, match="No space left on device.*make room"):
            lock_file(file)
    os.close(lock_file(file))


def test_a_folder_that_is_not_there_is_explained(tmp_path):
    missing = "No such file.*make its folder first"
    with pytest.raises(ConfigurationError, match=missing):
        Store(tmp_path / "nowhere" / "journal", key_lifetime=600)
    with pytest.raises(ConfigurationError, match=missing):
        lock_file(tmp_path / "nowhere" / "journal")


def test_a_file_of_schema_0_is_migrated(file):
    sqlite3.connect(file).close()
    Relay(file).end()
    assert rows(file, "PRAGMA user_version") == [(SCHEMA_VERSION,)]


def another_schema(monkeypatch: pytest.MonkeyPatch, *migrations: str) -> None:
    """As a later version of hoptell would have it."""
    monkeypatch.setattr(database, "MIGRATIONS", (*database.MIGRATIONS, *migrations))
    monkeypatch.setattr(database, "SCHEMA_VERSION", len(database.MIGRATIONS))


def test_a_file_is_migrated_over_several_versions_with_what_it_holds(file, monkeypatch):
    relay = Relay(file)
    bob = relay.driver.login("bob")
    relay.driver.close(relay.driver.login("alice"))
    relay.driver.send(bob, "alice", "from before")
    relay.commit()
    relay.end()
    another_schema(
        monkeypatch,
        "CREATE TABLE added (a INTEGER); INSERT INTO added VALUES (1)",
        "UPDATE added SET a = a + 1; UPDATE messages SET host = 'migrated'",
    )
    relay = Relay(file)
    [message] = delivered((relay.driver.hello("alice"), relay.driver.take())[1])
    assert (message.text, message.host) == ("from before", "migrated")
    relay.end()
    assert rows(file, "PRAGMA user_version") == [(SCHEMA_VERSION + 2,)]
    assert rows(file, "SELECT a FROM added") == [(2,)]
    Relay(file).end()
    assert rows(file, "SELECT a FROM added") == [(2,)]


def test_a_migration_that_fails_leaves_the_file_as_it_was(file, monkeypatch):
    relay = Relay(file)
    relay.driver.close(relay.driver.login("alice"))
    relay.commit()
    relay.end()
    with monkeypatch.context() as patched:
        another_schema(patched, "DELETE FROM peers", "UPDATE absent SET a = 1")
        assert "no such table: absent" in refused(file)
    assert rows(file, "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    assert rows(file, "SELECT name FROM peers") == [("alice",)]
    Relay(file).end()


# Commits


def test_every_commit_is_on_the_disk_before_it_is_over(file):
    """What makes SQLite wait for it: a file system that lies is out of reach."""
    relay = Relay(file)
    setting = relay.store._database.execute
    assert setting("PRAGMA synchronous").fetchone() == (2,)
    assert setting("PRAGMA journal_mode").fetchone() == ("wal",)
    relay.end()


@asynccontextmanager
async def journal(
    file: Path, *, close_wait: float = 10
) -> AsyncIterator[tuple[SqliteJournal, asyncio.Queue[tuple]]]:
    """A journal with its thread; what it calls back comes in the queue."""
    told: asyncio.Queue[tuple] = asyncio.Queue()
    made = SqliteJournal(
        file,
        loop=asyncio.get_running_loop(),
        on_durable=lambda accepted: told.put_nowait(("durable", accepted)),
        on_failed=lambda accepted: told.put_nowait(("failed", accepted)),
    )
    made.restore(epoch=EPOCH)
    try:
        async with asyncio.timeout(10):
            yield made, told
    finally:
        with suppress(TimeoutError):
            async with asyncio.timeout(close_wait):
                await made.close()


def accepted_messages(count: int) -> list[Accepted]:
    driver = Driver(queued_per_peer=1000)
    bob = driver.login("bob")
    driver.close(driver.login("alice"))
    for number in range(count):
        driver.send(bob, "alice", f"text {number}")
    return [record for record in driver.records if isinstance(record, Accepted)]


async def test_what_arrives_during_a_commit_becomes_one_next_commit(file, monkeypatch):
    sizes = []
    slow = asyncio.Event()
    loop = asyncio.get_running_loop()
    commit = Store.commit

    def spy(made: Store, batch: Batch) -> None:
        sizes.append(len(batch.accepted))
        if len(sizes) == 1:
            asyncio.run_coroutine_threadsafe(slow.wait(), loop).result(10)
        commit(made, batch)

    monkeypatch.setattr(Store, "commit", spy)
    messages = accepted_messages(30)
    async with journal(file) as (made, told):
        for message in messages:
            made.record(message)
            made.flush()
        slow.set()
        assert await told.get() == ("durable", messages[:1])
        assert await told.get() == ("durable", messages[1:])
    assert sizes[:2] == [1, 29]


async def test_the_event_loop_runs_while_a_commit_takes_its_time(file, monkeypatch):
    loop = asyncio.get_running_loop()
    turned = asyncio.Event()
    commit = Store.commit

    def slow(made: Store, batch: Batch) -> None:
        # Ends only once the loop has turned: if it could not, this would time out.
        asyncio.run_coroutine_threadsafe(turned.wait(), loop).result(5)
        commit(made, batch)

    monkeypatch.setattr(Store, "commit", slow)
    async with journal(file) as (made, told):
        made.record(accepted_messages(1)[0])
        made.flush()
        loop.call_soon(turned.set)
        assert (await told.get())[0] == "durable"


@pytest.fixture
def full_disk(file: Path, monkeypatch) -> Callable[[bool], None]:
    """A switch: while on, SQLite finds no more room in the file."""
    state = {"full": False}
    commit = Store.commit

    def limited(made: Store, batch: Batch) -> None:
        execute = made._database.execute
        (pages,) = execute("PRAGMA page_count").fetchone()
        execute(f"PRAGMA max_page_count = {pages if state['full'] else 2**30}")
        commit(made, batch)

    monkeypatch.setattr(Store, "commit", limited)
    return lambda full: state.update(full=full)


async def test_a_full_disk_fails_what_does_not_fit_and_the_journal_recovers(
    file, full_disk, monkeypatch
):
    monkeypatch.setattr(module, "RETRY_INTERVAL", 0.01)
    messages = accepted_messages(300)
    for message in messages:
        message.message.text = "x" * 5_000
    full_disk(True)
    async with journal(file) as (made, told):
        for message in messages[:200]:
            made.record(message)
        made.flush()
        assert await told.get() == ("failed", messages[:200])
        made.record(messages[200])  # waits for the next try
        made.flush()
        full_disk(False)
        later = [await told.get()]
        while later[-1][0] != "durable" or not later[-1][1]:
            later.append(await told.get())
        for message in messages[201:203]:
            made.record(message)
        made.flush()
        assert await told.get() == ("durable", messages[201:203])
    kept = {reference for (reference,) in rows(file, "SELECT reference FROM messages")}
    assert kept == {message.receipt.reference for message in messages[200:203]}


async def test_a_bug_in_a_commit_refuses_its_messages_and_the_journal_lives_on(file, monkeypatch):
    monkeypatch.setattr(module, "RETRY_INTERVAL", 0.01)
    commit = Store.commit
    first, second = accepted_messages(2)

    def broken(made: Store, batch: Batch) -> None:
        if first in batch.accepted:
            raise ZeroDivisionError
        commit(made, batch)

    monkeypatch.setattr(Store, "commit", broken)
    async with journal(file) as (made, told):
        made.record(first)
        made.flush()
        assert await told.get() == ("failed", [first])
        made.record(second)
        made.flush()
        while (heard := await told.get()) == ("durable", []):  # a try that had nothing to write
            pass
        assert heard == ("durable", [second])


async def test_a_confirmation_that_could_not_be_written_is_written_later(
    file, full_disk, monkeypatch
):
    monkeypatch.setattr(module, "RETRY_INTERVAL", 0.01)
    first, *more = accepted_messages(300)
    async with journal(file) as (made, told):
        made.record(first)
        made.flush()
        await told.get()
        full_disk(True)
        made.record(Confirmed(first.deliveries[0]))
        for message in more:
            message.message.text = "x" * 5_000
            made.record(message)
        made.flush()
        assert (await told.get())[0] == "failed"
        full_disk(False)
        while (await told.get())[0] != "durable":
            pass
    assert rows(file, "SELECT count(*) FROM deliveries") == [(0,)]


async def test_closing_writes_what_was_recorded(file):
    async with journal(file) as (made, _told):
        made.record(accepted_messages(1)[0])
    assert rows(file, "SELECT count(*) FROM deliveries") == [(1,)]


async def test_a_disk_slower_than_the_relays_end_keeps_the_file_from_the_next_relay(
    file, monkeypatch
):
    finish = threading.Event()
    commit = Store.commit

    def slow(made: Store, batch: Batch) -> None:
        assert finish.wait(10)
        commit(made, batch)

    monkeypatch.setattr(Store, "commit", slow)
    try:
        async with journal(file, close_wait=0.05) as (made, _told):
            made.record(accepted_messages(1)[0])
        with pytest.raises(ConfigurationError, match=f"pid {os.getpid()} uses the journal"):
            lock_file(file)
    finally:
        finish.set()
        await asyncio.to_thread(made._thread.join, 10)
    os.close(lock_file(file))
    assert rows(file, "SELECT count(*) FROM deliveries") == [(1,)]


def test_without_a_journal_a_message_is_released_at_once():
    [accepted] = accepted_messages(1)
    assert not accepted.receipt.durable
    NullJournal().record(accepted)
    assert accepted.receipt.durable


# Taking back


def test_a_message_that_could_not_be_recorded_leaves_no_trace_and_its_sender_is_told():
    driver = Driver(in_flight=1)
    alice, bob = driver.login("alice"), driver.login("bob")
    driver.close(driver.login("carol"))
    driver.send(bob, "alice", "flying", key="k")
    driver.send(bob, "alice", "queued")
    driver.send(bob, "carol", "offline")
    flying, queued, offline = (r for r in driver.records if isinstance(r, Accepted))
    driver.relay.withdraw(flying, "the disk is full", now=driver.now)
    effects = driver.take()
    assert written(effects) == [frames.Error("the disk is full", 1)]
    assert texts(effects, alice) == ["queued"]
    driver.relay.withdraw(queued, "the disk is full", now=driver.now)
    driver.relay.withdraw(offline, "the disk is full", now=driver.now)
    driver.take()
    assert (driver.relay._queued, driver.relay._queued_bytes, alice.in_flight) == (0, 0, {})
    assert not driver.relay._awaiting and not driver.relay._keys
    driver.wait(7 * 3600)
    assert driver.peers(bob) == [frames.PeerInfo("alice", "alice-host", [], True, 0)]
