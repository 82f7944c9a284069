"""The client against a relay that does what each test scripts."""

import asyncio
import errno
import http
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest
from support.scripted_relay import TOKEN, Pauses, ScriptedRelay, Session

from hoptell import client as client_module
from hoptell import explain, frames
from hoptell.client import RelayClient
from hoptell.errors import (
    ConfigurationError,
    HoptellError,
    LoginRefused,
    Refused,
    RelayUnreachable,
    Replaced,
)

pytestmark = pytest.mark.timeout(20)
CERTIFICATES = Path(__file__).parent / "support" / "certificates"


@pytest.fixture
async def relay() -> AsyncIterator[ScriptedRelay]:
    async with ScriptedRelay() as relay:
        yield relay


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


def lowest(low: float, high: float) -> float:
    return low


def highest(low: float, high: float) -> float:
    return high


async def no_pause(seconds: float) -> None:
    await asyncio.sleep(0)


def in_background(work: Awaitable[Any]) -> "asyncio.Future[Any]":
    return asyncio.ensure_future(work)


# Logging in -------------------------------------------------------------------------------


async def test_the_hello_says_who_the_peer_is(relay: ScriptedRelay) -> None:
    settings = relay.settings(roles=("reviewer", "backend"))
    async with RelayClient(settings, name="alice", wake="poll") as client:
        session = await relay.accept()
        await client.wait_connected()
        assert client.name == "alice"
    assert session.hello == frames.Hello(
        "alice",
        TOKEN,
        host=session.hello.host,
        roles=["reviewer", "backend"],
        wake="poll",
    )
    assert session.hello.host
    request = session.websocket.request
    assert request is not None and "Sec-WebSocket-Extensions" not in request.headers


async def test_entering_does_not_wait_and_the_problem_says_what_is_going_on(
    relay: ScriptedRelay,
) -> None:
    async with RelayClient(relay.settings()) as client:
        assert not client.connected
        assert client.problem == f"still connecting to {relay.url}"
        await relay.accept()
        await client.wait_connected()
        assert client.connected
        assert client.problem is None


async def test_leaving_closes_the_connection_properly(relay: ScriptedRelay) -> None:
    async with RelayClient(relay.settings()) as client:
        session = await relay.accept()
        await client.wait_connected()
    assert await session.wait_closed() == 1000
    assert not client.connected


@pytest.mark.parametrize("code", [4001, 4002, 4003, 4005])
async def test_a_refused_login_is_final_and_raised_everywhere(
    relay: ScriptedRelay, pauses: Pauses, code: int
) -> None:
    async with RelayClient(relay.settings(), sleep=pauses.sleep) as client:
        waiting = [
            in_background(client.wait_connected()),
            in_background(client.send("alice", "hi")),
            in_background(anext(client)),
        ]
        session = await relay.connect()
        await session.close(code, "this is why")
        for failure in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(failure, LoginRefused)
            assert failure.code == code
            assert str(failure) == f"{relay.url} does not let bob in: this is why"
        with pytest.raises(LoginRefused):
            await client.list_peers()
        assert client.problem == str(failure)
    assert pauses.asked == []


async def test_a_refusal_without_a_reason_says_what_to_do(relay: ScriptedRelay) -> None:
    async with RelayClient(relay.settings()) as client:
        await (await relay.connect()).close(4003)
        with pytest.raises(LoginRefused, match="set HOPTELL_TOKEN to the relay's token"):
            await client.wait_connected()


async def test_a_revoked_token_ends_an_open_connection_for_good(relay: ScriptedRelay) -> None:
    async with RelayClient(relay.settings(), sleep=no_pause) as client:
        session = await relay.accept()
        await client.wait_connected()
        await session.close(4003, "not valid any more")
        with pytest.raises(LoginRefused, match="not valid any more"):
            await anext(client)


async def test_what_ended_a_client_does_not_grow_each_time_it_is_told(relay: ScriptedRelay) -> None:
    async with RelayClient(relay.settings(), sleep=no_pause) as client:
        await (await relay.connect()).close(4003)
        lengths = set()
        for tell in (client.wait_connected, client.__anext__, client.list_peers) * 3:
            with pytest.raises(LoginRefused) as told:
                await tell()
            lengths.add(len(told.traceback))
        assert max(lengths) < 10


async def test_without_a_token_it_says_how_to_get_one(relay: ScriptedRelay) -> None:
    async with RelayClient(relay.settings(token=None)) as client:
        with pytest.raises(ConfigurationError, match="start `hoptell relay` once"):
            await client.wait_connected()
        with pytest.raises(ConfigurationError):
            await client.send("alice", "hi")


