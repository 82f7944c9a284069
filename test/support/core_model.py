"""The relay's rules (docs/protocol.md) a second time: too simple to be fast, and simple to read.

No heap, no tables in the order of deadlines, no counters: lists that are searched from the
start. What the core is to write and to record comes out as plain tuples, in which a message is
its text (each has its own), so that test_core_model.py can compare them with the core's effects.
"""

from dataclasses import dataclass, field
from typing import Any

from hoptell.frames import MAX_TTL
from hoptell.names import is_name, owns
from hoptell.relay.model import Connection, Credential, Limits
from hoptell.settings import Rate

Event = tuple[Any, ...]


@dataclass(eq=False)
class Sent:
    """An accepted message."""

    text: str
    sender: str
    member: str | None
    host: str
    to: str
    ts: int
    reply_to: str | None
    expires: int | None
    no_reply: bool
    key: str | None
    at: float
    """When it was accepted, by the relay's clock."""
    waiters: list[tuple["Client", int]]
    state: str | None = None
    count: int | None = None
    skipped: list[str] | None = None
    copies: list["Copy"] = field(default_factory=list)
    """Those that are neither confirmed nor dropped."""
    is_recorded: bool = False
    recorded_state: str | None = None


@dataclass(eq=False)
class Copy:
    """A message on its way to one recipient."""

    sent: Sent
    to: str

    def message(self) -> Event:
        sent = self.sent
        said_by = (sent.sender, sent.member, sent.host)
        rest = (sent.to, sent.ts, sent.reply_to, sent.expires, sent.no_reply)
        return ("message", sent.text, *said_by, *rest)


@dataclass(eq=False)
class Client:
    """One connection."""

    connection: Connection
    opened_at: float
    state: str = "connecting"
    name: str = ""
    mode: str = "peer"
    host: str = ""
    credential: Credential | None = None
    in_flight: list[Copy] = field(default_factory=list)


@dataclass(eq=False)
class Known:
    """A known peer name."""

    name: str
    host: str = ""
    roles: list[str] = field(default_factory=list)
    wake: str | None = None
    transient: bool = False
    is_recorded: bool = False
    """By this process, as it is."""
    client: Client | None = None
    queue: list[Copy] = field(default_factory=list)

    def description(self) -> Event:
        return (self.host, self.roles, self.wake, self.transient)


