"""RelayClient: one peer's connection to the relay, which comes back by itself (docs/protocol.md).

What it promises, and how:

- A `send` is neither lost nor doubled when its connection goes. Every request stays in
  `_requests` until it is answered, and the login on the next connection writes all of them
  again, oldest first; a send carries an idempotency `key`, so the relay knows the repeat.
- Deliveries come in the relay's order. What was not handed over when a connection went keeps
  its place: the relay sends it again with the same id, and the copy takes over that place. So
  it is also there if the relay never comes back. What was handed over comes again as long as
  it was not confirmed: who iterates stores a delivery before confirming it and drops the ids
  that it has seen.
- Two peers with one name do not evict each other for ever: the older waits until the name is
  free (`_wait_for_the_name`).
- Nothing here blocks on a slow relay: frames go to the transport without waiting for it
  (`broadcast` is websockets' way to do that), and what is written is bounded by its callers,
  who wait for their answers. Nothing grows with a slow reader either: past `MAX_ARRIVED`
  waiting deliveries the socket is no longer read.

Every failure is one of hoptell's errors. Neither they, nor logs, nor `repr` hold the token:
websockets logs frames at DEBUG, so it gets a logger that never does.
"""

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import NoReturn, Self, TypeVar

from msgspec import UNSET
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.connection import broadcast
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidProxy, InvalidURI
from websockets.protocol import State
from websockets.proxy import get_proxy
from websockets.uri import parse_uri

from hoptell import __version__, explain, frames
from hoptell.errors import (
    ConfigurationError,
    HoptellError,
    LoginRefused,
    ProtocolError,
    Refused,
    RelayUnreachable,
    Replaced,
)
from hoptell.names import MAX_NAME_LENGTH
from hoptell.settings import PeerSettings, default_name, is_loopback, machine_name

log = logging.getLogger(__name__)
_wire_log = logging.getLogger(f"{__name__}.websocket")
_wire_log.setLevel(logging.INFO)  # at DEBUG it shows whole frames: the token, and every text

OPEN_TIMEOUT = 10.0
"""Seconds for the TCP connection, TLS, the HTTP handshake and the login together."""
CLOSE_TIMEOUT = 1.0
SILENCE_TIMEOUT = 45.0
"""Three of the relay's pings: a link on which nothing came for so long is dead."""
SEND_TIMEOUT = 35.0
"""How long a request waits for its answer: longer than the longest pause between two attempts
to connect, so that one falls into it."""
RECONNECT_DELAYS = (1.0, 30.0)
STABLE_AFTER = 30.0
"""A connection that lived as long starts the next back-off from its beginning."""
CHECK_DELAYS = (2.0, 60.0)
MAX_ARRIVED = 100
"""Deliveries held for the iterator: the relay has at most 50 in flight, and as many may be
left from a connection that is gone."""
MAX_RELAY_FRAME_BYTES = 16 * 1024 * 1024
"""`peers` is the largest frame: 10,000 names with 16 roles each are 12 MB."""

_CANNOT_CONNECT = (
    OSError,
    InvalidHandshake,
    InvalidURI,
    InvalidProxy,
    UnicodeError,  # a host name that cannot be one
    ImportError,  # websockets needs one more library for a SOCKS proxy
)
_Answer = TypeVar("_Answer", bound=frames.RelayFrame)


class Delivery:
    """A message that arrived; until it is confirmed, the relay keeps it to send it again."""

    __slots__ = ("message", "_connection")

    def __init__(self, message: frames.Message, connection: "_Connection") -> None:
        self.message = message
        self._connection = connection

    async def confirm(self) -> None:
        """Let the relay forget it: call this once the message is stored or shown.

        On a lost connection this does nothing: the relay sends the delivery again, with the
        same `message.id`.
        """
        self._connection.write(frames.encode(frames.Got(self.message.id)))


