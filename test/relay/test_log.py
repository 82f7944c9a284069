"""The relay's log: lines that cannot be forged, and an output that cannot hold it up."""

import json
import logging
import os
import select
import threading
import time
from pathlib import Path

import pytest

from hoptell.relay.log import (
    EventLog,
    FileOutput,
    LogFormat,
    LoggingHandler,
    ThreadOutput,
    open_output,
)

AT = 1_700_000_000.25
STAMP = "2023-11-14T22:13:20.250Z"


class Lines:
    """An event log, and what it wrote."""

    def __init__(self, log_format: LogFormat = "text") -> None:
        self.writes: list[bytes] = []
        self.now = AT
        self.log = EventLog(self.writes.append, log_format, clock=lambda: self.now)

    def all(self) -> list[str]:
        self.log.flush()
        return b"".join(self.writes).decode().splitlines()


def test_an_event_is_one_line_with_its_time_and_fields() -> None:
    lines = Lines()
    lines.log.add("connected", {"name": "alice", "member": None, "size": 5, "host": "box.local"})
    assert lines.all() == [f"{STAMP} connected name=alice size=5 host=box.local"]


def test_json_lines_have_the_same_fields() -> None:
    lines = Lines("json")
    lines.log.add("connected", {"name": "alice", "member": None, "size": 5})
    lines.log.add("empty", {})
    lines.log.note("listening", "ws://127.0.0.1:1", port=1)
    assert [json.loads(line) for line in lines.all()] == [
        {"time": STAMP, "event": "connected", "name": "alice", "size": 5},
        {"time": STAMP, "event": "empty"},
        {"time": STAMP, "event": "listening", "note": "ws://127.0.0.1:1", "port": 1},
    ]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_events_of_messages_look_like_any_other(log_format: LogFormat) -> None:
    fast, slow = Lines(log_format), Lines(log_format)
    message = {"sender": "alice", "to": "@all", "size": 5, "copies": 2, "reference": "a-b"}
    fast.log.accepted(**message)
    slow.log.add("accepted", message)
    fast.log.confirmed(to="bob", reference="a-b")
    slow.log.add("confirmed", {"to": "bob", "reference": "a-b"})
    assert fast.all() == slow.all()


def test_all_events_of_a_turn_leave_in_one_write() -> None:
    lines = Lines()
    for number in range(3):
        lines.log.add("event", {"number": number})
    assert lines.writes == []
    lines.log.flush()
    lines.log.flush()
    assert len(lines.writes) == 1 and lines.writes[0].count(b"\n") == 3


def test_the_time_follows_the_clock() -> None:
    lines = Lines()
    for now in (AT, AT + 0.5, AT + 61):
        lines.now = now
        lines.log.note("tick", "tock")
    assert [line.split("Z")[0][11:] for line in lines.all()] == [
        "22:13:20.250",
        "22:13:20.750",
        "22:14:21.250",
    ]


FORGERIES = [
    "box\n2023-11-14T22:13:20.250Z connected name=root",
    "box\r\nx",
    "box name=root",
    "box\x1b[2J",
    "box\x7f\x00\x07",
    "box\x85\x9b31m",
    "box\u2028x",
    "box\u202ename",
    "box\u200b\ufeff",
    '"quoted"',
    "box\ud800",
]


@pytest.mark.parametrize("host", FORGERIES)
def test_nothing_that_a_client_chose_can_forge_a_line_or_a_field(host: str) -> None:
    lines = Lines()
    lines.log.add("connected", {"name": "alice", "host": host, "mode": "peer"})
    lines.log.note("reload refused", host)
    first, second = lines.all()
    assert first.isprintable() and second.isprintable()
    name, rest = first.removeprefix(f"{STAMP} connected ").split(" ", 1)
    assert name == "name=alice" and rest.endswith(" mode=peer")
    quoted = rest.removeprefix("host=").removesuffix(" mode=peer")
    assert json.loads(quoted) == host


@pytest.mark.parametrize("host", FORGERIES)
def test_json_lines_cannot_be_forged_either(host: str) -> None:
    lines = Lines("json")
    lines.log.add("connected", {"host": host})
    (line,) = lines.all()
    assert line.isprintable() and json.loads(line)["host"] == host


