"""The relay's log: one line an event, to standard error (docs/operations.md).

Lines are collected and leave many at a time: with two lines a message, a `logging` record and a
write for each would cost more than routing it. Nothing that a
client chose can forge a line or a field: what is not plainly printable, or has a space in
it, is quoted and escaped.

The log never holds up the relay. A file is written to directly. Anything else (a terminal,
a pipe, a journal's socket) may stand still for as long as its reader likes, so a thread
writes to it; past `MAX_WAITING` bytes lines are dropped, and the next one that gets through
says how many. An output that is closed or full loses lines and nothing else.

Any thread may note something: what libraries warn of does not always come from the event loop's.

Only the command line decides where lines go and what else is logged; see `LoggingHandler`.
"""

import json
import logging
import os
import queue
import select
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Protocol

LogFormat = Literal["text", "json"]

MAX_WAITING = 1024 * 1024
"""Bytes that may wait for an output that stands still."""


class EventLog:
    """Makes lines of events, and hands them on many at a time.

    Args:
        write: takes the UTF-8 bytes of whole lines; must neither block nor raise.
        clock: Unix time in seconds; all lines of one `flush` carry the same.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        log_format: LogFormat = "text",
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._write = write
        self._is_json = log_format == "json"
        self._clock = clock
        self._lines: list[str] = []
        """Without the time, which the start of every line gets when they leave."""
        self._leaving = threading.Lock()
        self._second = -1
        self._second_text = ""

    def add(self, event: str, fields: dict[str, Any]) -> None:
        """Note an event; its line leaves with the next `flush`. Fields of None are left out."""
        self._lines.append((_json_line if self._is_json else _text_line)(event, fields))

    # What comes with every message has methods of its own: they take a sixth of `add`'s time.
    # There is nothing to escape in names, addresses and references.

    def accepted(self, sender: str, to: str, size: int, copies: int, reference: str) -> None:
        """Note that a message was taken."""
        if self._is_json:
            line = (
                f'"event":"accepted","sender":"{sender}","to":"{to}","size":{size},'
                f'"copies":{copies},"reference":"{reference}"}}'
            )
        else:
            line = (
                f"accepted sender={sender} to={to} size={size} copies={copies}"
                f" reference={reference}"
            )
        self._lines.append(line)

    def confirmed(self, to: str, reference: str) -> None:
        """Note that a delivery was confirmed."""
        if self._is_json:
            line = f'"event":"confirmed","to":"{to}","reference":"{reference}"}}'
        else:
            line = f"confirmed to={to} reference={reference}"
        self._lines.append(line)

    def note(self, event: str, sentence: str, **fields: Any) -> None:
        """Note something that people read, in a sentence, and flush."""
        if self._is_json:
            line = _json_line(event, {"note": sentence, **fields})
        else:
            line = f"{_text_line(event, fields)}: {_printable(sentence)}"
        self._lines.append(line)
        self.flush()

    def flush(self, *, at_least: int = 1) -> None:
        """Write the lines of all events since the last time, if there are so many."""
        if len(self._lines) < at_least:
            return
        with self._leaving:
            lines = self._lines[:]
            if lines:
                # The same list goes on: another thread may be adding to it.
                del self._lines[: len(lines)]
                start = f'{{"time":"{self._time()}",' if self._is_json else f"{self._time()} "
                text = start + f"\n{start}".join(lines) + "\n"
                self._write(text.encode("utf-8", "backslashreplace"))

    def _time(self) -> str:
        now = self._clock()
        second = int(now)
        if second != self._second:
            self._second = second
            self._second_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._second_text}.{int((now - second) * 1000):03d}Z"


def _text_line(event: str, fields: dict[str, Any]) -> str:
    shown = [f" {name}={_shown(value)}" for name, value in fields.items() if value is not None]
    return f"{event}{''.join(shown)}"


def _shown(value: Any) -> str:
    text = str(value)
    if text.isprintable() and " " not in text and not text.startswith('"'):
        return text
    return _ascii_json(text)


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _ascii_json(c)[1:-1] for c in text)


def _json_line(event: str, fields: dict[str, Any]) -> str:
    entry = {"event": event, **{k: v for k, v in fields.items() if v is not None}}
    line = json.dumps(entry, default=str, ensure_ascii=False, separators=(",", ":"))
    return (line if line.isprintable() else _ascii_json(entry))[1:]


def _ascii_json(value: Any) -> str:
    text = json.dumps(value, default=str, separators=(",", ":"))
    return text.replace("\x7f", "\\u007f")


# Where the lines go -------------------------------------------------------------------------


class Output(Protocol):
    """Where lines go; neither method raises, and `write` never blocks for long."""

    def write(self, data: bytes) -> None:
        """Take whole lines."""

    def close(self, wait: float) -> None:
        """Write what is left, for at most `wait` seconds."""


def open_output(descriptor: int) -> Output:
    """The output for an open file descriptor, by what it is; a closed one swallows lines."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return FileOutput(-1)
    return FileOutput(descriptor) if stat.S_ISREG(mode) else ThreadOutput(descriptor)


class FileOutput:
    """Writes to a file, at once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_torn = False
        """The last write stopped within a line, because the disk is full."""

    def write(self, data: bytes) -> None:
        if self._is_torn:
            data = b"\n" + data
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:] if written else data)
            self._is_torn = False
        except OSError:
            self._is_torn = self._is_torn or written > 0

    def close(self, wait: float) -> None:
        pass


class ThreadOutput:
    """Writes to what may stand still, from a thread of its own."""

    def __init__(self, descriptor: int, *, max_waiting: int = MAX_WAITING) -> None:
        self._descriptor = descriptor
        self._max_waiting = max_waiting
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._taken = 0
        """Bytes put into the queue; changed by the caller's thread only."""
        self._done = 0
        """Bytes out of it again; changed by the writing thread only."""
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="hoptell-log", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        if self._taken - self._done + len(data) > self._max_waiting:
            self._dropped += data.count(b"\n")
            return
        if self._dropped:
            data = b"(%d lines of the log were lost)\n" % self._dropped + data
            self._dropped = 0
        self._taken += len(data)
        self._queue.put(data)

    def close(self, wait: float) -> None:
        self._queue.put(None)
        self._thread.join(wait)

    def _run(self) -> None:
        while (data := self._queue.get()) is not None:
            self._write_all(data)
            self._done += len(data)

    def _write_all(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # somebody who shares the terminal made it non-blocking
                select.select([], [self._descriptor], [], 1.0)
            except OSError:
                return


class LoggingHandler(logging.Handler):
    """Brings what libraries log (asyncio about a failed callback …) into the event log.

    Of an exception it tells the type and the place: its text may hold anything.
    """

    def __init__(self, log: EventLog, level: int = logging.WARNING) -> None:
        super().__init__(level)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sentence = record.getMessage()
        except Exception:  # the arguments do not fit the format: no reason to fail
            sentence = str(record.msg)
        if record.exc_info and record.exc_info[0] is not None:
            sentence += f" ({_place(*record.exc_info[1:])})"
        self._log.note(record.levelname.lower(), sentence, logger=record.name)


def _place(error: BaseException | None, trace: Any) -> str:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = ""
    if trace is not None:
        where = f" at {Path(trace.tb_frame.f_code.co_filename).name} line {trace.tb_lineno}"
    return f"{type(error).__name__}{where}"
