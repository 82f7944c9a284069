"""One connection: what of its bytes becomes a message, and how it ends."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Opcode
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from hoptell.frames import MAX_FRAME_BYTES, MAX_HELLO_BYTES
from hoptell.relay.websocket import FRAMES_A_TURN, WebSocket

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: relay\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)
MASK = b"\x11\x22\x33\x44"
PING = b"\x89\x00"
TEXT, BINARY, CONT, CLOSE, PONG = (
    Opcode.TEXT,
    Opcode.BINARY,
    Opcode.CONT,
    Opcode.CLOSE,
    Opcode.PONG,
)


def frame(
    payload: bytes | str, opcode: int = TEXT, *, fin: bool = True, mask: bool = True, bits: int = 0
) -> bytes:
    """A frame as a client sends it."""
    data = payload.encode() if isinstance(payload, str) else payload
    first = (0x80 if fin else 0) | bits | opcode
    masked = 0x80 if mask else 0
    if len(data) < 126:
        header = bytes([first, masked | len(data)])
    elif len(data) < 65536:
        header = bytes([first, masked | 126]) + struct.pack("!H", len(data))
    else:
        header = bytes([first, masked | 127]) + struct.pack("!Q", len(data))
    if not mask:
        return header + data
    repeated = MASK * (len(data) // 4 + 1)
    return header + MASK + bytes(a ^ b for a, b in zip(data, repeated, strict=False))


def close_frame(code: int) -> bytes:
    return frame(struct.pack("!H", code), CLOSE)


class Recorder:
    """An owner that writes down what it is told."""

    def __init__(self) -> None:
        self.received_messages: list[bytes] = []
        self.binary: list[bytes] = []
        self.ends: list[str] = []
        self.on_received: Callable[[WebSocket, bytes], None] = lambda websocket, payload: None

    def opened(self, websocket: WebSocket) -> None:
        pass

    def respond(self, websocket: WebSocket, request: Request) -> Response | None:
        return None

    def received(self, websocket: WebSocket, payload: bytes, is_binary: bool) -> None:
        assert isinstance(payload, bytes)
        (self.binary if is_binary else self.received_messages).append(payload)
        self.on_received(websocket, payload)

    def closed(self, websocket: WebSocket) -> None:
        self.ends.append("closed")

    def gone(self, websocket: WebSocket) -> None:
        self.ends.append("gone")


class Transport:
    """A transport that shows what happens to it; its buffer drains when the test says so."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.buffered = 0
        self.is_reading = True
        self.ended: str | None = None

    def write(self, data: bytes) -> None:
        assert self.ended is None, "nothing may follow the end"
        self.writes.append(data)

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = self.ended or "eof"

    def close(self) -> None:
        self.ended = "close"

    def abort(self) -> None:
        self.ended = "abort"

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def close_code(self) -> int | None:
        """The code of the close frame that was written last."""
        if self.writes and self.writes[-1][0] == 0x88 and len(self.writes[-1]) >= 4:
            return int.from_bytes(self.writes[-1][2:4], "big")
        return None


class Line:
    """A WebSocket on a transport that shows everything, past the handshake."""

    def __init__(self, max_size: int = MAX_FRAME_BYTES) -> None:
        self.owner = Recorder()
        self.transport = Transport()
        self.websocket = WebSocket(self.owner, close_wait=0.05)
        self.websocket.connection_made(cast(asyncio.Transport, self.transport))
        self.websocket.data_received(HANDSHAKE)
        assert self.transport.writes.pop().startswith(b"HTTP/1.1 101 ")
        self.websocket.set_max_size(max_size)

    def feed(self, *parts: bytes) -> None:
        for part in parts:
            self.websocket.data_received(part)

    @property
    def messages(self) -> list[bytes]:
        return self.owner.received_messages


@pytest.fixture
async def line() -> Line:
    return Line()


# What becomes a message ---------------------------------------------------------------------