class RelayClient:
    """One peer, online for as long as the context lasts.

    Entering neither waits for the relay nor fails without one. Iterating, by one task, yields
    each `Delivery` in order. What ends the client for good, as LoginRefused does, is raised by
    the iterator and by whatever waits.

    Attributes:
        name: the peer name.
    """

    def __init__(
        self,
        settings: PeerSettings,
        *,
        name: str | None = None,
        mode: frames.Mode = "peer",
        roles: list[str] | None = None,
        wake: str | None = None,
        transient: bool = False,
        gives_way: Callable[[], bool] = lambda: False,
        send_timeout: float = SEND_TIMEOUT,
        silence_timeout: float = SILENCE_TIMEOUT,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`name` and `roles` win over the settings; other peers are shown `wake`.

        A `transient` peer's name is not used again: the relay forgets it soon after it left.
        `gives_way` is asked when another session has taken the name: if so, that ends this
        client, which else comes back when the name is free.

        `sleep` and `uniform` make the pauses between attempts to connect.
        """
        self.name = name or settings.name or default_name()
        self._settings = settings
        self._address = explain.shown_address(settings.relay)
        self._mode = mode
        self._roles = list(settings.roles) if roles is None else roles
        self._wake = wake
        self._transient = transient
        self._gives_way = gives_way
        self._send_timeout = send_timeout
        self._silence_timeout = silence_timeout
        self._sleep = sleep
        self._uniform = uniform

        self._connection: _Connection | None = None
        self._problem: HoptellError | None = None
        self._end: Exception | None = None
        self._requests: dict[frames.FrameId, _Request] = {}
        self._last_id = 0
        self._arrived: dict[str, Delivery] = {}
        self._at_once = False
        """The connection was given up on purpose: no pause before the next."""
        self._changed = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "connected" if self.connected else "not connected"
        return f"<RelayClient {self.name} at {self._address}, {state}>"

    async def __aenter__(self) -> Self:
        self._runner = asyncio.create_task(self._run(), name=f"relay client {self.name}")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._runner is not None
        self._runner.cancel()
        await asyncio.wait([self._runner])
        self._finish(_Closed("this client is closed: make a new one"))

    @property
    def connected(self) -> bool:
        """Whether the relay has let this peer in, and the connection stands."""
        return self._connection is not None

    @property
    def problem(self) -> str | None:
        """Why it is not connected now, in one sentence; None while it is."""
        return None if self.connected else str(self._end or self._why())

    @property
    def reason(self) -> Exception | None:
        """The same as the error that it was, as far as it is known yet."""
        return None if self.connected else self._end or self._problem

    async def wait_connected(self, timeout: float | None = None) -> None:
        """Return as soon as the relay has let this peer in.

        Raises:
            LoginRefused: it does not, and asking again would not change that.
            ConfigurationError: there is no token, or the settings cannot be used.
            RelayUnreachable, Replaced: only with a `timeout` (seconds): why it takes longer, or
                at once what does not pass by itself.
        """
        try:
            async with asyncio.timeout(timeout):
                while not self.connected:
                    if self._end is not None:
                        raise self._end.with_traceback(None)
                    if timeout is not None and _is_lasting(self._problem):
                        raise self._why()
                    await self._changed.wait()
        except TimeoutError:
            raise self._why(timeout) from None

    async def wait_disconnected(self) -> str:
        """Return, as `problem` does, why it is not connected, as soon as that is known."""
        while self._end is None and (self.connected or self._problem is None):
            await self._changed.wait()
        return str(self._end or self._problem)

    async def send(
        self,
        to: str,
        text: str,
        *,
        ttl: int | None = None,
        reply_to: str | None = None,
        key: str | None = None,
    ) -> frames.Ack:
        """Send a message, over as many connections as it takes, and return what became of it.

        `to` is an address, `ttl` in seconds, `reply_to` the reference of the message that it
        answers, `key` the idempotency key (a fresh one where there is none).

        Raises:
            Refused: the relay did not take it; the sentence is the relay's own, with a doubt where
                the message was sent on a connection before that was lost.
            RelayUnreachable: no answer in time; its sentence and `maybe_accepted` say whether
                the message may have been taken all the same.
            Replaced: another session has this name.
            LoginRefused, ConfigurationError: as `wait_connected`.
        """
        if len(text) > frames.MAX_TEXT_LENGTH:  # it might not fit into a frame
            raise Refused(frames.text_too_long(len(text)), reason="invalid")
        key = key or secrets.token_urlsafe(24)
        frame = frames.Send(self._new_id(), to, text, ttl=ttl, reply_to=reply_to, key=key)
        return await self._request(frame, frames.Ack)

    async def list_peers(self) -> list[frames.PeerInfo]:
        """Everyone the relay knows but this peer, sorted by name.

        Raises:
            RelayUnreachable, Replaced, LoginRefused, ConfigurationError: as `send`.
        """
        return (await self._request(frames.List(self._new_id()), frames.Peers)).peers

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """The next delivery; a caller that gives up waiting for it loses none.

        Raises:
            LoginRefused, ConfigurationError: as `wait_connected`.
        """
        while not self._arrived:
            if isinstance(self._end, _Closed):
                raise StopAsyncIteration
            if self._end is not None:
                raise self._end.with_traceback(None)
            await self._changed.wait()
        delivery = self._arrived.pop(next(iter(self._arrived)))
        self._notify()  # there is room again
        return delivery

    def show_wake(self, wake: str | None) -> None:
        """Let other peers see another wake mode: it logs in again at once, and loses nothing.

        Only a login tells it. What is being sent is sent again on the new connection, and
        what was not confirmed arrives again.
        """
        if wake == self._wake:
            return
        self._wake = wake
        if self._connection is not None:
            self._log_in_again(self._connection)

    def _log_in_again(self, connection: "_Connection") -> None:
        self._at_once = True
        connection.transport.close()

    # Requests ------------------------------------------------------------------------------

    def _new_id(self) -> str:
        self._last_id += 1
        return str(self._last_id)

    async def _request(self, frame: frames.Send | frames.List, kind: type[_Answer]) -> _Answer:
        request = _Request(frame)
        if self._end is not None:
            raise self._unanswered(request, self._end.with_traceback(None))
        if not self.connected and _is_lasting(self._problem):
            raise self._unanswered(request, self._why())
        self._requests[frame.id] = request
        try:
            async with asyncio.timeout(self._send_timeout):
                if self._connection is not None:
                    request.write(self._connection)
                answer = await request.answer
        except TimeoutError:
            raise self._unanswered(request, self._why(self._send_timeout)) from None
        finally:
            self._requests.pop(frame.id, None)
        if not isinstance(answer, kind):
            raise ProtocolError(f"{self._address} gave an answer that does not fit the request")
        return answer

    def _unanswered(self, request: "_Request", why: Exception) -> Exception:
        """What its caller is told when there will be no answer."""
        if not request.is_send or not isinstance(why, HoptellError):
            return why
        if request.written:
            return RelayUnreachable(
                f"{why}; the message may have been accepted already: sent again, it could arrive"
                " twice",
                maybe_accepted=True,
            )
        if isinstance(why, RelayUnreachable):
            return RelayUnreachable(f"{why}; the message was not sent", lasting=why.lasting)
        return Replaced(f"{why}; the message was not sent") if isinstance(why, Replaced) else why

    def _fail_requests(self, why: Exception) -> None:
        for request in self._requests.values():
            if not request.answer.done():
                request.answer.set_exception(self._unanswered(request, why))

    # Being connected -----------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._stay_connected()
        except Exception as end:
            self._finish(end)

    async def _stay_connected(self) -> NoReturn:
        now = asyncio.get_running_loop().time
        attempts = 0
        while True:
            began_at = now()
            try:
                await self._one_connection()
            except Replaced as problem:
                self._arrived.clear()  # they go to the session that has the name now
                if self._gives_way():
                    raise
                self._interrupt(problem)
                await self._wait_for_the_name()
                self._problem = None
                attempts = 0
                continue
            except RelayUnreachable as problem:
                self._interrupt(problem)
            if now() - began_at >= STABLE_AFTER:
                attempts = 0
            if self._at_once:
                self._at_once = False
                continue
            await self._sleep(self._reconnect_delay(attempts))
            attempts += 1

    def _reconnect_delay(self, attempts: int) -> float:
        # Full jitter: anything between the first delay and a ceiling that doubles, so that all
        # the peers of a relay that restarted do not come back in step.
        shortest, longest = RECONNECT_DELAYS
        ceiling = min(longest, shortest * 2.0 ** min(attempts + 1, 16))
        return self._uniform(shortest, ceiling)

    async def _one_connection(self) -> NoReturn:
        """Connect, log in and receive until that ends; what ended it is raised."""
        wake, hello = self._wake, self._hello()
        through_proxy = False
        try:
            way = _way_to(self._settings.relay)
            through_proxy = way.proxy is not None
            async with asyncio.timeout(OPEN_TIMEOUT) as opening, way as connection:
                assert isinstance(connection, _Connection)
                try:
                    await self._log_in(connection, hello)
                    opening.reschedule(None)
                    if wake != self._wake:  # it changed while this logged in
                        self._log_in_again(connection)
                    await self._receive(connection)
                finally:
                    self._connection = None
                    await _close(connection)
        except ConnectionClosed as closed:
            raise explain.close(closed, self._address, self.name) from closed
        except ProtocolError as error:
            raise RelayUnreachable(
                f"{self._address} does not keep to hoptell's protocol ({error})",
                "check that HOPTELL_RELAY is a hoptell relay",
            ) from error
        except _CANNOT_CONNECT as error:
            raise explain.failure(error, self._address, OPEN_TIMEOUT, through_proxy) from error

    def _hello(self) -> bytes:
        token = self._settings.token
        if token is None:
            raise ConfigurationError(
                "there is no token",
                "start `hoptell relay` once on this machine, which makes one, or set HOPTELL_TOKEN"
                " to that of your relay",
            )
        hello = frames.Hello(
            self.name,
            token,
            host=machine_name(),
            mode=self._mode,
            roles=self._roles,
            wake=self._wake,
            transient=self._transient,
        )
        try:
            return frames.encode(hello)
        except UnicodeEncodeError:
            # Without its cause: that holds the token.
            raise ConfigurationError("HOPTELL_TOKEN is not UTF-8 text", "copy it again") from None

    async def _log_in(self, connection: "_Connection", hello: bytes) -> None:
        connection.write(hello)
        while (frame := await self._next_frame(connection)) is None:
            pass
        if not isinstance(frame, frames.Welcome):
            raise ProtocolError(f"the first frame is {type(frame).__name__.lower()}, not welcome")
        for request in self._requests.values():
            request.write(connection)
        self._connection = connection
        self._problem = None
        self._notify()
        log.info("connected to %s as %s", self._address, self.name)

    async def _receive(self, connection: "_Connection") -> NoReturn:
        while True:
            frame = await self._next_frame(connection)
            if isinstance(frame, frames.Message):
                await self._arrive(Delivery(frame, connection))
            elif isinstance(frame, frames.Ack | frames.Peers):
                request = self._requests.get(frame.id)
                if request is not None and not request.answer.done():
                    request.answer.set_result(frame)
            elif isinstance(frame, frames.Error):
                self._refuse(frame)

    async def _next_frame(self, connection: "_Connection") -> frames.RelayFrame | None:
        while True:
            try:
                async with asyncio.timeout_at(connection.heard_at + self._silence_timeout):
                    data = await connection.recv()
            except TimeoutError:
                if connection.silence() < self._silence_timeout:
                    continue  # a ping or half a frame came meanwhile
                raise RelayUnreachable(
                    f"nothing came from {self._address} for {self._silence_timeout:g} s: the"
                    " network between is broken, or the relay hangs"
                ) from None
            if isinstance(data, bytes):
                raise ProtocolError("it sent a binary frame")
            return frames.decode_relay_frame(data)

    async def _arrive(self, delivery: Delivery) -> None:
        id = delivery.message.id
        while len(self._arrived) >= MAX_ARRIVED and id not in self._arrived:
            await self._changed.wait()
        self._arrived[id] = delivery  # a copy takes over the place of the first
        self._notify()

    def _refuse(self, frame: frames.Error) -> None:
        request = None if frame.id is UNSET else self._requests.get(frame.id)
        if request is None:
            log.info("%s says: %s", self._address, explain.printable(frame.error))
        elif not request.answer.done():
            sentence = explain.printable(frame.error)
            if request.is_send and request.written > 1:
                sentence += (
                    "; but it was sent before, on a connection that was lost, and may have been"
                    " accepted then"
                )
            request.answer.set_exception(Refused(sentence))

    async def _wait_for_the_name(self) -> None:
        delay, longest = CHECK_DELAYS
        while True:
            await self._sleep(delay)
            if await self._name_is_free():
                return
            delay = min(2 * delay, longest)

    async def _name_is_free(self) -> bool:
        check = RelayClient(
            self._settings,
            name=check_name(self.name),
            mode="send",
            roles=[],
            send_timeout=OPEN_TIMEOUT,
            silence_timeout=self._silence_timeout,
            sleep=self._sleep,
            uniform=self._uniform,
        )
        try:
            async with check:
                peers = await check.list_peers()
        except RelayUnreachable:
            return False  # nobody knows
        except LoginRefused as refusal:
            # With 63 characters or more the name is so long that one with `-check` may be another
            # member's. Nobody knows then; what else is refused is for good.
            if refusal.code != frames.CLOSE_NAME_REFUSED:
                raise
            return False
        return not any(peer.name == self.name and peer.online for peer in peers)

    # What others see -----------------------------------------------------------------------

    def _interrupt(self, problem: HoptellError) -> None:
        log.info("not connected as %s: %s", self.name, problem)
        self._problem = problem
        if _is_lasting(problem):
            self._fail_requests(problem)
        self._notify()

    def _finish(self, end: Exception) -> None:
        if self._end is None:
            log.info("no longer online as %s: %s", self.name, end)
            self._end = end
            self._fail_requests(end)
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _why(self, waited: float | None = None) -> HoptellError:
        """Why there is no connection, or no answer although there is one."""
        if self._problem is not None:
            return self._problem
        if waited is None:
            return RelayUnreachable(f"still connecting to {self._address}")
        return RelayUnreachable(
            f"{self._address} did not answer within {waited:g} s",
            "check HOPTELL_RELAY, the network, and that the relay is not overloaded",
        )


class _Closed(RelayUnreachable):
    """The client's context has ended."""


class _Request:
    """A send or list that waits for its answer, over as many connections as it takes."""

    __slots__ = ("answer", "is_send", "written", "_data")

    def __init__(self, frame: frames.Send | frames.List) -> None:
        """Raises: Refused: the frame cannot be sent."""
        self.answer: asyncio.Future[frames.RelayFrame] = asyncio.Future()
        self.is_send = isinstance(frame, frames.Send)
        self.written = 0
        """On how many connections."""
        try:
            self._data = frames.encode(frame)
        except UnicodeEncodeError as error:
            raise Refused(
                f"U+{ord(error.object[error.start]):04X} at position {error.start} is half a"
                " character: send valid Unicode text (in a terminal, UTF-8)",
                reason="invalid",
            ) from None
        if len(self._data) > frames.MAX_FRAME_BYTES:
            raise Refused("this is too large for one frame: shorten it", reason="invalid")

    def write(self, connection: "_Connection") -> None:
        if connection.write(self._data):
            self.written += 1


class _Connection(ClientConnection):
    """A WebSocket that knows when it last heard anything, pings and parts of frames included."""

    heard_at: float
    """The event loop's time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.heard_at = self.loop.time()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.heard_at = self.loop.time()
        super().data_received(data)

    def silence(self) -> float:
        return self.loop.time() - self.heard_at

    def write(self, data: bytes) -> bool:
        """Send a text frame without waiting; False where the connection is no longer open."""
        if self.state is not State.OPEN or self.transport.is_closing():
            return False
        broadcast((self,), data, text=True)
        return True


class _Connect(connect):
    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc  # the token is meant for the host in HOPTELL_RELAY alone


def _way_to(url: str) -> connect:
    uri = parse_uri(url)
    remote = not is_loopback(uri.host)
    return _Connect(
        url,
        compression=None,
        # The one that the usual variables name; none of them leads back to this machine.
        proxy=get_proxy(uri) if remote else None,
        user_agent_header=f"hoptell/{__version__}",
        open_timeout=None,  # OPEN_TIMEOUT spans the login too
        ping_interval=None,  # its answer to a ping counts pongs only: see `_next_frame`
        close_timeout=CLOSE_TIMEOUT,
        max_size=MAX_RELAY_FRAME_BYTES,
        logger=_wire_log,
        create_connection=_Connection,
        # Where IPv6 leads nowhere, IPv4 is tried without using up the whole time.
        happy_eyeballs_delay=0.25 if remote else None,
    )


async def _close(connection: _Connection) -> None:
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT):  # a relay that does not read holds it up
            await connection.close()
    except TimeoutError:
        connection.transport.abort()


def _is_lasting(problem: Exception | None) -> bool:
    """Whether waiting alone does not help."""
    if isinstance(problem, RelayUnreachable):
        return problem.lasting
    return isinstance(problem, Replaced)


def check_name(name: str) -> str:
    """The name to look from without taking `name`: `<name>-check`, which its owner owns too."""
    return f"{name[: MAX_NAME_LENGTH - 2]}-check"[:MAX_NAME_LENGTH]
