"""The shell around the core: connections, HTTP, journal, log and one timer (docs/operations.md).

Clients' frames go to the core as they arrive. What it decides is performed once a loop turn,
in one place, `_settle`: everything that arrived together is answered together, with one
write for each connection. Nothing leaves the relay another way, so this is also where effects
are counted, and where a journal records before anybody is told: what concerns a message waits
in `_not_durable` until its receipt is durable. Without a journal it is so at once.

One timer follows the core's next deadline, and one sweep pings all connections: a timer for
each message or connection would cost more than what it watches.

Nothing that one client does may disturb the others: a fault in the code is logged, costs
the connection that it came up on, and the rest of the turn's effects are performed.
"""

import asyncio
import contextlib
import logging
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import msgspec
from websockets.http11 import Request, Response

from hoptell import frames
from hoptell.errors import ConfigurationError, ProtocolError
from hoptell.relay import http, tls
from hoptell.relay.core import Relay
from hoptell.relay.credentials import Credentials
from hoptell.relay.journal import Journal, NullJournal, SqliteJournal
from hoptell.relay.listening import BACKLOG
from hoptell.relay.log import EventLog
from hoptell.relay.metrics import Metrics
from hoptell.relay.model import (
    Accepted,
    Acknowledge,
    Close,
    Confirmed,
    Deliver,
    Delivery,
    Effect,
    Expired,
    Forgotten,
    Known,
    Limits,
    Log,
    LoginTurnedDown,
    Message,
    Receipt,
    TurnedDown,
    Write,
)
from hoptell.relay.websocket import CLOSE_GOING_AWAY, CLOSE_NOT_UTF8, CLOSE_WAIT, WebSocket
from hoptell.settings import RelaySettings

LOG_INTERVAL = 0.05
"""Seconds that lines of the log may wait for others: a write for each loop turn was 7% of the
relay's time with one message under way for each peer."""
LOG_LINES = 200
"""So many leave at once."""
NOT_RECORDED = (
    "the relay cannot write its journal and takes no messages: try again later, and tell its"
    " operator (is the disk full?)"
)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Timing:
    """The shell's spans, in seconds; others than the default are for tests."""

    ping_interval: float = 15.0
    silent_rounds: int = 2
    """Pings without a byte in answer after which a connection is dropped."""
    close_wait: float = CLOSE_WAIT
    """How long closing one connection may take."""
    stop_wait: float = 1.5
    """How long the end of the relay may take, with all connections and the journal."""