SIZES = [0, 1, 125, 126, 127, 65_535, 65_536, 70_000]


@pytest.mark.parametrize("size", SIZES)
async def test_a_text_of_any_length_arrives(line: Line, size: int) -> None:
    payload = bytes(range(97, 123)) * (size // 26 + 1)
    line.feed(frame(payload[:size]))
    assert line.messages == [payload[:size]]


@pytest.mark.parametrize("size", SIZES)
async def test_a_text_of_any_length_leaves(line: Line, size: int) -> None:
    line.websocket.send(b"x" * size)
    line.websocket.flush()
    assert line.transport.writes == [frame(b"x" * size, mask=False)]


async def test_many_frames_in_one_read_arrive_in_order(line: Line) -> None:
    line.feed(b"".join(frame(f"{number}") for number in range(50)))
    assert line.messages == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("size", [3, 200, 70_000])
async def test_a_slow_sender_s_frame_arrives_however_it_is_cut(line: Line, size: int) -> None:
    data = frame("x" * size) + frame("after")
    edges = [*range(1, 20), size // 2, len(data) - 12, len(data) - 11, len(data) - 1]
    for edge in edges:
        line.feed(data[:edge], data[edge:])
    assert line.messages == [b"x" * size, b"after"] * len(edges)


async def test_a_frame_that_comes_byte_by_byte_arrives(line: Line) -> None:
    data = frame("slow") + frame("", Opcode.PING) + frame("and", fin=False) + frame("!", CONT)
    line.feed(*(data[i : i + 1] for i in range(len(data))))
    assert line.messages == [b"slow", b"and!"]
    assert line.transport.writes == [frame("", PONG, mask=False)]


async def test_fragments_become_one_message_with_pings_between_them(line: Line) -> None:
    line.feed(
        frame("first")
        + frame("one ", fin=False)
        + frame("hey", Opcode.PING)
        + frame("two ", CONT, fin=False)
        + frame("", CONT, fin=False)
        + frame("three", CONT)
        + frame("last")
    )
    assert line.messages == [b"first", b"one two three", b"last"]
    assert line.transport.writes == [frame("hey", PONG, mask=False)]


async def test_empty_fragments_take_no_memory(line: Line) -> None:
    line.feed(frame("a", fin=False), *(frame("", CONT, fin=False) for _ in range(10_000)))
    assert len(line.websocket._fragments or b"") == 1
    line.feed(frame("z", CONT))
    assert line.messages == [b"az"]


async def test_a_binary_message_is_told_from_a_text(line: Line) -> None:
    line.feed(frame("x", BINARY), frame("y", BINARY, fin=False), frame("z", CONT), frame("t"))
    assert line.owner.binary == [b"x", b"yz"] and line.messages == [b"t"]


async def test_a_pong_is_only_a_sign_of_life(line: Line) -> None:
    line.feed(frame("", PONG), frame("t"))
    assert line.messages == [b"t"] and line.transport.writes == []


@pytest.mark.parametrize("cut", [1, 20, len(HANDSHAKE) - 2, len(HANDSHAKE)])
async def test_frames_right_behind_the_handshake_arrive(cut: int) -> None:
    line = Line()
    websocket = WebSocket(line.owner)
    websocket.connection_made(cast(asyncio.Transport, Transport()))
    data = HANDSHAKE + frame("at once") + frame("and more")[:3]
    websocket.data_received(data[:cut])
    websocket.data_received(data[cut:])
    websocket.data_received(frame("and more")[3:])
    assert line.messages == [b"at once", b"and more"]


FRAMES = st.lists(
    st.one_of(
        st.builds(frame, st.binary(max_size=40), st.just(TEXT)),
        st.builds(
            frame,
            st.binary(max_size=300),
            st.sampled_from([TEXT, BINARY, CONT, Opcode.PING, PONG, CLOSE, 3, 11]),
            fin=st.booleans(),
            mask=st.sampled_from([True, True, True, False]),
            bits=st.sampled_from([0, 0, 0, 0x40]),
        ),
        st.binary(min_size=1, max_size=8),
    ),
    max_size=12,
)


def library_alone(data: bytes, max_size: int) -> tuple[list[bytes], int | None]:
    """The messages, and the close code that is written, of a plain ServerProtocol."""
    library = ServerProtocol(max_size=max_size)
    library.receive_data(HANDSHAKE)
    (request,) = library.events_received()
    library.send_response(library.accept(request))  # type: ignore[arg-type]
    library.receive_data(data)
    messages: list[bytes] = []
    parts = b""
    for event in cast(list[Any], library.events_received()):
        if event.opcode in (TEXT, BINARY):
            parts = bytes(event.data)
        elif event.opcode is CONT:
            parts += bytes(event.data)
        else:
            continue
        if event.fin:
            messages.append(parts)
    return messages, None if library.state is OPEN else library.close_sent.code  # type: ignore


@settings(max_examples=300, deadline=None)
@given(FRAMES, st.lists(st.integers(1, 400), max_size=6), st.sampled_from([50, 200, 1000]))
def test_the_fast_path_and_the_library_agree(
    parts: list[bytes], cuts: list[int], max_size: int
) -> None:
    data = b"".join(parts)

    async def with_the_fast_path() -> tuple[list[bytes], int | None]:
        line = Line(max_size)
        messages: list[bytes] = []
        line.owner.on_received = lambda websocket, payload: messages.append(payload)
        start = 0
        for cut in (*cuts, len(data)):
            if data[start : start + cut]:
                line.feed(data[start : start + cut])
            start += cut
        if code is not None:
            line.feed(b"\0" * 1100)  # the library may refuse a frame of which half is missing
        return messages, line.transport.close_code() if line.owner.ends else None

    expected, code = library_alone(data, max_size)
    found, found_code = asyncio.run(with_the_fast_path())
    assert found == expected
    assert found_code == (None if code in (None, 1005) else code)


# What breaks the protocol -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame("x", mask=False), 1002),
        (frame("x" * 200, mask=False), 1002),
        (frame("x", bits=0x40), 1002),
        (frame("x", bits=0x10), 1002),
        (frame("x", 3), 1002),
        (frame("x", 11), 1002),
        (frame("x", CONT), 1002),
        (frame("x", fin=False) + frame("y"), 1002),
        (frame("x" * 126, Opcode.PING), 1002),
        (frame("x", Opcode.PING, fin=False), 1002),
        (frame(b"\x03", CLOSE), 1002),
        (close_frame(1006), 1002),
        (b"\x81\xff\x80\x00\x00\x00\x00\x00\x00\x00" + MASK, 1009),
    ],
)
async def test_a_fault_closes_and_nothing_behind_it_counts(
    line: Line, data: bytes, code: int
) -> None:
    line.feed(frame("before") + data + frame("behind"), frame("later"))
    assert line.messages == [b"before"]
    assert line.transport.close_code() == code and line.transport.ended == "eof"
    assert line.owner.ends == ["closed"]


