"""The private folder of a peer's session: `$HOPTELL_HOME/tmux/<name>/`.

Folders are 0700 and files 0600. Whoever starts the session, or gives it a new injector, holds
the folder's lock meanwhile, and the injector holds it for as long as it works: one at a time. The
kernel frees it when its holder dies, so no dead process can block another.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from hoptell import files
from hoptell.errors import ConfigurationError
from hoptell.settings import PeerSettings

LOCK_TIMEOUT = 5.0
"""Seconds to wait while somebody starts or ends the session; far more than it takes."""
SETTINGS_FILE = "settings.env"
"""In the folder: what the agent's sidecar and the injector run with, the token included."""
PLAN_PREFIX = "launch-"
"""Of the file by which the agent gets its environment (launch.py)."""


def folder_of(settings: PeerSettings, name: str) -> Path:
    """Where the files of a peer's session are."""
    return settings.home.absolute() / "tmux" / name


def make_folder(settings: PeerSettings, name: str) -> Path:
    """Make that folder, or make sure that it is ours alone.

    Raises:
        InboxError: it, or one that it is in, is a link, not a folder, or another user's.
        ConfigurationError: it cannot be made.
    """
    try:
        return files.private_folder(settings.home.absolute(), "tmux", name)
    except OSError as error:
        folder = folder_of(settings, name)
        raise ConfigurationError(f"cannot use {folder}: {error.strerror}") from None


def forget_secrets(folder: Path) -> None:
    """Remove what holds the token or the caller's environment: nobody needs it any more."""
    for file in [folder / SETTINGS_FILE, *folder.glob(f"{PLAN_PREFIX}*")]:
        files.remove(file)


@contextlib.contextmanager
def locked(folder: Path, timeout: float) -> Iterator[bool]:
    """Hold the lock; True inside if it is held, False if another process kept it for so long."""
    deadline = time.monotonic() + timeout
    handle = files.open_private(folder / "lock", os.O_RDWR)
    try:
        while not (held := _try_lock(handle)) and time.monotonic() < deadline:
            time.sleep(0.02)
        yield held
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    import fcntl  # here: the doctor reads the folder on systems without it

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
