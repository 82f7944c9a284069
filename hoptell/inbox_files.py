"""What lies in an inbox: where it is, what the names say, what is in a message's file.

    0000000000000007-<id>-<sender>.json                        a message, not shown yet
    0000000000000007-<id>-<sender>+<characters>.<parts>.json   shown up to there, in so many parts

The number gives the order; `<id>` is a digest of the delivery's id, which may be any text. A
file that somebody put there by hand may have any name that ends in `.json`. How several
processes share the folder is inbox.py's matter; here nothing is moved.
"""

import contextlib
import errno
import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from hoptell import files, processes
from hoptell.frames import Message
from hoptell.names import is_name

MAX_FILE_BYTES = 4 * 1024 * 1024
"""Larger ones are not a message: a frame has at most half of it."""
SUFFIX = ".json"
CLAIMED = "claimed"
"""The folder in an inbox for messages that somebody is being shown: `<name>.<process>`."""
BAD = "bad"
"""The folder in an inbox for what cannot be read."""

_NAME = re.compile(
    r"(?P<number>\d{16})-(?P<id>[0-9a-f]{32})-(?P<sender>[A-Za-z0-9_-]{1,64})"
    r"(?:\+\d+\.\d+)?\.json",
    re.ASCII,
)
_PROGRESS = re.compile(
    r"(?P<stem>.*?)(?:\+(?P<offset>\d{1,9})\.(?P<parts>\d{1,9}))?\.json", re.ASCII | re.DOTALL
)
_NO_NAME = "_"
"""Stands for a sender that is no peer name (no relay sends one): names start otherwise."""
_UNREADABLE_ERRORS = {errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO, errno.EIO}

_decode = msgspec.json.Decoder(Message).decode


def folder_of(home: Path) -> Path:
    """Where all inboxes of a state folder are."""
    return home / "inbox"


def all_inboxes(home: Path) -> list[Path]:
    """Their folders, each named as its peer, in order; none where that cannot be seen."""
    root = folder_of(home)
    with contextlib.suppress(OSError):
        return sorted(root / name for name in files.names(root) if (root / name).is_dir())
    return []


@dataclass(frozen=True)
class Glance:
    """What lies in an inbox, found without changing anything."""

    stored_at: list[float]
    """Unix times in seconds at which the waiting messages were stored, the oldest first. One
    that was being shown by a process that died waits again."""
    shown: int
    """Messages that a living process is showing."""
    open: int
    """Files of messages whose mode lets others read them."""
    bad: int
    """Files that could not be read."""
    bad_folder: Path
    """Where these are."""


def glance(folder: Path) -> Glance:
    """Look into an inbox; it may be gone or closed to us, and then seems empty."""
    waiting = [folder / name for name in _names(folder) if name.endswith(SUFFIX)]
    shown = 0
    for entry in _names(folder / CLAIMED):
        name, _, owner = entry.rpartition(".")
        if name.endswith(SUFFIX):
            process = processes.parse(owner)
            if process is not None and processes.is_alive(process) is not False:
                shown += 1
            else:
                waiting.append(folder / CLAIMED / entry)
    found = []
    for file in waiting:
        with contextlib.suppress(OSError):
            found.append(os.lstat(file))
    return Glance(
        stored_at=sorted(status.st_mtime for status in found),
        shown=shown,
        open=sum(1 for status in found if os.name == "posix" and status.st_mode & 0o077),
        bad=len(_names(folder / BAD)),
        bad_folder=folder / BAD,
    )


def _names(folder: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return list(files.names(folder))
    return []


class Label(NamedTuple):
    """What the name of a file says, if a store gave it."""

    number: int
    id: str
    """See `digest`."""
    sender: str | None
    """None if it is no peer name."""


class Unreadable(Exception):
    """A file that is not, and will not become, a message; the text says why."""


def digest(identity: str) -> str:
    """Stands for a delivery's id in file names and in the list of what was seen."""
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


def new_name(number: int, id: str, sender: str) -> str:
    """The name of a file that is stored now."""
    return f"{number:016}-{id}-{sender if is_name(sender) else _NO_NAME}{SUFFIX}"


def label(name: str) -> Label | None:
    """What a name says; None if no store gave it."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    sender = match["sender"]
    return Label(int(match["number"]), match["id"], None if sender == _NO_NAME else sender)


def progress(name: str) -> tuple[int, int]:
    """How many characters were shown, in how many parts."""
    match = _PROGRESS.fullmatch(name)
    return (int(match["offset"] or 0), int(match["parts"] or 0)) if match else (0, 0)


def with_progress(name: str, offset: int, parts: int) -> str:
    """The name once the message was shown up to `offset`, in so many parts."""
    match = _PROGRESS.fullmatch(name)
    return f"{match['stem'] if match else name}+{offset}.{parts}{SUFFIX}"


def read(file: Path) -> Message:
    """Read a file; tighten its mode.

    Raises:
        Unreadable: it is no message.
    """
    try:
        return _decode(_read_bytes(file))
    except (msgspec.DecodeError, RecursionError):
        raise Unreadable("it is not a message in JSON") from None
    except OSError as error:
        if error.errno in _UNREADABLE_ERRORS:
            raise Unreadable(error.strerror) from None
        raise


def _read_bytes(file: Path) -> bytes:
    # Neither through a link nor waiting for somebody to write into a pipe.
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable("it is not a file")
        if status.st_uid != os.geteuid():
            raise Unreadable("it belongs to another user")
        if status.st_size > MAX_FILE_BYTES:
            raise Unreadable("it is too large")
        if status.st_mode & 0o077:
            os.fchmod(handle, 0o600)
        with open(handle, "rb", closefd=False) as stream:
            return stream.read()
    finally:
        os.close(handle)
