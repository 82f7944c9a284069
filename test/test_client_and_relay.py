"""The client with a real relay: what neither can promise alone.

Most of it over each way to reach a relay: plainly, by the relay's own TLS, and through nginx.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.cable import Cable
from support.nginx import AUTHORITY, CERTIFICATE, NGINX, running_nginx
from support.relay import RunningRelay, relay_process, running_relay
from support.scripted_relay import Pauses

from hoptell import client as client_module
from hoptell import frames
from hoptell.client import RelayClient
from hoptell.errors import LoginRefused, Refused, Replaced
from hoptell.relay.credentials import add_member
from hoptell.relay.model import Limits
from hoptell.relay.server import Timing
from hoptell.settings import PeerSettings, Rate

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
async def plain_relay() -> AsyncIterator[RunningRelay]:
    async with running_relay() as relay:
        yield relay


@pytest.fixture(params=["plain", "tls", "nginx"])
async def relay(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RunningRelay]:
    monkeypatch.setenv("SSL_CERT_FILE", str(AUTHORITY))
    if request.param == "nginx" and NGINX is None:
        pytest.skip("nginx is not installed")
    own = (CERTIFICATE, CERTIFICATE) if request.param == "tls" else None
    async with running_relay(tls=own) as relay:
        if request.param == "nginx":
            with running_nginx(tmp_path, relay.port) as relay.url:
                yield relay
        else:
            yield relay


@pytest.fixture(autouse=True)
def quick_reconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "RECONNECT_DELAYS", (0.001, 0.01))


def peer(relay: Any, name: str, url: str = "", **options: Any) -> RelayClient:
    settings = PeerSettings(relay=url or relay.url, token=options.pop("token", relay.token))
    return RelayClient(settings, name=name, **options)


async def exchange(
    sender: RelayClient, to: RelayClient, text: str, **options: Any
) -> tuple[frames.Ack, frames.Message]:
    """Send, and take at the other end; both must succeed."""
    sending = asyncio.create_task(sender.send(to.name, text, **options))
    [message] = await take(to)
    return await sending, message


async def take(client: RelayClient, count: int = 1) -> list[frames.Message]:
    """The next messages, each confirmed."""
    messages = []
    for _ in range(count):
        delivery = await anext(client)
        messages.append(delivery.message)
        await delivery.confirm()
    return messages


async def collect(client: RelayClient, count: int) -> list[str]:
    """The texts of the next `count` messages with different ids, as an inbox would keep them."""
    texts: dict[str, str] = {}
    while len(texts) < count:
        delivery = await anext(client)
        texts.setdefault(delivery.message.id, delivery.message.text)
        await delivery.confirm()
    return list(texts.values())


async def test_two_clients_talk(relay: RunningRelay) -> None:
    async with peer(relay, "alice") as alice, peer(relay, "bob", roles=["dev"]) as bob:
        await bob.wait_connected()
        ack, message = await exchange(alice, bob, "hi")
        assert (ack.state, ack.message_id) == ("delivered", message.message_id)
        assert (message.sender, message.text, message.no_reply) == ("alice", "hi", False)
        ack, answer = await exchange(bob, alice, "hi yourself", reply_to=message.message_id)
        assert (answer.reply_to, answer.message_id) == (message.message_id, ack.message_id)
        [listed] = await alice.list_peers()
        assert (listed.name, listed.roles, listed.online) == ("bob", ["dev"], True)


async def test_a_send_repeated_with_its_key_is_one_message(relay: RunningRelay) -> None:
    async with peer(relay, "alice") as alice, peer(relay, "bob") as bob:
        await bob.wait_connected()
        sends = [asyncio.create_task(alice.send("bob", "hi", key="k1")) for _ in range(2)]
        await take(bob)
        first, second = await asyncio.gather(*sends)
        assert first.message_id == second.message_id
        _, following = await exchange(alice, bob, "next")
        assert following.text == "next"


async def test_a_send_whose_acknowledgement_is_lost_arrives_once(relay: RunningRelay) -> None:
    # The relay accepts it, the connection goes before the client hears of that.
    way = urlsplit(relay.url)
    async with Cable(way.port) as cable, peer(relay, "bob") as bob:
        through_cable = way._replace(netloc=urlsplit(cable.url).netloc).geturl()
        async with peer(relay, "alice", through_cable) as alice:
            await asyncio.gather(alice.wait_connected(), bob.wait_connected())
            cable.swallow_answers()
            sending = asyncio.create_task(alice.send("bob", "only once"))
            [message] = await take(bob)
            assert not sending.done()
            cable.cut()
            ack = await sending
            assert (ack.state, ack.message_id) == ("delivered", message.message_id)
            _, following = await exchange(alice, bob, "after it")
            assert following.text == "after it"


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_lost_or_doubled_wherever_a_connection_breaks(
    plain_relay: RunningRelay, seed: int
) -> None:
    # Both ends lose their connections after some random number of bytes, again and
    # again, within frames and between them.
    chance = random.Random(seed)
    texts = [f"message {n}" for n in range(120)]

    def length() -> int:
        return chance.randint(600, 3000)

    async with (
        Cable(plain_relay.port, length=length) as left,
        Cable(plain_relay.port, length=length) as right,
        peer(plain_relay, "alice", left.url) as alice,
        peer(plain_relay, "bob", right.url) as bob,
    ):
        await bob.wait_connected()
        receiving = asyncio.create_task(collect(bob, len(texts)))
        window = asyncio.Semaphore(8)

        async def send(text: str) -> None:
            try:
                await alice.send("bob", text)
            finally:
                window.release()

        sending = []
        for text in texts:
            await window.acquire()
            sending.append(asyncio.create_task(send(text)))
        await asyncio.gather(*sending)
        assert await receiving == texts
        assert left.cuts > 3 and right.cuts > 1


async def test_a_relay_that_pings_keeps_a_link_through_a_proxy_that_drops_idle_ones(
    plain_relay: RunningRelay,
) -> None:
    # With all spans a seventieth of the real ones.
    async with running_relay(timing=Timing(ping_interval=0.2)) as pinging:
        async with Cable(pinging.port, idle_limit=0.9) as cable:
            async with peer(pinging, "bob", cable.url, sleep=Pauses().sleep) as bob:
                await bob.wait_connected()
                await asyncio.sleep(1.2)
                assert bob.connected
        # This relay pings every 15 s.
        async with Cable(plain_relay.port, idle_limit=0.1) as cable:
            async with peer(plain_relay, "bob", cable.url, sleep=Pauses().sleep) as bob:
                await bob.wait_connected()
                await bob.wait_disconnected()


async def test_fifty_clients_that_connect_at_once_are_all_let_in(relay: RunningRelay) -> None:
    clients = [peer(relay, f"peer-{n}", sleep=Pauses().sleep) for n in range(50)]
    async with asyncio.timeout(10):
        await asyncio.gather(*(client.__aenter__() for client in clients))
        await asyncio.gather(*(client.wait_connected(5) for client in clients))
        assert len(await clients[0].list_peers()) == 49
        await asyncio.gather(*(client.__aexit__(None, None, None) for client in clients))


async def test_over_the_rate_a_sender_hears_when_to_try_again_and_loses_nothing() -> None:
    async with running_relay(rate=Rate(30, 10)) as relay, peer(relay, "alice") as alice:
        async with peer(relay, "bob") as bob:
            await bob.wait_connected()
            receiving = asyncio.create_task(collect(bob, 30))
            for n in range(30):
                await alice.send("bob", str(n))
            with pytest.raises(Refused, match="[0-9] s"):
                await alice.send("bob", "30")
            assert await receiving == [str(n) for n in range(30)]
            assert alice.connected


async def test_an_answer_to_a_sender_that_left_is_refused_clearly(relay: RunningRelay) -> None:
    async with peer(relay, "bob") as bob:
        await bob.wait_connected()
        async with peer(relay, "a-script", mode="send") as script:
            _, message = await exchange(script, bob, "done")
        assert message.no_reply
        with pytest.raises(Refused, match="knows no peer named a-script"):
            await bob.send(message.sender, "thanks", reply_to=message.message_id)


async def test_the_largest_text_gets_through_unchanged(relay: RunningRelay) -> None:
    text = "".join(chr(n) for n in (0, 0x1F, 0x7F, 0x202E, 0xFFFF, 0x1F600)) * 16_666 + "last"
    assert len(text) == 100_000
    async with peer(relay, "alice") as alice, peer(relay, "bob") as bob:
        await bob.wait_connected()
        ack, message = await exchange(alice, bob, text)
        assert (ack.state, message.text) == ("delivered", text)


async def test_more_than_the_in_flight_limit_waits_at_the_relay(relay: RunningRelay) -> None:
    async with peer(relay, "alice") as alice, peer(relay, "bob") as bob:
        await bob.wait_connected()
        sending = [asyncio.create_task(alice.send("bob", str(n))) for n in range(90)]
        states = [ack.state for ack in await asyncio.gather(*sending[50:])]
        assert states == ["queued"] * 40
        assert len(bob._arrived) == 50
        assert await collect(bob, 90) == [str(n) for n in range(90)]
        await asyncio.gather(*sending)


async def test_two_clients_of_one_name_do_not_evict_each_other_for_ever(
    relay: RunningRelay,
) -> None:
    older_pauses, newer_pauses = Pauses(), Pauses()
    async with peer(relay, "bob", sleep=older_pauses.sleep) as older:
        await older.wait_connected()
        async with peer(relay, "bob", sleep=newer_pauses.sleep) as newer:
            await newer.wait_connected()
            assert "another session went online as bob" in await older.wait_disconnected()
            for _ in range(3):
                await older_pauses.skip()  # looks, and finds the name taken
            end_pause = await older_pauses.begun()
            with pytest.raises(Replaced):
                await older.send("alice", "hi")
            assert newer.connected
        end_pause()
        await older.wait_connected()
        async with peer(relay, "alice") as alice:
            _, message = await exchange(alice, older, "welcome back")
            assert message.text == "welcome back"
    assert older_pauses.asked[:4] == [2, 4, 8, 16]
    assert newer_pauses.asked == []
    # Each was replaced at most once: one login of each, one more of the older at the end.
    peers = [line for line in relay.events("connected") if line["name"] == "bob"]
    assert len(peers) == 3


async def test_what_the_older_session_did_not_confirm_goes_to_the_newer(
    relay: RunningRelay,
) -> None:
    async with peer(relay, "alice") as alice, peer(relay, "bob", sleep=Pauses().sleep) as older:
        await older.wait_connected()
        sending = asyncio.create_task(alice.send("bob", "hi"))
        unconfirmed = await anext(older)
        async with peer(relay, "bob") as newer:
            assert [message.id for message in await take(newer)] == [unconfirmed.message.id]
            await unconfirmed.confirm()
        assert (await sending).state in ("queued", "delivered")


async def test_a_members_client_that_was_replaced_can_look_for_its_name(tmp_path: Path) -> None:
    members = tmp_path / "members.json"
    token = add_member(members, "alice")
    async with running_relay(members=members, token="") as relay:
        pauses = Pauses()
        for name in ("alice", "alice-" + "x" * 58):
            async with peer(relay, name, token=token, sleep=pauses.sleep) as older:
                await older.wait_connected()
                async with peer(relay, name, token=token) as newer:
                    await newer.wait_connected()
                    await older.wait_disconnected()
                await pauses.skip()
                await older.wait_connected()
        async with peer(relay, "bob", token=token) as stranger:
            with pytest.raises(LoginRefused, match="does not let bob in"):
                await stranger.wait_connected()


async def test_what_arrived_just_before_a_relay_without_memory_died_comes_again_under_its_ids(
    tmp_path: Path,
) -> None:
    # So an inbox drops the copy. The ids hold for a span of the clocks (core.py): try again
    # where one ended meanwhile.
    for attempt in ("first", "second"):
        span = _span()
        folder = tmp_path / attempt
        folder.mkdir()
        first, again = await _repeated_over_a_crash(folder)
        if _span() == span:
            break
    assert (first.id, first.message_id) == (again.id, again.message_id)


def _span() -> tuple[float, float]:
    lifetime = Limits().key_lifetime
    return time.monotonic() // lifetime, time.time() // lifetime


async def _repeated_over_a_crash(folder: Path) -> tuple[frames.Message, frames.Message]:
    pauses = Pauses()
    with relay_process(folder) as relay:
        async with (
            Cable(relay.port) as cable,
            peer(relay, "bob") as bob,
            peer(relay, "alice", cable.url, sleep=pauses.sleep) as alice,
        ):
            await asyncio.gather(alice.wait_connected(), bob.wait_connected())
            cable.swallow_answers()
            sending = asyncio.create_task(alice.send("bob", "hi"))
            first = (await anext(bob)).message
            await asyncio.to_thread(relay.kill)
            await bob.wait_disconnected()
            cable.cut()
            end_pause = await pauses.begun()
            await asyncio.to_thread(relay.start)
            await bob.wait_connected()  # before that a relay without a journal knows nobody
            end_pause()
            [again] = await take(bob)
            assert (await sending).message_id == again.message_id
            return first, again


async def test_a_refusal_of_what_was_sent_before_says_that_it_may_have_been_accepted(
    tmp_path: Path,
) -> None:
    with relay_process(tmp_path) as relay:
        async with Cable(relay.port) as cable, peer(relay, "alice", cable.url) as alice:
            async with peer(relay, "bob") as bob:
                await asyncio.gather(alice.wait_connected(), bob.wait_connected())
                cable.swallow_answers()
                sending = asyncio.create_task(alice.send("bob", "hi"))
                await anext(bob)
                await asyncio.to_thread(relay.kill)
            cable.cut()
            await asyncio.to_thread(relay.start)
            with pytest.raises(Refused, match="no peer named bob.* may have been accepted then"):
                await sending


async def test_a_relay_that_restarts_costs_no_message_that_a_client_holds(tmp_path: Path) -> None:
    pauses = Pauses()
    with relay_process(tmp_path) as relay:
        async with peer(relay, "alice") as alice, peer(relay, "bob", sleep=pauses.sleep) as bob:
            await asyncio.gather(alice.wait_connected(), bob.wait_connected())
            await asyncio.to_thread(relay.stop)
            await alice.wait_disconnected()
            end_pause = await pauses.begun()
            sending = asyncio.create_task(bob.send("alice", "sent while it was down"))
            await asyncio.to_thread(relay.start)
            await alice.wait_connected()  # before that a relay without a journal knows nobody
            end_pause()
            assert [message.text for message in await take(alice)] == ["sent while it was down"]
            assert (await sending).state == "delivered"
