"""The wire to the agent: JSON-RPC lines on standard input and output.

It promises three things that the SDK's own stdio transport does not:

- It knows when an answer has left the process. Every request carries a `Receipt`, which a
  handler finds as `ctx.request`: what the handler attaches to it is told either that the
  answer was written (`done`) or that it never will be (`undo`: the client cancelled, or is
  gone). A message that was claimed for an answer is neither lost nor shown twice, even if this
  process is killed in between: no client takes a line before its newline, so that is written
  by itself, once it cannot block, and announced at the last instant (see departure.py).
- It never keeps the process alive. Both threads are daemons that block in `os.read` and
  `os.write`, so that a client that neither writes, reads nor closes its pipes stops no exit.
  Threads, not non-blocking pipes: O_NONBLOCK would be set for the client's end too, where
  the two are one socket or terminal.
- It is the only one that can write to the client: descriptor 1 itself is pointed at standard
  error, so that no `print`, library or child process breaks the protocol.
"""

import asyncio
import json
import logging
import os
import queue
import select
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Literal, NamedTuple, Protocol, Self

import anyio
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)

logger = logging.getLogger(__name__)

READ_SIZE = 1 << 18
CROSSING_TIMEOUT = 0.25
"""Seconds after an answer in which a cancellation of its request may have crossed with it.
Later ones are ignored: some clients cancel, at the end of a turn, what was answered long ago."""
REMEMBERED_ANSWERS = 64
LAST_ANSWERS_TIMEOUT = 0.3
"""Seconds that requests have after the end of input, for scripts that pipe them all at once."""


class Handover(Protocol):
    """Something that an answer takes along.

    The writer's thread calls `prepare`, `leave`, then `done` or `stay`, in this order, for one
    answer at a time. The event loop calls `undo`, after which nothing more comes but perhaps
    the end of a `prepare`; or, after `done`, perhaps `recall`.
    """

    def prepare(self) -> None:
        """The answer has left the process, but for its newline."""

    def leave(self) -> None:
        """The newline is written next. Must not block, nor let other threads run."""

    def stay(self) -> None:
        """It could not be written."""

    def done(self) -> None:
        """The answer has left the process."""

    def undo(self) -> None:
        """Nobody gets the answer."""

    def recall(self) -> None:
        """It has left the process, but nobody got it."""


class Receipt:
    """What became of the answer to one request."""

    def __init__(self) -> None:
        self._handover: Handover | None = None
        self._state: Literal["open", "left", "lost"] = "open"
        self._lock = threading.Lock()

    def carry(self, handover: Handover) -> None:
        """Tell `handover` what becomes of this request's answer; call it before answering."""
        if self._state == "lost":
            handover.undo()
        else:
            self._handover = handover

    # On the writer's thread

    def prepare(self) -> None:
        """All but the newline has been written."""
        if self._state == "open":
            self._tell("prepare")

    def hand_over(self, write: Callable[[], bool]) -> bool:
        """Write the newline, with `write`, which says whether it could.

        Held until what the answer took along is settled: a cancellation that comes meanwhile
        waits, and so finds an answer that has left or one that has not, never one in between.
        """
        with self._lock:
            if self._state != "open" or self._handover is None:
                return write()
            self._handover.leave()
            if written := write():
                self._state = "left"
            self._tell("done" if written else "stay")
            return written

    # On the event loop

    def lost(self) -> None:
        """The answer will not be written, or was not wanted when it was."""
        with self._lock:
            if self._state not in ("left", "lost"):
                self._state = "lost"
                self._tell("undo")

    def unwanted(self) -> None:
        """The client had given up when the answer was on its way, or just before."""
        with self._lock:
            if self._state == "open":
                self._state = "lost"
                self._tell("undo")
            elif self._state == "left":
                self._state = "lost"
                self._tell("recall")

    def _tell(self, what: Literal["prepare", "stay", "done", "undo", "recall"]) -> None:
        if self._handover is None:
            return
        try:
            getattr(self._handover, what)()
        except Exception:
            logger.exception("messages that an answer took along were not put away (%s)", what)


