"""The moment in which messages leave a process, known even if the process dies in it.

Who reads a pipe or socket takes nothing before the last byte, so a process can write
everything but that byte and then hand messages over in one instant. But which came first, the
byte or `kill -9`? If the messages are removed before it, a kill between the two loses them; if
after it, a kill shows them twice, and on a busy machine a reader often gets as far as killing
the writer before the writer runs again.

So the instant is noted in memory that outlives the process: one byte of a mapped file. Setting
it takes no system call and lets no other thread run, and the next thing is the write of the
last byte, which the kernel does whole or not at all. What remains is a kill within the
microsecond between the two: the messages are gone then, and their last byte never came.

    `leaving.<process>`: a byte that is 1 while the last byte may be out, then a line for each
    claimed file: its name, a tab, and the name under which what is left of the message goes
    back; none if nothing is left.

The note is there only while something is handed over. Where it cannot be kept, as on a full
disk, messages are handed over without: then a kill can show them twice.
"""

import logging
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

from hoptell import files

PREFIX = "leaving"
_HELD, _LEAVING = 0, 1

_log = logging.getLogger(__name__)


class Departure:
    """The note that one process keeps while it hands messages over, one batch at a time.

    In this order: `prepare`, all but the last byte written (or the other way round), `begin`,
    the last byte, the files settled, `end`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state: mmap.mmap | None = None

    def prepare(self, moves: Iterable[tuple[str, str]]) -> None:
        """Note what is to become of which claimed file: its new name, or `""` to remove it."""
        lines = "".join(f"{claimed}\t{kept_as}\n" for claimed, kept_as in moves).encode()
        self._state = None
        try:
            handle = files.open_private(self._path, os.O_RDWR | os.O_TRUNC)
            try:
                # Written and not only made so long: storing into a page that has no place on
                # a full disk would end the process.
                files.write_all(handle, bytes([_HELD]) + lines)
                self._state = mmap.mmap(handle, 1)
            finally:
                os.close(handle)
        except (OSError, ValueError) as error:
            _log.warning("cannot note what is handed over (%s): %s", error, self._path)
            self.end()

    def begin(self) -> None:
        """The last byte is written next."""
        if self._state is not None:
            self._state[0] = _LEAVING

    def end(self) -> None:
        """The files have been settled, or the last byte could not be written."""
        self._state = None
        files.remove(self._path)


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
