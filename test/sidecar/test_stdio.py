"""The wire to the agent: what it reads, what it writes, and when an answer has left."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import ErrorData, JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from hoptell.sidecar import stdio
from hoptell.sidecar.stdio import Receipt, Wire


class Client:
    """The other ends of a wire's pipes."""

    def __init__(self, wire: Wire, write_fd: int, read_fd: int) -> None:
        self.wire = wire
        self._write_fd: int | None = write_fd
        self._read_fd: int | None = read_fd

    def put(self, *lines: str | bytes | dict[str, Any]) -> None:
        assert self._write_fd is not None
        for line in lines:
            if isinstance(line, dict):
                line = json.dumps({"jsonrpc": "2.0", **line})
            data = line.encode() if isinstance(line, str) else line
            os.write(self._write_fd, data + b"\n")

    async def read(self) -> bytes:
        """What has been written, one chunk of it."""
        assert self._read_fd is not None
        return await asyncio.to_thread(os.read, self._read_fd, 1 << 20)

    async def read_line(self) -> dict[str, Any]:
        data = b""
        while not data.endswith(b"\n"):
            data += await self.read()
        line: dict[str, Any] = json.loads(data)
        return line

    def close_input(self) -> None:
        if self._write_fd is not None:
            os.close(self._write_fd)
        self._write_fd = None

    def stop_reading(self) -> None:
        if self._read_fd is not None:
            os.close(self._read_fd)
        self._read_fd = None

    async def request(self, id: int, method: str = "tools/call") -> Receipt:
        """Send a request; the receipt of its answer."""
        self.put({"id": id, "method": method})
        item = await anext(self.wire)
        assert isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCRequest)
        assert isinstance(item.metadata, ServerMessageMetadata)
        receipt = item.metadata.request_context
        assert isinstance(receipt, Receipt)
        return receipt

    async def answer(self, id: int, text: str = "") -> None:
        message = JSONRPCResponse(jsonrpc="2.0", id=id, result={"text": text})
        await self.wire.send(SessionMessage(message))


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    read_fd, client_write_fd = os.pipe()
    client_read_fd, write_fd = os.pipe()
    wire = Wire(read_fd, write_fd)
    wire.start()
    client = Client(wire, client_write_fd, client_read_fd)
    yield client
    wire.abandon()
    client.close_input()
    client.stop_reading()
    async with asyncio.timeout(5):
        with contextlib.suppress(anyio.EndOfStream):
            while True:
                await wire.receive()
        await wire.flush(5)
    # Both threads are through with them: the reader has ended, the writer waits for ever.
    os.close(read_fd)
    os.close(write_fd)


class Parcel:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def prepare(self) -> None:
        self.told.append("prepare")

    def leave(self) -> None:
        self.told.append("leave")

    def stay(self) -> None:
        self.told.append("stay")

    def done(self) -> None:
        self.told.append("done")

    def undo(self) -> None:
        self.told.append("undo")

    def recall(self) -> None:
        self.told.append("recall")


WRITTEN = ["prepare", "leave", "done"]


@pytest.fixture
def parcel() -> Iterator[Parcel]:
    yield Parcel()


PIPE = 1 << 16


async def test_requests_and_notifications_come_in_the_order_in_which_they_were_written(
    client: Client,
) -> None:
    client.put(
        {"id": 1, "method": "ping"}, {"method": "notifications/x"}, {"id": "a", "result": {}}
    )
    first, second, third = [await client.wire.receive() for _ in range(3)]
    assert isinstance(first, SessionMessage) and isinstance(first.message, JSONRPCRequest)
    assert isinstance(second, SessionMessage) and isinstance(second.message, JSONRPCNotification)
    assert isinstance(third, SessionMessage) and isinstance(third.message, JSONRPCResponse)


async def test_a_line_may_come_in_pieces_and_be_of_any_size(client: Client) -> None:
    text = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "x", "params": {"t": "ä" * 200_000}})
    data = text.encode() + b"\n"

    async def write() -> None:
        for start in range(0, len(data), 50_001):
            piece = data[start : start + 50_001]
            await asyncio.to_thread(os.write, client._write_fd, piece)

    writing = asyncio.create_task(write())
    item = await client.wire.receive()
    await writing
    assert isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCRequest)
    assert item.message.params == {"t": "ä" * 200_000}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (rb'{"jsonrpc":"2.0","id":1,"method":"x","params":{"t":"half \ud83d"}}', "half \ufffd"),
        (
            rb'{"jsonrpc":"2.0","id":1,"method":"x","params":{"t":"\ud83d\ude00 \udc00"}}',
            "😀 \ufffd",
        ),
        (b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"t":"stray \xff"}}', "stray \ufffd"),
    ],
    ids=["a half emoji", "a whole and a half", "bytes that are not UTF-8"],
)
async def test_a_broken_character_costs_that_character_and_not_the_request(
    client: Client, line: bytes, text: str
) -> None:
    client.put(line)
    item = await client.wire.receive()
    assert isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCRequest)
    assert item.message.params == {"t": text}