class Wire:
    """Both directions of one client's connection, over two file descriptors.

    It is the `read_stream` and the `write_stream` of the SDK's serving loop.
    """

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._outgoing: queue.SimpleQueue[_Outgoing] = queue.SimpleQueue()
        self._open: dict[RequestId, Receipt] = {}
        self._answered: deque[_Answered] = deque(maxlen=REMEMBERED_ANSWERS)
        self._all_settled = asyncio.Event()
        self._all_settled.set()
        self._ended = False
        self._closed = False
        self.handshaken = asyncio.Event()
        """Set once the answer to `initialize` has been written."""
        self.initialized = asyncio.Event()
        """Set once the client has said `notifications/initialized`: it takes notifications."""

    def start(self) -> None:
        """Begin to read and to write."""
        for work, name in ((self._read, "stdin"), (self._write, "stdout")):
            threading.Thread(target=work, name=name, daemon=True).start()

    # Reading ------------------------------------------------------------------------------

    def __aiter__(self) -> "Wire":
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while not self._ended:
            if (line := await self._lines.get()) is None:
                self._ended = True
                await self._let_answers_leave()
            elif (message := self._parsed(line)) is not None:
                return message
        raise StopAsyncIteration

    async def receive(self) -> SessionMessage | Exception:
        """The client's next message.

        Raises:
            anyio.EndOfStream: the client has closed its end.
        """
        try:
            return await anext(self)
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    def _parsed(self, line: bytes) -> SessionMessage | None:
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            try:
                message = jsonrpc_message_adapter.validate_json(_mended(line), by_name=False)
            except ValueError:
                self._refuse(line)
                return None
        if isinstance(message, JSONRPCRequest):
            return SessionMessage(message, self._expect_answer(message))
        if isinstance(message, JSONRPCNotification):
            self._take_note(message)
        return SessionMessage(message)

    def _take_note(self, message: JSONRPCNotification) -> None:
        if message.method == "notifications/initialized":
            self.initialized.set()
        elif message.method == "notifications/cancelled":
            # Of an open request the server takes care. This is about one whose answer crossed
            # with the cancellation: the client drops it unread.
            oldest = self._loop.time() - CROSSING_TIMEOUT
            request_id = (message.params or {}).get("requestId")
            for answer in self._answered:
                if answer.request_id == request_id and answer.at >= oldest:
                    answer.receipt.unwanted()

    def _expect_answer(self, request: JSONRPCRequest) -> ServerMessageMetadata:
        receipt = Receipt()
        if request.method == "initialize":
            receipt.carry(_Handshake(self._loop, self.handshaken))
        self._open[request.id] = receipt
        self._all_settled.clear()

        async def unanswered() -> None:
            if self._open.get(request.id) is receipt:
                self._forget(request.id)
            receipt.lost()

        return ServerMessageMetadata(request_context=receipt, on_request_unanswered=unanswered)

    def _refuse(self, line: bytes) -> None:
        """Answer a line that is no JSON-RPC message, where it can be told what it asked."""
        try:
            found = json.loads(line)
            identity = found["id"]
        except (ValueError, TypeError, KeyError, RecursionError):
            identity = None
        if not isinstance(identity, str | int) or isinstance(identity, bool):
            logger.warning("ignored a line from the client that is not JSON-RPC")
            return
        error = ErrorData(code=INVALID_REQUEST, message="this is not a JSON-RPC 2.0 request")
        self._put(JSONRPCError(jsonrpc="2.0", id=identity, error=error), None)

    async def _let_answers_leave(self) -> None:
        try:
            async with asyncio.timeout(LAST_ANSWERS_TIMEOUT):
                await self._all_settled.wait()
        except TimeoutError:
            pass

    def _read(self) -> None:
        rest = b""
        while chunk := self._read_some():
            *lines, rest = (rest + chunk).split(b"\n") if b"\n" in chunk else (rest + chunk,)
            for line in lines:
                if line.strip():
                    self._tell_loop(self._lines.put_nowait, line)
        self._tell_loop(self._lines.put_nowait, None)

    def _read_some(self) -> bytes:
        try:
            return os.read(self._read_fd, READ_SIZE)
        except OSError:
            return b""

    # Writing ------------------------------------------------------------------------------

    async def send(self, item: SessionMessage) -> None:
        """Write a message; returns once it has left the process.

        Raises:
            anyio.BrokenResourceError: the client reads no more.
        """
        message = item.message
        receipt = None
        if isinstance(message, JSONRPCResponse):
            if receipt := self._forget(message.id):
                self._answered.append(_Answered(message.id, receipt, self._loop.time()))
        elif isinstance(message, JSONRPCError) and message.id is not None:
            # The handler's result, and what it was to take along, is not written.
            if failed := self._forget(message.id):
                failed.lost()
        await self._put(message, receipt)

    def _put(
        self,
        message: JSONRPCRequest | JSONRPCNotification | JSONRPCResponse | JSONRPCError,
        receipt: Receipt | None,
    ) -> "asyncio.Future[None]":
        left = self._loop.create_future()
        left.add_done_callback(_retrieved)
        data = message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        item = _Outgoing(data, receipt, left)
        if self._closed:
            self._after_writing(item, written=False)
        else:
            self._outgoing.put(item)
        return left

    def _write(self) -> None:
        while True:
            item = self._outgoing.get()
            written = not self._closed and self._write_item(item)
            self._tell_loop(self._after_writing, item, written)

    def _write_item(self, item: "_Outgoing") -> bool:
        if item.receipt is None:
            return self._write_all(item.data)
        written = self._write_all(item.data[:-1]) and not self._closed
        if written:
            item.receipt.prepare()
            self._wait_for_room()
            written = item.receipt.hand_over(lambda: self._write_all(item.data[-1:]))
        return written

    def _wait_for_room(self) -> None:
        room = select.poll()
        room.register(self._write_fd, select.POLLOUT)
        room.poll()

    def _write_all(self, data: bytes) -> bool:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._write_fd, rest) :]
        except OSError:
            # A client that does not read any more is gone, whatever its other end says.
            self._closed = True
            self._tell_loop(self._lines.put_nowait, None)
            return False
        return True

    def _after_writing(self, item: "_Outgoing", written: bool) -> None:
        if item.receipt is not None:
            item.receipt.lost()  # unless it has left
        if item.left.done():
            return
        if written:
            item.left.set_result(None)
        else:
            item.left.set_exception(anyio.BrokenResourceError())

    # The end ------------------------------------------------------------------------------

    def _forget(self, request_id: RequestId) -> Receipt | None:
        receipt = self._open.pop(request_id, None)
        if not self._open:
            self._all_settled.set()
        return receipt

    async def flush(self, timeout: float) -> None:
        """Wait until all that was sent has left the process, or the client does not read it."""
        left = self._loop.create_future()
        self._outgoing.put(_Outgoing(b"", None, left))
        await asyncio.wait([left], timeout=timeout)
        _retrieved(left)

    def abandon(self) -> None:
        """Write nothing more, and tell every open request that its answer never leaves."""
        self._closed = True
        for receipt in self._open.values():
            receipt.lost()
        self._open.clear()
        self._all_settled.set()

    def _tell_loop(self, call: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            pass  # the loop is closed: the process is about to exit

    async def aclose(self) -> None:
        """Part of the SDK's stream interface: the descriptors live as long as the process."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        return None


def claim_standard_streams() -> tuple[int, int]:
    """Take descriptors 0 and 1 for the wire alone, and return private copies of them.

    From then on descriptor 0 is the null device and descriptor 1 is standard error, for this
    process and its children.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        if not _is_open(descriptor):
            os.dup2(null, descriptor)
    wire = os.dup(0), os.dup(1)
    os.dup2(null, 0)
    os.dup2(2, 1)
    if null > 2:
        os.close(null)
    return wire


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


class _Outgoing(NamedTuple):
    data: bytes
    receipt: Receipt | None
    left: "asyncio.Future[None]"


class _Answered(NamedTuple):
    request_id: RequestId
    receipt: Receipt
    at: float


class _Handshake:
    """Sets an event of the loop once the answer that carries it has been written."""

    def __init__(self, loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
        self._loop = loop
        self._event = event

    def done(self) -> None:
        self._loop.call_soon_threadsafe(self._event.set)

    def prepare(self) -> None:
        pass

    leave = stay = undo = recall = prepare


def _mended(line: bytes) -> str:
    """Replace what JSON in UTF-8 must not hold but agents send: halves of emoji, stray bytes.

    Raises:
        ValueError: it is not even nearly JSON.
    """
    try:
        text = json.dumps(json.loads(line.decode("utf-8", "replace")), ensure_ascii=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _retrieved(left: "asyncio.Future[None]") -> None:
    # Nobody may be waiting any more; asyncio would complain about an exception never seen.
    if left.done() and not left.cancelled():
        left.exception()
