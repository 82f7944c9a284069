"""Files and folders that only their owner may see, made so whatever the umask.

Nothing here follows a symbolic link in the last place of a path, where the system can tell.
Files that people edit too, whose owner must stay, are another matter (replacing.py).
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from hoptell.errors import InboxError

# Windows has neither.
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


def open_private(file: Path, flags: int) -> int:
    """Open a file, made for us alone if it is not there; a descriptor."""
    return os.open(file, flags | os.O_CREAT | _FLAGS, 0o600)


def write(file: Path, data: bytes, *, new: bool = False, sync: bool = False) -> None:
    """Write a private file; `new`: it must not exist. With `sync`, its content is on disk."""
    handle = open_private(file, os.O_WRONLY | (os.O_EXCL if new else os.O_TRUNC))
    try:
        write_all(handle, data)
        if sync:
            os.fsync(handle)
    finally:
        os.close(handle)


def write_all(handle: int, data: bytes) -> None:
    """Write everything, however often the system takes only a part."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def replace(file: Path, data: bytes) -> None:
    """Make `data` the content of a private file: all of it or, on an error, nothing."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        remove(temporary)
        write(temporary, data, new=True)
        os.replace(temporary, file)
    except BaseException:
        remove(temporary)
        raise


def remove(file: Path) -> None:
    """Remove a file; it may be gone already."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(file)


def sync_folder(folder: Path) -> None:
    """Have on disk which names a folder holds."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def private_folder(outermost: Path, *names: str) -> Path:
    """Make a folder, and the folders `names` one within the other in it, each for us alone.

    Returns: the innermost.

    Raises:
        InboxError: one of them is a symbolic link, not a folder, or another user's.
        OSError: one cannot be made.
    """
    if not outermost.parent.is_dir():
        outermost.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = outermost
    for name in ("", *names):
        folder = folder / name
        try:
            os.mkdir(folder, 0o700)
            sync_folder(folder.parent)
        except FileExistsError:
            pass
        tighten(folder)
    return folder


def tighten(folder: Path) -> None:
    """Make sure that a folder that is there is for us alone.

    Raises:
        InboxError: it is a symbolic link, not a folder, or another user's.
        OSError: it is not there, or its mode cannot be changed.
    """
    status = os.lstat(folder)
    if stat.S_ISLNK(status.st_mode):
        raise InboxError(f"{folder} is a symbolic link: put a folder there (see HOPTELL_HOME)")
    if not stat.S_ISDIR(status.st_mode):
        raise InboxError(f"{folder} is not a folder: move it away (see HOPTELL_HOME)")
    if status.st_uid != os.geteuid():
        raise InboxError(f"{folder} belongs to another user: set HOPTELL_HOME to a folder of yours")
    if status.st_mode & 0o777 == 0o700:
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(handle, 0o700)
    finally:
        os.close(handle)


def names(folder: Path) -> Iterator[str]:
    """The names in a folder, none if it is gone, as they come."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                yield entry.name
    except FileNotFoundError:
        return