def test_what_is_printable_stays_readable() -> None:
    lines = Lines()
    lines.log.add("connected", {"host": "bücher-mac"})
    lines.log.note("token", "in /home/zoë/.env, where …")
    assert lines.all() == [
        f"{STAMP} connected host=bücher-mac",
        f"{STAMP} token: in /home/zoë/.env, where …",
    ]


# Outputs ------------------------------------------------------------------------------------


def test_a_file_is_written_to_at_once(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        output = open_output(file.fileno())
        assert isinstance(output, FileOutput)
        output.write(b"line\n")
        assert (tmp_path / "log").read_bytes() == b"line\n"


def test_a_closed_output_swallows_lines() -> None:
    read, write = os.pipe()
    os.close(read)
    os.close(write)
    open_output(write).write(b"line\n")


def test_a_pipe_without_a_reader_swallows_lines() -> None:
    read, write = os.pipe()
    output = open_output(write)
    os.close(read)
    for _ in range(3):
        output.write(b"line\n")
    output.close(1)
    os.close(write)


def test_a_full_disk_tears_one_line_and_not_the_next(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    full = os.open("/dev/full", os.O_WRONLY)
    output = FileOutput(full)
    output.write(b"lost\n")
    with (tmp_path / "log").open("wb") as file:
        os.dup2(file.fileno(), full)
        output._is_torn = True
        output.write(b"after\n")
        output.write(b"more\n")
    os.close(full)
    assert (tmp_path / "log").read_bytes() == b"\nafter\nmore\n"


def test_an_output_that_stands_still_holds_nobody_up_and_counts_what_it_lost() -> None:
    read, write = os.pipe()
    output = ThreadOutput(write, max_waiting=10_000)
    line = b"x" * 99 + b"\n"
    for _ in range(5_000):  # 500 kB, and the pipe takes 64 kB: nobody reads, and this goes on
        output.write(line)
    seen = bytearray()

    def drain() -> None:
        while data := os.read(read, 65_536):
            seen.extend(data)

    reader = threading.Thread(target=drain)
    reader.start()
    while output._taken != output._done:
        time.sleep(0.001)
    output.write(b"after\n")
    output.close(5)
    os.close(write)
    reader.join(5)
    os.close(read)
    *kept, lost, after = bytes(seen).splitlines(keepends=True)
    assert set(kept) == {line} and after == b"after\n"
    assert lost == b"(%d lines of the log were lost)\n" % (5_000 - len(kept))


def test_a_terminal_that_somebody_made_non_blocking_loses_nothing() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    output = ThreadOutput(write)
    data = b"x" * 99_999 + b"\n"
    output.write(data)
    while select.select([], [write], [], 0)[1]:  # until it is full
        time.sleep(0.001)
    time.sleep(0.01)
    seen = b""
    while len(seen) < len(data):
        seen += os.read(read, 65_536)
    assert seen == data
    output.close(5)
    os.close(read)
    os.close(write)


def test_what_another_thread_notes_comes_after_what_is_being_written() -> None:
    written: list[bytes] = []

    def write(data: bytes) -> None:
        if b"first" in data:
            other = threading.Thread(target=log.note, args=("second", "from elsewhere"))
            threads.append(other)
            other.start()
            other.join(0.1)  # it has to wait for this write: the lines of two are not mixed
        written.append(data)

    threads: list[threading.Thread] = []
    log = EventLog(write)
    log.note("first", "from here")
    threads[0].join(10)
    assert [line.split()[1] for line in b"".join(written).splitlines()] == [b"first:", b"second:"]


# What libraries log -------------------------------------------------------------------------


def test_a_library_s_warning_is_a_line_too_and_an_exception_keeps_its_text_to_itself() -> None:
    lines = Lines()
    logger = logging.Logger("some.library")
    logger.addHandler(LoggingHandler(lines.log))
    logger.info("not worth a line")
    logger.warning("the %s\nis %d", "answer", 42)
    try:
        raise ValueError("a-secret")
    except ValueError:
        logger.exception("a callback failed")
    logger.warning("%d", "no number")
    first, second, third = lines.all()
    assert first == f"{STAMP} warning logger=some.library: the answer\\nis 42"
    assert "a callback failed (ValueError at test_log.py line " in second
    assert "a-secret" not in second
    assert third.endswith("%d")