async def test_a_token_of_broken_characters_is_not_shown(relay: ScriptedRelay) -> None:
    async with RelayClient(relay.settings(token="secret\udcff")) as client:
        with pytest.raises(ConfigurationError, match="not UTF-8") as caught:
            await client.wait_connected()
    error: BaseException | None = caught.value
    assert "secret" not in str(error)
    assert error is not None and error.__cause__ is None and error.__suppress_context__


async def test_the_token_is_in_no_log_and_no_repr(
    relay: ScriptedRelay, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with RelayClient(relay.settings(), sleep=no_pause) as client:
        session = await relay.accept()
        await client.wait_connected()
        shown = repr(client)
        session.abort()
        await (await relay.connect()).close(4003)
        with pytest.raises(LoginRefused):
            await anext(client)
    logged = [record for record in caplog.records if record.name.startswith("hoptell.")]
    assert logged
    # The scripted relay's own library logs frames; only what this side wrote is looked at.
    assert TOKEN not in shown + "".join(record.getMessage() for record in logged)
    assert not any(record.name.startswith("websockets.client") for record in caplog.records)


async def test_another_wake_mode_is_shown_by_logging_in_again_at_once(
    relay: ScriptedRelay, pauses: Pauses
) -> None:
    async with RelayClient(relay.settings(), wake="poll", sleep=pauses.sleep) as client:
        session = await relay.accept()
        sending = in_background(client.send("alice", "hi"))
        frame = await session.receive(frames.Send)
        client.show_wake("hook")
        session = await relay.connect()
        assert session.hello.wake == "hook"
        client.show_wake("codex")  # too late for this login
        await session.send(frames.Welcome("bob"))
        session = await relay.accept()
        assert session.hello.wake == "codex"
        assert await session.receive(frames.Send) == frame
        await session.ack(frame)
        await sending
        client.show_wake("codex")
        await session.ping()
        assert client.connected
    assert pauses.asked == []


# Sending ----------------------------------------------------------------------------------


async def test_a_send_returns_the_relays_acknowledgement(relay: ScriptedRelay) -> None:
    async with RelayClient(relay.settings()) as client:
        sending = in_background(client.send("alice", "hi", ttl=60, reply_to="ref-0"))
        session = await relay.accept()
        frame = await session.receive(frames.Send)
        await session.send(frames.Ack(frame.id, "delivered", "ref-1"))
        assert await sending == frames.Ack(frame.id, "delivered", "ref-1")
    assert (frame.to, frame.text, frame.ttl, frame.reply_to) == ("alice", "hi", 60, "ref-0")


async def test_every_send_gets_a_key_of_its_own_unless_it_brings_one(relay: ScriptedRelay) -> None:
    async with RelayClient(relay.settings()) as client:
        sending = [in_background(client.send("alice", "hi")) for _ in range(2)]
        sending.append(in_background(client.send("alice", "hi", key="mine")))
        session = await relay.accept()
        keys = []
        for _ in sending:
            frame = await session.receive(frames.Send)
            await session.ack(frame)
            keys.append(frame.key)
        await asyncio.gather(*sending)
    assert keys[2] == "mine"
    assert keys[0] != keys[1]
    assert all(key and 16 <= len(key) <= frames.MAX_KEY_LENGTH for key in keys[:2])


async def test_an_error_frame_becomes_refused_in_the_relays_words(relay: ScriptedRelay) -> None:
    # Over the rate the sender hears when to try again, and the connection stays.
    async with RelayClient(relay.settings()) as client:
        session = await relay.accept()
        sending = in_background(client.send("alice", "hi"))
        frame = await session.receive(frames.Send)
        await session.send(frames.Error("too fast: try again in 3 s\x1b[2J", id=frame.id))
        with pytest.raises(Refused, match=r"^too fast: try again in 3 s \[2J$"):
            await sending
        assert client.connected


async def test_an_error_for_nobody_in_particular_disturbs_nothing(relay: ScriptedRelay) -> None:
    async with RelayClient(relay.settings()) as client:
        session = await relay.accept()
        sending = in_background(client.send("alice", "hi"))
        frame = await session.receive(frames.Send)
        await session.send(frames.Error("that was no frame"))
        await session.send(frames.Error("no such request", id="999"))
        await session.send(frames.Ack("998", "queued", "ref"))
        await session.ack(frame)
        assert (await sending).state == "queued"


async def test_a_send_cut_off_is_repeated_with_its_key(relay: ScriptedRelay) -> None:
    # The relay recognizes the repeat, and answers it with the first one's acknowledgement.
    async with RelayClient(relay.settings(), sleep=no_pause) as client:
        sending = in_background(client.send("alice", "hi"))
        session = await relay.accept()
        first = await session.receive(frames.Send)
        session.abort()
        session = await relay.accept()
        assert await session.receive(frames.Send) == first
        await session.ack(first, "the-first-reference")
        assert (await sending).message_id == "the-first-reference"


async def test_sends_cut_off_together_are_repeated_in_their_order(relay: ScriptedRelay) -> None:
    async with RelayClient(relay.settings(), sleep=no_pause) as client:
        session = await relay.accept()
        await client.wait_connected()
        sending = [in_background(client.send("alice", str(n))) for n in range(5)]
        sent = [await session.receive(frames.Send) for _ in sending]
        await session.ack(sent[1])
        await sending[1]
        session.abort()
        session = await relay.accept()
        repeated = [await session.receive(frames.Send) for _ in range(4)]
        assert repeated == [sent[0], *sent[2:]]
        for frame in repeated:
            await session.ack(frame)
        await asyncio.gather(*sending)


async def test_a_send_made_while_disconnected_goes_out_after_the_reconnect(
    relay: ScriptedRelay, pauses: Pauses
) -> None:
    async with RelayClient(relay.settings(), sleep=pauses.sleep) as client:
        (await relay.accept()).abort()
        await client.wait_disconnected()
        sending = in_background(client.send("alice", "hi"))
        await pauses.skip()
        session = await relay.accept()
        await session.ack(await session.receive(frames.Send))
        assert (await sending).state == "queued"


async def test_a_send_that_never_left_says_so(relay: ScriptedRelay, pauses: Pauses) -> None:
    settings = relay.settings()
    await relay.stop()
    async with RelayClient(settings, sleep=pauses.sleep, send_timeout=0.05) as client:
        await client.wait_disconnected()
        with pytest.raises(RelayUnreachable, match="; the message was not sent$") as caught:
            await client.send("alice", "hi")
    await relay.start()
    assert not caught.value.maybe_accepted
    assert str(caught.value).startswith(f"no relay answers at {settings.relay}: start one")


@pytest.mark.parametrize("lost", [True, False], ids=["connection lost", "relay hangs"])
async def test_a_send_without_an_answer_says_that_it_may_have_been_accepted(
    relay: ScriptedRelay, pauses: Pauses, lost: bool
) -> None:
    async with RelayClient(relay.settings(), sleep=pauses.sleep, send_timeout=0.3) as client:
        sending = in_background(client.send("alice", "hi"))
        session = await relay.accept()
        await session.receive(frames.Send)
        if lost:
            session.abort()
        with pytest.raises(RelayUnreachable, match="may have been accepted already") as caught:
            await sending
    assert caught.value.maybe_accepted
    assert ("was lost" in str(caught.value)) == lost


async def test_a_send_that_was_given_up_is_not_repeated(relay: ScriptedRelay) -> None:
    async with RelayClient(relay.settings(), sleep=no_pause) as client:
        session = await relay.accept()
        sending = in_background(client.send("alice", "not again"))
        await session.receive(frames.Send)
        sending.cancel()
        await asyncio.wait([sending])
        session.abort()
        session = await relay.accept()
        sending = in_background(client.send("alice", "next"))
        assert (await session.receive(frames.Send)).text == "next"
        await session.ack(frames.Send("2", "alice", "next"))
        await sending


async def test_what_cannot_be_sent_is_refused_and_the_connection_stays(
    relay: ScriptedRelay,
) -> None:
    async with RelayClient(relay.settings()) as client:
        session = await relay.accept()
        with pytest.raises(Refused, match="the text has 100,001 characters; at most 100,000"):
            await client.send("alice", "x" * 100_001)
        with pytest.raises(Refused, match=r"^U\+DCFF at position 2 is half a character"):
            await client.send("alice", "hi\udcff")
        with pytest.raises(Refused, match="too large for one frame"):
            await client.send("a" * frames.MAX_FRAME_BYTES, "hi")
        sending = in_background(client.send("alice", "\x00" * 100_000))
        frame = await session.receive(frames.Send)
        assert frame.text == "\x00" * 100_000
        await session.ack(frame)
        await sending


async def test_the_list_is_what_the_relay_says(relay: ScriptedRelay) -> None:
    alice = frames.PeerInfo("alice", "laptop", ["dev"], True, 0, wake="poll")
    async with RelayClient(relay.settings(), mode="send") as client:
        listing = in_background(client.list_peers())
        session = await relay.accept()
        frame = await session.receive(frames.List)
        await session.send(frames.Peers(frame.id, [alice]))
        assert await listing == [alice]
    assert session.hello.mode == "send"


async def test_ten_thousand_peers_fit_into_a_list(relay: ScriptedRelay) -> None:
    roles = ["r" * 64] * 16
    peers = [frames.PeerInfo("n" * 64, "h" * 100, roles, True, 0) for _ in range(10_000)]
    async with RelayClient(relay.settings()) as client:
        listing = in_background(client.list_peers())
        session = await relay.accept()
        frame = await session.receive(frames.List)
        await session.send(frames.Peers(frame.id, peers))
        assert len(await listing) == 10_000


# Coming back ------------------------------------------------------------------------------


async def test_the_pauses_grow_from_1_to_30_seconds_with_jitter(
    relay: ScriptedRelay, pauses: Pauses
) -> None:
    settings = relay.settings()
    await relay.stop()
    lows = []

    def uniform(low: float, high: float) -> float:
        lows.append(low)
        return high

    async with RelayClient(settings, sleep=pauses.sleep, uniform=uniform):
        for _ in range(7):
            await pauses.skip()
    await relay.start()
    assert pauses.asked[:7] == [2, 4, 8, 16, 30, 30, 30]
    assert set(lows) == {1}


async def test_a_connection_that_lived_long_starts_the_pauses_anew(
    relay: ScriptedRelay, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with RelayClient(relay.settings(), sleep=pauses.sleep, uniform=highest) as client:
        for _ in range(2):
            (await relay.accept()).abort()
            await pauses.skip()
        session = await relay.accept()
        await client.wait_connected()
        monkeypatch.setattr(client_module, "STABLE_AFTER", 0)
        session.abort()
        await pauses.skip()
    assert pauses.asked[:3] == [2, 4, 2]


async def test_a_silent_link_is_given_up(relay: ScriptedRelay, pauses: Pauses) -> None:
    settings = relay.settings()
    async with RelayClient(settings, sleep=pauses.sleep, silence_timeout=0.1) as client:
        session = await relay.accept()
        await client.wait_connected()
        problem = await client.wait_disconnected()
        assert problem.startswith(f"nothing came from {relay.url} for 0.1 s")
        assert await session.wait_closed() is not None


async def test_pings_alone_keep_a_link_alive(relay: ScriptedRelay) -> None:
    # The relay pings more often than a proxy loses patience.
    loop = asyncio.get_running_loop()
    async with RelayClient(relay.settings(), silence_timeout=0.3) as client:
        session = await relay.accept()
        await client.wait_connected()
        until = loop.time() + 0.7
        while loop.time() < until:
            await session.ping()
            await asyncio.sleep(0.02)
        assert client.connected
    assert client_module.SILENCE_TIMEOUT == 45


async def test_the_time_for_connecting_does_not_bound_the_connection(
    relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "OPEN_TIMEOUT", 0.5)
    async with RelayClient(relay.settings()) as client:
        session = await relay.accept()
        await client.wait_connected()
        await asyncio.sleep(0.6)
        await session.ping()
        assert client.connected


async def test_a_relay_that_accepts_and_says_nothing_is_given_up(
    relay: ScriptedRelay, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "OPEN_TIMEOUT", 0.1)
    async with RelayClient(relay.settings(), sleep=pauses.sleep) as client:
        assert await client.wait_disconnected() == (
            f"{relay.url} did not answer within 0.1 s: check HOPTELL_RELAY, the network and its"
            " firewalls"
        )


async def test_a_port_that_accepts_and_says_nothing_is_given_up(
    pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "OPEN_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = ScriptedRelay().settings(relay=f"ws://127.0.0.1:{server.getsockname()[1]}")
        async with RelayClient(settings, sleep=pauses.sleep) as client:
            assert "did not answer within 0.1 s" in await client.wait_disconnected()


async def test_leaving_does_not_wait_for_a_relay_that_hangs(
    relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "CLOSE_TIMEOUT", 0.1)
    async with RelayClient(relay.settings()) as client:
        session = await relay.accept()
        await client.wait_connected()
        session.websocket.transport.pause_reading()
        sending = in_background(client.send("alice", "x" * 100_000))
        more = [in_background(client.send("alice", "\x00" * 100_000)) for _ in range(20)]
        await asyncio.sleep(0)
    for failure in await asyncio.gather(sending, *more, return_exceptions=True):
        assert isinstance(failure, RelayUnreachable)
        assert failure.maybe_accepted


@pytest.mark.parametrize(
    "odd",
    [
        "no JSON",
        "[]",
        b'{"type":"welcome","name":"bob"}',
        '{"type":"message","id":1}',
        '{"type":"ack","id":"1","state":"perhaps","message_id":"x"}',
        "{",
        "x" * (client_module.MAX_RELAY_FRAME_BYTES + 1),
    ],
    ids=["text", "array", "binary", "types", "state", "cut", "huge"],
)
async def test_a_broken_frame_closes_and_reconnects(
    relay: ScriptedRelay, pauses: Pauses, odd: str | bytes
) -> None:
    async with RelayClient(relay.settings(), sleep=pauses.sleep) as client:
        session = await relay.accept()
        await client.wait_connected()
        sending = in_background(session.send(odd))
        problem = await client.wait_disconnected()
        assert problem.startswith(relay.url) or "was lost" in problem
        await asyncio.wait([sending])
        sending.exception()
        await pauses.skip()
        await relay.accept()
        await client.wait_connected()


async def test_an_unknown_frame_is_ignored(relay: ScriptedRelay) -> None:
    async with RelayClient(relay.settings()) as client:
        session = await relay.connect()
        await session.send('{"type":"banner","text":"welcome to v2"}')
        await session.send('{"type":"welcome","name":"bob","motd":"new field"}')
        await session.send('{"type":"receipt","id":[1]}')
        await session.deliver("d1")
        assert (await anext(client)).message.id == "d1"


async def test_a_relay_that_starts_with_another_frame_is_none(
    relay: ScriptedRelay, pauses: Pauses
) -> None:
    async with RelayClient(relay.settings(), sleep=pauses.sleep) as client:
        session = await relay.connect()
        await session.deliver("d1")
        assert "does not keep to hoptell's protocol" in await client.wait_disconnected()


async def test_an_answer_of_the_wrong_kind_is_an_error_of_ours(relay: ScriptedRelay) -> None:
    async with RelayClient(relay.settings()) as client:
        session = await relay.accept()
        listing = in_background(client.list_peers())
        frame = await session.receive(frames.List)
        await session.send(frames.Ack(frame.id, "queued", "ref"))
        with pytest.raises(HoptellError, match="does not fit the request"):
            await listing


# Deliveries -------------------------------------------------------------------------------


async def test_deliveries_come_in_order_and_are_confirmed_by_id(relay: ScriptedRelay) -> None:
    async with RelayClient(relay.settings()) as client:
        session = await relay.accept()
        sent = [await session.deliver(f"d{n}", text=f"message {n}") for n in range(50)]
        for message in sent:
            delivery = await anext(client)
            assert delivery.message == message
            await delivery.confirm()
        confirmed = [(await session.receive(frames.Got)).id for _ in sent]
    assert confirmed == [message.id for message in sent]


async def test_a_confirmation_on_a_lost_connection_is_dropped_and_it_comes_again(
    relay: ScriptedRelay,
) -> None:
    # Stored, but the confirmation is lost: the second copy has the same id.
    async with RelayClient(relay.settings(), sleep=no_pause) as client:
        session = await relay.accept()
        await session.deliver("d1")
        first = await anext(client)
        session.abort()
        session = await relay.accept()
        await first.confirm()
        await session.deliver("d1")
        second = await anext(client)
        assert second.message == first.message
        await second.confirm()
        assert (await session.receive(frames.Got)).id == "d1"
        await session.deliver("d2")
        await (await anext(client)).confirm()
        assert (await session.receive(frames.Got)).id == "d2"  # and d1 only once


async def test_what_was_not_handed_over_keeps_its_place_and_is_not_doubled(
    relay: ScriptedRelay,
) -> None:
    # Lost before it was stored: the relay sends it again.
    async with RelayClient(relay.settings(), sleep=no_pause) as client:
        session = await relay.accept()
        for id in ("d1", "d2", "d3"):
            await session.deliver(id)
        await session.ping()
        assert (await anext(client)).message.id == "d1"
        session.abort()
        session = await relay.accept()
        for id in ("d1", "d2", "d3", "d4"):
            await session.deliver(id)
        await session.ping()
        ids = []
        for _ in range(4):
            delivery = await anext(client)
            ids.append(delivery.message.id)
            await delivery.confirm()
        # d1 was handed over and not confirmed: its second copy comes last of the old ones,
        # for the one who iterates to drop.
        assert ids == ["d2", "d3", "d1", "d4"]
        assert [(await session.receive(frames.Got)).id for _ in ids] == ids


async def test_what_arrived_is_there_even_if_the_relay_never_comes_back(
    relay: ScriptedRelay, pauses: Pauses
) -> None:
    async with RelayClient(relay.settings(), sleep=pauses.sleep) as client:
        session = await relay.accept()
        await session.deliver("d1")
        await session.ping()
        session.abort()
        await client.wait_disconnected()
        delivery = await anext(client)
        assert delivery.message.id == "d1"
        await delivery.confirm()


async def test_giving_up_waiting_loses_no_delivery(relay: ScriptedRelay) -> None:
    async with RelayClient(relay.settings()) as client:
        session = await relay.accept()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(client)
        for n in range(20):
            waiting = in_background(anext(client))
            await session.deliver(f"d{n}")
            await session.ping()
            waiting.cancel()
            await asyncio.wait([waiting])
            delivery = await anext(client) if waiting.cancelled() else waiting.result()
            assert delivery.message.id == f"d{n}"


async def test_a_peer_that_reads_nothing_holds_a_bounded_number(
    relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_ARRIVED", 5)
    async with RelayClient(relay.settings()) as client:
        session = await relay.accept()
        for n in range(12):
            await session.deliver(f"d{n}")
        await session.ping()
        assert len(client._arrived) == 5
        assert [(await anext(client)).message.id for _ in range(12)] == [f"d{n}" for n in range(12)]


async def test_the_iterator_ends_with_the_client(relay: ScriptedRelay) -> None:
    async with RelayClient(relay.settings()) as client:
        await relay.accept()
        listening = in_background(anext(client, None))
        sending = in_background(client.send("alice", "hi"))
        await asyncio.sleep(0)
    assert await listening is None
    assert [delivery async for delivery in client] == []
    with pytest.raises(RelayUnreachable, match="this client is closed"):
        await sending
    with pytest.raises(RelayUnreachable, match="closed.*the message was not sent"):
        await client.send("alice", "hi")


# Name wars --------------------------------------------------------------------------------


async def answer_check(session: Session, *, taken: bool) -> None:
    frame = await session.receive(frames.List)
    peers = [frames.PeerInfo("bob", "desktop", [], taken, 0)]
    await session.send(frames.Peers(frame.id, peers))


async def test_a_replaced_client_returns_only_once_the_name_is_free(
    relay: ScriptedRelay, pauses: Pauses
) -> None:
    settings = relay.settings(roles=("dev",))
    async with RelayClient(settings, sleep=pauses.sleep) as client:
        session = await relay.accept()
        await client.wait_connected()
        await session.close(4004, "a newer connection took the name bob")
        for _ in range(7):
            await pauses.skip()
            session = await relay.accept()
            assert (session.hello.name, session.hello.mode) == ("bob-check", "send")
            assert session.hello.roles == []
            await answer_check(session, taken=True)
            assert await session.wait_closed() == 1000
        assert not client.connected
        await pauses.skip()
        await answer_check(await relay.accept(), taken=False)
        session = await relay.connect()
        assert (session.hello.name, session.hello.mode) == ("bob", "peer")
        assert client.problem == f"still connecting to {relay.url}"
        await session.send(frames.Welcome("bob"))
        await client.wait_connected()
    assert pauses.asked == [2, 4, 8, 16, 32, 60, 60, 60]


async def test_a_replaced_client_that_gives_way_is_over(
    relay: ScriptedRelay, pauses: Pauses
) -> None:
    async with RelayClient(relay.settings(), gives_way=lambda: True, sleep=pauses.sleep) as client:
        session = await relay.accept()
        await client.wait_connected()
        assert client.reason is None
        await session.close(4004, "a newer connection took the name bob")
        with pytest.raises(Replaced):
            await anext(client)
        assert isinstance(client.reason, Replaced)
    assert pauses.asked == []


async def test_a_replaced_client_says_so_at_once(relay: ScriptedRelay, pauses: Pauses) -> None:
    async with RelayClient(relay.settings(), sleep=pauses.sleep) as client:
        session = await relay.accept()
        sending = in_background(client.send("alice", "hi"))
        await session.receive(frames.Send)
        await session.close(4004, "a newer connection took the name bob")
        with pytest.raises(RelayUnreachable, match="may have been accepted"):
            await sending
        for failing in (client.send("alice", "hi"), client.wait_connected(timeout=5)):
            with pytest.raises(Replaced, match="another session went online as bob: stop it"):
                await failing
        assert "gave" not in (client.problem or "") and "bob" in (client.problem or "")


async def test_what_a_replaced_client_held_goes_to_the_newer_session_alone(
    relay: ScriptedRelay, pauses: Pauses
) -> None:
    async with RelayClient(relay.settings(), sleep=pauses.sleep) as client:
        session = await relay.accept()
        await session.deliver("d1")
        await session.ping()
        await session.close(4004)
        await client.wait_disconnected()
        assert not client._arrived


async def test_an_unreachable_relay_says_nothing_about_the_name(
    relay: ScriptedRelay, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with RelayClient(relay.settings(), sleep=pauses.sleep) as client:
        session = await relay.accept()
        await client.wait_connected()
        await session.close(4004)
        end_pause = await pauses.begun()
        with monkeypatch.context() as patch:
            patch.setattr(client_module, "OPEN_TIMEOUT", 0.1)
            end_pause()  # the check is not answered
            end_pause = await pauses.begun()
        end_pause()
        await answer_check(await relay.accept(), taken=False)
        assert (await relay.accept()).hello.name == "bob"
    assert pauses.asked == [2, 4]


async def test_a_check_whose_name_belongs_to_another_member_says_nothing(
    relay: ScriptedRelay, pauses: Pauses
) -> None:
    async with RelayClient(relay.settings(name="b" * 64), sleep=pauses.sleep) as client:
        session = await relay.accept()
        await client.wait_connected()
        await session.close(4004)
        await pauses.skip()
        await (await relay.connect()).close(4002)
        await pauses.skip()
        await answer_check(await relay.accept(), taken=False)
        assert (await relay.accept()).hello.name == "b" * 64


async def test_a_token_revoked_while_replaced_ends_it(relay: ScriptedRelay) -> None:
    async with RelayClient(relay.settings(), sleep=no_pause) as client:
        await (await relay.accept()).close(4004)
        await (await relay.connect()).close(4003)
        with pytest.raises(LoginRefused):
            await anext(client)


@pytest.mark.parametrize("length", [1, 58, 59, 62, 63, 64])
def test_the_name_of_a_check_is_valid_and_belongs_to_the_same_member(length: int) -> None:
    from hoptell.names import is_name, owns

    name = "a" * length
    check = client_module.check_name(name)
    assert is_name(check)
    assert check != name
    assert length > 62 or owns(name, check)
    member = "a" * min(length, 30)
    long_name = f"{member}-{'b' * 64}"[:64]
    assert owns(member, client_module.check_name(long_name))


# Words ------------------------------------------------------------------------------------


async def failure(url: str, **fields: Any) -> HoptellError:
    settings = ScriptedRelay().settings(relay=url, **fields)
    async with RelayClient(settings, sleep=Pauses().sleep) as client:
        await client.wait_disconnected()
        try:
            await client.wait_connected(timeout=0.01)
        except HoptellError as error:
            return error
    raise AssertionError("it connected")


async def test_a_refused_connection_says_how_to_start_a_relay(relay: ScriptedRelay) -> None:
    await relay.stop()
    for url in (relay.url, relay.url.replace("127.0.0.1", "localhost")):
        assert str(await failure(url)) == (
            f"no relay answers at {url}: start one with `hoptell relay`, or set HOPTELL_RELAY"
        )
    await relay.start()


@pytest.mark.parametrize(
    ("status", "lasting", "sentence"),
    [
        (404, True, "is not a hoptell relay .HTTP 404.: check HOPTELL_RELAY"),
        (426, True, "is not a hoptell relay .HTTP 426.: check HOPTELL_RELAY"),
        (502, False, "with HTTP 502, but the relay behind it does not: start the relay"),
        (302, True, "redirects to another address .HTTP 302.: set HOPTELL_RELAY to the final"),
    ],
)
async def test_http_instead_of_websocket_is_explained(
    status: int, lasting: bool, sentence: str
) -> None:
    asked = []

    def respond(connection: Any, request: Any) -> Any:
        asked.append(request.path)
        response = connection.respond(http.HTTPStatus(status), "no\n")
        response.headers["Location"] = f"ws://127.0.0.1:{relay.port}/elsewhere"
        return response

    async with ScriptedRelay(respond=respond) as relay:
        with pytest.raises(RelayUnreachable, match=sentence) as caught:
            raise await failure(relay.url)
    assert caught.value.lasting is lasting
    assert asked == ["/"]  # a redirect is not followed: it could take the token anywhere


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"\x15\x03\x01\x00\x02", b""])
async def test_another_program_on_the_port_is_explained(answer: bytes) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        error = await failure(url)
    http_like = answer.endswith(b"\n")
    expected = "is not a hoptell relay" if http_like else "closed the connection before answering"
    assert expected in str(error)
    assert url in str(error)


def test_every_other_failure_has_its_sentence() -> None:
    url = "ws://relay.example:7777"
    both = f"Multiple exceptions: [Errno {errno.ECONNREFUSED}] ::1, [Errno 113] 127.0.0.1"
    for error, sentence in {
        OSError(both): f"no relay answers at {url}: start one",
        socket.gaierror(socket.EAI_NONAME, "x"): "the host name relay.example cannot be found",
        socket.gaierror(socket.EAI_AGAIN, "x"): "the host name relay.example cannot be found",
        UnicodeError("label too long"): "the host name relay.example cannot be found",
        OSError(errno.EHOSTUNREACH, "No route to host"): f"no way to {url} (No route to host)",
    }.items():
        assert sentence in str(explain.failure(error, url, 10))


async def test_a_host_name_that_cannot_be_one_is_explained() -> None:
    assert "cannot be found" in str(await failure(f"ws://{'a' * 64}.example:7777"))


def authority() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "good.pem")
    return context


async def test_tls_trusts_what_ssl_cert_file_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "authority.pem"))
    async with ScriptedRelay(tls=authority()) as relay, RelayClient(relay.settings()) as client:
        session = await relay.accept()
        await client.wait_connected()
        await session.deliver("d1")
        assert (await anext(client)).message.id == "d1"


