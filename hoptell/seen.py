"""Which deliveries an inbox has had: a file that remembers the last 1,000.

A line each, `<number> <digest of its id>`. A line counts once it is whole and synced; one that
a crash or a full disk cut off, or whose sync failed, is taken away by whoever comes next.
"""

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from hoptell import files

SEEN_DELIVERIES = 1_000
"""How many delivery ids are remembered."""

_LINE = re.compile(rb"(\d{16}) ([0-9a-f]{32})\n")
_LINE_BYTES = 50


class Seen:
    """The deliveries stored last; used only by the holder of the inbox's lock."""

    def __init__(self, path: Path) -> None:
        self.last = 0
        """The largest number given so far."""
        self._path = path
        self._numbers: dict[str, int] = {}  # oldest first
        self._file: tuple[int, int] | None = None
        self._size = 0

    def __contains__(self, digest: str) -> bool:
        return digest in self._numbers

    def number_of(self, digest: str) -> int | None:
        return self._numbers.get(digest)

    def refresh(self, largest_number: Callable[[], int]) -> None:
        """Read what other processes added; drop a last line that was cut off by a crash."""
        with self._open() as handle:
            status = os.fstat(handle)
            if (status.st_dev, status.st_ino) != self._file or status.st_size < self._size:
                self._numbers.clear()
                self._file = (status.st_dev, status.st_ino)
                self._size = 0
                self.last = largest_number()
            if status.st_size > self._size:
                self._take(os.pread(handle, status.st_size - self._size, self._size))
            if status.st_size > self._size:
                os.ftruncate(handle, self._size)

    def add(self, number: int, digest: str) -> None:
        """Remember one delivery; when this returns it survives a crash.

        `refresh` came before, under the same lock.
        """
        line = f"{number:016} {digest}\n".encode()
        if self._size >= 2 * SEEN_DELIVERIES * _LINE_BYTES:
            self._shorten()
        with self._open() as handle:
            try:
                if os.pwrite(handle, line, self._size) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(handle)
                if self._size == 0:  # the file may be new
                    files.sync_folder(self._path.parent)
            except OSError:
                # It may never get to the disk, so nobody must take it for remembered.
                with contextlib.suppress(OSError):
                    os.ftruncate(handle, self._size)
                raise
        self._take(line)

    def _take(self, data: bytes) -> None:
        complete = data[: data.rfind(b"\n") + 1]
        self._size += len(complete)
        for number, digest in _LINE.findall(complete):
            self.last = max(self.last, int(number))
            self._numbers.pop(digest.decode(), None)
            self._numbers[digest.decode()] = int(number)
        for digest in list(self._numbers)[:-SEEN_DELIVERIES]:
            del self._numbers[digest]

    def _shorten(self) -> None:
        lines = "".join(f"{number:016} {digest}\n" for digest, number in self._numbers.items())
        files.write(self._path.with_name("seen.new"), lines.encode(), sync=True)
        os.rename(self._path.with_name("seen.new"), self._path)
        files.sync_folder(self._path.parent)
        status = os.stat(self._path)
        self._file = (status.st_dev, status.st_ino)
        self._size = status.st_size

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        handle = files.open_private(self._path, os.O_RDWR)
        try:
            yield handle
        finally:
            os.close(handle)