@pytest.mark.parametrize("max_size", [MAX_HELLO_BYTES, MAX_FRAME_BYTES])
async def test_the_limit_is_exact_and_one_more_closes_1009(max_size: int) -> None:
    line = Line(max_size)
    line.feed(frame(b"x" * max_size))
    assert [len(message) for message in line.messages] == [max_size]
    line.feed(frame(b"x" * (max_size + 1))[:20])  # its length alone is enough
    assert line.transport.close_code() == 1009


async def test_fragments_together_keep_to_the_limit() -> None:
    line = Line(100)
    line.feed(frame(b"x" * 60, fin=False), frame(b"x" * 40, CONT))
    assert line.messages == [b"x" * 100]
    line.feed(frame(b"x" * 60, fin=False), frame(b"x" * 41, CONT))
    assert line.transport.close_code() == 1009


async def test_what_was_collected_leaves_before_the_close_frame(line: Line) -> None:
    line.websocket.send(b"answer")
    line.feed(frame("x", mask=False))
    first, last = line.transport.writes
    assert first == frame("answer", mask=False) and last[0] == 0x88


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n", b"400"),
        (b"GARBAGE\r\n\r\n", b"400"),
        (b"GET / HTTP/3.0\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", b"400"),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 9_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + (b"A: " + b"x" * 4_000 + b"\r\n") * 5, b"431"),
        (b"GET /" + b"x" * 9_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (HANDSHAKE.replace(b"Version: 13", b"Version: 8"), b"400"),
        (HANDSHAKE.replace(b"MDEyMzQ1Njc4OWFiY2RlZg==", b"short"), b"400"),
        (HANDSHAKE.replace(b"GET", b"POST"), b"405"),
    ],
)
async def test_a_bad_request_is_answered_and_closed(request_: bytes, status: bytes) -> None:
    owner, transport = Recorder(), Transport()
    websocket = WebSocket(owner)
    websocket.connection_made(cast(asyncio.Transport, transport))
    websocket.data_received(request_)
    assert transport.writes[0].startswith(b"HTTP/1.1 " + status)
    assert transport.ended == "eof" and owner.ends == ["closed"]
    websocket.data_received(b"more")  # and what still comes does no harm
    assert len(transport.writes) == 1