class Model:
    """What the relay holds, and what it says next: `written` to clients, `recorded` and logged."""

    def __init__(self, limits: Limits, rate: Rate, now: float, epoch: float) -> None:
        self.limits, self.rate, self.now, self.epoch = limits, rate, now, epoch
        self.written: list[tuple[Client, Event]] = []
        self.recorded: list[Event] = []
        self.accepted: list[Sent] = []
        """All messages with copies, or a key that may be repeated, in the order of acceptance."""
        self.begin()

    def begin(self) -> None:
        """A new process: nobody is connected, nothing was tried."""
        self.connecting: list[Client] = []
        self.clients: list[Client] = []
        """Those that are logged in, in that order."""
        self.peers: dict[str, Known] = {}
        self.idle: list[tuple[float, Known]] = []
        """Lasting peers that are offline with an empty queue, and since when; longest first."""
        self.gone: list[tuple[float, Known]] = []
        """Transient peers that are offline, and since when; longest first."""
        self.keys: list[tuple[str, str, Sent]] = []
        """Sender and key, oldest first."""
        self.attempts: list[tuple[str, float]] = []

    # Logins and ends -----------------------------------------------------------------------

    def open(self, connection: Connection) -> Client:
        client = Client(connection, self.now)
        self.connecting.append(client)
        return client

    def log_in(
        self, client: Client, hello: Any, credential: Credential | None, forgotten: list[str]
    ) -> None:
        """`forgotten` is whom the core forgot to make room, which matters if several may go."""
        code = self.login_problem(hello, credential)
        if code is not None:
            self.turn_away(client, code)
            return
        self.connecting.remove(client)
        self.clients.append(client)
        client.state, client.name, client.mode = "open", hello.name, hello.mode
        client.host, client.credential = hello.host, credential
        self.log("connected", hello.name)
        self.write(client, "welcome", hello.name)
        if hello.mode == "peer":
            self.go_online(client, hello, forgotten)

    def login_problem(self, hello: Any, credential: Credential | None) -> int | None:
        if hello.v != 1:
            return 4005
        if credential is None:
            return 4003
        if not is_name(hello.name) or "all" in hello.roles:
            return 4002
        if credential.member is not None and not owns(credential.member, hello.name):
            return 4002
        room = len(self.peers) < self.limits.known_names or self.idle or self.gone
        if hello.mode == "peer" and hello.name not in self.peers and not room:
            return 4002
        return None

    def turn_away(self, client: Client, code: int) -> None:
        self.connecting.remove(client)
        client.state = "closed"
        self.recorded.append(("login turned down", code))
        self.write(client, "close", code)

    def go_online(self, client: Client, hello: Any, forgotten: list[str]) -> None:
        name = hello.name
        if name not in self.peers:
            if len(self.peers) >= self.limits.known_names:
                offline = self.idle or self.gone
                longest = [peer for since, peer in offline if since == offline[0][0]]
                chosen = [peer for peer in longest if peer.name in forgotten]
                self.forget((chosen or longest)[0])
            self.peers[name] = Known(name)
        peer = self.peers[name]
        older = peer.client
        if older is not None:
            self.log("replaced", name)
            self.take_offline(peer)
            self.clients.remove(older)
            older.state = "closed"
            self.write(older, "close", 4004)
        self.wake_up(peer)
        description = (hello.host, hello.roles, hello.wake, hello.transient)
        if not peer.is_recorded or description != peer.description():
            peer.host, peer.roles, peer.wake, peer.transient = description
            peer.is_recorded = True
            self.recorded.append(("known", name, *description))
        peer.client = client
        self.drain(peer)

    def unreadable(self, client: Client, id: int) -> None:
        if client.state == "connecting":
            self.turn_away(client, 4001)
        elif client.state == "open":
            self.turn_down(client, id, "frame")

    def lost(self, client: Client, *, said_goodbye: bool) -> None:
        if client in self.connecting:
            self.connecting.remove(client)
        elif client.state == "open":
            self.log("disconnected", client.name)
            self.end(client, for_good=said_goodbye)
        client.state = "closed"

    def reload(self, valid: set[Credential]) -> None:
        revoked = [client for client in self.clients if client.credential not in valid]
        for client in revoked:
            client.state = "closed"
        for client in revoked:
            self.log("revoked", client.name)
            self.end(client)
            self.write(client, "close", 4003)

    def end(self, client: Client, *, for_good: bool = False) -> None:
        client.state = "closed"
        self.clients.remove(client)
        peer = self.peers.get(client.name)
        if peer is None or peer.client is not client:
            return
        unconfirmed = self.take_offline(peer)
        if peer.transient and for_good:
            self.forget(peer)
            return
        for copy in unconfirmed:
            self.settle(copy.sent, "queued")
        if peer.transient:
            self.gone.append((self.now, peer))
        else:
            self.rest(peer)

    def take_offline(self, peer: Known) -> list[Copy]:
        assert peer.client is not None
        unconfirmed, peer.client.in_flight = peer.client.in_flight, []
        peer.client = None
        peer.queue = unconfirmed + peer.queue
        if unconfirmed:
            self.log("requeued", peer.name, len(unconfirmed))
        return unconfirmed

    # Known names ---------------------------------------------------------------------------

    def rest(self, peer: Known) -> None:
        if peer.client is None and not peer.queue and not peer.transient:
            self.idle = [entry for entry in self.idle if entry[1] is not peer]
            self.idle.append((self.now, peer))

    def wake_up(self, peer: Known) -> None:
        self.idle = [entry for entry in self.idle if entry[1] is not peer]
        self.gone = [entry for entry in self.gone if entry[1] is not peer]

    def forget(self, peer: Known) -> None:
        self.wake_up(peer)
        for copy in peer.queue:
            self.expire(copy)
        del self.peers[peer.name]
        self.recorded.append(("forgotten", peer.name))

    def show_peers(self, client: Client, id: int) -> None:
        peers = [
            (name, peer.host, tuple(peer.roles), peer.client is not None, len(peer.queue))
            + (peer.wake,)
            for name, peer in sorted(self.peers.items())
            if name != client.name
        ]
        self.write(client, "peers", id, tuple(peers))

    # Sending -------------------------------------------------------------------------------

    def send(self, client: Client, frame: Any) -> Sent | None:
        """The message, if it was accepted."""
        name, key = client.name, frame.key
        first = self.remembered(name, key)
        if first is not None:
            self.repeat(client, frame.id, first)
            return None
        recent = [at for who, at in self.attempts if who == name and at > self.now - 10]
        self.attempts.append((name, self.now))
        assert self.rate.seconds == 10
        if len(recent) >= self.rate.sends:
            return self.turn_down(client, frame.id, "rate")
        if not is_sound(frame):
            return self.turn_down(client, frame.id, "invalid")
        if frame.to.startswith("@"):
            recipients = self.online(frame.to[1:], but=name)
            full = all(self.has_no_room(peer, frame.text) for peer in recipients)
            problem = ("full" if full else None) if recipients else "nobody"
        else:
            recipients = [self.peers[frame.to]] if frame.to in self.peers else []
            problem = self.direct_problem(name, frame, recipients)
        if problem is not None:
            return self.turn_down(client, frame.id, problem)
        return self.accept(client, frame, recipients)

    def direct_problem(self, name: str, frame: Any, recipients: list[Known]) -> str | None:
        if frame.to == name:
            return "self"
        if not recipients:
            return "unknown"
        return "full" if self.has_no_room(recipients[0], frame.text) else None

    def accept(self, client: Client, frame: Any, recipients: list[Known]) -> Sent:
        ts = int((self.now + self.epoch) * 1000)
        sent = Sent(
            frame.text,
            client.name,
            client.credential.member if client.credential else None,
            client.host,
            frame.to,
            ts,
            frame.reply_to,
            None if frame.ttl is None else ts + frame.ttl * 1000,
            client.mode == "send" and client.name not in self.peers,
            frame.key,
            self.now,
            [(client, frame.id)],
        )
        self.accepted.append(sent)
        taken, skipped = [], []
        for peer in recipients:
            if self.has_no_room(peer, frame.text):
                skipped.append(peer.name)
                continue
            taken.append(peer.name)
            copy = Copy(sent, peer.name)
            sent.copies.append(copy)
            if self.can_take(peer):
                self.deliver(peer, copy)
            else:
                self.idle = [entry for entry in self.idle if entry[1] is not peer]
                peer.queue.append(copy)
        self.recorded.append(("accepted", sent.text, sent.key, tuple(sorted(taken))))
        if frame.to.startswith("@"):
            sent.count, sent.skipped = len(taken), sorted(skipped)
            self.settle(sent, "fanout")
        elif not self.is_in_flight(sent.copies[0]):
            self.settle(sent, "queued")
        if sent.key is not None:
            self.keys = [entry for entry in self.keys if entry[:2] != (sent.sender, sent.key)]
            self.keys = [*self.keys, (sent.sender, sent.key, sent)][-self.limits.keys :]
        return sent

    def repeat(self, client: Client, id: int, sent: Sent) -> None:
        if sent.state is not None:
            self.acknowledge(client, id, sent)
        else:
            sent.waiters = [waiter for waiter in sent.waiters if waiter[0].state == "open"]
            if len(sent.waiters) >= self.limits.repeats:
                self.turn_down(client, id, "rate")
                return
            sent.waiters.append((client, id))
        self.log("repeated", client.name)

    def remembered(self, name: str, key: str | None) -> Sent | None:
        for who, its_key, sent in self.keys:
            if (who, its_key) == (name, key) and sent.at > self.now - self.limits.key_lifetime:
                return sent
        return None

    def online(self, role: str, *, but: str) -> list[Known]:
        """In the order in which they came."""
        peers = [self.peers[client.name] for client in self.clients if client.mode == "peer"]
        return [
            peer for peer in peers if peer.name != but and (role == "all" or role in peer.roles)
        ]

    def can_take(self, peer: Known) -> bool:
        client = peer.client
        return (
            client is not None and not peer.queue and len(client.in_flight) < self.limits.in_flight
        )

    def has_no_room(self, peer: Known, text: str) -> bool:
        if self.can_take(peer):
            return False
        queued = self.queued()
        return (
            len(peer.queue) >= self.limits.queued_per_peer
            or len(queued) >= self.limits.queued
            or size(queued) + len(text.encode()) > self.limits.queued_bytes
        )

    # Copies --------------------------------------------------------------------------------

    def deliver(self, peer: Known, copy: Copy) -> None:
        assert peer.client is not None
        peer.client.in_flight.append(copy)
        self.write(peer.client, *copy.message())

    def drain(self, peer: Known) -> None:
        """Send what is queued, as far as the limit allows; what is too old is dropped."""
        assert peer.client is not None
        while peer.queue and len(peer.client.in_flight) < self.limits.in_flight:
            copy = peer.queue.pop(0)
            if self.is_late(copy):
                self.expire(copy)
            else:
                self.deliver(peer, copy)

    def confirm(self, client: Client, copy: Copy) -> None:
        client.in_flight.remove(copy)
        copy.sent.copies.remove(copy)
        self.recorded.append(("confirmed", copy.sent.text, copy.to))
        self.settle(copy.sent, "delivered")
        self.drain(self.peers[copy.to])

    def expire(self, copy: Copy) -> None:
        copy.sent.copies.remove(copy)
        self.settle(copy.sent, "unconfirmed")
        self.recorded.append(("expired", copy.sent.text, copy.to))

    def settle(self, sent: Sent, state: str) -> None:
        if sent.state is None:
            sent.state = state
            for client, id in sent.waiters:
                self.acknowledge(client, id, sent)
            sent.waiters = []

    def is_late(self, copy: Copy) -> bool:
        expires = copy.sent.expires
        return expires is not None and expires <= (self.now + self.epoch) * 1000

    def is_in_flight(self, copy: Copy) -> bool:
        return any(copy in client.in_flight for client in self.clients)

    def queued(self) -> list[Copy]:
        return [copy for peer in self.peers.values() for copy in peer.queue]

    # Time ----------------------------------------------------------------------------------

    def next_due(self) -> float | None:
        """When something happens by itself next."""
        limits = self.limits
        due = [client.opened_at + limits.hello_wait for client in self.connecting]
        due += [sent.at + limits.ack_wait for sent in self.owed()]
        due += [
            copy.sent.expires / 1000 - self.epoch
            for copy in self.queued()
            if copy.sent.expires is not None
        ]
        due += [since + limits.forget_after for since, _ in self.idle]
        due += [since + limits.forget_transient_after for since, _ in self.gone]
        return max(min(due), self.now) if due else None

    def tick(self) -> None:
        limits, now = self.limits, self.now
        for client in [c for c in self.connecting if c.opened_at + limits.hello_wait <= now]:
            self.turn_away(client, 4001)
        for sent in [sent for sent in self.owed() if sent.at + limits.ack_wait <= now]:
            self.settle(sent, "unconfirmed")
        for peer in self.peers.values():
            for copy in [copy for copy in peer.queue if self.is_late(copy)]:
                peer.queue.remove(copy)
                self.expire(copy)
                self.rest(peer)
        while self.keys and self.keys[0][2].at + limits.key_lifetime <= now:
            del self.keys[0]
        idle = [peer for since, peer in self.idle if since + limits.forget_after <= now]
        gone = [peer for since, peer in self.gone if since + limits.forget_transient_after <= now]
        for peer in idle + gone:
            self.forget(peer)

    def owed(self) -> list[Sent]:
        """Messages whose sender is still to hear of them."""
        return [sent for sent in self.accepted if sent.state is None]

    # The journal ---------------------------------------------------------------------------

    def commit(self) -> None:
        """All that was accepted is on disk now."""
        for sent in self.accepted:
            if not sent.is_recorded:
                sent.is_recorded, sent.recorded_state = True, sent.state

    def withdraw(self, sent: Sent) -> None:
        """It could not be recorded."""
        self.accepted.remove(sent)
        for client, id in sent.waiters:
            if client.state == "open":
                self.write(client, "error", id)
        sent.waiters = []
        for copy in list(sent.copies):
            sent.copies.remove(copy)
            peer = self.peers[copy.to]
            if copy in peer.queue:
                peer.queue.remove(copy)
                self.rest(peer)
            else:
                assert peer.client is not None
                peer.client.in_flight.remove(copy)
                self.drain(peer)
        self.keys = [entry for entry in self.keys if entry[2] is not sent]
        self.log("withdrawn", sent.sender)

    def restart(self) -> None:
        """The relay died, and another one goes on with the journal."""
        recorded = [sent for sent in self.accepted if sent.is_recorded]
        known = sorted(self.peers.items())
        self.begin()
        self.peers = {name: Known(name, *peer.description()) for name, peer in known}
        for sent in recorded:
            sent.at = sent.ts / 1000 - self.epoch
            sent.waiters = []
            keeps = sent.key is not None and sent.recorded_state is not None
            sent.state = sent.recorded_state if keeps else "queued" if sent.copies else "delivered"
            for copy in sent.copies:
                self.peers[copy.to].queue.append(copy)
        keyed = {(sent.sender, sent.key): sent for sent in recorded if sent.key is not None}
        oldest_first = sorted(keyed.items(), key=lambda entry: entry[1].ts)
        self.keys = [(*key, sent) for key, sent in oldest_first][-self.limits.keys :]
        for peer in self.peers.values():
            if peer.transient:
                self.gone.append((self.now, peer))
            else:
                self.rest(peer)
        self.accepted = recorded

    # What comes out ------------------------------------------------------------------------

    def write(self, client: Client, *event: Any) -> None:
        if client.state == "open" or event[0] == "close":
            self.written.append((client, event))

    def acknowledge(self, client: Client, id: int, sent: Sent) -> None:
        skipped = None if sent.skipped is None else tuple(sent.skipped)
        self.write(client, "ack", id, sent.state, sent.text, sent.expires, sent.count, skipped)

    def turn_down(self, client: Client, id: int, reason: str) -> None:
        self.recorded.append(("turned down", client.name, reason))
        self.write(client, "error", id)

    def log(self, event: str, name: str, count: int | None = None) -> None:
        self.recorded.append(("log", event, name, count))


def is_sound(frame: Any) -> bool:
    """Whether a frame says nothing that is wrong by itself."""
    return (
        bool(frame.text.strip())
        and (frame.ttl is None or 1 <= frame.ttl <= MAX_TTL)
        and (frame.key is None or 1 <= len(frame.key) <= 64)
        and (frame.reply_to is None or len(frame.reply_to) == 36)
        and is_name(frame.to.removeprefix("@"))
    )


def size(copies: list[Copy]) -> int:
    return sum(len(copy.sent.text.encode()) for copy in copies)
