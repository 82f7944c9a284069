"""The core, driven at random, against a model that is too simple to be wrong.

The model keeps one list a recipient, of every accepted delivery that is neither confirmed nor
expired, in the order of acceptance. Whatever happens, the core's queue and in-flight deliveries
together must be that list, and what a recipient sees must follow it.
"""

import itertools
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.core import BOB, EPOCH, SHARED, Driver

from hoptell import frames
from hoptell.relay.model import Close, Connection, Deliver, Effect, Write
from hoptell.settings import Rate

NAMES = ("alice", "bob", "bob-2", "carol", "dave")
names = st.sampled_from(NAMES)
LIMITS = dict(in_flight=2, queued_per_peer=3, queued=7, queued_bytes=60, known_names=4, keys=5)


@dataclass
class Waiting:
    """A delivery as the model sees it."""

    text: str
    sender: str
    expires: float | None
    """Unix seconds."""


@dataclass
class Owed:
    """An accepted send whose sender is still to hear of it."""

    at: float
    recipient: str
    text: str
    sender: Connection


@dataclass
class Model:
    waiting: dict[str, list[Waiting]] = field(default_factory=lambda: {name: [] for name in NAMES})
    confirmed: set[tuple[str, str]] = field(default_factory=set)
    expired: set[tuple[str, str]] = field(default_factory=set)


class CoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(rate=Rate(6, 10), **LIMITS)
        self.model = Model()
        self.online: dict[str, Connection] = {}
        self.senders: list[Connection] = []
        self.dead: set[Connection] = set()
        self.ids: dict[str, tuple[str, str]] = {}
        self.owed: dict[int, Owed] = {}
        self.answered: set[int] = set()
        self.attempts: dict[str, list[float]] = {}
        self.keys: dict[tuple[str, str], Owed] = {}
        self.numbers = itertools.count(1)

    # What can happen ------------------------------------------------------------------------

    @rule(name=names, member=st.booleans())
    def log_in(self, name: str, member: bool) -> None:
        older = self.online.get(name)
        credential = BOB if member and name.startswith("bob") else SHARED
        connection = self.driver.hello(name, credential, roles=["role"])
        effects = self.driver.take()
        if connection.state == "open":
            if older is not None:
                assert any(isinstance(e, Close) and e.connection is older for e in effects)
                self.dead.add(older)
            self.online[name] = connection
        self.see(effects)

    @rule(name=names)
    def log_in_to_send(self, name: str) -> None:
        self.senders.append(self.driver.login(name, mode="send"))

    @precondition(lambda self: self.online or self.senders)
    @rule(data=st.data(), to=names, size=st.integers(1, 20), ttl=st.sampled_from([None, 1, 20]))
    def send(self, data: st.DataObject, to: str, size: int, ttl: int | None) -> None:
        connection = data.draw(st.sampled_from([*self.online.values(), *self.senders]))
        number = next(self.numbers)
        text = f"{number:08}".ljust(size, "x")
        before = self.snapshot()
        attempts = self.attempts.setdefault(connection.name, [])
        over = sum(at > self.driver.now - 10 for at in attempts) >= 6
        attempts.append(self.driver.now)
        send = frames.Send(number, to, text, ttl)
        self.driver.relay.receive(connection, send, now=self.driver.now)
        effects = self.driver.take()
        refused = any(isinstance(e, Write) and isinstance(e.frame, frames.Error) for e in effects)
        if over:
            assert refused
        if refused:
            assert len(effects) == 1 and self.snapshot() == before
            return
        assert to != connection.name
        self.accept(to, text, connection.name, ttl)
        self.owed[number] = Owed(self.driver.now, to, text, connection)
        self.see(effects)

    @precondition(lambda self: self.online)
    @rule(data=st.data(), address=st.sampled_from(["@all", "@role", "@nobody"]))
    def send_to_many(self, data: st.DataObject, address: str) -> None:
        connection = data.draw(st.sampled_from(list(self.online.values())))
        number = next(self.numbers)
        text = f"{number:08}"
        self.attempts.setdefault(connection.name, []).append(self.driver.now)
        send = frames.Send(number, address, text)
        self.driver.relay.receive(connection, send, now=self.driver.now)
        effects = self.driver.take()
        [answer] = [e.frame for e in effects if isinstance(e, Write)]
        others = set(self.online) - {connection.name}
        if isinstance(answer, frames.Error):
            assert len(effects) == 1
            return
        assert address != "@nobody" and others
        assert answer.count + len(answer.skipped) == len(others)
        for name in others - set(answer.skipped):
            self.accept(name, text, connection.name, None)
        self.see([e for e in effects if not isinstance(e, Write)])

    @precondition(lambda self: self.online)
    @rule(data=st.data(), to=names, key=st.sampled_from(["k1", "k2"]))
    def send_with_key(self, data: st.DataObject, to: str, key: str) -> None:
        connection = data.draw(st.sampled_from(list(self.online.values())))
        number = next(self.numbers)
        text = f"{number:08}"
        send = frames.Send(number, to, text, key=key)
        known = (connection.name, key) in self.driver.relay._keys
        before = self.snapshot()
        self.driver.relay.receive(connection, send, now=self.driver.now)
        effects = self.driver.take()
        first = self.keys.get((connection.name, key))
        if known:
            assert first is not None and first.at > self.driver.now - 600
            assert self.snapshot() == before
            if not effects:  # the first one is in flight: both are answered when it lands
                self.owed[number] = Owed(first.at, first.recipient, first.text, connection)
            return
        self.attempts.setdefault(connection.name, []).append(self.driver.now)
        if any(isinstance(e, Write) and isinstance(e.frame, frames.Error) for e in effects):
            assert len(effects) == 1 and self.snapshot() == before
            return
        self.accept(to, text, connection.name, None)
        owed = Owed(self.driver.now, to, text, connection)
        self.owed[number] = self.keys[connection.name, key] = owed
        self.see(effects)

    @precondition(lambda self: any(c.in_flight for c in self.online.values()))
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        connection = data.draw(st.sampled_from([c for c in self.online.values() if c.in_flight]))
        id = data.draw(st.sampled_from(list(connection.in_flight)))
        text, name = self.ids[id]
        waiting = self.model.waiting[name]
        [entry] = [entry for entry in waiting if entry.text == text]
        waiting.remove(entry)
        assert (text, name) not in self.model.confirmed
        self.model.confirmed.add((text, name))
        self.see(self.driver.got(connection, id))

    @rule(data=st.data())
    def confirm_nonsense(self, data: st.DataObject) -> None:
        if self.online and self.ids:
            connection = data.draw(st.sampled_from(list(self.online.values())))
            id = data.draw(st.sampled_from(list(self.ids)))
            if id not in connection.in_flight:
                assert self.driver.got(connection, id) == []

    @precondition(lambda self: self.online)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.online)))
        connection = self.online.pop(name)
        self.dead.add(connection)
        effects = self.driver.close(connection)
        self.expire()
        self.see(effects)

    @rule(seconds=st.sampled_from([0.5, 1, 5, 15, 601, 6 * 3600]))
    def wait(self, seconds: float) -> None:
        effects = self.driver.wait(seconds)
        self.expire()
        self.see(effects)
        for number, owed in self.owed.items():
            in_time = owed.at > self.driver.now - 5
            assert in_time or number in self.answered or owed.sender in self.dead

    @rule(shared=st.booleans())
    def reload(self, shared: bool) -> None:
        valid = {SHARED} if shared else {BOB}
        gone = [c for c in [*self.online.values(), *self.senders] if c.credential not in valid]
        self.driver.relay.reload(valid, now=self.driver.now)
        effects = self.driver.take()
        closed = [e.connection for e in effects if isinstance(e, Close)]
        assert sorted(map(id, closed)) == sorted(map(id, gone))
        self.dead.update(gone)
        self.online = {name: c for name, c in self.online.items() if c not in self.dead}
        self.senders = [c for c in self.senders if c not in self.dead]
        self.expire()
        self.see(effects)

    # What must hold --------------------------------------------------------------------------

    @invariant()
    def every_delivery_is_in_exactly_one_place_in_the_order_of_acceptance(self) -> None:
        self.expire()
        relay = self.driver.relay
        for name, waiting in self.model.waiting.items():
            peer = relay._peers.get(name)
            wall = self.wall()
            flying = list(peer.connection.in_flight.values()) if peer and peer.connection else []
            queued = list(peer.queue) if peer else []
            held = [d.message.text for d in flying]
            held += [
                d.message.text
                for d in queued
                if d.message.expires is None or d.message.expires / 1000 > wall
            ]
            assert sorted(held) == sorted(entry.text for entry in waiting)
            for sender in NAMES:
                mine = [t for t in held if any(e.text == t and e.sender == sender for e in waiting)]
                assert mine == [entry.text for entry in waiting if entry.sender == sender]

    @invariant()
    def no_bound_is_exceeded(self) -> None:
        relay = self.driver.relay
        peers = relay._peers.values()
        flying = 0
        for peer in peers:
            if peer.connection is not None:
                assert len(peer.connection.in_flight) <= LIMITS["in_flight"]
                flying += len(peer.connection.in_flight)
            # What a lost connection had not confirmed may come on top.
            assert len(peer.queue) <= LIMITS["queued_per_peer"] + LIMITS["in_flight"]
        assert relay._queued == sum(len(peer.queue) for peer in peers)
        assert relay._queued_bytes == sum(d.message.size for peer in peers for d in peer.queue)
        assert relay._queued <= LIMITS["queued"] + LIMITS["in_flight"] * len(NAMES)
        assert len(peers) <= LIMITS["known_names"]
        assert len(relay._keys) <= LIMITS["keys"]
        assert len(relay._awaiting) <= flying

    @invariant()
    def who_is_online_and_idle_is_known(self) -> None:
        relay = self.driver.relay
        assert set(relay._roles["all"]) == set(self.online)
        assert set(relay._roles.get("role", {})) == set(self.online)
        for peer in relay._peers.values():
            assert (peer in relay._idle) == (peer.connection is None and not peer.queue)

    # The model's own steps -------------------------------------------------------------------

    def accept(self, to: str, text: str, sender: str, ttl: int | None) -> None:
        expires = None if ttl is None else int(self.wall() * 1000) / 1000 + ttl
        self.model.waiting[to].append(Waiting(text, sender, expires))

    def see(self, effects: list[Effect]) -> None:
        """What the recipients and senders see."""
        for effect in effects:
            assert effect.connection not in self.dead or isinstance(effect, Close)
            if isinstance(effect, Deliver):
                delivery, name = effect.delivery, effect.connection.name
                text = delivery.message.text
                assert self.online[name] is effect.connection
                assert self.ids.setdefault(delivery.id, (text, name)) == (text, name)
                assert (text, name) not in self.model.confirmed | self.model.expired
            elif isinstance(effect, Write) and isinstance(effect.frame, frames.Ack):
                self.acknowledged(effect.frame)

    def acknowledged(self, ack: frames.Ack) -> None:
        number = ack.id
        assert number not in self.answered
        self.answered.add(number)
        owed = self.owed[number]
        confirmed = (owed.text, owed.recipient) in self.model.confirmed
        assert (ack.state == "delivered") == confirmed
        if ack.state == "unconfirmed":
            self.expire()
            expired = (owed.text, owed.recipient) in self.model.expired
            assert expired or owed.at <= self.driver.now - 5

    def expire(self) -> None:
        """Drop from the model what is queued past its deadline; in flight it stays."""
        for name, waiting in self.model.waiting.items():
            flying = self.online[name].in_flight.values() if name in self.online else ()
            safe = {delivery.message.text for delivery in flying}
            for entry in list(waiting):
                late = entry.expires is not None and entry.expires <= self.wall()
                if late and entry.text not in safe:
                    waiting.remove(entry)
                    self.model.expired.add((entry.text, name))

    def snapshot(self) -> object:
        relay = self.driver.relay
        return (
            {name: [d.id for d in peer.queue] for name, peer in relay._peers.items()},
            {name: list(c.in_flight) for name, c in self.online.items()},
            relay._queued,
            relay._queued_bytes,
        )

    def wall(self) -> float:
        return self.driver.now + EPOCH


CoreMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestCore = CoreMachine.TestCase