# Output and back-pressure -------------------------------------------------------------------


async def test_what_is_sent_in_one_turn_leaves_in_one_write(line: Line) -> None:
    assert line.websocket.send(b"one")
    assert not line.websocket.send(b"two")
    assert line.transport.writes == []
    line.websocket.flush()
    line.websocket.flush()
    assert line.transport.writes == [frame("one", mask=False) + frame("two", mask=False)]
    assert line.websocket.send(b"three")


async def test_nothing_is_taken_while_the_client_does_not_read(line: Line) -> None:
    line.owner.on_received = lambda websocket, payload: websocket.pause_writing()
    line.feed(frame("1") + frame("2") + frame("3")[:4])
    assert line.messages == [b"1"] and not line.transport.is_reading
    line.feed(frame("3")[4:])  # was under way already
    assert line.messages == [b"1"] and not line.transport.is_reading
    line.owner.on_received = lambda websocket, payload: None
    line.websocket.resume_writing()
    assert line.messages == [b"1", b"2", b"3"] and line.transport.is_reading


async def test_nothing_is_taken_while_it_is_held(line: Line) -> None:
    line.owner.on_received = lambda websocket, payload: websocket.hold()
    line.feed(frame("1") + frame("2"), frame("3"))
    assert line.messages == [b"1"] and not line.transport.is_reading
    line.websocket.release()
    assert line.messages == [b"1", b"2"]
    line.websocket.pause_writing()
    line.websocket.release()
    assert line.messages == [b"1", b"2"], "held by two: both must let go"
    line.websocket.resume_writing()
    assert line.messages == [b"1", b"2", b"3"]


async def test_a_flood_in_one_read_leaves_turns_to_others(line: Line) -> None:
    flood = 3 * FRAMES_A_TURN
    line.feed(frame("x") * flood)
    assert len(line.messages) == FRAMES_A_TURN
    line.feed(frame("x"))
    assert len(line.messages) == FRAMES_A_TURN and not line.transport.is_reading
    flood += 1
    turns = 0
    while len(line.messages) < flood:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 2 and len(line.messages) == flood and line.transport.is_reading
    line.feed(frame("y"))
    assert line.messages[-1] == b"y"


# Liveness -----------------------------------------------------------------------------------


