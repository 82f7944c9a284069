"""The core, driven at random, and held against a model that is too simple to be wrong.

After each step the core must have written to every connection, and recorded, exactly what the
model says (support/core_model.py), for its reasons, and hold exactly what the model holds. Two
things are checked without the model: on one connection each sender's messages come in the order
of acceptance and none comes twice; and what a journal makes of the records is all there is, so
that a fresh core goes on from it.
"""

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from support.core import ALICE, BOB, EPOCH, SHARED
from support.core_model import Client, Copy, Event, Model, Sent

from hoptell import frames
from hoptell.errors import ProtocolError
from hoptell.relay.core import Relay
from hoptell.relay.model import (
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
from hoptell.settings import Rate

NAMES = ("alice", "bob", "bob-2", "carol", "dave")
LIMITS = Limits(
    in_flight=2,
    queued_per_peer=3,
    queued=7,
    queued_bytes=80,
    known_names=4,
    keys=4,
    repeats=2,
)
RATE = Rate(8, 10)
REFERENCE = "01234567-89ab-4cde-8f01-234567890001"
WRONG_HELLOS = (
    (frames.Hello("alice", "t", v=2), SHARED),
    (frames.Hello("alice", "t"), None),
    (frames.Hello("alice", "t"), BOB),
    (frames.Hello("bob", "t"), ALICE),
    (frames.Hello("no name", "t"), SHARED),
    (frames.Hello("alice", "t", roles=["all"]), SHARED),
)
WRONG_SENDS: list[dict[str, Any]] = [
    *(dict(to=name) for name in NAMES),  # one's own, or unknown
    *(dict(to=address) for address in ("", "@", "@nobody")),
    *(dict(text=" "), dict(reply_to="x")),
    *(dict(ttl=0), dict(ttl=604_801), dict(key=""), dict(key="k" * 65)),
]
T = TypeVar("T")

picks = st.integers(0, 999)
"""Which one of those that there are; see `pick`."""
names = st.sampled_from(NAMES)


def pick(choices: list[T], number: int) -> T:
    return choices[number % len(choices)]


@dataclass
class Journal:
    """What a journal makes of the records; messages that it has not written yet are apart."""

    peers: dict[str, Peer] = field(default_factory=dict)
    deliveries: dict[str, Delivery] = field(default_factory=dict)
    keys: dict[tuple[str, str], tuple[Message, frames.Ack | None]] = field(default_factory=dict)
    unwritten: list[Accepted] = field(default_factory=list)

    def record(self, effect: Effect) -> None:
        if isinstance(effect, Accepted):
            self.unwritten.append(effect)
        elif isinstance(effect, Confirmed | Expired):
            self.deliveries.pop(effect.delivery.id, None)
            for accepted in self.unwritten:
                left = [d for d in accepted.deliveries if d is not effect.delivery]
                index = self.unwritten.index(accepted)
                self.unwritten[index] = msgspec.structs.replace(accepted, deliveries=left)
        elif isinstance(effect, Known):
            self.peers[effect.peer.name] = effect.peer
        elif isinstance(effect, Forgotten):
            del self.peers[effect.name]

    def write(self) -> None:
        for accepted in self.unwritten:
            self.deliveries.update({delivery.id: delivery for delivery in accepted.deliveries})
            if accepted.key is not None:
                receipt = accepted.receipt
                answer = None if receipt.state is None else receipt.ack(0)
                self.keys[accepted.message.sender, accepted.key] = accepted.message, answer
        self.unwritten = []

    def restored(self, epoch: float) -> Restored:
        """All of it, in new objects."""
        peers = {name: Peer(name) for name in sorted(self.peers)}
        for name, peer in peers.items():
            old = self.peers[name]
            peer.host, peer.roles, peer.wake = old.host, list(old.roles), old.wake
            peer.transient = old.transient
        receipts: dict[str, Receipt] = {}
        deliveries = []
        for old_delivery in self.deliveries.values():
            message = old_delivery.message
            receipt = receipts.setdefault(
                message.reference, Receipt(message.reference, 0, message.expires, "queued", ())
            )
            peer = peers[old_delivery.peer.name]
            deliveries.append(Delivery(old_delivery.id, message, peer, receipt))
        keys = []
        for (sender, key), (message, answer) in sorted(
            self.keys.items(), key=lambda entry: entry[1][0].ts
        ):
            receipt = receipts.get(message.reference) or Receipt(
                message.reference, 0, message.expires, "delivered", ()
            )
            receipt.accepted_at = message.ts / 1000 - epoch
            if answer is not None:
                receipt.state, receipt.count = answer.state, answer.count
                receipt.skipped = answer.skipped
            keys.append((sender, key, receipt))
        return Restored(list(peers.values()), deliveries, keys)


class CoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.epoch = EPOCH
        self.model = Model(LIMITS, RATE, self.now, self.epoch)
        self.journal = Journal()
        self.relays = itertools.count(16)
        self.relay = self.new_relay()
        self.numbers = itertools.count(1)
        self.by_connection: dict[Connection, Client] = {}
        self.texts: dict[str, str] = {}
        """By message reference."""
        self.ids: dict[tuple[str, str], str] = {}
        """Delivery ids by text and recipient."""
        self.last: dict[tuple[Connection, str], int] = defaultdict(int)
        """The number of a sender's latest message on a connection."""
        self.disk_is_slow = False
        self.lost_keys: list[tuple[str, str, str]] = []
        """Sender, key and address of messages that were lost before anybody heard of them."""

    def new_relay(self) -> Relay:
        relay = Relay(id_seed=f"{next(self.relays):02x}" * 9, rate=RATE, limits=LIMITS)
        relay.epoch = self.epoch
        return relay

    # Logins and ends ------------------------------------------------------------------------

    @initialize()
    def three_peers_are_online(self) -> None:
        for name in ("alice", "bob", "carol"):
            self.hello(frames.Hello(name, "t", host="a-host", roles=["role"]), SHARED)

    # Rules are chosen about equally often: what is rare stands in one rule with its like.

    @rule(
        name=names,
        roles=st.sampled_from([["role"], ["role", "crew"], []]),
        wake=st.sampled_from(["hook", None]),
        transient=st.sampled_from([False, False, True]),
        mode=st.sampled_from(["peer", "peer", "peer", "send"]),
        credential=st.sampled_from([SHARED, SHARED, BOB]),
    )
    def log_in(self, name: str, credential: Credential, **fields: Any) -> None:
        credential = credential if name.startswith("bob") else SHARED
        self.hello(frames.Hello(name, "t", host=f"{name}-host", **fields), credential)

    def come_back(self, name: str) -> None:
        """Log in as before."""
        peer = self.model.peers[name]
        hello = frames.Hello(name, "t", host=peer.host, roles=peer.roles, wake=peer.wake)
        self.hello(msgspec.structs.replace(hello, transient=peer.transient), SHARED)

    def hello(self, hello: frames.Hello, credential: Credential | None) -> None:
        client = self.open()
        self.relay.login(client.connection, hello, credential, now=self.now)
        forgotten = [effect.name for effect in self.relay.effects if isinstance(effect, Forgotten)]
        self.model.log_in(client, hello, credential, forgotten)
        self.compare()

    def open(self) -> Client:
        connection = Connection(transport=None)
        self.relay.opened(connection, now=self.now)
        client = self.by_connection[connection] = self.model.open(connection)
        return client

    @rule(number=picks, how_many=st.sampled_from([1, 1, 2, 9]), goodbye=st.booleans())
    def lose_connections(self, number: int, how_many: int, goodbye: bool) -> None:
        for _ in range(how_many):
            if clients := self.model.clients + self.model.connecting:
                client = pick(clients, number)
                self.relay.closed(client.connection, now=self.now, said_goodbye=goodbye)
                self.model.lost(client, said_goodbye=goodbye)
                self.compare()

    @rule(
        what=st.sampled_from(["nothing", "restart", {SHARED}, {BOB}, {SHARED, BOB}]),
        come_back=st.sampled_from([True, True, False]),
    )
    def operate(self, what: Any, come_back: bool) -> None:
        """Start the relay again, or reload its members; then those who were there may return."""
        if what == "restart":
            self.restart()
        elif what != "nothing":
            self.relay.reload(what, now=self.now)
            self.model.reload(what)
            self.compare()
        if come_back:
            for name, peer in list(self.model.peers.items()):
                if peer.client is None:
                    self.come_back(name)

    def restart(self) -> None:
        """It dies, and a new one goes on with the journal."""
        for accepted in self.journal.unwritten:
            self.is_lost(accepted)
        self.journal.unwritten = []
        self.disk_is_slow = False
        self.relay = self.new_relay()
        self.relay.restore(self.journal.restored(self.epoch), now=self.now)
        self.model.restart()
        self.compare()

    @rule(number=picks, other=picks)
    def say_something_else(self, number: int, other: int) -> None:
        """Before the login or after it, and mostly wrong."""
        what = pick(["hello", "nothing", "noise", "got", "list", "send", "send"], number)
        clients = self.model.clients
        if what == "hello":
            self.hello(*pick(WRONG_HELLOS, other))
        elif what == "nothing":
            self.open()
        elif what == "noise" and (clients := self.model.clients + self.model.connecting):
            client = pick(clients, other)
            self.relay.protocol_error(client.connection, ProtocolError("?"), 7, now=self.now)
            self.model.unreadable(client, 7)
        elif what == "got" and clients and self.ids:
            connection = pick(clients, other).connection
            id = pick(list(self.ids.values()), other)
            if id not in connection.in_flight:
                self.relay.receive(connection, frames.Got(id), now=self.now)
        elif what == "list" and clients:
            client = pick(clients, other)
            self.relay.receive(client.connection, frames.List(7), now=self.now)
            self.model.show_peers(client, 7)
        elif what == "send" and clients:
            self.do_send(pick(clients, other), **{"to": "alice", **pick(WRONG_SENDS, other)})
        self.compare()

    # Messages -------------------------------------------------------------------------------

    @precondition(lambda self: self.model.clients)
    @rule(
        sender=picks,
        to=picks,
        how_many=st.integers(1, 6),
        size=st.integers(6, 20),
        letter=st.sampled_from("xé"),
        fields=st.fixed_dictionaries(
            {
                "ttl": st.sampled_from([None, 1, 20]),
                "key": st.sampled_from([None, "a key"]),
                "reply_to": st.sampled_from([None, REFERENCE]),
            }
        ),
    )
    def send(
        self,
        sender: int,
        to: int,
        how_many: int,
        size: int,
        letter: str,
        fields: dict[str, Any],
    ) -> None:
        """Some messages to somebody who is there."""
        client = pick(self.model.clients, sender)
        others = [name for name in self.model.peers if name != client.name]
        address = pick([*others, "@all"], to)
        for _ in range(how_many):
            self.do_send(client, address, size, letter, **fields)

    @precondition(lambda self: len(self.model.online("all", but="")) > 1)
    @rule(
        sender=picks,
        role=st.sampled_from(["@all", "@role", "@crew"]),
        ttl=st.sampled_from([None, 1]),
        key=st.sampled_from([None, "a key"]),
    )
    def send_to_many(self, sender: int, role: str, ttl: int | None, key: str | None) -> None:
        self.do_send(pick(self.model.clients, sender), role, ttl=ttl, key=key)

    @precondition(lambda self: self.model.keys or self.lost_keys)
    @rule(number=picks, times=st.integers(1, 3))
    def repeat(self, number: int, times: int) -> None:
        known = [(name, key, sent.to) for name, key, sent in self.model.keys]
        name, key, to = pick(known + self.lost_keys, number)
        self.lost_keys = [lost for lost in self.lost_keys if lost[:2] != (name, key)]
        clients = [client for client in self.model.clients if client.name == name]
        if not clients:
            self.hello(frames.Hello(name, "t", mode="send"), SHARED)
            clients = [client for client in self.model.clients if client.name == name]
        for _ in range(times):
            self.do_send(pick(clients, number), to, key=key)

    def do_send(
        self, client: Client, to: str, size: int = 6, letter: str = "x", **fields: Any
    ) -> None:
        number = next(self.numbers)
        fields = {"text": f"{number:06}".ljust(size, letter), **fields}
        if fields.get("key") == "a key":
            fields["key"] = f"key {number}"  # another one each time, but for `repeat`
        frame = frames.Send(number, to, **fields)
        self.relay.receive(client.connection, frame, now=self.now)
        self.model.send(client, frame)
        self.compare()

    @precondition(lambda self: self.in_flight())
    @rule(number=picks)
    def confirm(self, number: int) -> None:
        client, copy = pick(self.in_flight(), number)
        got = frames.Got(self.ids[copy.sent.text, copy.to])
        self.relay.receive(client.connection, got, now=self.now)
        self.model.confirm(client, copy)
        self.compare()

    @precondition(lambda self: self.in_flight())
    @rule(number=picks, how_many=st.integers(2, 9))
    def confirm_some(self, number: int, how_many: int) -> None:
        for _ in range(how_many):
            if self.in_flight():
                self.confirm(number)

    # Time -----------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0, 0.5, 1, 5, 15, 601, 6 * 3600.0]))
    def wait(self, seconds: float) -> None:
        """The way the shell does: it ticks whenever the core said that something may be due."""
        end = self.now + seconds
        while True:
            due, deadline = self.model.next_due(), self.relay.next_deadline()
            if due is not None and due <= end:
                assert deadline is not None and deadline <= due, "the core forgot what is due"
            self.pass_time(end if deadline is None else max(self.now, min(deadline, end)))
            self.relay.tick(self.now)
            self.model.tick()
            self.compare()
            deadline = self.relay.next_deadline()
            assert deadline is None or deadline > self.now
            if self.now == end:
                return

    @rule(
        seconds=st.sampled_from([0, 1, 5, 15, 601]),
        clock=st.sampled_from([0, 0, -3600, -1, 1, 19, 600]),
        ticks=st.booleans(),
    )
    def be_busy(self, seconds: float, clock: float, ticks: bool) -> None:
        """Time goes on, or the clock is set, and the core hears of it late."""
        self.pass_time(self.now + seconds)
        self.epoch += clock
        self.relay.epoch = self.model.epoch = self.epoch
        if ticks:
            self.relay.tick(self.now)
            self.model.tick()
        self.compare()

    def pass_time(self, now: float) -> None:
        self.now = self.model.now = now

    # The journal ----------------------------------------------------------------------------

    @rule(is_full=st.booleans())
    def the_disk_gets_slow_or_goes_on(self, is_full: bool) -> None:
        self.disk_is_slow = not self.disk_is_slow
        if is_full:  # what was accepted since it got slow is taken back
            unwritten, self.journal.unwritten = self.journal.unwritten, []
            for accepted in unwritten:
                self.relay.withdraw(accepted, "no room", now=self.now)
                self.model.withdraw(self.sent(accepted.message.text))
                self.compare()
                self.is_lost(accepted)
        self.compare()

    def is_lost(self, accepted: Accepted) -> None:
        """Nobody has heard of this message; a repeat of it is accepted, with the same ids."""
        message = accepted.message
        del self.texts[message.reference]
        for copy in [copy for copy in self.ids if copy[0] == message.text]:
            del self.ids[copy]
        if accepted.key is not None:
            self.lost_keys.append((message.sender, accepted.key, message.to))

    # What must hold -------------------------------------------------------------------------

    def compare(self) -> None:
        """The core did what the model did."""
        effects = self.relay.take_effects()
        written: dict[Client, list[Event]] = defaultdict(list)
        recorded = []
        for effect in effects:
            if isinstance(effect, Accepted):
                self.note(effect)
            if isinstance(effect, Deliver | Acknowledge | Write | Close):
                written[self.by_connection[effect.connection]].append(self.event(effect))
            else:
                recorded.append(self.record(effect))
                self.journal.record(effect)
            if isinstance(effect, Deliver):
                self.follows_the_one_before(effect)
        expected: dict[Client, list[Event]] = defaultdict(list)
        for client, event in self.model.written:
            expected[client].append(event)
        assert written == expected
        assert sorted(recorded, key=repr) == sorted(self.model.recorded, key=repr)
        self.model.written, self.model.recorded = [], []
        if not self.disk_is_slow:
            self.journal.write()
            self.model.commit()

    def follows_the_one_before(self, effect: Deliver) -> None:
        message = effect.delivery.message
        stream = effect.connection, message.sender
        assert int(message.text[:6]) > self.last[stream]
        self.last[stream] = int(message.text[:6])

    @invariant()
    def it_holds_what_the_model_holds(self) -> None:
        relay, model = self.relay, self.model
        peers = relay._peers
        assert set(peers) == set(model.peers)
        for name, known in model.peers.items():
            peer = peers[name]
            assert [d.message.text for d in peer.queue] == texts(known.queue)
            connection = known.client.connection if known.client else None
            assert peer.connection is connection
            if known.client is not None:
                flying = [d.message.text for d in known.client.connection.in_flight.values()]
                assert flying == texts(known.client.in_flight)
        queued = model.queued()
        assert relay.gauges() == Gauges(
            connections=len(model.clients),
            online=len(model.online("all", but="")),
            known=len(model.peers),
            queued=len(queued),
            queued_bytes=sum(len(copy.sent.text.encode()) for copy in queued),
            in_flight=sum(len(client.in_flight) for client in model.clients),
        )

    @invariant()
    def every_accepted_delivery_is_in_the_journal_until_it_is_confirmed_or_expired(self) -> None:
        kept = [(d.message.text, d.peer.name) for d in self.journal.deliveries.values()]
        copies = [copy for sent in self.model.accepted for copy in sent.copies if sent.is_recorded]
        assert sorted(kept) == sorted((copy.sent.text, copy.to) for copy in copies)
        numbers = [text for text, _ in kept]
        assert numbers == sorted(numbers), "in the order of acceptance"
        assert set(self.journal.peers) == set(self.model.peers)

    @invariant()
    def no_bound_is_exceeded(self) -> None:
        relay = self.relay
        peers = relay._peers.values()
        for peer in peers:
            if peer.connection is not None:
                assert len(peer.connection.in_flight) <= LIMITS.in_flight
            # What a lost connection had not confirmed may come on top.
            assert len(peer.queue) <= LIMITS.queued_per_peer + LIMITS.in_flight
        on_top = LIMITS.in_flight * len(NAMES)
        assert sum(len(peer.queue) for peer in peers) <= LIMITS.queued + on_top
        assert len(peers) <= LIMITS.known_names
        assert len(relay._keys) <= LIMITS.keys
        assert len(relay._awaiting) <= on_top
        watched = [delivery.id for *_, delivery in relay._deadlines]
        assert len(watched) == len(set(watched)), "each deadline once"

    def teardown(self) -> None:
        """In the end everybody comes, reads and confirms, and nothing is left."""
        self.disk_is_slow = False
        self.compare()
        for name in list(self.model.peers):
            self.come_back(name)
        while self.in_flight():
            self.confirm(0)
        self.it_holds_what_the_model_holds()
        assert not self.journal.deliveries
        assert self.relay.gauges().queued == self.relay.gauges().in_flight == 0

    # Words ----------------------------------------------------------------------------------

    def in_flight(self) -> list[tuple[Client, Copy]]:
        """What can be confirmed: nobody has seen what the disk has not written yet."""
        return [
            (client, copy)
            for client in self.model.clients
            for copy in client.in_flight
            if copy.sent.is_recorded
        ]

    def sent(self, text: str) -> Sent:
        [sent] = [sent for sent in self.model.accepted if sent.text == text]
        return sent

    def note(self, accepted: Accepted) -> None:
        """Learn the ids of a message: they are the core's own."""
        message = accepted.message
        assert message.reference not in self.texts
        self.texts[message.reference] = message.text
        for delivery in accepted.deliveries:
            assert delivery.message is message and delivery.id not in self.ids.values()
            self.ids[message.text, delivery.peer.name] = delivery.id

    def event(self, effect: Deliver | Acknowledge | Write | Close) -> Event:
        if isinstance(effect, Close):
            return ("close", effect.code)
        if isinstance(effect, Deliver):
            delivery, message = effect.delivery, effect.delivery.frame()
            assert message.message_id in self.texts, "it was recorded before"
            assert message.id == self.ids[message.text, effect.connection.name]
            assert delivery.message.size == len(message.text.encode())
            said_by = (message.sender, message.member, message.host)
            rest = (message.to, message.ts, message.reply_to, message.expires, message.no_reply)
            return ("message", message.text, *said_by, *rest)
        if isinstance(effect, Acknowledge):
            ack = effect.receipt.ack(effect.id)
            skipped = None if ack.skipped is None else tuple(ack.skipped)
            text = self.texts[ack.message_id]
            return ("ack", ack.id, ack.state, text, ack.expires, ack.count, skipped)
        frame = effect.frame
        if isinstance(frame, frames.Peers):
            peers = [
                (info.name, info.host, tuple(info.roles), info.online, info.queued, info.wake)
                for info in frame.peers
            ]
            return ("peers", frame.id, tuple(peers))
        if isinstance(frame, frames.Error):
            return ("error", frame.id)
        assert isinstance(frame, frames.Welcome)
        return ("welcome", frame.name)

    def record(self, effect: Effect) -> Event:
        if isinstance(effect, Accepted):
            recipients = tuple(sorted(delivery.peer.name for delivery in effect.deliveries))
            return ("accepted", effect.message.text, effect.key, recipients)
        if isinstance(effect, Confirmed):
            return ("confirmed", effect.delivery.message.text, effect.delivery.peer.name)
        if isinstance(effect, Expired):
            return ("expired", effect.delivery.message.text, effect.delivery.peer.name)
        if isinstance(effect, Known):
            peer = effect.peer
            return ("known", peer.name, peer.host, peer.roles, peer.wake, peer.transient)
        if isinstance(effect, Forgotten):
            return ("forgotten", effect.name)
        if isinstance(effect, TurnedDown):
            return ("turned down", effect.name, effect.reason)
        if isinstance(effect, LoginTurnedDown):
            return ("login turned down", effect.code)
        assert isinstance(effect, Log)
        name = effect.fields.get("name") or effect.fields["sender"]
        return ("log", effect.event, name, effect.fields.get("count"))


def texts(copies: list[Copy]) -> list[str]:
    return [copy.sent.text for copy in copies]


CoreMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
TestCore = CoreMachine.TestCase