@pytest.mark.parametrize(
    ("certificate", "trusted", "sentence"),
    [
        ("good", False, "does not know who signed .* set SSL_CERT_FILE"),
        ("expired", True, "has expired: renew it"),
        ("other-host", True, "is not for 127.0.0.1: put the name that it is for in HOPTELL_RELAY"),
    ],
)
async def test_a_certificate_that_is_not_accepted_is_explained(
    certificate: str, trusted: bool, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "authority.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / f"{certificate}.pem")
    async with ScriptedRelay(tls=context) as relay:
        with pytest.raises(RelayUnreachable, match=sentence) as caught:
            raise await failure(relay.url)
    assert caught.value.lasting


async def test_a_self_signed_certificate_is_explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_code = 18
    assert "set SSL_CERT_FILE" in str(explain.failure(error, "wss://relay.example", 10))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
    explained = str(explain.failure(error, "wss://relay.example", 10))
    assert explained.endswith("missing.pem', which cannot be read: correct it")


async def test_wss_to_a_relay_without_tls_is_explained(relay: ScriptedRelay) -> None:
    error = await failure(relay.url.replace("ws:", "wss:"))
    assert "does not speak TLS as wss:// needs: use ws://" in str(error)


async def test_ws_to_a_relay_with_tls_is_explained() -> None:
    async with ScriptedRelay(tls=authority()) as relay:
        error = await failure(relay.url.replace("wss:", "ws:"))
    assert "whether it needs wss://" in str(error)


async def test_a_proxy_is_never_asked_for_this_machine(
    relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "WS_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with RelayClient(relay.settings()) as client:
        await relay.accept()
        await client.wait_connected()


async def proxy_to(port: int, asked: list[bytes]) -> asyncio.Server:
    """An HTTP proxy that leads to this port whatever it is asked for."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        if not port:
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(forward(reader, back), forward(there, writer))

    return await asyncio.start_server(handle, "127.0.0.1", 0)


async def test_another_host_is_reached_through_the_proxy_that_the_environment_names(
    relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []
    async with await proxy_to(relay.port, asked) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        settings = relay.settings(relay="ws://relay.example:7777")
        async with RelayClient(settings) as client:
            session = await relay.accept()
            await client.wait_connected()
            await session.close(4003)
            with pytest.raises(LoginRefused):
                await anext(client)
    assert asked == [b"CONNECT relay.example:7777 HTTP/1.1"]


async def test_a_proxy_that_does_not_lead_to_the_relay_is_explained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with await proxy_to(0, []) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        for url, said in {
            f"http://user:s3cret@127.0.0.1:{port}": "HTTP 403",
            "http://127.0.0.1:1": "Connect call failed",
            "gopher://s3cret": "InvalidProxy",
            "socks5://127.0.0.1:1": "SOCKS needs the Python package python-socks",
        }.items():
            monkeypatch.setenv("HTTPS_PROXY", url)
            error = await failure("ws://relay.example:7777")
            assert str(error).startswith(
                "the proxy of this machine does not lead to ws://relay.example:7777 ("
            )
            assert said in str(error)
            assert str(error).endswith(": correct HTTPS_PROXY, or add relay.example to NO_PROXY")
            assert "s3cret" not in str(error)


def test_a_secret_in_the_url_is_not_shown() -> None:
    assert explain.shown_address("wss://u:p@relay.example:1/path?token=x") == (
        "wss://relay.example:1/path"
    )


async def test_waiting_for_a_connection_ends_early_where_waiting_does_not_help() -> None:
    async with ScriptedRelay(respond=lambda c, r: c.respond(http.HTTPStatus.NOT_FOUND, "")) as r:
        async with RelayClient(r.settings(), sleep=Pauses().sleep) as client:
            with pytest.raises(RelayUnreachable, match="HTTP 404"):
                await client.wait_connected(timeout=60)
            with pytest.raises(RelayUnreachable, match="HTTP 404.*the message was not sent"):
                await client.send("alice", "hi")


async def test_waiting_for_a_connection_is_bounded(relay: ScriptedRelay) -> None:
    async with RelayClient(relay.settings()) as client:
        await relay.connect()
        with pytest.raises(RelayUnreachable, match="did not answer within 0.05 s"):
            await client.wait_connected(timeout=0.05)
