"""The relay's state: who is there, what waits, what is in flight (docs/protocol.md).

The core decides and does nothing else: it reads no clock, opens no socket, draws no random
number and writes no log. The shell (server.py) tells it what happened, with the time, and
performs the effects that it appended to `effects`, in their order. So every rule here can be
tested with a made-up clock, and a test can compare whole lists of effects.

What it promises:

- An accepted delivery is in exactly one place, a peer's queue or the `in_flight` of that
  peer's connection, until it is confirmed or its deadline passes while it is queued.
- For one sender and one recipient, deliveries leave in the order in which they were accepted:
  nothing goes out directly while something is queued, and what a lost connection had not
  confirmed returns to the front of the queue in its old order.
- Everything is checked before anything is changed: a refused request leaves no trace, except
  that a refused send counts against the sender's rate.

Times called `now` are seconds of a clock that never jumps (monotonic). `epoch` is what the
shell adds to get Unix time; it follows the wall clock, so a stamped time is right even after
the machine slept, while time-outs are never fooled by a clock that is set.

What times out is in tables that keep it in the order of its deadlines (timeouts.py), and one
lower bound, `_next`, covers them all: adding an entry costs one comparison, and `tick` looks at
the rest. A timer per message cost more than routing it.
"""

import heapq
import re
from collections import deque
from collections.abc import Collection, Iterator
from hashlib import blake2b
from itertools import count
from math import inf
from typing import Any, TypeVar

import msgspec

from hoptell import frames
from hoptell.errors import LoginRefused, ProtocolError, Refused
from hoptell.names import (
    EVERYONE,
    MAX_NAME_LENGTH,
    address_problem,
    name_problem,
    owner_problem,
    roles_problem,
)
from hoptell.relay.model import (
    NOTHING_QUEUED,
    Accepted,
    Acknowledge,
    Close,
    Confirmed,
    Connection,
    Credential,
    Deliver,
    Delivery,
    Effect,
    Expired,
    Forgotten,
    Gauges,
    Known,
    Limits,
    Log,
    LoginTurnedDown,
    Message,
    Peer,
    Receipt,
    Restored,
    TurnedDown,
    Write,
)
from hoptell.relay.rate import RateLimiter
from hoptell.relay.timeouts import Timeouts
from hoptell.settings import Rate

MAX_HOST_LENGTH = 255
"""A host is only displayed; the longest DNS name is this long, and the rest is cut off."""

MAX_REASON_BYTES = 123
"""What a close frame holds besides its code (RFC 6455, 5.5)."""

_is_reference = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII
).fullmatch
_is_wake_mode = re.compile(r"[a-z][a-z-]{0,31}", re.ASCII).fullmatch
_T = TypeVar("_T")


