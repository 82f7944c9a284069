"""The journal as a file: one relay's at a time, looked at before it is touched, of our schema.

Schema (`PRAGMA user_version` 1, `PRAGMA application_id` 0x686f7074, "hopt"); times are Unix ms:

    peers       name, host, roles (JSON array), wake, transient (1: it will not come back)
    messages    id, reference, sender, member, host, recipient (the address), text, ts,
                reply_to, expires, no_reply; one row a message that has deliveries
    deliveries  seq (the order of acceptance), id, message (messages.id), peer; one row a copy
                that is not confirmed yet
    keys        sender, key, reference, accepted_at, expires, state (NULL: it was in flight, and
                was confirmed if it is not among the messages any more), count, skipped (JSON
                array)

`MIGRATIONS` make it from any older one, all in one transaction. What is wrong with a file is said
in `unusable`, with what to do about it: only a damaged one is to be moved, for in any other wait
messages that were accepted.
"""

import errno
import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from hoptell.errors import ConfigurationError
from hoptell.relay import wal

T = TypeVar("T")

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

WAL_SIZE_LIMIT = 4 * 1024 * 1024
"""Bytes that the write-ahead log keeps after a checkpoint."""

_WRITABLE = "make it and its folder writable for this user, or give another file"
_ROOM = "make room on its disk; do not move it, or what waits in it is lost"
_FAILING = "see whether its disk is full or failing; the file itself may be sound"
_DAMAGED = "repair it, or move it and the files beside it away: what waits in it is lost then"
_ADVICE: dict[int | None, str] = {
    errno.EACCES: _WRITABLE,
    errno.EPERM: _WRITABLE,
    errno.EROFS: _WRITABLE,
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EIO: _FAILING,
    errno.ENOENT: "make its folder first, or give another file",
}
_SQLITE_ADVICE: dict[int | None, str] = {
    sqlite3.SQLITE_READONLY: _WRITABLE,
    sqlite3.SQLITE_CANTOPEN: _WRITABLE,
    sqlite3.SQLITE_PERM: _WRITABLE,
    sqlite3.SQLITE_FULL: _ROOM,
    sqlite3.SQLITE_IOERR: _FAILING,
    sqlite3.SQLITE_BUSY: "end the program that has it locked",
    sqlite3.SQLITE_LOCKED: "end the program that has it locked",
}


def unusable(file: Path, error: sqlite3.Error | OSError) -> ConfigurationError:
    """Why a journal cannot be used, and what to do: what waits in a sound one must not be lost."""
    if isinstance(error, OSError):
        problem = error.strerror or "input/output error"
        advice = _ADVICE.get(error.errno, "give another file")
    else:
        problem = " ".join(str(error).split())
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        advice = _SQLITE_ADVICE.get(code & 0xFF, _DAMAGED)
        if advice is _DAMAGED:
            problem = f"it is damaged: {problem}"
    return ConfigurationError(f"the journal {file} cannot be used ({problem}): {advice}")


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
        raise unusable(file, error) from None
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
        ConfigurationError: another relay has it (its pid is in the sentence), or the lock beside
            it cannot be written.
    """
    try:
        import fcntl
    except ImportError:
        raise ConfigurationError("a journal needs a POSIX system: start without it") from None
    path = file.with_name(f"{file.name}.lock")
    lock = -1
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        pid = os.pread(lock, 20, 0).decode(errors="replace").strip()
        os.close(lock)
        raise ConfigurationError(
            f"the relay with pid {pid} uses the journal {file}: stop that one, or give this one"
            " another file"
        ) from None
    except OSError as error:
        if lock >= 0:
            os.close(lock)
        raise unusable(file, error) from None
    return lock


def open_database(
    file: Path, read: Callable[[sqlite3.Connection], T]
) -> tuple[sqlite3.Connection, T]:
    """Open the file, made with mode 0600 when it is not there, and read what it holds.

    Args:
        read: called with a connection whose schema is ours, before anything is written.

    Raises:
        ConfigurationError: it cannot be used, and was left as it was.
    """
    try:
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
        held = _look_at(file, read)
        if os.name == "posix":
            file.chmod(0o600)
        # Several threads, one at a time: the event loop's opens it, then the journal's has it.
        database = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        try:
            _prepare(database)
            return database, read(database) if held is None else held
        except BaseException:
            database.close()
            raise
    except (sqlite3.Error, OSError) as error:
        raise unusable(file, error) from None


def _look_at(file: Path, read: Callable[[sqlite3.Connection], T]) -> T | None:
    """Check an existing file, and read it if its schema is ours, without changing it.

    Raises:
        ConfigurationError: it is newer, or not a journal.
        sqlite3.Error: it is damaged, or not a database.
    """
    log = file.with_name(f"{file.name}-wal")
    has_log = log.exists() and log.stat().st_size > 0
    if not file.stat().st_size:
        if has_log:  # SQLite would remove it
            raise sqlite3.DatabaseError(f"it is empty, but {log.name} is not")
        return None
    if wal.lost_commits(file):
        raise sqlite3.DatabaseError(f"{log.name} does not hold all that was written to it")
    # Even a reader makes the files of the write-ahead log, where there is one to read.
    how = "mode=ro" if has_log else "mode=ro&immutable=1"
    with closing(sqlite3.connect(f"file:{quote(str(file))}?{how}", uri=True)) as database:
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application != APPLICATION_ID and (application or version or tables):
            raise ConfigurationError(f"{file} is another program's database: give another file")
        if version > SCHEMA_VERSION:
            raise ConfigurationError(
                f"the journal {file} was written by a newer hoptell (schema {version}, this one"
                f" knows {SCHEMA_VERSION}): install that version, or give another file"
            )
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        return read(database) if version == SCHEMA_VERSION else None


def _prepare(database: sqlite3.Connection) -> None:
    """Bring a file up to date, all of it or nothing."""
    execute = database.execute
    (version,) = execute("PRAGMA user_version").fetchone()
    if version == 0:  # only with a new file: it writes
        execute("PRAGMA auto_vacuum = INCREMENTAL")
    execute("PRAGMA journal_mode = WAL")
    execute("PRAGMA synchronous = FULL")
    execute(f"PRAGMA journal_size_limit = {WAL_SIZE_LIMIT}")
    execute("BEGIN IMMEDIATE")
    for migration in MIGRATIONS[version:]:
        for statement in migration.split(";"):
            execute(statement)
    # Nobody's: a message without deliveries was of no use even to the relay that wrote it.
    execute("DELETE FROM messages WHERE id NOT IN (SELECT message FROM deliveries)")
    execute(f"PRAGMA application_id = {APPLICATION_ID}")
    execute(f"PRAGMA user_version = {SCHEMA_VERSION}")  # a file that cannot be written says so now
    execute("COMMIT")
    # Out of the log: as long as the tables are only there, its damage would leave an empty file.
    execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
