"""What the relay's core works with, and the effects in which it says what is to be done.

Plain data: the rules are in core.py. The structs that stand for one message each are msgspec's,
because creating one takes a third of the time of a class of our own. Python's cyclic garbage
collector need not watch them (`gc=False`; it took 8% of the relay's time): what is delivered
or answered leaves the queue, `in_flight` or receipt that holds it, and no cycle stays behind.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from hoptell import frames


@dataclass(frozen=True)
class Limits:
    """The bounds and spans that the core keeps (docs/protocol.md). Spans are in seconds."""

    in_flight: int = 50
    """Deliveries sent to one connection and not yet confirmed."""
    queued_per_peer: int = 50
    queued: int = 2_000
    """Queued deliveries in the whole relay."""
    queued_bytes: int = 64 * 1024 * 1024
    """UTF-8 bytes of queued text in the whole relay."""
    ack_wait: float = 5.0
    """After this without a confirmation the sender hears `unconfirmed`."""
    hello_wait: float = 5.0
    key_lifetime: float = 600.0
    """How long a repeated idempotency key is recognized."""
    keys: int = 200_000
    """Idempotency keys remembered at once: past that the oldest goes early. At the default
    rate it takes 111 peers that send without a pause to get there."""
    repeats: int = 16
    """Sends with one key that may wait for its acknowledgement at once."""
    known_names: int = 10_000
    forget_after: float = 6 * 3600.0
    """A peer that is offline with an empty queue is forgotten after this."""
    forget_transient_after: float = 600.0
    """A transient peer that is offline is forgotten after this, with its queue: time enough for
    a lost connection to come back."""


@dataclass(frozen=True)
class Credential:
    """A token that opens the relay, without the token.

    `fingerprint` is the SHA-256 of the secret: a member with a new token is another credential.
    """

    member: str | None
    """Whose it is; None for the shared token."""
    fingerprint: str


class Message(msgspec.Struct, eq=False, gc=False):
    """What a sender handed in; shared by all its deliveries."""

    reference: str
    sender: str
    member: str | None
    host: str
    to: str
    text: str
    size: int
    """UTF-8 bytes of `text`."""
    ts: int
    """Unix ms of its acceptance."""
    reply_to: str | None
    expires: int | None
    """Unix ms."""
    no_reply: bool
    row: int = 0
    """The journal's: its number there, and how many of its copies are not confirmed."""
    copies: int = 0
    key: str | None = None
    """The journal's: the sender's key, if its answer was not known when it was recorded."""


class Receipt(msgspec.Struct, eq=False, gc=False):
    """The acknowledgement of one accepted send: owed while `state` is None, then remembered.

    `durable` is the shell's: whether the journal has the message. Until then nobody hears of
    it, neither its recipients nor its sender.
    """

    reference: str
    accepted_at: float
    expires: int | None
    state: frames.AckState | None
    waiters: tuple[tuple["Connection", frames.FrameId], ...]
    """Who is to hear it: the send's connection, and those that repeated it with its key."""
    count: int | None = None
    skipped: list[str] | None = None
    durable: bool = False

    def ack(self, id: frames.FrameId) -> frames.Ack:
        """The frame for the request `id`; only once the state is known."""
        assert self.state is not None
        return frames.Ack(id, self.state, self.reference, self.expires, self.count, self.skipped)


class Delivery(msgspec.Struct, eq=False, gc=False):
    """One copy of a message for one recipient."""

    id: str
    message: Message
    peer: "Peer"
    receipt: Receipt
    queued: bool = False
    watched: bool = False
    """The core's: its deadline is on the heap."""
    sent: bool = False
    """The shell's: it went out before, on a connection that was lost."""
    row: int = 0
    """The journal's: its number there."""

    def frame(self) -> frames.Message:
        """The wire frame of this delivery."""
        message = self.message
        return frames.Message(
            id=self.id,
            message_id=message.reference,
            sender=message.sender,
            host=message.host,
            to=message.to,
            text=message.text,
            ts=message.ts,
            reply_to=message.reply_to,
            member=message.member,
            expires=message.expires,
            no_reply=message.no_reply,
        )


