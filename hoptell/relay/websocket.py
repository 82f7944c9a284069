"""One client's connection: bytes from the socket become messages, and messages bytes.

The protocol is websockets' sans-I/O `ServerProtocol`, on an asyncio transport. It does the
handshake, plain HTTP answers, fragments, pings, pongs, closing and every error. Around it:

- **Fast path.** Nearly all traffic is whole, masked, unfragmented text frames. This module
  finds by itself where a frame ends, and unmasks such a frame right here, in a sixth of the
  time that the library's parser takes. A frame of any other kind goes to the library, whole,
  so that between two frames the library never stands in the middle of one; only what it is
  bound to refuse (no mask, a length over the limit) goes there in pieces.
- **Joined output.** `send` only collects; `flush` writes everything at once. The server
  flushes each connection once a loop turn.
- **Back-pressure.** While the transport holds more than it could send (its high-water mark),
  nothing more is taken from this client, neither from the socket nor from what was read
  already. So a client that asks and does not read costs no more than that mark and one
  answer. `hold` and `release` let the owner stop it for other reasons, and after
  FRAMES_A_TURN frames it lets the other connections have their turn.
- **An end in bounded time.** Whoever starts to close, and whatever the other side then does
  or does not do, the socket is gone `close_wait` seconds later.

Limits: a frame or fragmented message of more than `max_size` bytes ends the connection with
close code 1009; what is not a WebSocket yet may send MAX_HELLO_BYTES of headers. Compression
is off: it would cost more CPU and memory than all the rest.
"""

import asyncio
import http
import logging
from typing import Protocol, cast

from websockets.frames import BINARY, CONT, TEXT, Frame
from websockets.http11 import Request, Response
from websockets.protocol import CONNECTING, OPEN
from websockets.server import ServerProtocol

from hoptell.frames import MAX_HELLO_BYTES
from hoptell.relay.model import Connection

try:
    from websockets.speedups import apply_mask
except ImportError:  # installed without its C extension
    from websockets.utils import apply_mask

CLOSE_WAIT = 1.0
"""Seconds that the other side has to answer a close frame, or to close its end."""
FRAMES_A_TURN = 128

CLOSE_NORMAL = 1000
CLOSE_GOING_AWAY = 1001
CLOSE_NOT_UTF8 = 1007

_PING = b"\x89\x00"
_WHOLE_TEXT = 0x81
"""First byte of an unfragmented text frame without reserved bits."""
_SHORT_HEADERS = [bytes((_WHOLE_TEXT, length)) for length in range(126)]

# At level INFO the library tells of every connection; the core's events say more.
_library_logger = logging.getLogger(f"{__name__}.library")
_library_logger.setLevel(logging.WARNING)


class Owner(Protocol):
    """Who a connection reports to."""

    def opened(self, websocket: "WebSocket") -> None:
        """A TCP connection came; it is not a WebSocket yet."""

    def respond(self, websocket: "WebSocket", request: Request) -> Response | None:
        """Answer a plain HTTP request; None where it asks for a WebSocket."""

    def received(self, websocket: "WebSocket", payload: bytes, is_binary: bool) -> None:
        """A whole message came. The bytes of a text may still turn out not to be UTF-8."""

    def closed(self, websocket: "WebSocket") -> None:
        """Nothing more comes or goes, whoever wanted it. Called once."""

    def gone(self, websocket: "WebSocket") -> None:
        """The socket is closed too. Called once, last."""