async def test_each_round_sends_a_ping_and_two_silent_ones_are_the_end(line: Line) -> None:
    for _ in range(2):
        line.websocket.check_liveness(2)
    assert line.transport.writes == [PING, PING] and line.transport.ended is None
    line.websocket.check_liveness(2)
    assert line.transport.ended == "abort" and line.owner.ends == ["closed"]


@pytest.mark.parametrize("sign", [frame("", PONG), frame("x")[:1], frame("x")])
async def test_any_byte_is_a_sign_of_life(line: Line, sign: bytes) -> None:
    for _ in range(6):
        line.websocket.check_liveness(2)
        line.feed(sign[:1])
    assert line.transport.ended is None


async def test_a_client_that_reads_slowly_is_alive_as_long_as_it_reads(line: Line) -> None:
    line.websocket.send(b"x" * 100_000)
    line.transport.buffered = 100_000
    line.websocket.pause_writing()
    line.websocket.flush()
    for left in range(90_000, 0, -10_000):
        line.transport.buffered = left
        line.websocket.check_liveness(2)
    line.websocket.check_liveness(2)
    assert line.transport.ended is None
    line.websocket.check_liveness(2)
    assert line.transport.ended == "abort", "and dropped when it stops"


async def test_a_client_without_a_handshake_is_dropped_too() -> None:
    owner, transport = Recorder(), Transport()
    websocket = WebSocket(owner)
    websocket.connection_made(cast(asyncio.Transport, transport))
    for _ in range(3):
        websocket.check_liveness(2)
    assert transport.writes == [] and transport.ended == "abort"


# The end ------------------------------------------------------------------------------------


async def test_a_close_frame_is_answered_with_its_code(line: Line) -> None:
    line.feed(frame("last") + close_frame(1000) + frame("behind"))
    assert line.messages == [b"last"]
    assert line.transport.writes == [struct.pack("!BBH", 0x88, 2, 1000)]
    assert line.transport.ended == "eof" and line.owner.ends == ["closed"]
    assert not line.websocket.send(b"late")
    line.websocket.flush()
    line.websocket.close(4003)
    assert len(line.transport.writes) == 1


async def test_close_says_why_after_what_was_collected_and_takes_nothing_more(line: Line) -> None:
    line.websocket.send(b"answer")
    line.websocket.close(4004, "a newer connection took the name")
    answer, end = line.transport.writes
    assert answer == frame("answer", mask=False)
    assert end[2:] == struct.pack("!H", 4004) + b"a newer connection took the name"
    assert line.transport.ended is None, "the other side may answer"
    line.feed(frame("late") + frame("", Opcode.PING) + frame("x", fin=False))
    assert line.messages == [] and len(line.transport.writes) == 2
    line.feed(close_frame(4004))
    assert line.transport.ended == "eof" and line.owner.ends == ["closed"]


async def test_close_finds_the_answer_behind_what_it_does_not_take_any_more(line: Line) -> None:
    line.websocket.hold()
    line.feed(frame("held") + close_frame(1000)[:3])
    line.websocket.close(1001)
    line.websocket.release()
    assert line.messages == [] and line.transport.ended is None
    line.feed(close_frame(1000)[3:])
    assert line.transport.ended == "eof"


async def test_close_finds_the_answer_in_what_was_read_before(line: Line) -> None:
    line.websocket.hold()
    line.feed(frame("held") + close_frame(1000))
    assert line.transport.ended is None
    line.websocket.close(1001)
    assert line.messages == [] and line.transport.ended == "eof"


async def test_close_while_a_message_is_taken_drops_the_rest(line: Line) -> None:
    line.owner.on_received = lambda websocket, payload: websocket.close(4003, "revoked")
    line.feed(frame("1") + frame("2") + close_frame(4003))
    assert line.messages == [b"1"] and line.transport.ended == "eof"


async def test_close_reads_again_from_a_client_that_was_held_up(line: Line) -> None:
    line.websocket.pause_writing()
    assert not line.transport.is_reading
    line.websocket.close(4003)
    assert line.transport.is_reading


