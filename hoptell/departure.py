"""The moment in which messages leave a process, known even if the process dies in it.

Who reads a pipe or socket takes nothing before the last byte, so a process can write
everything but that byte and then hand messages over in one instant. But which came first, the
byte or `kill -9`? If the messages are removed before it, a kill between the two loses them; if
after it, a kill shows them twice, and on a busy machine a reader often gets as far as killing
the writer before the writer runs again.

So the instant is noted in memory that outlives the process: one byte of a mapped file. Setting
it takes no system call and lets no other thread run, and the next thing is the write of the
last byte, which the kernel does whole or not at all. What remains is a kill within the
microsecond between the two.

    `leaving.<process>`: a byte that is 1 while the last byte may be out, then a line for each
    claimed file: its name, a tab, and the name under which what is left of the message goes
    back; none if nothing is left.
"""

import mmap
import os
from collections.abc import Iterable
from pathlib import Path

PREFIX = "leaving"
_HELD, _LEAVING = 0, 1


class Departure:
    """The note that one process keeps while it hands messages over, one batch at a time.

    In this order: `prepare`, all but the last byte written, `begin`, the last byte, the files
    settled, `end`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._handle = os.open(path, flags, 0o600)
        os.ftruncate(self._handle, 1)
        self._state = mmap.mmap(self._handle, 1)

    def prepare(self, moves: Iterable[tuple[str, str]]) -> None:
        """Note what is to become of which claimed file: its new name, or `""` to remove it.

        Raises:
            OSError: the note could not be written.
        """
        self._state[0] = _HELD
        lines = "".join(f"{claimed}\t{kept_as}\n" for claimed, kept_as in moves).encode()
        os.ftruncate(self._handle, 1)
        os.pwrite(self._handle, lines, 1)

    def begin(self) -> None:
        """The last byte is written next."""
        self._state[0] = _LEAVING

    def end(self) -> None:
        """The files have been settled, or the last byte could not be written."""
        self._state[0] = _HELD

    def close(self) -> None:
        """Remove the note, unless it is still needed; without this the next process does."""
        if self._state[0] == _HELD:
            self._path.unlink(missing_ok=True)


def handed_over(path: Path) -> list[tuple[str, str]]:
    """What a dead process had handed over and not settled: the moves that it prepared."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    if data[:1] != bytes([_LEAVING]):
        return []
    lines = data[1:].decode("ascii", "replace").splitlines()
    moves = (line.partition("\t") for line in lines if "/" not in line)
    return [(claimed, kept_as) for claimed, _, kept_as in moves if claimed]
