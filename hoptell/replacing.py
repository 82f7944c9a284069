"""Replacing a file that people edit too: all of it or nothing, and it stays whose it was."""

import contextlib
import os
from pathlib import Path

from hoptell import files

PRIVATE = 0o600


def replace(file: Path, data: bytes, *, mode: int | None = None) -> None:
    """Make `data` the file's content, of the file that a link names; its owner stays the same.

    `mode`: the file's from now on; else it keeps its own, and a new file gets 0600.

    Raises:
        OSError: it cannot be written, or is somebody else's; it is as before.
    """
    target = Path(os.path.realpath(file))
    before = _status(target)
    if mode is None:
        mode = PRIVATE if before is None else before.st_mode & 0o7777
    temporary = target.with_name(f".{target.name}.{os.getpid()}.hoptell")
    files.remove(temporary)
    create(temporary, data, like=before, mode=mode)
    try:
        os.replace(temporary, target)
    except BaseException:
        files.remove(temporary)
        raise


def create(
    file: Path, data: bytes, *, like: os.stat_result | None = None, mode: int = PRIVATE
) -> None:
    """Make a file that must not exist, with the owner of the one whose status is `like`."""
    try:
        files.write(file, data, new=True, sync=True)
        if like is not None and os.name == "posix":
            _give(file, like)
        if mode != PRIVATE:
            os.chmod(file, mode)
    except FileExistsError:
        raise
    except BaseException:
        files.remove(file)
        raise


def _status(file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except FileNotFoundError:
        return None


def _give(file: Path, like: os.stat_result) -> None:
    """Let root, who may edit the file of another user, leave it to that user."""
    now = os.lstat(file)
    if like.st_uid != now.st_uid:
        os.chown(file, like.st_uid, like.st_gid, follow_symlinks=False)
    elif like.st_gid != now.st_gid:
        with contextlib.suppress(PermissionError):  # of a group that the user has left
            os.chown(file, -1, like.st_gid, follow_symlinks=False)