class Connection:
    """One client's connection, from the TCP connection to its end.

    `transport` is the shell's own object for it; the core never looks into it.
    """

    __slots__ = (
        "transport",
        "state",
        "name",
        "mode",
        "host",
        "credential",
        "peer",
        "in_flight",
    )

    def __init__(self, transport: Any) -> None:
        self.transport = transport
        self.state: Literal["connecting", "open", "closed"] = "connecting"
        self.name = ""
        self.mode: frames.Mode = "peer"
        self.host = ""
        self.credential: Credential | None = None
        self.peer: Peer | None = None
        """The peer that this connection is the online end of; None in send mode."""
        self.in_flight: dict[str, Delivery] = {}
        """Unconfirmed deliveries by id, in the order in which they were sent."""


NOTHING_QUEUED: deque["Delivery"] = deque(maxlen=0)
"""Stands for the queue of every peer that never had one: an empty deque takes 760 bytes."""


class Peer:
    """A known name: online while it has a connection."""

    __slots__ = ("name", "host", "roles", "wake", "transient", "connection", "queue", "known")

    def __init__(self, name: str) -> None:
        self.name = name
        self.host = ""
        self.roles: list[str] = []
        self.wake: str | None = None
        self.transient = False
        """It will not come back once it has left, as its last login said."""
        self.connection: Connection | None = None
        self.queue: deque[Delivery] = NOTHING_QUEUED
        """Deliveries that wait, in order; its own deque from the first one on."""
        self.known = False
        """Whether a record tells of it as it is."""


class Gauges(msgspec.Struct):
    """How much there is of what, at the moment."""

    connections: int
    online: int
    known: int
    queued: int
    queued_bytes: int
    in_flight: int


class Restored(msgspec.Struct):
    """What a journal kept over the end of a relay."""

    peers: list[Peer]
    deliveries: list[Delivery]
    """Unconfirmed, in the order of acceptance; their peers are among `peers`."""
    keys: list[tuple[str, str, Receipt]]
    """Sender, idempotency key and what its repeat is answered, oldest first."""


# Effects: what the shell is to do, in this order -------------------------------------------


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """Write the delivery's frame to the connection, once its receipt is durable."""

    connection: Connection
    delivery: Delivery


class Acknowledge(msgspec.Struct, frozen=True, gc=False):
    """Write `receipt.ack(id)` to the connection, once the receipt is durable."""

    connection: Connection
    receipt: Receipt
    id: frames.FrameId


class Write(msgspec.Struct, frozen=True, gc=False):
    """Write a frame to the connection."""

    connection: Connection
    frame: frames.RelayFrame


class Close(msgspec.Struct, frozen=True, gc=False):
    """Close the connection; nothing more is written to it or taken from it."""

    connection: Connection
    code: int
    reason: str


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """Record a message and its deliveries, in the order of acceptance; log it."""

    message: Message
    deliveries: Sequence[Delivery]
    receipt: Receipt
    key: str | None
    """The sender's idempotency key."""


class Confirmed(msgspec.Struct, frozen=True, gc=False):
    """The delivery reached its recipient: forget its record; log it."""

    delivery: Delivery


class Expired(msgspec.Struct, frozen=True, gc=False):
    """The delivery was dropped at its deadline: forget its record; log it."""

    delivery: Delivery


class Known(msgspec.Struct, frozen=True, gc=False):
    """Record a peer's name, host, roles and wake mode, new or changed."""

    peer: Peer


class Forgotten(msgspec.Struct, frozen=True, gc=False):
    """The peer is not known any more: forget its record; log it."""

    name: str


class TurnedDown(msgspec.Struct, frozen=True, gc=False):
    """Count a request that was answered with an `error`; log it."""

    name: str
    reason: str


class LoginTurnedDown(msgspec.Struct, frozen=True, gc=False):
    """Count a login that was refused; log it. The name is what the hello said, if there was one."""

    code: int
    name: str | None = None


class Log(msgspec.Struct, frozen=True, gc=False):
    """Write one line about what no other effect says. Never holds a token or a text."""

    event: str
    fields: dict[str, Any]


Record = Accepted | Confirmed | Expired | Known | Forgotten
"""The effects that a journal keeps (see journal.py) and the log tells."""

Effect = Deliver | Acknowledge | Write | Close | Record | TurnedDown | LoginTurnedDown | Log
