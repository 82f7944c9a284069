"""The sidecar's side of the relay: store, confirm, announce; and outlive every problem."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from support.relay import TOKEN, RunningRelay, running_relay
from support.sidecar import texts_in
from support.wake import Silent

from hoptell.errors import (
    ConfigurationError,
    HoptellError,
    InboxError,
    LoginRefused,
    RelayUnreachable,
    Replaced,
)
from hoptell.inbox import Inbox
from hoptell.settings import PeerSettings
from hoptell.sidecar import delivery
from hoptell.sidecar.delivery import RelaySide
from hoptell.sidecar.mailbox import Mailbox


@pytest.fixture(autouse=True)
def no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "RETRY_WAITS", (0.02, 0.05))
    monkeypatch.setattr(delivery, "CONNECT_TIMEOUT", 2.0)


@pytest.fixture
async def relay() -> AsyncIterator[RunningRelay]:
    async with running_relay() as relay:
        yield relay


class Sidecar:
    """A running RelaySide, its mailbox, and the settings that it finds."""

    def __init__(self, settings: PeerSettings | HoptellError, *, send_only: bool = False) -> None:
        self.settings = settings
        self.readings = 0
        self.mailbox = Mailbox(Silent())
        self.side = RelaySide(self._read, self.mailbox, wake="poll", send_only=send_only)

    def _read(self) -> PeerSettings:
        self.readings += 1
        if isinstance(self.settings, HoptellError):
            raise self.settings
        return self.settings


@contextlib.asynccontextmanager
async def running(
    settings: PeerSettings | HoptellError, *, send_only: bool = False
) -> AsyncIterator[Sidecar]:
    sidecar = Sidecar(settings, send_only=send_only)
    task = asyncio.create_task(sidecar.side.run())
    try:
        async with asyncio.timeout(10):
            yield sidecar
    finally:
        assert not task.done(), task
        task.cancel()
        await asyncio.wait([task])


def alice(relay: RunningRelay, home: Path, **fields: object) -> PeerSettings:
    given: dict[str, object] = {
        "relay": relay.url,
        "token": TOKEN,
        "name": "alice",
        "home": home,
        **fields,
    }
    return PeerSettings(**given)  # type: ignore[arg-type]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_delivery_is_stored_then_confirmed(relay: RunningRelay, tmp_path: Path) -> None:
    bob = await relay.login("bob")
    async with running(alice(relay, tmp_path)) as sidecar:
        await sidecar.side.connected()
        ack = await bob.ask(type="send", id=1, to="alice", text="hello")
        assert ack["state"] == "delivered"
        assert Inbox(tmp_path, "alice").waiting().count == 1


async def test_what_cannot_be_stored_is_not_confirmed_and_comes_again(
    relay: RunningRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Inbox.store
    problems = iter([InboxError("the disk is full"), InboxError("the disk is full")])

    def failing_store(inbox: Inbox, message: object) -> bool:
        for problem in problems:
            raise problem
        return store(inbox, message)  # type: ignore[arg-type]

    monkeypatch.setattr(Inbox, "store", failing_store)
    bob = await relay.login("bob")
    async with running(alice(relay, tmp_path)) as sidecar:
        await sidecar.side.connected()
        ack = await bob.ask(type="send", id=1, to="alice", text="hello")
        assert ack["state"] == "queued", "the connection was given up, unconfirmed"
        parcel = await sidecar.mailbox.wait(5)
        assert parcel is not None and texts_in(parcel.text) == ["hello"]


async def test_a_tool_that_a_broken_inbox_cut_off_names_the_inbox(
    relay: RunningRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing inside hoptell: a connection is given up when a message cannot be stored."""
    bob = await relay.login("bob")
    async with running(alice(relay, tmp_path)) as sidecar:
        client = await sidecar.side.connected()
        cut_off = asyncio.Event()

        async def never(*_: object, **__: object) -> None:
            await cut_off.wait()
            raise RelayUnreachable("this client is closed", maybe_accepted=True)

        async def refuse(message: object) -> None:
            raise InboxError("the disk is full")

        monkeypatch.setattr(client, "list_peers", never)
        monkeypatch.setattr(client, "send", never)
        monkeypatch.setattr(sidecar.mailbox, "store", refuse)
        listing = asyncio.create_task(sidecar.side.list_peers())
        sending = asyncio.create_task(sidecar.side.send("bob", "hi"))
        await asyncio.sleep(0)
        await bob.ask(type="send", id=1, to="alice", text="hello")
        await until(lambda: "disk" in str(sidecar.mailbox.problem))
        cut_off.set()
        with pytest.raises(InboxError, match="^the disk is full$"):
            await listing
        with pytest.raises(RelayUnreachable, match="^the disk is full; .* may have been") as caught:
            await sending
        assert caught.value.maybe_accepted, "or it would be sent twice"


async def test_it_goes_online_under_its_name_roles_and_way_of_being_woken(
    relay: RunningRelay, tmp_path: Path
) -> None:
    bob = await relay.login("bob")
    async with running(alice(relay, tmp_path, roles=("reviewer",))) as sidecar:
        await sidecar.side.connected()
        (peer,) = (await bob.ask(type="list", id=1))["peers"]
        assert (peer["name"], peer["roles"], peer["wake"]) == ("alice", ["reviewer"], "poll")
        assert (sidecar.side.name, sidecar.side.roles) == ("alice", ("reviewer",))
        assert sidecar.side.problem is None