async def test_what_is_not_json_rpc_is_skipped_and_answered_where_it_has_an_id(
    client: Client,
) -> None:
    client.put("", "nonsense", "[]", "7", b"\xff", "[" * 100_000, '{"id": true}', '{"id": 5}')
    client.put({"id": 6, "method": "ping"})
    item = await client.wire.receive()
    assert isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCRequest)
    assert item.message.id == 6
    answer = await client.read_line()
    assert (answer["id"], answer["error"]["code"]) == (5, -32600)


async def test_the_clients_end_ends_the_stream(client: Client) -> None:
    client.close_input()
    with pytest.raises(anyio.EndOfStream):
        await client.wire.receive()


async def test_requests_that_were_piped_all_at_once_are_answered_before_the_stream_ends(
    client: Client,
) -> None:
    await client.request(1)
    client.close_input()
    ending = asyncio.create_task(client.wire.receive())
    await asyncio.sleep(0.05)
    assert not ending.done()
    await client.answer(1)
    with pytest.raises(anyio.EndOfStream):
        await ending


async def test_what_an_answer_took_along_is_done_once_all_of_it_has_left(
    client: Client, parcel: Parcel
) -> None:
    receipt = await client.request(1)
    receipt.carry(parcel)
    text = "x" * PIPE * 2
    answering = asyncio.create_task(client.answer(1, text))
    seen = await client.read()
    await asyncio.sleep(0.05)
    assert not parcel.told, "a part of it is still in this process"
    while not seen.endswith(b"\n"):
        seen += await client.read()
    await answering
    assert parcel.told == WRITTEN
    assert json.loads(seen)["result"]["text"] == text


async def test_before_the_newline_the_last_instant_is_told(client: Client) -> None:
    class Curious(Parcel):
        def leave(self) -> None:
            assert client._read_fd is not None
            self.seen = os.read(client._read_fd, 1 << 20)
            super().leave()

    parcel = Curious()
    (await client.request(1)).carry(parcel)
    await client.answer(1)
    assert parcel.seen.endswith(b"}"), "a client can make nothing of it yet"
    assert await client.read() == b"\n"
    assert parcel.told == WRITTEN


async def test_an_error_in_place_of_the_answer_takes_nothing_along(
    client: Client, parcel: Parcel
) -> None:
    receipt = await client.request(1)
    receipt.carry(parcel)
    error = JSONRPCError(jsonrpc="2.0", id=1, error=ErrorData(code=0, message="m"))
    await client.wire.send(SessionMessage(error))
    assert parcel.told == ["undo"]


async def test_a_request_that_is_never_answered_takes_nothing_along(
    client: Client, parcel: Parcel
) -> None:
    client.put({"id": 1, "method": "x"})
    item = await client.wire.receive()
    assert isinstance(item, SessionMessage)
    assert isinstance(item.metadata, ServerMessageMetadata)
    item.metadata.request_context.carry(parcel)
    assert item.metadata.on_request_unanswered is not None
    await item.metadata.on_request_unanswered()
    assert parcel.told == ["undo"]
    late = Parcel()
    item.metadata.request_context.carry(late)
    assert late.told == ["undo"]


async def test_a_client_that_reads_no_more_gets_nothing_and_counts_as_gone(
    client: Client, parcel: Parcel
) -> None:
    receipt = await client.request(1)
    receipt.carry(parcel)
    client.stop_reading()
    with pytest.raises(anyio.BrokenResourceError):
        await client.answer(1)
    assert parcel.told == ["undo"]
    with pytest.raises(anyio.EndOfStream):
        await client.wire.receive()
    with pytest.raises(anyio.BrokenResourceError):
        await client.answer(1)


def text_that_fills_the_pipe() -> str:
    """For an answer that leaves no room for its newline."""
    bare = len(JSONRPCResponse(jsonrpc="2.0", id=1, result={"text": ""}).model_dump_json())
    return "x" * (PIPE - bare)


async def test_while_there_is_no_room_for_the_newline_nothing_counts_as_handed_over(
    client: Client, parcel: Parcel
) -> None:
    (await client.request(1)).carry(parcel)
    answering = asyncio.create_task(client.answer(1, text_that_fills_the_pipe()))
    while not parcel.told:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    assert parcel.told == ["prepare"]
    await client.read()
    await answering
    assert parcel.told == WRITTEN


