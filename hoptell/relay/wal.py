"""Whether SQLite's write-ahead log still holds all that was committed to it.

After a kill the newest commits are in the log alone (FILE-wal). SQLite reads it up to the first
frame that is cut off or wrong, and says nothing of the commits behind: it cannot know whether
there were any. But its index of the log (FILE-shm), which a killed process leaves behind, says
how far the log went, and is written only once the log is on disk. So a log that holds less than
its index says was damaged later.

What cannot be told: without an index (after a clean end there is neither, and nothing is in the
log), or when index and log are not of one generation, as after a loss of power. Nor can a log
that was emptied or removed be told from one that a checkpoint emptied before a loss of power.
"""

import struct
from pathlib import Path

_INDEX = struct.Struct("=16xII8s8s")
"""Of the index's header: how many frames are committed, pages, checksums, salts."""
_INDEX_HEADER_SIZE = 48
_LOG_HEADER = struct.Struct(">I4xI4x8sII")
"""Magic number, page size, salts; their checksums."""
_FRAME_HEADER = struct.Struct(">8s8sII")
"""What is checksummed of it (with the page that follows), salts; the checksums so far."""
_BIG_ENDIAN = 0x377F0683
"""The magic number of a log whose checksums are of big-endian words; else it is one less."""


def lost_commits(file: Path) -> bool:
    """Whether commits of the database `file` are missing from its log. Changes nothing.

    Raises:
        OSError: log or index cannot be read.
    """
    try:
        with file.with_name(f"{file.name}-shm").open("rb") as index:
            known = index.read(2 * _INDEX_HEADER_SIZE + 4)
        with file.with_name(f"{file.name}-wal").open("rb") as log:
            frames, salts = _committed(known)
            header = log.read(_LOG_HEADER.size)
            if frames == 0 or len(header) < _LOG_HEADER.size:
                return False
            magic, page_size, generation, *stored = _LOG_HEADER.unpack(header)
            order = ">" if magic == _BIG_ENDIAN else "<"
            sums = _checksum(struct.unpack(f"{order}6I", header[:-8]), 0, 0)
            if sums != stored:
                return True
            if generation != salts:
                return False
            words = struct.Struct(f"{order}{page_size // 4 + 2}I")
            for _ in range(frames):
                header = log.read(_FRAME_HEADER.size)
                page = log.read(page_size)
                if len(page) < page_size:
                    return True
                start, generation, *stored = _FRAME_HEADER.unpack(header)
                sums = _checksum(words.unpack(start + page), *sums)
                if generation != salts or sums != stored:
                    return True
    except FileNotFoundError:
        pass
    return False


def _committed(index: bytes) -> tuple[int, bytes]:
    """How many frames of the log the database depends on, and the log's salts."""
    header = index[:_INDEX_HEADER_SIZE]
    if len(index) < 2 * _INDEX_HEADER_SIZE + 4 or header != index[len(header) : 2 * len(header)]:
        return 0, b""  # it is written twice; one that is torn says nothing
    frames, _, _, salts = _INDEX.unpack_from(header)
    (copied,) = struct.unpack("=I", index[-4:])  # into the database, by checkpoints
    return (frames if frames > copied else 0), salts


def _checksum(words: tuple[int, ...], first: int, second: int) -> list[int]:
    """SQLite's checksum of a log: of all frames up to this one."""
    pairs = iter(words)
    for one, other in zip(pairs, pairs, strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return [first, second]
