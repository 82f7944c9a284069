"""The relay as its clients meet it: real sockets, raw frames."""

import asyncio
import contextlib
import hashlib
import json
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.relay import TOKEN, Client, RunningRelay, running_relay
from websockets.exceptions import ConnectionClosed

from hoptell import frames
from hoptell.errors import ConfigurationError
from hoptell.relay.listening import is_loopback, listen
from hoptell.relay.model import Limits
from hoptell.relay.server import Timing
from hoptell.relay.websocket import WebSocket
from hoptell.settings import Rate

ALICE_TOKEN = "the-token-of-alice-herself"
BOB_TOKEN = "the-token-of-bob-in-person"


@pytest.fixture
async def relay() -> AsyncIterator[RunningRelay]:
    async with running_relay() as running:
        yield running


def write_members(file: Path, **members: str) -> Path:
    hashes = {
        name: "sha256:" + hashlib.sha256(token.encode()).hexdigest()
        for name, token in members.items()
    }
    file.write_text(json.dumps(hashes))
    file.chmod(0o600)
    return file


@contextlib.asynccontextmanager
async def raw(relay: RunningRelay) -> AsyncIterator[tuple[asyncio.StreamReader, Any]]:
    """A TCP connection to the relay."""
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


async def http(relay: RunningRelay, request: str) -> tuple[str, dict[str, str], str]:
    """The status line, headers and body that a plain HTTP request is answered with."""
    async with raw(relay) as (reader, writer):
        writer.write(request.encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    status, *lines = head.split("\r\n")
    return status, dict(line.lower().split(": ", 1) for line in lines), body


async def online(relay: RunningRelay, asking: Client) -> list[str]:
    peers = (await asking.ask(type="list", id=0))["peers"]
    return [peer["name"] for peer in peers if peer["online"]]


async def until_offline(relay: RunningRelay, asking: Client, name: str) -> None:
    async with asyncio.timeout(5):
        while name in await online(relay, asking):
            await asyncio.sleep(0.01)


# Login and close codes ----------------------------------------------------------------------

HELLO = {"type": "hello", "name": "alice", "token": TOKEN}


@pytest.mark.parametrize(
    "first",
    [
        "",
        "hello",
        "null",
        "[]",
        '"hello"',
        "{}",
        '{"type": "hello"}',
        '{"type": "hallo", "name": "alice", "token": "x"}',
        '{"type": "hello", "name": 5, "token": "x"}',
        '{"type": "hello", "name": "alice", "token": null}',
        json.dumps({**HELLO, "mode": "both"}),
        json.dumps({**HELLO, "roles": "reviewer"}),
        json.dumps({**HELLO, "v": "1"}),
        '{"type": "list", "id": 1}',
        '{"type": "send", "id": 1, "to": "bob", "text": "hi"}',
        b'{"type": "hello", "name": "alice", "token": "x"}',
        "[" * 15_000,
    ],
)
async def test_a_bad_or_missing_hello_closes_4001(relay: RunningRelay, first: str | bytes) -> None:
    client = await relay.open()
    await client.websocket.send(first)
    assert await client.close_code() == 4001
    assert client.close_reason


async def test_no_hello_in_time_closes_4001() -> None:
    async with running_relay(limits=Limits(hello_wait=0.1)) as relay:
        client = await relay.open()
        assert await client.close_code() == 4001
        assert "no hello within" in (client.close_reason or "")


def test_a_hello_is_due_within_5_s() -> None:
    assert Limits().hello_wait == 5


@pytest.mark.parametrize("start", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_the_hello_is_due_from_the_tcp_connection_on(start: bytes) -> None:
    async with (
        running_relay(limits=Limits(hello_wait=0.1)) as relay,
        raw(relay) as (reader, writer),
    ):
        writer.write(start)
        assert await reader.read() == b""


@pytest.mark.parametrize("name", ["", "no name", "-x", "x" * 65, "../x", "ä", "x\n"])
async def test_a_refused_name_closes_4002(relay: RunningRelay, name: str) -> None:
    client = await relay.open()
    await client.send(**{**HELLO, "name": name})
    assert await client.close_code() == 4002
    assert "is not a name" in (client.close_reason or "")


@pytest.mark.parametrize("roles", [["all"], ["no role"], [f"r{n}" for n in range(17)]])
async def test_refused_roles_close_4002(relay: RunningRelay, roles: list[str]) -> None:
    client = await relay.open()
    await client.send(**HELLO, roles=roles)
    assert await client.close_code() == 4002


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", TOKEN.upper(), "é" * 20])
async def test_a_bad_token_closes_4003(relay: RunningRelay, token: str) -> None:
    client = await relay.open()
    await client.send(**{**HELLO, "token": token})
    assert await client.close_code() == 4003
    assert not token or token not in (client.close_reason or "")


@pytest.mark.parametrize("token", [TOKEN, "alice"])
async def test_a_token_in_the_place_of_the_name_is_neither_logged_nor_listed(
    relay: RunningRelay, token: str
) -> None:
    client = await relay.open()
    await client.send(**{**HELLO, "name": TOKEN, "token": token})
    assert await client.close_code() == (4002 if token == TOKEN else 4003)
    (line,) = relay.events("login refused")
    assert TOKEN not in str(line) and TOKEN not in (client.close_reason or "")


async def test_a_newer_connection_of_the_name_closes_the_older_4004(relay: RunningRelay) -> None:
    older = await relay.login("alice")
    newer = await relay.login("alice")
    assert await older.close_code() == 4004
    assert (await newer.ask(type="list", id=1))["type"] == "peers"


@pytest.mark.parametrize("version", [0, 2, 99])
async def test_another_protocol_version_closes_4005(relay: RunningRelay, version: int) -> None:
    client = await relay.open()
    await client.send(**HELLO, v=version)
    assert await client.close_code() == 4005


async def test_nothing_behind_a_refused_hello_counts(relay: RunningRelay) -> None:
    client = await relay.open()
    await client.send(**{**HELLO, "token": "wrong"})
    with contextlib.suppress(ConnectionClosed):
        await client.send(**HELLO)
        await client.send(type="list", id=1)
    assert await client.close_code() == 4003
    assert relay.events("connected") == []


async def test_fifty_clients_at_once_all_get_in(relay: RunningRelay) -> None:
    await asyncio.gather(*(relay.login(f"peer-{number}") for number in range(50)))
    assert len(relay.events("connected")) == 50


async def test_a_member_is_named_and_the_shared_token_is_not(tmp_path: Path) -> None:
    members = write_members(tmp_path / "members.json", alice=ALICE_TOKEN)
    async with running_relay(members=members) as relay:
        bob = await relay.login("bob")
        for token, member in ((ALICE_TOKEN, "alice"), (TOKEN, None)):
            sender = await relay.login("alice-x", token)
            await sender.send(type="send", id=1, to="bob", text="hi")
            assert (await bob.receive()).get("fromMember") == member
        outsider = await relay.open()
        await outsider.send(type="hello", name="bob-x", token=ALICE_TOKEN)
        assert await outsider.close_code() == 4002


# Frames -------------------------------------------------------------------------------------


def padded_list(size: int) -> str:
    frame = json.dumps({"type": "list", "id": 1, "x": ""})
    return frame[:-2] + "x" * (size - len(frame)) + frame[-2:]


@pytest.mark.parametrize("size", [16 * 1024, 16 * 1024 + 1])
async def test_a_frame_before_login_has_at_most_16_kib(relay: RunningRelay, size: int) -> None:
    assert frames.MAX_HELLO_BYTES == 16 * 1024
    client = await relay.open()
    hello = json.dumps({**HELLO, "x": ""})
    await client.websocket.send(hello[:-2] + "x" * (size - len(hello)) + hello[-2:])
    if size == 16 * 1024:
        assert (await client.receive())["type"] == "welcome"
    else:
        assert await client.close_code() == 1009


@pytest.mark.parametrize("size", [2 * 1024 * 1024, 2 * 1024 * 1024 + 1])
async def test_a_frame_after_login_has_at_most_2_mib(relay: RunningRelay, size: int) -> None:
    client = await relay.login("alice")
    with contextlib.suppress(ConnectionClosed):
        await client.websocket.send(padded_list(size))
    if size == 2 * 1024 * 1024:
        assert (await client.receive())["type"] == "peers"
    else:
        assert await client.close_code() == 1009


@pytest.mark.parametrize(
    ("character", "escaped"),
    [("x", "x"), ("\x01", "\\u0001"), ("é", "\\u00E9"), ("😀", "\\ud83d\\ude00"), ("😀", "😀")],
)
async def test_a_text_of_100000_characters_passes_however_it_is_escaped(
    relay: RunningRelay, character: str, escaped: str
) -> None:
    alice, bob = await relay.login("alice"), await relay.login("bob")
    await alice.websocket.send(
        '{"type": "send", "id": 1, "to": "bob", "text": "' + escaped * 100_000 + '"}'
    )
    message = await bob.receive()
    assert message["text"] == character * 100_000
    await bob.got(message)
    assert (await alice.receive())["state"] == "delivered"


async def test_a_text_of_100001_characters_is_refused(relay: RunningRelay) -> None:
    alice, _ = await relay.login("alice"), await relay.login("bob")
    answer = await alice.ask(type="send", id=1, to="bob", text="x" * 100_001)
    assert answer["type"] == "error" and answer["id"] == 1


@pytest.mark.parametrize(
    ("bad", "id"),
    [
        ("not json", None),
        ("[1]", None),
        ("7", None),
        ('{"id": 5}', 5),
        ('{"type": "dance", "id": "x"}', "x"),
        ('{"type": "send", "id": 5, "to": "bob"}', 5),
        ('{"type": "send", "id": 5, "to": "bob", "text": 7}', 5),
        ('{"type": "send", "id": 5, "to": "bob", "text": "hi", "ttl": "soon"}', 5),
        ('{"type": "send", "id": [1], "to": "bob", "text": "hi"}', None),
        ('{"type": "got", "id": 5}', None),  # a delivery's, not a request's
        ('{"type": "list", "id": 1, "x": ' + "[" * 100_000 + "]" * 100_000 + "}", None),
        (b'{"type": "list", "id": 1}', None),
        (json.dumps(HELLO), None),
    ],
)
async def test_a_bad_frame_after_login_is_answered_and_the_sender_stays(
    relay: RunningRelay, bad: str | bytes, id: Any
) -> None:
    alice = await relay.login("alice")
    await alice.websocket.send(bad)
    answer = await alice.receive()
    assert answer["type"] == "error" and answer.get("id") == id
    assert "\n" not in answer["error"] and len(answer["error"]) < 300
    assert (await alice.ask(type="list", id=2))["id"] == 2


async def test_half_an_emoji_at_the_end_of_a_text_does_no_harm(relay: RunningRelay) -> None:
    alice, bob = await relay.login("alice"), await relay.login("bob")
    await alice.websocket.send('{"type": "send", "id": 1, "to": "bob", "text": "hi \\ud83d"}')
    assert (await bob.receive())["text"] == "hi \ufffd"


async def test_a_text_frame_that_is_not_utf_8_closes_1007(relay: RunningRelay) -> None:
    for client in (await relay.open(), await relay.login("alice")):
        await client.websocket.send(b'{"type": "list", "id": "\xff\xfe"}', text=True)
        assert await client.close_code() == 1007
    await relay.event("disconnected")


@pytest.mark.parametrize("id", [0, -1, 1.5, "x", "", True, None, "é", 2**53])
async def test_a_request_s_id_is_echoed_as_it_came(relay: RunningRelay, id: Any) -> None:
    alice = await relay.login("alice")
    assert (await alice.ask(type="list", id=id))["id"] == id
    assert (await alice.ask(type="send", id=id, to="nobody", text="hi"))["id"] == id


async def test_unknown_fields_are_ignored(relay: RunningRelay) -> None:
    alice = await relay.login("alice", colour="red", deep={"x": [1]})
    assert (await alice.ask(type="list", id=1, later={"y": None}))["type"] == "peers"


async def test_a_fragmented_message_is_a_message(relay: RunningRelay) -> None:
    alice = await relay.login("alice")
    await alice.websocket.send(iter(['{"type": "li', "", 'st", "id"', ": 7}"]))
    assert (await alice.receive())["id"] == 7


async def test_a_ping_is_answered(relay: RunningRelay) -> None:
    alice = await relay.login("alice")
    async with asyncio.timeout(5):
        await (await alice.websocket.ping(b"are you there"))


async def test_a_slow_sender_gets_through_byte_by_byte(relay: RunningRelay) -> None:
    request = (
        "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
    )
    hello = json.dumps(HELLO).encode()
    async with raw(relay) as (reader, writer):
        data = request.encode() + bytes([0x81, 0x80 | len(hello), 0, 0, 0, 0]) + hello
        for i in range(len(data)):
            writer.write(data[i : i + 1])
            await asyncio.sleep(0)
        await reader.readuntil(b"\r\n\r\n")
        assert (await reader.readexactly(2))[0] == 0x81
        assert b"welcome" in await reader.readuntil(b"}")


def masked(payload: str) -> bytes:
    """A short text frame, masked with zeros."""
    data = payload.encode()
    return bytes([0x81, 0x80 | len(data), 0, 0, 0, 0]) + data


async def test_what_is_asked_at_once_is_answered_in_one_write(
    relay: RunningRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await relay.login("alice")
    (websocket,) = relay.server._websockets
    flush = type(websocket).flush
    written: list[int] = []

    def count(self: Any) -> None:
        written.append(len(self._out) // 2)
        flush(self)

    monkeypatch.setattr(type(websocket), "flush", count)
    ask = json.dumps({"type": "send", "id": "?", "to": "nobody", "text": "hi"})
    requests = (ask.replace('"?"', str(id)) for id in range(3))
    alice.websocket.transport.write(b"".join(map(masked, requests)))
    assert [(await alice.receive())["id"] for _ in range(3)] == [0, 1, 2]
    assert written == [3]


# A peer that does not behave ----------------------------------------------------------------


async def test_what_a_killed_recipient_did_not_confirm_comes_again(relay: RunningRelay) -> None:
    alice, bob = await relay.login("alice"), await relay.login("bob")
    await alice.send(type="send", id=1, to="bob", text="hi")
    first = await bob.receive()
    bob.abort()
    assert (await alice.receive())["state"] == "queued"
    bob = await relay.login("bob")
    assert await bob.receive() == first
    await bob.got(first)
    await relay.event("confirmed")
    assert (await bob.ask(type="list", id=2))["type"] == "peers", "and only once"
    [requeued] = relay.events("requeued")
    assert (requeued["name"], requeued["count"]) == ("bob", 1)


async def test_a_connection_that_says_nothing_for_two_rounds_is_dropped() -> None:
    timing = Timing(ping_interval=0.1)
    async with running_relay(timing=timing) as relay:
        alice = await relay.login("alice")
        bob = await relay.login("bob")
        bob.websocket.transport.pause_reading()  # so it answers no ping: half open
        started = time.monotonic()
        await alice.send(type="send", id=1, to="bob", text="hi")
        assert (await alice.receive())["state"] == "queued"
        assert time.monotonic() - started >= 0.2
        assert await online(relay, alice) == []


def test_a_ping_goes_out_every_15_s_and_two_rounds_of_silence_are_the_end() -> None:
    assert Timing().ping_interval == 15 and Timing().silent_rounds == 2


async def test_a_connection_that_answers_pings_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    check = WebSocket.check_liveness
    rounds: list[int] = []
    enough = asyncio.Event()

    def count(self: WebSocket, max_rounds: int) -> None:
        rounds.append(max_rounds)
        check(self, max_rounds)
        if len(rounds) == 10:
            enough.set()

    monkeypatch.setattr(WebSocket, "check_liveness", count)
    async with running_relay(timing=Timing(ping_interval=0.05)) as relay:
        alice = await relay.login("alice")
        await enough.wait()
        assert (await alice.ask(type="list", id=1))["type"] == "peers"


@pytest.mark.parametrize("how", ["half closed", "reset", "closed"])
async def test_a_connection_that_ends_takes_its_name_offline(relay: RunningRelay, how: str) -> None:
    alice, bob = await relay.login("alice"), await relay.login("bob")
    if how == "half closed":
        bob.websocket.transport.write_eof()
    elif how == "reset":
        bob.abort()
    else:
        await bob.close()
    await until_offline(relay, alice, "bob")


async def test_a_recipient_that_does_not_read_holds_no_more_than_its_in_flight_limit() -> None:
    async with running_relay(timing=Timing(ping_interval=0.3)) as relay:
        alice = await relay.login("alice")
        bob = await relay.login("bob", roles=["slow"])
        bob.websocket.transport.pause_reading()
        (websocket,) = (
            socket for socket in relay.server._websockets if socket.connection.name == "bob"
        )
        text = "x" * 100_000
        for id in range(60):
            await alice.send(type="send", id=id, to="bob", text=f"{id} {text}"[:100_000])
        states = [(await alice.receive())["state"] for _ in range(10)]
        assert states == ["queued"] * 10, "the last ten"
        assert len(websocket.connection.in_flight) == 50
        assert websocket._transport.get_write_buffer_size() < 51 * 100_300
        answer = await alice.receive()  # dropped: it neither reads nor answers
        assert answer["state"] == "queued"
        again = await relay.login("bob")
        for id in range(60):
            message = await again.receive()
            assert message["text"].startswith(f"{id} "), "all of it, in order"
            await again.got(message)


async def test_a_flood_of_list_without_reading_costs_no_more_than_one_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flush = WebSocket.flush
    sizes: list[int] = []

    def measure(self: WebSocket) -> None:
        flush(self)
        sizes.append(self._transport.get_write_buffer_size())

    monkeypatch.setattr(WebSocket, "flush", measure)
    async with running_relay() as relay:
        for number in range(200):
            peer = await relay.login(f"{number}-{'x' * 50}", roles=[f"role{n}" for n in range(16)])
            peer.abort()
        flooder = await relay.login("flooder", mode="send")
        flooder.websocket.transport.pause_reading()
        (websocket,) = (
            socket for socket in relay.server._websockets if socket.connection.name == "flooder"
        )
        one_answer = 200 * 400
        for _ in range(100):
            flooder.websocket.transport.write(masked('{"type":"list","id":1}'))
        while not websocket._is_blocked:
            await asyncio.sleep(0)
        flooder.websocket.transport.resume_reading()
        for _ in range(100):
            assert (await flooder.receive())["type"] == "peers"
        assert one_answer / 4 < max(sizes) < 64 * 1024 + one_answer


async def test_one_client_s_flood_does_not_hold_up_another(relay: RunningRelay) -> None:
    flooder, honest = await relay.login("flooder"), await relay.login("honest")
    flooder.websocket.transport.write(masked("{}") * 20_000)
    await asyncio.sleep(0)
    assert (await honest.ask(type="list", id=1))["type"] == "peers"
    assert relay.server.metrics.refused["frame"] < 20_000


async def test_a_fault_in_one_effect_costs_only_the_connection_it_came_up_on(
    relay: RunningRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob, carol = [await relay.login(name) for name in ("alice", "bob", "carol")]
    await alice.send(type="send", id=0, to="@all", text="before")
    for peer in (alice, bob, carol):
        await peer.receive()
    encode = frames.encode

    def faulty(frame: Any) -> bytes:
        if isinstance(frame, frames.Message) and frame.id.endswith("-bob") and frame.text == "hi":
            raise ValueError("a bug")
        return encode(frame)

    monkeypatch.setattr(frames, "encode", faulty)
    await alice.send(type="send", id=1, to="@all", text="hi")
    answers = [await alice.receive()]
    assert answers[0]["count"] == 2
    assert await bob.close_code() == 1006
    assert (await carol.receive())["text"] == "hi"


async def test_a_fault_over_one_frame_costs_only_the_connection_it_came_from(
    relay: RunningRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = await relay.login("alice"), await relay.login("bob")
    receive = relay.server.core.receive

    def faulty(connection: Any, frame: Any, *, now: float) -> None:
        if frame.id == "fault":
            raise ValueError("a bug")
        receive(connection, frame, now=now)

    monkeypatch.setattr(relay.server.core, "receive", faulty)
    # Behind a list, so that it comes out of the buffer: nothing before it is taken twice.
    both = masked('{"type":"list","id":1}') + masked('{"type":"list","id":"fault"}')
    alice.websocket.transport.write(both)
    assert (await alice.receive())["id"] == 1
    assert await alice.close_code() == 1006
    assert (await bob.ask(type="list", id=2))["type"] == "peers"


# Members ------------------------------------------------------------------------------------


async def test_a_reload_closes_who_is_not_a_member_any_more_at_once(tmp_path: Path) -> None:
    file = write_members(tmp_path / "members.json", alice=ALICE_TOKEN, bob=BOB_TOKEN)
    async with running_relay(token="", members=file) as relay:
        alice, bob = await relay.login("alice", ALICE_TOKEN), await relay.login("bob", BOB_TOKEN)
        await bob.send(type="send", id=1, to="alice", text="hi")
        await alice.receive()
        write_members(file, bob=BOB_TOKEN)
        relay.server.reload()
        await alice.send(type="send", id=1, to="bob", text="too late")
        assert await alice.close_code() == 4003
        assert (await bob.receive())["state"] == "queued"
        assert (await bob.ask(type="list", id=2))["type"] == "peers"
        again = await relay.open()
        await again.send(type="hello", name="alice", token=ALICE_TOKEN)
        assert await again.close_code() == 4003


async def test_a_reload_closes_who_has_a_new_token_and_lets_the_new_one_in(tmp_path: Path) -> None:
    file = write_members(tmp_path / "members.json", alice=ALICE_TOKEN)
    async with running_relay(members=file) as relay:
        alice, shared = await relay.login("alice", ALICE_TOKEN), await relay.login("carol")
        write_members(file, alice=BOB_TOKEN)
        relay.server.reload()
        assert await alice.close_code() == 4003
        await relay.login("alice", BOB_TOKEN)
        assert (await shared.ask(type="list", id=1))["type"] == "peers"


async def test_a_reload_without_any_member_left_closes_the_last(tmp_path: Path) -> None:
    file = write_members(tmp_path / "members.json", alice=ALICE_TOKEN)
    async with running_relay(token="", members=file) as relay:
        alice = await relay.login("alice", ALICE_TOKEN)
        file.write_text("{}")
        relay.server.reload()
        assert await alice.close_code() == 4003


@pytest.mark.parametrize("broken", ['{"alice": "s3cret-in-a-broken-file', '{"alice": "short"}', ""])
async def test_a_broken_members_file_changes_nothing_and_is_logged(
    tmp_path: Path, broken: str
) -> None:
    file = write_members(tmp_path / "members.json", alice=ALICE_TOKEN)
    async with running_relay(token="", members=file) as relay:
        alice = await relay.login("alice", ALICE_TOKEN)
        file.write_text(broken)
        relay.server.reload()
        (line,) = relay.events("reload refused")
        assert str(file) in line["note"] and "s3cret" not in line["note"]
        assert (await alice.ask(type="list", id=1))["type"] == "peers"
        await relay.login("alice-2", ALICE_TOKEN)


# HTTP ---------------------------------------------------------------------------------------


async def test_healthz_says_ok(relay: RunningRelay) -> None:
    for path in ("/healthz", "/healthz?x=1"):
        status, headers, body = await http(relay, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status == "HTTP/1.1 200 OK" and body == "ok\n"
        assert headers["content-length"] == "3"
    status, headers, body = await http(relay, "HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status == "HTTP/1.1 200 OK" and body == "" and headers["content-length"] == "3"


@pytest.mark.parametrize(
    "request_", ["GET / HTTP/1.1", "GET /healthz/x HTTP/1.1", "POST /healthz HTTP/1.1"]
)
async def test_other_requests_get_426_and_one_line_of_help(
    relay: RunningRelay, request_: str
) -> None:
    status, headers, body = await http(relay, f"{request_}\r\nHost: x\r\n\r\n")
    assert status.startswith("HTTP/1.1 426 ") and headers["upgrade"] == "websocket"
    assert body.count("\n") == 1 and "hoptell" in body


async def test_an_upgrade_on_any_path_is_a_websocket(relay: RunningRelay) -> None:
    relay.url += "/some/path?x=1"
    assert (await (await relay.login("alice")).ask(type="list", id=1))["type"] == "peers"


async def test_headers_of_proxies_are_not_believed(relay: RunningRelay) -> None:
    client = await relay.open(additional_headers={"X-Forwarded-For": "10.6.6.6"})
    await client.send(**HELLO)
    await client.receive()
    assert "10.6.6.6" not in json.dumps(relay.events())


# Time ---------------------------------------------------------------------------------------


async def test_what_is_not_confirmed_in_time_is_acknowledged_as_unconfirmed() -> None:
    async with running_relay(limits=Limits(ack_wait=0.1)) as relay:
        alice, _ = await relay.login("alice"), await relay.login("bob")
        answer = await alice.ask(type="send", id=1, to="bob", text="hi")
        assert answer["state"] == "unconfirmed"
    assert Limits().ack_wait == 5


async def test_a_queued_message_is_dropped_at_its_deadline(relay: RunningRelay) -> None:
    alice, bob = await relay.login("alice"), await relay.login("bob")
    bob.abort()
    await until_offline(relay, alice, "bob")
    sent_at = time.time() * 1000
    answer = await alice.ask(type="send", id=1, to="bob", text="hi", ttl=1)
    heard_at = time.time() * 1000
    assert answer["state"] == "queued"
    assert sent_at - 5 <= answer["expires"] - 1000 <= heard_at + 5
    line = await relay.event("expired")
    assert line["reference"] == answer["message_id"]


async def test_over_its_rate_a_sender_hears_when_to_try_again() -> None:
    async with running_relay(rate=Rate(2, 10)) as relay:
        alice, _ = await relay.login("alice"), await relay.login("bob", mode="peer")
        for id in range(3):
            await alice.send(type="send", id=id, to="nobody", text="hi")
        errors = [(await alice.receive())["error"] for _ in range(3)]
        assert "try again in 10 s" in errors[2] and "too many" not in errors[1]


# Stop ---------------------------------------------------------------------------------------


async def test_stop_closes_everybody_with_1001_and_accepts_nothing_more() -> None:
    async with running_relay() as relay:
        alice, nobody = await relay.login("alice"), await relay.open()
        await relay.server.stop()
        assert await alice.close_code() == 1001
        assert await nobody.close_code() == 1001
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", relay.port)


async def test_abort_ends_a_stop_that_waits_for_a_peer_that_is_stuck() -> None:
    async with running_relay(timing=Timing(close_wait=600)) as relay:
        alice = await relay.open(ping_interval=None)  # else it would end by itself
        await alice.ask(**HELLO)
        alice.websocket.transport.pause_reading()
        stopping = asyncio.create_task(relay.server.stop())
        while not relay.server._is_stopping:
            await asyncio.sleep(0)
        relay.server.abort()
        await stopping
        assert relay.server._websockets == set()


async def test_stop_comes_to_its_end_even_with_peers_that_are_stuck() -> None:
    async with running_relay() as relay, raw(relay) as (_, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost:")
        alice, bob = await relay.login("alice"), await relay.login("bob")
        bob.websocket.transport.pause_reading()
        for id in range(40):
            await alice.send(type="send", id=id, to="bob", text="x" * 100_000)
        await alice.ask(type="list", id=1)
        await relay.server.stop()
        assert relay.server._websockets == set()


# Logs ---------------------------------------------------------------------------------------


async def test_the_log_tells_what_happened_and_neither_text_nor_token(relay: RunningRelay) -> None:
    alice, bob = await relay.login("alice", host="box"), await relay.login("bob")
    await alice.send(type="send", id=1, to="bob", text="the-secret-text")
    message = await bob.receive()
    await bob.got(message)
    await alice.receive()
    await alice.send(type="send", id=2, to="nobody", text="the-secret-text")
    await alice.receive()
    bad = await relay.open()
    await bad.send(type="hello", name="eve", token="the-secret-token-of-eve")
    await bad.close_code()
    await bob.close()
    await relay.event("disconnected")
    told = [line["event"] for line in relay.events()]
    assert told == [
        *("connected", "connected", "accepted", "confirmed", "refused"),
        *("login refused", "disconnected"),
    ]
    accepted = relay.events("accepted")[0]
    assert accepted["sender"] == "alice" and accepted["to"] == "bob" and accepted["size"] == 15
    assert accepted["reference"] == message["message_id"]
    everything = json.dumps(relay.events())
    assert "secret" not in everything and TOKEN not in everything


# Listening ----------------------------------------------------------------------------------


async def test_what_is_accepted_is_sent_without_delay(relay: RunningRelay) -> None:
    await relay.login("alice")
    (websocket,) = relay.server._websockets
    accepted = websocket._transport.get_extra_info("socket")
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


async def test_ipv6_works() -> None:
    async with running_relay(host="::1") as relay:
        assert relay.url == f"ws://[::1]:{relay.port}"
        assert (await (await relay.login("alice")).ask(type="list", id=1))["type"] == "peers"


async def test_a_name_with_several_addresses_gets_one_port() -> None:
    for host in ("localhost", "*"):
        listeners = listen(host, 0)
        ports = {listener.getsockname()[1] for listener in listeners}
        for listener in listeners:
            listener.close()
        assert len(ports) == 1


def test_a_port_in_use_is_said_with_the_way_out() -> None:
    (listener,) = listen("127.0.0.1", 0)
    with listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port} .* is in use.*--port"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["203.0.113.7", "2001:db8::7", "no-such-host.invalid", "a b"])
def test_a_host_that_is_not_this_machine_s_is_said(host: str) -> None:
    with pytest.raises(ConfigurationError, match="127.0.0.1 for this machine only"):
        listen(host, 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_a_loopback_host_is_told(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "*", "203.0.113.7", "no-such-host.invalid"])
def test_any_other_host_can_be_reached_by_others(host: str) -> None:
    assert not is_loopback(host)