class WebSocket(asyncio.Protocol):
    """One connection, from the accepted socket to its end."""

    __slots__ = (
        "connection",
        "max_size",
        "_abort_timer",
        "_buffer",
        "_close_wait",
        "_fragments",
        "_fragments_are_binary",
        "_headers_size",
        "_is_blocked",
        "_is_closing",
        "_is_held",
        "_is_open",
        "_library",
        "_needed",
        "_out",
        "_owner",
        "_rounds_silent",
        "_taken",
        "_transport",
        "_written",
    )

    def __init__(self, owner: Owner, *, close_wait: float = CLOSE_WAIT) -> None:
        self.connection = Connection(self)
        """The core's side of it."""
        self.max_size = MAX_HELLO_BYTES
        self._owner = owner
        self._close_wait = close_wait
        self._transport: asyncio.Transport
        self._library = ServerProtocol(max_size=self.max_size, logger=_library_logger)
        self._is_open = False
        """The handshake is done, and nobody has begun to close."""
        self._is_closing = False
        self._is_held = False
        """The owner wants nothing for now."""
        self._is_blocked = False
        """The client reads more slowly than it is written to."""
        self._buffer = bytearray()
        """What was received and not taken yet; usually nothing."""
        self._needed = 0
        """Bytes that the buffer must have before there can be anything to take."""
        self._headers_size = 0
        self._fragments: bytearray | None = None
        # Joined as they come: a list would let empty or tiny fragments grow without limit.
        self._fragments_are_binary = False
        self._out: list[bytes] = []
        self._written = 0
        self._taken = 0
        """Of what was written, how much had left for the client at the last look."""
        self._rounds_silent = 0
        self._abort_timer: asyncio.TimerHandle | None = None

    # For the owner -------------------------------------------------------------------------

    def set_max_size(self, max_size: int) -> None:
        """Allow messages of so many bytes, from the next one on."""
        self.max_size = self._library.max_message_size = max_size

    def send(self, payload: bytes) -> bool:
        """Collect a text message; tell whether it is the first since the last `flush`."""
        if not self._is_open:
            return False
        out = self._out
        is_first = not out
        length = len(payload)
        if length < 126:
            out.append(_SHORT_HEADERS[length])
        elif length < 65536:
            out.append(b"\x81\x7e" + length.to_bytes(2, "big"))
        else:
            out.append(b"\x81\x7f" + length.to_bytes(8, "big"))
        out.append(payload)
        return is_first

    def flush(self) -> None:
        """Write what was collected."""
        out = self._out
        if out:
            self._out = []
            data = b"".join(out)
            self._written += len(data)
            self._transport.write(data)

    @property
    def said_goodbye(self) -> bool:
        """Whether the other side closed because it had done what it came for (1000)."""
        received = self._library.close_rcvd
        return received is not None and received.code == CLOSE_NORMAL

    def hold(self) -> None:
        """Take nothing more until `release`."""
        self._is_held = True

    def release(self) -> None:
        """Go on after `hold`."""
        self._is_held = False
        if self._is_open and not self._is_blocked:
            self._transport.resume_reading()
            self._read_buffer()

    def close(self, code: int, reason: str = "") -> None:
        """Write what was collected and a close frame; take nothing more.

        Before the handshake is done there is nobody to tell: the socket is just closed.

        Args:
            reason: at most 123 bytes in UTF-8, which is what a close frame has room for.
        """
        if self._is_closing:
            return
        if not self._is_open:
            self._transport.close()
            self._end()
            return
        self._library.send_close(code, reason)
        self._after_library()
        # The other side's close frame may come behind what is not taken any more.
        self._discard(self._buffer)
        self._buffer = bytearray()

    def fail(self, code: int, reason: str = "") -> None:
        """Close because the other side broke the protocol: it need not answer."""
        if self._is_open:
            self._library.fail(code, reason)
            self._after_library()

    def abort(self) -> None:
        """Close the socket without a word."""
        self._transport.abort()
        self._end()

    def check_liveness(self, max_rounds: int) -> None:
        """One round: send a ping, or end it when nothing came for more than `max_rounds`."""
        if self._is_closing:
            return
        if self._is_blocked and self._is_taking():
            self._rounds_silent = 0  # a slow line: its pong waits behind what it was sent
        elif self._rounds_silent >= max_rounds:
            self.abort()
            return
        self._rounds_silent += 1
        if self._is_open:
            self._transport.write(_PING)

    # For the transport ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        self._rounds_silent = 0
        if not self._is_open:
            if self._is_closing:
                self._discard(data)
            else:
                self._shake_hands(data)
        elif self._is_held or self._is_blocked:
            self._transport.pause_reading()
            self._buffer += data
        elif self._buffer:
            self._buffer += data
            if len(self._buffer) >= self._needed:
                self._read_buffer()
        else:
            taken = self._read_frames(data)
            if taken < len(data):
                self._keep(data[taken:])

    def eof_received(self) -> None:
        # The transport closes itself now, as soon as it has written the rest, which a client
        # that does not read would put off for ever: hence the timer of _end.
        self._end()

    def pause_writing(self) -> None:
        self._is_blocked = True
        if not self._is_closing:
            self._is_taking()
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_blocked = False
        if self._is_open and not self._is_held:
            self._transport.resume_reading()
            self._read_buffer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._owner.gone(self)

    # Frames --------------------------------------------------------------------------------

    def _read_buffer(self) -> None:
        buffer = self._buffer
        if buffer:
            taken = self._read_frames(buffer)
            if buffer is self._buffer:  # else it was closed meanwhile
                del buffer[:taken]

    def _keep(self, rest: bytes) -> None:
        if self._is_open:
            self._buffer += rest
        elif self._is_closing:
            self._discard(rest)

    def _read_frames(self, data: bytes | bytearray) -> int:
        """Take whole frames from the start of `data`; return how many bytes they were."""
        start = 0
        size = len(data)
        received = self._owner.received
        for _ in range(FRAMES_A_TURN):
            left = size - start
            if left < 6:
                if left >= 2 and data[start + 1] < 0x80:
                    return self._refuse(data, start)
                self._needed = 2 if left < 2 else 6
                return start
            length = data[start + 1] - 0x80
            begin = start + 6
            if length == 126:
                length = data[start + 2] << 8 | data[start + 3]
                begin = start + 8
            elif length == 127:
                if left < 14:
                    self._needed = 14
                    return start
                length = int.from_bytes(data[start + 2 : start + 10], "big")
                begin = start + 14
            if length < 0 or length > self.max_size:
                return self._refuse(data, start)
            end = begin + length
            if end > size:
                self._needed = end - start
                return start
            if data[start] == _WHOLE_TEXT and self._fragments is None:
                received(self, apply_mask(data[begin:end], data[begin - 4 : begin]), False)
            else:
                self._pass_on(data[start:end])
            start = end
            if self._is_held or self._is_blocked or self._is_closing:
                return start
        if start < size:
            self.hold()
            asyncio.get_running_loop().call_soon(self.release)
        return start

    def _refuse(self, data: bytes | bytearray, start: int) -> int:
        """The frame at `start` is one that the library closes the connection for."""
        self._pass_on(data[start:])
        return len(data)

    def _pass_on(self, data: bytes | bytearray) -> None:
        library = self._library
        library.receive_data(data)
        for event in library.events_received():
            self._receive_frame(cast(Frame, event))
        self._after_library()

    def _receive_frame(self, frame: Frame) -> None:
        opcode = frame.opcode
        if opcode is TEXT or opcode is BINARY:
            self._fragments = bytearray(frame.data)
            self._fragments_are_binary = opcode is BINARY
        elif opcode is CONT and self._fragments is not None:
            self._fragments += frame.data
        else:
            return  # ping, pong and close: the library has done what there is to do
        if frame.fin:
            payload = bytes(self._fragments)
            self._fragments = None
            self._owner.received(self, payload, self._fragments_are_binary)

    def _after_library(self) -> None:
        """Write what the library wants to say, and see whether that was the end."""
        library = self._library
        is_over = library.state is not OPEN
        if is_over:
            self.flush()  # nothing may follow a close frame
        for data in library.data_to_send():
            if data:
                self._transport.write(data)
            else:
                self._finish_writing()
        if is_over:
            self._end()

    # The start and the end -----------------------------------------------------------------

    def _shake_hands(self, data: bytes) -> None:
        """Read the HTTP request; what follows it are frames, which the library shall not see.

        Meanwhile the buffer holds the last bytes seen, to find the blank line across reads.
        """
        library = self._library
        known = len(self._buffer)
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        taken = len(data) if end < 0 else end + 4 - known
        self._buffer = self._buffer[-3:] if end < 0 else bytearray(data[taken:])
        self._headers_size += taken
        if self._headers_size > MAX_HELLO_BYTES:
            status = http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            library.send_response(library.reject(status, "The request is too large.\n"))
        else:
            library.receive_data(data[:taken])
        for event in library.events_received():
            request = cast(Request, event)
            response = self._owner.respond(self, request) or library.accept(request)
            library.send_response(response)
        self._after_handshake()

    def _after_handshake(self) -> None:
        library = self._library
        writes = library.data_to_send()
        if writes and not writes[0]:  # the library gives up without a word
            help = "This is not an HTTP request that the relay understands.\n"
            writes.insert(0, library.reject(http.HTTPStatus.BAD_REQUEST, help).serialize())
        for data in writes:
            if data:
                self._transport.write(data)
            else:
                self._finish_writing()
        if library.state is OPEN:
            # The one that shook hands keeps the request and all its headers: 2 KB.
            self._library = ServerProtocol(
                state=OPEN, max_size=self.max_size, logger=_library_logger
            )
            self._is_open = True
            self._read_buffer()
        elif writes:
            self._end()

    def _finish_writing(self) -> None:
        # Not close(): a socket that is closed before all was read answers with a reset, and
        # the other side may lose what it was told last.
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _discard(self, data: bytes | bytearray) -> None:
        """Only look for the other side's close frame."""
        library = self._library
        if library.state is CONNECTING or not data:
            return
        library.receive_data(data)
        library.events_received()
        if b"" in library.data_to_send():
            self._finish_writing()

    def _end(self) -> None:
        """Take and give nothing more, and have the socket gone in time."""
        if self._is_closing:
            return
        self._is_open = False
        self._is_closing = True
        self._out = []
        self._fragments = None
        loop = asyncio.get_running_loop()
        self._abort_timer = loop.call_later(self._close_wait, self._transport.abort)
        self._transport.resume_reading()  # to see the other side's answer
        self._owner.closed(self)

    def _is_taking(self) -> bool:
        """Whether the client took some of what was written since the last look."""
        before = self._taken
        self._taken = self._written - self._transport.get_write_buffer_size()
        return self._taken > before