class RelayServer:
    """One relay: `start` it, `stop` it, and `reload` members and certificate in between.

    `settings` gives the rate, the members file, the journal and the certificate; on which
    sockets it listens, `start` is told. `limits`, `timing` and `clock` (monotonic seconds) are
    for tests.
    """

    def __init__(
        self,
        settings: RelaySettings,
        credentials: Credentials,
        log: EventLog,
        *,
        limits: Limits | None = None,
        timing: Timing | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.core = Relay(id_seed=secrets.token_hex(9), rate=settings.rate, limits=limits)
        self.addresses: list[tuple[str, int]] = []
        """Where it listens: host and port."""
        self.metrics = Metrics()
        self._settings = settings
        self._credentials = credentials
        self._log = log
        self._performers: dict[type, Callable[[Any], None]] = {
            Deliver: self._deliver,
            Acknowledge: self._acknowledge,
            Write: self._write,
            Close: self._close,
            Accepted: self._accepted,
            Confirmed: self._confirmed,
            Expired: self._expired,
            Forgotten: self._forgotten,
            Known: self._known,
            TurnedDown: self._turned_down,
            LoginTurnedDown: self._login_turned_down,
            Log: self._note,
        }
        self._timing = timing or Timing()
        self._clock = clock
        self._limits = limits or Limits()
        self._journal: Journal = NullJournal()
        self._tls: ssl.SSLContext | None = None
        self._not_durable: dict[Receipt, list[Deliver | Acknowledge]] = {}
        """What may be told once the journal has it, in the order of the messages."""
        self._websockets: set[WebSocket] = set()
        self._now = clock()
        """The time of this loop turn, since something happened in it."""
        self._log_is_due = False
        """A timer will write the log."""
        self._is_settling = False
        """Something happened in this loop turn: `_settle` comes next."""
        self._unwritten: list[WebSocket] = []
        self._held: list[WebSocket] = []
        self._fanned_out: Message | None = None
        """The message of which copies are being written, and what they have in common."""
        self._after_id = b""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._listeners: list[asyncio.Server] = []
        self._is_stopping = False
        self._all_gone = asyncio.Event()

    # Start, stop, reload -------------------------------------------------------------------

    async def start(self, sockets: Iterable[socket.socket]) -> None:
        """Accept connections on these sockets, which `listen` made.

        Raises:
            ConfigurationError: the journal or the certificate cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        settings = self._settings
        if settings.tls_cert is not None and settings.tls_key is not None:
            self._tls = tls.server_context(settings.tls_cert, settings.tls_key)
        if settings.journal is not None:
            self._restore(settings.journal)
        for listener in sockets:
            self.addresses.append(listener.getsockname()[:2])
            self._listeners.append(
                await self._loop.create_server(
                    self._websocket, sock=listener, backlog=BACKLOG, **self._tls_options()
                )
            )
        self._sweep_timer = self._loop.call_later(self._timing.ping_interval, self._sweep)

    async def stop(self) -> None:
        """Accept nothing more, close every connection with 1001, and the journal.

        However stuck peers and disk are, it is over after `stop_wait`. What is not on disk by
        then, nobody has heard of.
        """
        self._is_stopping = True
        for listener in self._listeners:
            listener.close()
        for timer in (self._timer, self._sweep_timer):
            if timer is not None:
                timer.cancel()
        self._settle()
        for websocket in tuple(self._websockets):
            websocket.close(CLOSE_GOING_AWAY, "the relay is stopping")
        if not self._websockets:
            self._all_gone.set()
        self._settle()
        # Both at once: a client that does not answer its close frame must not cost the journal
        # the time that a slow disk needs.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timing.stop_wait):
                await asyncio.gather(self._all_gone.wait(), self._journal.close())
        self._settle()
        self._log.flush()

    def _tls_options(self) -> dict[str, Any]:
        if self._tls is None:
            return {}
        return {
            "ssl": self._tls,
            "ssl_handshake_timeout": self._limits.hello_wait,
            "ssl_shutdown_timeout": self._timing.close_wait,
        }

    def _restore(self, file: Path) -> None:
        self._journal = SqliteJournal(
            file,
            loop=self._loop,
            on_durable=self._durable,
            on_failed=self._withdraw,
            on_commit=self.metrics.committed,
            key_lifetime=self._limits.key_lifetime,
        )
        now = self._turn()
        kept = self._journal.restore(epoch=self.core.epoch)
        self.core.restore(kept, now=now)
        self._log.note(
            "journal", f"read {file}", peers=len(kept.peers), messages=len(kept.deliveries)
        )

    def abort(self) -> None:
        """Give a relay that stops no more time."""
        for websocket in tuple(self._websockets):
            websocket.abort()

    def reload(self) -> None:
        """Read the members file and the certificate again.

        A broken one changes nothing and is logged.
        """
        if self._settings.members is None and self._tls is None:
            self._log.note("reload", "there is no members file and no certificate to read again")
        if self._settings.members is not None:
            self._reload_members(self._settings.members)
        if self._tls is not None:
            self._reload_certificate(self._tls)

    def _reload_members(self, file: Path) -> None:
        try:
            credentials = Credentials.load(self._settings, allow_no_members=True)
        except ConfigurationError as error:
            self._log.note("reload refused", f"{error}; the members are as before")
            return
        self._credentials = credentials
        self.core.reload(credentials.all(), now=self._turn())
        members = sum(credential.member is not None for credential in credentials.all())
        self._log.note("reload", f"read {file}", members=members)

    def _reload_certificate(self, context: ssl.SSLContext) -> None:
        certificate, key = self._settings.tls_cert, self._settings.tls_key
        assert certificate is not None and key is not None
        try:
            tls.load(context, certificate, key)
        except ConfigurationError as error:
            self._log.note("reload refused", f"{error}; the certificate is as before")
        else:
            self._log.note("reload", f"read {certificate}")

    # What connections report ---------------------------------------------------------------

    def opened(self, websocket: WebSocket) -> None:
        self._websockets.add(websocket)
        if self._is_stopping:
            websocket.abort()
        else:
            self.core.opened(websocket.connection, now=self._turn())

    def respond(self, websocket: WebSocket, request: Request) -> Response | None:
        return http.answer(request, lambda: self.metrics.text(self.core.gauges()))

    def received(self, websocket: WebSocket, payload: bytes, is_binary: bool) -> None:
        now = self._now if self._is_settling else self._turn()
        connection = websocket.connection
        try:
            if is_binary:
                raise ProtocolError("a frame is one JSON object in a text frame: this is binary")
            frame = frames.decode_client_frame(payload)
            if connection.state == "open":
                self.core.receive(connection, frame, now=now)
                if type(frame) is frames.List:
                    # Answers are long: the next one is not made before this one is written.
                    websocket.hold()
                    self._held.append(websocket)
            elif connection.state == "connecting":
                self._login(websocket, frame, now)
        except ProtocolError as error:
            self._refuse(websocket, payload, is_binary, error, now)
        except Exception:  # a bug
            _logger.exception("a frame could not be processed")
            websocket.abort()

    def closed(self, websocket: WebSocket) -> None:
        goodbye = websocket.said_goodbye
        self.core.closed(websocket.connection, now=self._turn(), said_goodbye=goodbye)

    def gone(self, websocket: WebSocket) -> None:
        self._websockets.discard(websocket)
        if self._is_stopping and not self._websockets:
            self._all_gone.set()

    def _websocket(self) -> WebSocket:
        return WebSocket(self, close_wait=self._timing.close_wait)

    def _login(self, websocket: WebSocket, frame: frames.ClientFrame, now: float) -> None:
        connection = websocket.connection
        if type(frame) is not frames.Hello:
            raise ProtocolError("the first frame must be a hello")
        if self._credentials.find(frame.name) is not None:
            # Name and token were swapped, or both are the token: no log or list may show it.
            frame = msgspec.structs.replace(frame, name="")
        self.core.login(connection, frame, self._credentials.find(frame.token), now=now)
        if connection.state == "open":
            websocket.set_max_size(frames.MAX_FRAME_BYTES)

    def _refuse(
        self,
        websocket: WebSocket,
        payload: bytes,
        is_binary: bool,
        error: ProtocolError,
        now: float,
    ) -> None:
        """A message is not a frame of ours; one that is no text at all is not WebSocket either."""
        if is_binary:
            self.core.protocol_error(websocket.connection, error, now=now)
        elif _is_utf8(payload):
            id = frames.salvage_id(payload)
            self.core.protocol_error(websocket.connection, error, id, now=now)
        else:
            websocket.fail(CLOSE_NOT_UTF8, "a text frame must be UTF-8")

    # The loop turn -------------------------------------------------------------------------

    def _turn(self) -> float:
        """The time of this loop turn, which will be settled."""
        if not self._is_settling:
            self._is_settling = True
            self._loop.call_soon(self._settle)
            self._now = now = self._clock()
            self.core.epoch = time.time() - now
        return self._now

    def _settle(self) -> None:
        """Perform all that the core has decided since the last time."""
        self._is_settling = False
        self._perform(self.core.take_effects())
        self._fanned_out, self._after_id = None, b""  # a delivered text is not kept
        unwritten = self._unwritten
        if unwritten:
            self._unwritten = []
            for websocket in unwritten:
                websocket.flush()
        self._journal.flush()
        self._log.flush(at_least=LOG_LINES)
        if not self._log_is_due:
            self._log_is_due = True
            self._loop.call_later(LOG_INTERVAL, self._flush_log)
        self._set_timer()
        if self._held:
            held, self._held = self._held, []
            for websocket in held:
                websocket.release()

    def _flush_log(self) -> None:
        self._log_is_due = False
        self._log.flush()

    def _perform(self, effects: list[Effect]) -> None:
        performers = self._performers
        remaining = iter(effects)
        while True:
            effect: Effect | None = None
            try:
                for effect in remaining:
                    performers[type(effect)](effect)
                return
            except Exception:  # a bug, for which the effects behind this one are not to suffer
                _logger.exception("an effect could not be performed")
                if isinstance(effect, Deliver | Acknowledge | Write | Close):
                    effect.connection.transport.abort()

    def _deliver(self, effect: Deliver) -> None:
        delivery = effect.delivery
        if delivery.receipt.durable:
            if delivery.sent:
                self.metrics.redelivered += 1
            delivery.sent = True
            is_copy = delivery.receipt.state == "fanout"
            frame = self._copy(delivery) if is_copy else frames.encode(delivery.frame())
            self._send(effect.connection.transport, frame)
        else:
            self._not_durable.setdefault(delivery.receipt, []).append(effect)

    def _acknowledge(self, effect: Acknowledge) -> None:
        receipt = effect.receipt
        if receipt.durable:
            self._send(effect.connection.transport, frames.encode(receipt.ack(effect.id)))
        else:
            self._not_durable.setdefault(receipt, []).append(effect)

    def _write(self, effect: Write) -> None:
        self._send(effect.connection.transport, frames.encode(effect.frame))

    def _send(self, websocket: WebSocket, frame: bytes) -> None:
        if websocket.send(frame):
            self._unwritten.append(websocket)

    def _copy(self, delivery: Delivery) -> bytes:
        """One of many: what they have in common is encoded once."""
        if delivery.message is not self._fanned_out:
            self._after_id = frames.encode_after_id(delivery.frame())
            self._fanned_out = delivery.message
        return frames.encode_copy(delivery.id, self._after_id)

    def _close(self, effect: Close) -> None:
        websocket: WebSocket = effect.connection.transport
        websocket.close(effect.code, effect.reason)

    def _accepted(self, effect: Accepted) -> None:
        self._journal.record(effect)
        message = effect.message
        copies = len(effect.deliveries)
        metrics = self.metrics
        metrics.accepted += 1
        metrics.accepted_bytes += message.size
        metrics.copies += copies
        self._log.accepted(message.sender, message.to, message.size, copies, message.reference)

    def _confirmed(self, effect: Confirmed) -> None:
        self._journal.record(effect)
        self.metrics.delivered += 1
        delivery = effect.delivery
        self._log.confirmed(delivery.peer.name, delivery.message.reference)

    def _expired(self, effect: Expired) -> None:
        self._journal.record(effect)
        self.metrics.expired += 1
        delivery = effect.delivery
        fields = {"to": delivery.peer.name, "reference": delivery.message.reference}
        self._log.add("expired", fields)

    def _forgotten(self, effect: Forgotten) -> None:
        self._journal.record(effect)
        self._log.add("forgotten", {"name": effect.name})

    def _known(self, effect: Known) -> None:
        self._journal.record(effect)

    def _turned_down(self, effect: TurnedDown) -> None:
        self.metrics.refused[effect.reason] += 1
        self._log.add("refused", {"name": effect.name, "reason": effect.reason})

    def _login_turned_down(self, effect: LoginTurnedDown) -> None:
        self.metrics.logins_refused[effect.code] += 1
        self._log.add("login refused", {"name": effect.name, "code": effect.code})

    def _note(self, effect: Log) -> None:
        self._log.add(effect.event, effect.fields)

    def _durable(self, accepted: list[Accepted]) -> None:
        """The journal has these messages: tell everybody who is to hear of them."""
        self._turn()
        for record in accepted:
            record.receipt.durable = True
            for effect in self._not_durable.pop(record.receipt, ()):
                if isinstance(effect, Acknowledge):
                    self._acknowledge(effect)
                # A recipient that has gone meanwhile gets it after its return, if at all.
                elif effect.delivery.id in effect.connection.in_flight:
                    self._deliver(effect)

    def _withdraw(self, accepted: list[Accepted]) -> None:
        """The journal cannot take these messages, of which nobody has heard: refuse them."""
        now = self._turn()
        self.metrics.withdrawn += len(accepted)
        # The newest first: an older one makes room in flight, which none of these may take.
        for record in reversed(accepted):
            self.core.withdraw(record, NOT_RECORDED, now=now)
            for effect in self._not_durable.pop(record.receipt, ()):
                if isinstance(effect, Acknowledge):
                    error = frames.Error(NOT_RECORDED, effect.id)
                    self.core.effects.append(Write(effect.connection, error))

    def _set_timer(self) -> None:
        deadline = self.core.next_deadline()
        # A timer that rings too early does no harm: the core looks, and says when to come again.
        if deadline is None or deadline >= self._timer_at or self._is_stopping:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        delay = max(deadline - self._clock(), 0.0) + 0.001
        self._timer = self._loop.call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_at = inf
        self.core.tick(self._turn())

    def _sweep(self) -> None:
        self._sweep_timer = self._loop.call_later(self._timing.ping_interval, self._sweep)
        for websocket in tuple(self._websockets):
            websocket.check_liveness(self._timing.silent_rounds)


def _is_utf8(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