async def test_an_answer_whose_newline_cannot_be_written_is_not_handed_over(
    client: Client, parcel: Parcel
) -> None:
    (await client.request(1)).carry(parcel)
    answering = asyncio.create_task(client.answer(1, text_that_fills_the_pipe()))
    while not parcel.told:
        await asyncio.sleep(0.005)
    client.stop_reading()
    with pytest.raises(anyio.BrokenResourceError):
        await answering
    assert parcel.told == ["prepare", "leave", "stay", "undo"]


async def test_at_the_end_open_requests_are_told_that_their_answers_never_leave(
    client: Client, parcel: Parcel
) -> None:
    (await client.request(1)).carry(parcel)
    client.wire.abandon()
    assert parcel.told == ["undo"]


async def test_a_cancellation_that_crosses_with_the_answer_takes_it_back(
    client: Client, parcel: Parcel
) -> None:
    (await client.request(1)).carry(parcel)
    other = Parcel()
    (await client.request(2)).carry(other)
    await client.answer(1)
    await client.answer(2)
    client.put({"method": "notifications/cancelled", "params": {"requestId": 1}})
    await client.wire.receive()
    assert parcel.told == [*WRITTEN, "recall"]
    assert other.told == WRITTEN


async def test_a_cancellation_long_after_the_answer_changes_nothing(
    client: Client, parcel: Parcel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "CROSSING_TIMEOUT", 0.0)
    (await client.request(1)).carry(parcel)
    await client.answer(1)
    await asyncio.sleep(0.01)
    client.put({"method": "notifications/cancelled", "params": {"requestId": 1}})
    await client.wire.receive()
    assert parcel.told == WRITTEN


async def test_a_cancellation_while_the_answer_is_being_written_gives_back_at_once(
    client: Client, parcel: Parcel
) -> None:
    (await client.request(1)).carry(parcel)
    answering = asyncio.create_task(client.answer(1, "x" * PIPE * 2))
    seen = await client.read()
    client.put({"method": "notifications/cancelled", "params": {"requestId": 1}})
    await client.wire.receive()
    assert parcel.told == ["undo"]
    while not seen.endswith(b"\n"):
        seen += await client.read()
    await answering
    assert parcel.told == ["undo"]


async def test_a_cancellation_in_the_last_instant_waits_and_gives_back_at_once() -> None:
    """Whoever reads after it must find the messages, or see that they are on their way back."""
    receipt, parcel = Receipt(), Parcel()
    receipt.carry(parcel)
    receipt.prepare()
    cancelling = threading.Thread(target=receipt.unwanted)

    def newline() -> bool:
        cancelling.start()
        cancelling.join(0.05)
        parcel.told.append("newline")
        return True

    assert receipt.hand_over(newline)
    await asyncio.to_thread(cancelling.join, 5)
    assert parcel.told == ["prepare", "leave", "newline", "done", "recall"]


async def test_it_is_known_when_the_handshake_is_over(client: Client) -> None:
    await client.request(1, "initialize")
    assert not client.wire.handshaken.is_set()
    await client.answer(1)
    await client.wire.handshaken.wait()
    assert not client.wire.initialized.is_set()
    client.put({"method": "notifications/initialized"})
    await client.wire.receive()
    assert client.wire.initialized.is_set()


def test_nothing_else_in_the_process_or_its_children_can_write_to_the_client() -> None:
    code = """
import os, subprocess, sys
from hoptell.sidecar.stdio import claim_standard_streams
read_fd, write_fd = claim_standard_streams()
print("a print", flush=True)
os.write(1, b"a library in C\\n")
subprocess.run(["echo", "a child"])
assert sys.stdin.read() == "" and os.read(read_fd, 10) == b"in"
os.write(write_fd, b"the wire")
"""
    done = subprocess.run([sys.executable, "-c", code], input=b"in", capture_output=True)
    assert done.stdout == b"the wire"
    for text in (b"a print", b"a library in C", b"a child"):
        assert text in done.stderr
    assert done.returncode == 0


def test_closed_standard_streams_are_an_end_and_no_accident() -> None:
    code = """
import os, sys
from hoptell.sidecar.stdio import claim_standard_streams
for descriptor in (0, 1, 2):
    os.close(descriptor)
read_fd, write_fd = claim_standard_streams()
sys.exit(0 if min(read_fd, write_fd) > 2 and os.read(read_fd, 1) == b"" else 5)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