class Relay:
    """The routing state machine of one relay.

    Args:
        id_seed: 18 random hex digits; the references of messages without a key are made of
            them and a counter, because drawing a UUID for each message cost 14 to 41% of the
            relay's time.
        rate: sends allowed for one peer name.
        limits: the bounds; others than the default are for tests and measurements.
    """

    def __init__(
        self, *, id_seed: str, rate: Rate | None = None, limits: Limits | None = None
    ) -> None:
        self.limits = limits or Limits()
        self._epoch = 0.0
        self.effects: list[Effect] = []
        """What the shell is to perform next, in order."""
        self._rate = RateLimiter(rate or Rate())
        seed = id_seed.lower()
        self._references = _numbered(f"{seed[:8]}-{seed[8:12]}-4{seed[12:15]}-8{seed[15:18]}-")
        self._ties = count()
        """Keeps `_deadlines` from comparing deliveries."""
        limits = self.limits
        self._logins: Timeouts[Connection, float] = Timeouts(limits.hello_wait, float)
        """Connections without a hello yet, and since when."""
        self._connections: dict[Connection, None] = {}
        """Those that are logged in."""
        self._peers: dict[str, Peer] = {}
        self._roles: dict[str, dict[str, Peer]] = {EVERYONE: {}}
        """Online peers by role and name; under `all`, every one."""
        self._leaving: Timeouts[Peer, float] = Timeouts(limits.forget_transient_after, float)
        """Transient peers that are offline, and since when."""
        self._idle: Timeouts[Peer, float] = Timeouts(limits.forget_after, float)
        """Peers that are offline with an empty queue, and since when."""
        self._awaiting: Timeouts[Receipt, float] = Timeouts(limits.ack_wait, float)
        """Acknowledgements owed to senders, and since when."""
        self._keys: Timeouts[tuple[str, str], Receipt] = Timeouts(
            limits.key_lifetime, lambda receipt: receipt.accepted_at
        )
        """What a repeat is answered, by the sender's name and its key."""
        self._deadlines: list[tuple[int, int, Delivery]] = []
        """Heap of (Unix ms, tie-breaker, delivery): every queued delivery that has a deadline,
        once, and some that are not queued any more."""
        self._queued = 0
        self._queued_bytes = 0
        self._next = inf

    @property
    def epoch(self) -> float:
        """Unix time minus `now`, in seconds; kept up to date by the shell."""
        return self._epoch

    @epoch.setter
    def epoch(self, seconds: float) -> None:
        self._epoch = seconds
        if self._deadlines:
            self._due(self._deadlines[0][0] / 1000 - seconds)

    # Connections ---------------------------------------------------------------------------

    def opened(self, connection: Connection, *, now: float) -> None:
        """A client connected; its hello is due within `limits.hello_wait`."""
        self._logins[connection] = now
        self._due(self._logins.next_at())

    def login(
        self,
        connection: Connection,
        hello: frames.Hello,
        credential: Credential | None,
        *,
        now: float,
    ) -> None:
        """Let a client in, or close its connection with the code that says why not.

        Args:
            credential: what the shell found for the hello's token; None for an unknown one.
        """
        if connection.state != "connecting":
            return
        try:
            accepted = self._check_login(hello, credential)
        except LoginRefused as refusal:
            name = hello.name[:MAX_NAME_LENGTH]
            self.effects.append(LoginTurnedDown(refusal.code, name))
            self._close(connection, refusal.code, str(refusal), now)
            return
        del self._logins[connection]
        self._connections[connection] = None
        connection.state = "open"
        connection.name = hello.name
        connection.mode = hello.mode
        connection.host = "".join(filter(str.isprintable, hello.host[:MAX_HOST_LENGTH]))
        connection.credential = accepted
        self._log(
            "connected",
            name=hello.name,
            mode=hello.mode,
            member=accepted.member,
            host=connection.host,
        )
        self.effects.append(Write(connection, frames.Welcome(hello.name)))
        if hello.mode == "peer":
            self._go_online(connection, hello, now)

    def receive(
        self,
        connection: Connection,
        frame: frames.ClientFrame,
        *,
        now: float,
    ) -> None:
        """Do what a logged-in client asks; what is turned down is answered with an `error`."""
        if connection.state != "open":
            return
        if type(frame) is frames.Got:
            self._confirm(connection, frame, now)
        elif type(frame) is frames.Send:
            try:
                self._send(connection, frame, now)
            except Refused as refusal:
                self._turn_down(connection, refusal.reason, str(refusal), frame.id)
        elif type(frame) is frames.List:
            peers = self._list(connection.name)
            self.effects.append(Write(connection, frames.Peers(frame.id, peers)))
        else:
            error = frames.Error("you are logged in already: one hello a connection")
            self.effects.append(Write(connection, error))

    def protocol_error(
        self,
        connection: Connection,
        error: ProtocolError,
        id: frames.FrameId | msgspec.UnsetType = msgspec.UNSET,
        *,
        now: float,
    ) -> None:
        """A frame could not be read: before login that ends the connection, after it, it does not.

        Args:
            id: the frame's own `id` where it could be salvaged.
        """
        if connection.state == "connecting":
            self.effects.append(LoginTurnedDown(frames.CLOSE_BAD_HELLO))
            self._close(connection, frames.CLOSE_BAD_HELLO, str(error), now)
        elif connection.state == "open":
            self._turn_down(connection, "frame", str(error), id)

    def closed(self, connection: Connection, *, now: float, said_goodbye: bool = False) -> None:
        """The connection is gone. What it had not confirmed waits for the peer's return.

        A transient peer that said good-bye, instead of losing its connection, does not return.
        """
        if connection.state == "open":
            self._log("disconnected", name=connection.name, mode=connection.mode)
        self._detach(connection, now, for_good=said_goodbye)

    def reload(self, valid: Collection[Credential], *, now: float) -> None:
        """Close every connection whose credential is not valid any more."""
        revoked = [c for c in self._connections if c.credential not in valid]
        for connection in revoked:
            connection.state = "closed"  # all first: nothing that one's end causes goes to another
        for connection in revoked:
            self._log("revoked", name=connection.name, mode=connection.mode)
            self._close(
                connection,
                frames.CLOSE_BAD_TOKEN,
                "this token is not valid any more: ask the relay's operator for a new one",
                now,
            )

    # The journal ---------------------------------------------------------------------------

    def restore(self, kept: Restored, *, now: float) -> None:
        """Begin with what an earlier relay kept; once, before the first connection.

        Nobody is online, so every delivery is queued, in its old order.
        """
        for peer in kept.peers:
            self._peers[peer.name] = peer
        for sender, key, receipt in kept.keys:
            self._remember_key((sender, key), receipt)
        for delivery in kept.deliveries:
            self._enqueue(delivery)
        for peer in kept.peers:
            self._left(peer, now)

    def withdraw(self, accepted: Accepted, sentence: str, *, now: float) -> None:
        """Take back a message that could not be recorded: nobody has heard of it yet.

        Whoever still waits for its acknowledgement hears `sentence`; the shell answers those
        whose acknowledgement it holds.
        """
        receipt = accepted.receipt
        self._awaiting.pop(receipt, None)
        for connection, id in receipt.waiters:
            if connection.state == "open":
                self.effects.append(Write(connection, frames.Error(sentence, id)))
        receipt.waiters = ()
        for delivery in accepted.deliveries:
            self._withdraw_delivery(delivery, now)
        if accepted.key is not None:
            self._keys.pop((accepted.message.sender, accepted.key), None)
        self._log("withdrawn", sender=accepted.message.sender, reference=receipt.reference)

    def _withdraw_delivery(self, delivery: Delivery, now: float) -> None:
        peer = delivery.peer
        connection = peer.connection
        if delivery.queued:
            self._remove(delivery, now)
        elif connection is not None and delivery.id in connection.in_flight:
            del connection.in_flight[delivery.id]
            self._drain(peer, now)

    # Time ----------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `tick` may have something to do; None: nothing is pending."""
        return None if self._next == inf else self._next

    def tick(self, now: float) -> None:
        """Do what is due at `now`."""
        if now < self._next:
            return
        self._next = inf
        for connection in self._logins.due(now):
            self.effects.append(LoginTurnedDown(frames.CLOSE_BAD_HELLO))
            sentence = f"no hello within {self.limits.hello_wait:g} s"
            self._close(connection, frames.CLOSE_BAD_HELLO, sentence, now)
        for receipt in self._awaiting.due(now):
            self._settle(receipt, "unconfirmed")
        self._expire_queued(now)
        for key in self._keys.due(now):
            del self._keys[key]
        for peer in (*self._idle.due(now), *self._leaving.due(now)):
            self._forget(peer)
        self._rate.forget_idle(now)
        self._due(self._rate.due_at)
        for waiting in (self._logins, self._awaiting, self._keys, self._idle, self._leaving):
            self._due(waiting.next_at())

    def gauges(self) -> Gauges:
        """Count what there is now."""
        return Gauges(
            connections=len(self._connections),
            online=len(self._roles[EVERYONE]),
            known=len(self._peers),
            queued=self._queued,
            queued_bytes=self._queued_bytes,
            in_flight=sum(len(connection.in_flight) for connection in self._connections),
        )

    def take_effects(self) -> list[Effect]:
        """Hand over what the shell is to perform, and start a new list."""
        effects, self.effects = self.effects, []
        return effects

    # Login ---------------------------------------------------------------------------------

    def _check_login(self, hello: frames.Hello, credential: Credential | None) -> Credential:
        if hello.v != frames.PROTOCOL_VERSION:
            raise LoginRefused(
                f"the relay speaks protocol version {frames.PROTOCOL_VERSION}:"
                " use the same version of hoptell on both sides",
                code=frames.CLOSE_BAD_VERSION,
            )
        if credential is None:
            raise LoginRefused(
                "the relay does not know this token: set HOPTELL_TOKEN to the relay's token,"
                " or ask its operator for one",
                code=frames.CLOSE_BAD_TOKEN,
            )
        problem = name_problem(hello.name) or roles_problem(hello.roles)
        member = credential.member
        if problem is None and member is not None:
            problem = owner_problem(member, hello.name)
        if problem is None and hello.mode == "peer" and not self._has_room_for(hello.name):
            problem = f"the relay knows {self.limits.known_names} names already: try again later"
        if problem is not None:
            raise LoginRefused(problem, code=frames.CLOSE_NAME_REFUSED)
        return credential

    def _has_room_for(self, name: str) -> bool:
        if name in self._peers or len(self._peers) < self.limits.known_names:
            return True
        return bool(self._idle or self._leaving)

    def _go_online(self, connection: Connection, hello: frames.Hello, now: float) -> None:
        peer = self._peers.get(hello.name) or self._know(hello.name)
        if peer.connection is not None:
            self._replace(peer, peer.connection)
        self._idle.pop(peer, None)
        self._leaving.pop(peer, None)
        self._describe(peer, hello, connection.host)
        peer.connection = connection
        connection.peer = peer
        for role in (EVERYONE, *peer.roles):
            self._roles.setdefault(role, {})[peer.name] = peer
        self._drain(peer, now)

    def _describe(self, peer: Peer, hello: frames.Hello, host: str) -> None:
        roles = list(dict.fromkeys(hello.roles))
        wake = hello.wake if hello.wake and _is_wake_mode(hello.wake) else None
        before = (peer.known, peer.host, peer.roles, peer.wake, peer.transient)
        if before != (True, host, roles, wake, hello.transient):
            peer.known, peer.host, peer.roles, peer.wake = True, host, roles, wake
            peer.transient = hello.transient
            self.effects.append(Known(peer))

    def _know(self, name: str) -> Peer:
        if len(self._peers) >= self.limits.known_names:
            self._forget(next(iter(self._idle or self._leaving)))
        peer = self._peers[name] = Peer(name)
        return peer

    def _replace(self, peer: Peer, older: Connection) -> None:
        """Take the peer from its older connection; its acknowledgements stay owed."""
        self._log("replaced", name=peer.name)
        self._take_offline(peer, older)
        self._connections.pop(older)
        older.state = "closed"
        reason = f"a newer connection took the name {peer.name}"
        self.effects.append(Close(older, frames.CLOSE_REPLACED, reason))

    def _close(self, connection: Connection, code: int, reason: str, now: float) -> None:
        self._detach(connection, now)
        self.effects.append(Close(connection, code, _cut(reason, MAX_REASON_BYTES)))

    def _detach(self, connection: Connection, now: float, *, for_good: bool = False) -> None:
        """Forget a connection; idempotent."""
        self._logins.pop(connection, None)
        self._connections.pop(connection, None)
        connection.state = "closed"
        peer = connection.peer
        if peer is None:
            return
        unconfirmed = self._take_offline(peer, connection)
        if peer.transient and for_good:
            self._forget(peer)
            return
        for delivery in unconfirmed:
            self._settle(delivery.receipt, "queued")
        self._left(peer, now)

    def _take_offline(self, peer: Peer, connection: Connection) -> list[Delivery]:
        """Return what the connection had not confirmed to the front of the queue."""
        unconfirmed = list(connection.in_flight.values())
        connection.in_flight = {}
        connection.peer = None
        peer.connection = None
        for role in (EVERYONE, *peer.roles):
            online = self._roles[role]
            del online[peer.name]
            if not online and role != EVERYONE:
                del self._roles[role]
        for delivery in reversed(unconfirmed):
            self._enqueue(delivery, front=True)
        if unconfirmed:
            self._log("requeued", name=peer.name, count=len(unconfirmed))
        return unconfirmed

    # Sending -------------------------------------------------------------------------------

    def _send(self, connection: Connection, frame: frames.Send, now: float) -> None:
        """Route one message to everyone its address stands for, or refuse it whole.

        Raises:
            Refused: nothing was recorded and nobody received anything.
        """
        name = connection.name
        key = frame.key
        if key is not None:
            known = self._keys.get((name, key))
            if known is not None and known.accepted_at > now - self.limits.key_lifetime:
                self._repeat(connection, frame.id, known)
                return
        if self._rate.is_limited:
            self._rate.take(name, now)
            self._due(self._rate.due_at)
        _check_send(frame)
        if frame.to not in self._peers and (problem := address_problem(frame.to)) is not None:
            raise Refused(problem, reason="invalid")
        if frame.to[0] == "@":
            receipt = self._fan_out(connection, frame, now)
        else:
            receipt = self._send_to(connection, frame, now)
        if key is not None:
            self._remember_key((name, key), receipt)

    def _repeat(self, connection: Connection, id: frames.FrameId, receipt: Receipt) -> None:
        """Answer a send whose message was accepted before, now or when its answer is known.

        Raises:
            Refused: more repeats than any client has a reason for wait for that answer.
        """
        if receipt.state is not None:
            self.effects.append(Acknowledge(connection, receipt, id))
        else:
            waiting = [waiter for waiter in receipt.waiters if waiter[0].state == "open"]
            if len(waiting) >= self.limits.repeats:
                raise Refused(
                    "this message was sent many times already: wait for its acknowledgement",
                    reason="rate",
                )
            receipt.waiters = (*waiting, (connection, id))
        self._log("repeated", name=connection.name, reference=receipt.reference)

    def _send_to(self, connection: Connection, frame: frames.Send, now: float) -> Receipt:
        to = frame.to
        if to == connection.name:
            raise Refused(f"{to} is your own name: send to another peer", reason="self")
        peer = self._peers.get(to)
        if peer is None:
            raise Refused(
                f"the relay knows no peer named {to}: list the peers to see who is there",
                reason="unknown",
            )
        message = self._message(connection, frame, now)
        taker = self._taker(peer)
        if taker is None and (problem := self._queue_problem(peer, message.size)):
            raise Refused(problem, reason="full")
        receipt = Receipt(message.reference, now, message.expires, None, ((connection, frame.id),))
        delivery = Delivery(_delivery_id(message, peer), message, peer, receipt)
        self.effects.append(Accepted(message, (delivery,), receipt, frame.key))
        if taker is not None:
            if not self._awaiting:  # else an older one is due before it
                self._due(now + self.limits.ack_wait)
            self._awaiting[receipt] = now
            self._deliver(taker, delivery)
        else:
            self._enqueue(delivery)
            self._settle(receipt, "queued")
        return receipt

    def _fan_out(self, connection: Connection, frame: frames.Send, now: float) -> Receipt:
        online = self._roles.get(frame.to[1:], {})
        peers = [peer for peer in online.values() if peer.name != connection.name]
        if not peers:
            raise Refused(f"nobody else is online as {frame.to}", reason="nobody")
        message = self._message(connection, frame, now)
        if not any(self._taker(p) or not self._queue_problem(p, message.size) for p in peers):
            raise Refused(
                f"nobody got the message: too many messages wait already for everybody who is"
                f" online as {frame.to}; try again later",
                reason="full",
            )
        receipt = Receipt(message.reference, now, message.expires, "fanout", ())
        deliveries: list[Delivery] = []
        skipped: list[str] = []
        self.effects.append(Accepted(message, deliveries, receipt, frame.key))
        for peer in peers:
            taker = self._taker(peer)
            if taker is None and self._queue_problem(peer, message.size):
                skipped.append(peer.name)
                continue
            delivery = Delivery(_delivery_id(message, peer), message, peer, receipt)
            deliveries.append(delivery)
            if taker is not None:
                self._deliver(taker, delivery)
            else:
                self._enqueue(delivery)
        receipt.count = len(deliveries)
        receipt.skipped = sorted(skipped)
        self.effects.append(Acknowledge(connection, receipt, frame.id))
        return receipt

    def _message(self, connection: Connection, frame: frames.Send, now: float) -> Message:
        text = frame.text
        ts = int((now + self._epoch) * 1000)
        credential = connection.credential
        assert credential is not None
        return Message(
            reference=self._reference(connection.name, frame.key, now),
            sender=connection.name,
            member=credential.member,
            host=connection.host,
            to=frame.to,
            text=text,
            size=len(text) if text.isascii() else len(text.encode()),
            ts=ts,
            reply_to=None if frame.reply_to is None else frame.reply_to.lower(),
            expires=None if frame.ttl is None else ts + frame.ttl * 1000,
            no_reply=connection.mode == "send" and connection.name not in self._peers,
        )

    def _reference(self, sender: str, key: str | None, now: float) -> str:
        """A fresh reference; with a key, one that a relay without memory would make again.

        So a message that arrived just before a relay without a journal died, and that its sender
        repeats, has its old delivery id, and the recipient's inbox drops the copy. It holds within
        the span in which a key is recognized, by both clocks: either may have been set, or begun
        anew with the machine. And nobody who did not get the message can tell its reference.
        Where keys are forgotten early, a repeat may meet the first one here, and needs other ids.
        """
        if key is None or len(self._keys) >= self.limits.keys:
            return next(self._references)
        span = self.limits.key_lifetime
        parts = (sender, key, str(now // span), str(self._wall(now) // (span * 1000)))
        digits = blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
        return f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"

    def _remember_key(self, key: tuple[str, str], receipt: Receipt) -> None:
        keys = self._keys
        keys.pop(key, None)  # an expired one: the order is that of acceptance
        if len(keys) >= self.limits.keys:
            del keys[next(iter(keys))]
        keys[key] = receipt
        self._due(keys.next_at())

    # Queue and in flight -------------------------------------------------------------------

    def _taker(self, peer: Peer) -> Connection | None:
        """The peer's connection, if one more delivery can go out on it at once."""
        connection = peer.connection
        if connection is None or peer.queue:
            return None
        return connection if len(connection.in_flight) < self.limits.in_flight else None

    def _queue_problem(self, peer: Peer, size: int) -> str | None:
        limits = self.limits
        if len(peer.queue) >= limits.queued_per_peer:
            return (
                f"{peer.name} has {len(peer.queue)} messages waiting, which is the limit:"
                " try again once it has read some"
            )
        if self._queued >= limits.queued or self._queued_bytes + size > limits.queued_bytes:
            return "the relay's queues are full: try again later"
        return None

    def _enqueue(self, delivery: Delivery, *, front: bool = False) -> None:
        peer = delivery.peer
        if peer.queue is NOTHING_QUEUED:
            peer.queue = deque()
        delivery.queued = True
        if front:
            peer.queue.appendleft(delivery)
        else:
            peer.queue.append(delivery)
        self._queued += 1
        self._queued_bytes += delivery.message.size
        self._idle.pop(peer, None)
        expires = delivery.message.expires
        if expires is not None:
            if not delivery.watched:
                delivery.watched = True
                heapq.heappush(self._deadlines, (expires, next(self._ties), delivery))
            self._due(expires / 1000 - self._epoch)

    def _dequeued(self, delivery: Delivery) -> None:
        delivery.queued = False
        self._queued -= 1
        self._queued_bytes -= delivery.message.size

    def _deliver(self, connection: Connection, delivery: Delivery) -> None:
        connection.in_flight[delivery.id] = delivery
        self.effects.append(Deliver(connection, delivery))

    def _drain(self, peer: Peer, now: float) -> None:
        """Send what is queued, as far as the in-flight limit allows."""
        connection = peer.connection
        assert connection is not None
        wall = self._wall(now)
        queue = peer.queue
        while queue and len(connection.in_flight) < self.limits.in_flight:
            delivery = queue.popleft()
            self._dequeued(delivery)
            if _is_expired(delivery, wall):
                self._expired(delivery)
            else:
                self._deliver(connection, delivery)

    def _confirm(self, connection: Connection, frame: frames.Got, now: float) -> None:
        delivery = connection.in_flight.pop(frame.id, None)
        if delivery is None:
            return  # confirmed already, or in flight on a connection that is gone
        self.effects.append(Confirmed(delivery))
        self._settle(delivery.receipt, "delivered")
        if delivery.peer.queue:
            self._drain(delivery.peer, now)

    def _settle(self, receipt: Receipt, state: frames.AckState) -> None:
        """Tell the sender what became of its message, once."""
        if receipt.state is not None:
            return
        receipt.state = state
        self._awaiting.pop(receipt, None)
        for connection, id in receipt.waiters:
            if connection.state == "open":
                self.effects.append(Acknowledge(connection, receipt, id))
        receipt.waiters = ()

    # What is due ---------------------------------------------------------------------------

    def _due(self, at: float) -> None:
        if at < self._next:
            self._next = at

    def _expire_queued(self, now: float) -> None:
        deadlines = self._deadlines
        wall = self._wall(now)
        while deadlines and (deadlines[0][0] <= wall or not deadlines[0][2].queued):
            delivery = heapq.heappop(deadlines)[2]
            delivery.watched = False
            if delivery.queued:
                self._remove(delivery, now)
                self._expired(delivery)
        if len(deadlines) > 2 * self._queued + 64:  # mostly stale: those sent since
            for _, _, delivery in deadlines:
                delivery.watched = delivery.queued
            self._deadlines = deadlines = [entry for entry in deadlines if entry[2].watched]
            heapq.heapify(deadlines)
        if deadlines:
            self._due(deadlines[0][0] / 1000 - self._epoch)

    def _remove(self, delivery: Delivery, now: float) -> None:
        """Take a delivery out of the queue that it waits in."""
        peer = delivery.peer
        peer.queue.remove(delivery)
        self._dequeued(delivery)
        if not peer.queue and peer.connection is None:
            self._rest(peer, now)

    def _left(self, peer: Peer, now: float) -> None:
        """The peer is offline now."""
        if peer.transient:
            self._leaving[peer] = now
            self._due(self._leaving.next_at())
        elif not peer.queue:
            self._rest(peer, now)

    def _rest(self, peer: Peer, now: float) -> None:
        """The peer is offline with an empty queue: forget it some time."""
        if peer.transient:
            return  # it is forgotten anyway, and sooner
        self._idle.pop(peer, None)
        self._idle[peer] = now
        self._due(self._idle.next_at())

    def _forget(self, peer: Peer) -> None:
        self._idle.pop(peer, None)
        self._leaving.pop(peer, None)
        for delivery in peer.queue:
            self._dequeued(delivery)
            self._expired(delivery)
        peer.queue = NOTHING_QUEUED
        del self._peers[peer.name]
        self.effects.append(Forgotten(peer.name))

    # Words ---------------------------------------------------------------------------------

    def _list(self, asking: str) -> list[frames.PeerInfo]:
        return [
            frames.PeerInfo(
                name=name,
                host=peer.host,
                roles=peer.roles,
                online=peer.connection is not None,
                queued=len(peer.queue),
                wake=peer.wake,
            )
            for name, peer in sorted(self._peers.items())
            if name != asking
        ]

    def _wall(self, now: float) -> float:
        return (now + self._epoch) * 1000

    def _log(self, event: str, **fields: Any) -> None:
        self.effects.append(Log(event, fields))

    def _turn_down(
        self,
        connection: Connection,
        reason: str,
        sentence: str,
        id: frames.FrameId | msgspec.UnsetType,
    ) -> None:
        self.effects.append(TurnedDown(connection.name, reason))
        self.effects.append(Write(connection, frames.Error(sentence, id)))

    def _expired(self, delivery: Delivery) -> None:
        """A delivery was dropped at its deadline; whoever still waits to hear of it hears now."""
        self._settle(delivery.receipt, "unconfirmed")
        self.effects.append(Expired(delivery))


_LAST_DIGITS = [f"{number:03x}" for number in range(0x1000)]


def _delivery_id(message: Message, peer: Peer) -> str:
    return f"{message.reference}-{peer.name}"


def _numbered(start: str) -> Iterator[str]:
    """Endless ids: `start` and a number in 12 hexadecimal digits.

    Its last digits come from a table: formatting the number took three times as long.
    """
    for number in count():
        start_of_many = f"{start}{number:09x}"
        for last_digits in _LAST_DIGITS:
            yield start_of_many + last_digits


def _cut(text: str, size: int) -> str:
    """Shorten a text to `size` bytes of UTF-8."""
    if len(text.encode()) <= size:
        return text
    return text.encode()[: size - 3].decode(errors="ignore") + "…"


def _is_expired(delivery: Delivery, wall: float) -> bool:
    expires = delivery.message.expires
    return expires is not None and expires <= wall


def _check_send(frame: frames.Send) -> None:
    """Check what can be told from the frame alone, but for the address.

    Raises:
        Refused: with what would be right.
    """
    text = frame.text
    problem = None
    if not text or text.isspace():
        problem = "the text is empty: say something"
    elif len(text) > frames.MAX_TEXT_LENGTH:
        problem = frames.text_too_long(len(text))
    elif frame.ttl is not None and not 1 <= frame.ttl <= frames.MAX_TTL:
        problem = f"ttl is a whole number of seconds from 1 to {frames.MAX_TTL}"
    elif frame.key is not None and not _is_key(frame.key):
        problem = f"a key is 1 to {frames.MAX_KEY_LENGTH} printable characters"
    elif frame.reply_to is not None and not _is_reference(frame.reply_to):
        problem = "reply_to is a message reference (a UUID): copy it from the message"
    if problem is not None:
        raise Refused(problem, reason="invalid")


def _is_key(text: str) -> bool:
    return 1 <= len(text) <= frames.MAX_KEY_LENGTH and text.isprintable()
