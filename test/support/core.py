"""Drive the relay's core with a made-up clock, and see what it wants done."""

from typing import Any

from hoptell import frames
from hoptell.relay.core import Relay
from hoptell.relay.model import (
    Accepted,
    Acknowledge,
    Close,
    Confirmed,
    Connection,
    Credential,
    Deliver,
    Effect,
    Expired,
    Forgotten,
    Known,
    Limits,
    Log,
    LoginTurnedDown,
    TurnedDown,
    Write,
)
from hoptell.settings import Rate

SHARED = Credential(None, "f" * 64)
ALICE = Credential("alice", "a" * 64)
BOB = Credential("bob", "b" * 64)
SEED = "0123456789abcdef0123456789abcdef"
RECORDS = (Accepted, Confirmed, Expired, Known, Forgotten, TurnedDown, LoginTurnedDown, Log)
EPOCH = 1_700_000_000.0


class Driver:
    """A core and its clock; what is only recorded or logged is kept apart from the rest."""

    def __init__(self, *, seed: str = SEED, rate: Rate | None = None, **limits: Any) -> None:
        self.relay = Relay(id_seed=seed, rate=rate or Rate(0), limits=Limits(**limits))
        self.relay.epoch = EPOCH
        self.now = 100.0
        self.records: list[Effect] = []

    def open(self) -> Connection:
        connection = Connection(transport=None)
        self.relay.opened(connection, now=self.now)
        return connection

    def hello(self, name: str, credential: Credential | None = SHARED, **fields: Any) -> Connection:
        """Log in, whatever comes of it; the effects are still to be taken."""
        connection = self.open()
        hello = frames.Hello(name, "a token", host=f"{name}-host", **fields)
        self.relay.login(connection, hello, credential, now=self.now)
        return connection

    def login(self, name: str, credential: Credential | None = SHARED, **fields: Any) -> Connection:
        """Log in, and drop the effects (deliveries that waited among them)."""
        connection = self.hello(name, credential, **fields)
        assert connection.state == "open", self.take()
        self.take()
        return connection

    def send(
        self, connection: Connection, to: str, text: str = "hi", **fields: Any
    ) -> list[Effect]:
        """Send with the id 1; what came of it."""
        self.relay.receive(connection, frames.Send(1, to, text, **fields), now=self.now)
        return self.take()

    def got(self, connection: Connection, id: str) -> list[Effect]:
        self.relay.receive(connection, frames.Got(id), now=self.now)
        return self.take()

    def peers(self, connection: Connection) -> list[frames.PeerInfo]:
        self.relay.receive(connection, frames.List(1), now=self.now)
        [effect] = self.take()
        assert isinstance(effect, Write) and isinstance(effect.frame, frames.Peers)
        return effect.frame.peers

    def close(self, connection: Connection) -> list[Effect]:
        self.relay.closed(connection, now=self.now)
        return self.take()

    def wait(self, seconds: float) -> list[Effect]:
        """Let time pass the way the shell does: tick at every deadline."""
        end = self.now + seconds
        while (deadline := self.relay.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.relay.tick(self.now)
            assert self.relay.next_deadline() is None or self.relay.next_deadline() > self.now
        self.now = end
        self.relay.tick(self.now)
        return self.take()

    def take(self) -> list[Effect]:
        """What the shell would send or close next; an acknowledgement as the frame that it is."""
        effects = self.relay.take_effects()
        self.records += [effect for effect in effects if isinstance(effect, RECORDS)]
        return [
            Write(effect.connection, effect.receipt.ack(effect.id))
            if isinstance(effect, Acknowledge)
            else effect
            for effect in effects
            if not isinstance(effect, RECORDS)
        ]


def delivered(effects: list[Effect], to: Connection | None = None) -> list[frames.Message]:
    """The messages among the effects, as frames."""
    return [
        effect.delivery.frame()
        for effect in effects
        if isinstance(effect, Deliver) and (to is None or effect.connection is to)
    ]


def texts(effects: list[Effect], to: Connection | None = None) -> list[str]:
    """The texts of the messages among the effects."""
    return [message.text for message in delivered(effects, to)]


def written(effects: list[Effect]) -> list[Any]:
    """The frames among the effects but messages."""
    return [effect.frame for effect in effects if isinstance(effect, Write)]


def acks(effects: list[Effect]) -> list[str]:
    """The states of the acknowledgements among the effects."""
    return [frame.state for frame in written(effects) if isinstance(frame, frames.Ack)]


def error(effects: list[Effect]) -> str:
    """The sentence of the one error that the effects must be."""
    [frame] = written(effects)
    assert isinstance(frame, frames.Error) and len(effects) == 1, effects
    return frame.error


def closes(effects: list[Effect]) -> list[tuple[Connection, int]]:
    """Which connections are to be closed, with which code."""
    return [(effect.connection, effect.code) for effect in effects if isinstance(effect, Close)]