async def test_where_another_process_is_online_it_only_sends(
    relay: RunningRelay, tmp_path: Path
) -> None:
    injector = await relay.login("alice")
    bob = await relay.login("bob")
    async with running(alice(relay, tmp_path), send_only=True) as sidecar:
        sending = asyncio.create_task(sidecar.side.send("bob", "hello"))
        message = await bob.receive_type("message")
        assert (message["from"], message.get("noReply")) == ("alice", None)
        await bob.got(message)
        assert (await sending).state == "delivered"
        await bob.send(type="send", id=1, to="alice", text="to the injector")
        assert (await injector.receive_type("message"))["text"] == "to the injector"


async def test_settings_that_cannot_be_used_are_read_again_until_they_can(
    relay: RunningRelay, tmp_path: Path
) -> None:
    async with running(ConfigurationError("HOPTELL_RELAY: a relay is ws://…")) as sidecar:
        await until(lambda: sidecar.readings > 2)
        with pytest.raises(ConfigurationError, match="HOPTELL_RELAY"):
            await sidecar.side.list_peers()
        with pytest.raises(ConfigurationError, match="HOPTELL_RELAY"):
            await sidecar.mailbox.take()
        assert sidecar.side.problem == "HOPTELL_RELAY: a relay is ws://…"
        sidecar.settings = alice(relay, tmp_path)
        await until(lambda: sidecar.side.problem is None)
        assert await sidecar.side.list_peers() == []


async def test_a_token_that_comes_later_is_found(relay: RunningRelay, tmp_path: Path) -> None:
    async with running(alice(relay, tmp_path, token=None)) as sidecar:
        with pytest.raises(ConfigurationError, match="no token"):
            await sidecar.side.send("bob", "hello")
        sidecar.settings = alice(relay, tmp_path)
        await until(lambda: sidecar.side.problem is None)


async def test_a_refused_login_is_not_repeated_with_the_same_settings(
    relay: RunningRelay, tmp_path: Path
) -> None:
    async with running(alice(relay, tmp_path, token="not-the-token-at-all")) as sidecar:
        await until(lambda: sidecar.readings > 5)
        assert len(relay.events("login refused")) == 1
        sidecar.settings = alice(relay, tmp_path)
        await until(lambda: sidecar.side.problem is None)


async def test_a_tool_call_asks_again_after_a_refused_login(
    relay: RunningRelay, tmp_path: Path
) -> None:
    async with running(alice(relay, tmp_path, token="not-the-token-at-all")) as sidecar:
        await until(lambda: relay.events("login refused"))
        with pytest.raises(LoginRefused):
            await sidecar.side.list_peers()
        await until(lambda: len(relay.events("login refused")) == 2)


async def test_a_relay_that_is_away_is_said_after_a_moment_and_found_when_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "CONNECT_TIMEOUT", 0.1)
    async with running_relay() as relay:
        settings = alice(relay, tmp_path)
    async with running(settings) as sidecar:
        with pytest.raises(HoptellError, match="127.0.0.1"):
            await sidecar.side.list_peers()
        assert sidecar.side.problem is not None
        assert await sidecar.mailbox.take() is None, "the inbox works all the same"


async def test_a_name_that_another_session_took_is_said_at_once(
    relay: RunningRelay, tmp_path: Path
) -> None:
    async with running(alice(relay, tmp_path)) as sidecar:
        await sidecar.side.connected()
        await relay.login("alice")
        await until(lambda: sidecar.side.problem)
        with pytest.raises(Replaced, match="another session"):
            await sidecar.side.send("bob", "hello")


async def test_an_inbox_that_cannot_be_used_keeps_it_offline(
    relay: RunningRelay, tmp_path: Path
) -> None:
    (tmp_path / "inbox").write_text("in the way")
    async with running(alice(relay, tmp_path)) as sidecar:
        with pytest.raises(InboxError):
            await sidecar.side.send("bob", "hello")
        (tmp_path / "inbox").unlink()
        await until(lambda: sidecar.side.problem is None)


async def test_a_bug_in_the_connection_does_not_end_the_sidecar(
    relay: RunningRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Mailbox.store
    bugs = iter([KeyError("x")])

    async def failing_store(mailbox: Mailbox, message: object) -> None:
        for bug in bugs:
            raise bug
        await store(mailbox, message)  # type: ignore[arg-type]

    monkeypatch.setattr(Mailbox, "store", failing_store)
    bob = await relay.login("bob")
    async with running(alice(relay, tmp_path)) as sidecar:
        await sidecar.side.connected()
        await bob.send(type="send", id=1, to="alice", text="hello")
        parcel = await sidecar.mailbox.wait(5)
        assert parcel is not None and texts_in(parcel.text) == ["hello"]


async def test_without_a_name_it_is_the_machines_and_this_processs(
    relay: RunningRelay, tmp_path: Path
) -> None:
    async with running(alice(relay, tmp_path, name=None)) as sidecar:
        client = await sidecar.side.connected()
        assert client.name == sidecar.side.name
        assert sidecar.mailbox.inbox.name == client.name