async def test_a_side_that_never_answers_is_cut_off_in_time(line: Line) -> None:
    line.websocket.close(4003)
    while not line.transport.ended:
        await asyncio.sleep(0.01)
    assert line.transport.ended == "abort"


async def test_close_before_the_handshake_just_closes() -> None:
    owner, transport = Recorder(), Transport()
    websocket = WebSocket(owner)
    websocket.connection_made(cast(asyncio.Transport, transport))
    websocket.data_received(HANDSHAKE[:20])
    websocket.close(4001, "no hello within 5 s")
    assert transport.writes == [] and transport.ended == "close"
    assert owner.ends == ["closed"]


async def test_a_half_closed_connection_is_over(line: Line) -> None:
    line.websocket.eof_received()
    assert line.owner.ends == ["closed"]
    line.websocket.connection_lost(None)
    assert line.owner.ends == ["closed", "gone"]


async def test_a_lost_connection_is_over_once(line: Line) -> None:
    line.websocket.connection_lost(ConnectionResetError())
    assert line.owner.ends == ["closed", "gone"]
    assert not line.websocket.send(b"late")
    line.websocket.check_liveness(2)
    assert line.transport.writes == []


# On real sockets ----------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def served(owner: Recorder) -> AsyncIterator[tuple[asyncio.StreamReader, Any]]:
    """A raw client, past the handshake, of a WebSocket on a real socket."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: WebSocket(owner, close_wait=0.2), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        async with asyncio.timeout(5):
            writer.write(HANDSHAKE)
            await reader.readuntil(b"\r\n\r\n")
            yield reader, writer
    finally:
        writer.transport.abort()
        server.close()


@pytest.fixture
def echo() -> Iterator[Recorder]:
    owner = Recorder()

    def answer(websocket: WebSocket, payload: bytes) -> None:
        websocket.send(payload)
        websocket.flush()

    owner.on_received = answer
    yield owner


async def test_a_client_that_asks_and_does_not_read_is_not_served_without_limit(
    echo: Recorder,
) -> None:
    sizes = []
    blocked = asyncio.Event()

    def answer(websocket: WebSocket, payload: bytes) -> None:
        websocket.send(b"x" * 10_000)
        websocket.flush()
        sizes.append(websocket._transport.get_write_buffer_size())
        if websocket._is_blocked:
            blocked.set()

    echo.on_received = answer
    async with served(echo) as (reader, writer):
        asked = 2_000
        writer.write(frame("?") * asked)
        await blocked.wait()
        assert len(echo.received_messages) < asked
        assert max(sizes) < 64 * 1024 + 2 * 10_004
        await reader.readexactly(asked * 10_004)  # and goes on when it reads
        assert len(echo.received_messages) == asked


async def test_the_last_words_arrive_before_the_socket_closes(echo: Recorder) -> None:
    async with served(echo) as (reader, writer):
        writer.write(frame("x") + frame("bad", mask=False) + b"never read " * 10_000)
        everything = await reader.read()
        assert everything[:3] == b"\x81\x01x" and everything[3] == 0x88


async def test_the_socket_is_gone_when_both_have_closed(echo: Recorder) -> None:
    async with served(echo) as (reader, writer):
        writer.write(close_frame(1000))
        assert await reader.read() == struct.pack("!BBH", 0x88, 2, 1000)
        writer.close()
        while echo.ends != ["closed", "gone"]:
            await asyncio.sleep(0.005)


async def test_a_client_that_keeps_its_end_open_is_cut_off(echo: Recorder) -> None:
    async with served(echo) as (reader, writer):
        writer.write(close_frame(1000))
        assert await reader.read() == struct.pack("!BBH", 0x88, 2, 1000)
        while echo.ends != ["closed", "gone"]:
            await asyncio.sleep(0.005)
