"""Hostile bytes and frames at a real relay, while two honest peers go on talking.

"Nothing a client sends can stop the relay or another client's traffic." Each attack is a
function that gets a random generator and makes the bytes of one connection, or plays it out.
Each is run ROUNDS times, in random order, many at a time; and each of these runs lasts until the
honest pair got one more message through, in order. Meanwhile the relay's memory must stay
bounded, and in the end nothing of the attacks may be left. (That one client's flood gives others
their turn, frame by frame, is a test of test_server.py: here it would be a matter of speed.)

FUZZ_SEED repeats a run as far as the network allows, FUZZ_ROUNDS prolongs it.
"""

import asyncio
import contextlib
import json
import os
import random
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from support.relay import TOKEN, Client, RelayProcess, login, relay_process
from websockets.exceptions import ConnectionClosed

SEED = int(os.environ.get("FUZZ_SEED", "20"))
ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "6"))
ATTACKERS = 16
BYSTANDERS = 500
"""Known peers, which make an answer to `list` long: 0.6 MiB."""
MAX_GROWTH = 48 * 1024 * 1024
"""Bytes. Sixteen connections may have 2 MiB under way or an answer to `list` to read, what they
queue waits a second at most, and the allocator keeps some. One flood that is answered without
anybody reading takes more."""
PATIENCE = 50
"""Seconds until a message or an end that does not come is given up."""

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: relay\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)

Attack = Callable[[random.Random, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def frame(
    payload: bytes | str, first: int = 0x81, mask: bytes | None = b"\x01\x02\x03\x04"
) -> bytes:
    data = payload.encode("utf-8", "surrogatepass") if isinstance(payload, str) else payload
    bit = 0x80 if mask is not None else 0
    if len(data) < 126:
        header = bytes([first, bit | len(data)])
    elif len(data) < 65536:
        header = bytes([first, bit | 126]) + struct.pack("!H", len(data))
    else:
        header = bytes([first, bit | 127]) + struct.pack("!Q", len(data))
    if mask is None:
        return header + data
    key = int.from_bytes((mask * (len(data) // 4 + 1))[: len(data)], "big")
    masked = (int.from_bytes(data, "big") ^ key).to_bytes(len(data), "big")
    return header + mask + masked


def hello(name: str, **fields: Any) -> bytes:
    return frame(json.dumps({"type": "hello", "name": name, "token": TOKEN, **fields}))


# Before there is a WebSocket ----------------------------------------------------------------


async def random_bytes(rng: random.Random, reader: Any, writer: Any) -> None:
    writer.write(rng.randbytes(rng.randint(1, 5_000)))
    await reader.read()


async def half_a_handshake(rng: random.Random, reader: Any, writer: Any) -> None:
    writer.write(HANDSHAKE[: rng.randrange(len(HANDSHAKE))])
    await asyncio.sleep(0.2)
    if rng.random() < 0.5:
        writer.write_eof()
        await reader.read()


async def mangled_handshake(rng: random.Random, reader: Any, writer: Any) -> None:
    data = bytearray(HANDSHAKE)
    for _ in range(rng.randint(1, 5)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    writer.write(bytes(data))
    await asyncio.sleep(0.05)


async def huge_headers(rng: random.Random, reader: Any, writer: Any) -> None:
    line = b"X-Filler: " + b"x" * rng.randint(1, 9_000) + b"\r\n"
    writer.write(b"GET / HTTP/1.1\r\n")
    for _ in range(400):
        writer.write(line)
        await writer.drain()
    await reader.read()


async def slowloris(rng: random.Random, reader: Any, writer: Any) -> None:
    for byte in HANDSHAKE[:100]:
        writer.write(bytes([byte]))
        await asyncio.sleep(0.005)


async def a_request_with_a_body(rng: random.Random, reader: Any, writer: Any) -> None:
    writer.write(b"POST /healthz HTTP/1.1\r\nContent-Length: 5000000\r\n\r\n" + b"x" * 500_000)
    await reader.read()


# Before login -------------------------------------------------------------------------------


async def random_frames(rng: random.Random, reader: Any, writer: Any) -> None:
    writer.write(HANDSHAKE)
    for _ in range(rng.randint(1, 30)):
        writer.write(random_frame(rng))
    await reader.read()


async def no_hello(rng: random.Random, reader: Any, writer: Any) -> None:
    writer.write(HANDSHAKE + frame(rng.choice(BAD_FRAMES)))
    await reader.read()


async def bad_hello(rng: random.Random, reader: Any, writer: Any) -> None:
    fields = {"name": "eve", "token": TOKEN, "mode": "peer", "roles": [], "host": "x", "v": 1}
    for _ in range(rng.randint(1, 3)):
        fields[rng.choice(list(fields))] = rng.choice(ODD_VALUES)
    writer.write(HANDSHAKE + frame(json.dumps({"type": "hello", **fields})))
    await asyncio.wait([asyncio.ensure_future(reader.read())], timeout=0.1)


async def oversized_hello(rng: random.Random, reader: Any, writer: Any) -> None:
    writer.write(HANDSHAKE + hello("eve", x="x" * rng.randint(16_000, 3_000_000)))
    await reader.read()


# After login --------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def logged_in(
    rng: random.Random, reader: Any, writer: Any, **fields: Any
) -> AsyncIterator[None]:
    writer.write(HANDSHAKE + hello(f"eve-{rng.randrange(50)}", **fields))
    await reader.readuntil(b"\r\n\r\n")
    await reader.readuntil(b"}")
    yield


async def frames_after_login(rng: random.Random, reader: Any, writer: Any) -> None:
    async with logged_in(rng, reader, writer):
        for _ in range(rng.randint(1, 40)):
            writer.write(random_frame(rng))
        await asyncio.wait([asyncio.ensure_future(reader.read())], timeout=0.1)


async def bad_frames(rng: random.Random, reader: Any, writer: Any) -> None:
    async with logged_in(rng, reader, writer):
        for _ in range(200):
            writer.write(frame(rng.choice(BAD_FRAMES)))
        await writer.drain()
        await asyncio.sleep(0.05)


async def odd_requests(rng: random.Random, reader: Any, writer: Any) -> None:
    mode = rng.choice(["peer", "send"])
    async with logged_in(rng, reader, writer, mode=mode):
        for _ in range(100):
            request = {
                "type": rng.choice(["send", "list", "got", "hello", "message", "ack", "x"]),
                "id": rng.choice(ODD_VALUES),
                "to": rng.choice(["eve", "@all-but-none", "@", "", "nobody", "#room"]),
                "text": rng.choice(["hi", "", " ", "\ud800", "x" * 100_001, "\0"]),
                "name": "eve",
                "token": TOKEN,
            }
            for _ in range(rng.randint(0, 2)):
                key = rng.choice(["ttl", "reply_to", "key", "to", "text", "id"])
                request[key] = rng.choice(ODD_VALUES)
            writer.write(frame(json.dumps(request)))
        await writer.drain()
        await asyncio.sleep(0.05)


async def flood_of_list_without_reading(rng: random.Random, reader: Any, writer: Any) -> None:
    async with logged_in(rng, reader, writer, mode=rng.choice(["peer", "send"])):
        writer.transport.pause_reading()
        writer.write(frame('{"type":"list","id":1}') * 20_000)
        await asyncio.sleep(0.3)


async def flood_of_errors_without_reading(rng: random.Random, reader: Any, writer: Any) -> None:
    async with logged_in(rng, reader, writer):
        writer.transport.pause_reading()
        writer.write(frame("{}") * 50_000)
        await asyncio.sleep(0.3)


async def flood_of_pings_without_reading(rng: random.Random, reader: Any, writer: Any) -> None:
    async with logged_in(rng, reader, writer):
        writer.transport.pause_reading()
        writer.write(frame("x" * 125, 0x89) * 20_000)
        await asyncio.sleep(0.3)


async def endless_fragments(rng: random.Random, reader: Any, writer: Any) -> None:
    async with logged_in(rng, reader, writer):
        writer.write(frame("{", 0x01))
        piece = frame("x" * rng.choice([0, 0, 1, 50]), 0x00) * 2_000
        for _ in range(20):
            writer.write(piece)
            await writer.drain()
        await asyncio.sleep(0.05)


async def a_frame_that_never_ends(rng: random.Random, reader: Any, writer: Any) -> None:
    async with logged_in(rng, reader, writer):
        size = rng.randint(1_000_000, 2 * 1024 * 1024)
        writer.write(bytes([0x81, 0xFF]) + struct.pack("!Q", size) + b"\0" * (4 + size // 2))
        await asyncio.sleep(0.3)


async def messages_to_itself_and_no_one(rng: random.Random, reader: Any, writer: Any) -> None:
    async with logged_in(rng, reader, writer):
        for id in range(60):  # another of its kind may be online under one of these names
            to = f"eve-{rng.randrange(50)}"
            text = "x" * rng.choice([1, 1_000, 100_000])
            request = {"type": "send", "id": id, "to": to, "text": text, "ttl": 1}
            writer.write(frame(json.dumps(request)))
        await asyncio.sleep(0.1)


async def messages_to_everybody(rng: random.Random, reader: Any, writer: Any) -> None:
    async with logged_in(rng, reader, writer):
        for id in range(60):
            text = "x" * rng.randint(1, 1_000)
            request = {"type": "send", "id": id, "to": "@all", "text": text, "ttl": 1}
            writer.write(frame(json.dumps(request)))
        await asyncio.sleep(0.1)


ATTACKS: list[Attack] = [
    random_bytes,
    half_a_handshake,
    mangled_handshake,
    huge_headers,
    slowloris,
    a_request_with_a_body,
    random_frames,
    no_hello,
    bad_hello,
    oversized_hello,
    frames_after_login,
    bad_frames,
    odd_requests,
    flood_of_list_without_reading,
    flood_of_errors_without_reading,
    flood_of_pings_without_reading,
    endless_fragments,
    a_frame_that_never_ends,
    messages_to_itself_and_no_one,
    messages_to_everybody,
]

ODD_VALUES: list[Any] = [
    *(None, True, 0, -1, 1.5, 1e308, 10**30, "", "x", "x" * 300, "\0", "\n", "\u202e", "\ud800"),
    *([], [[]], {}, {"x": 1}, ["all"], ["r"] * 20, "@all", "../../etc", "é", "604801"),
]

BAD_FRAMES: list[bytes | str] = [
    *("", "null", "[]", "{}", "1", '"x"', "nope", '{"type":1}', '{"type":"x","id":{}}', "{" * 50),
    *("[" * 15_000, '{"id":' * 2_500, '{"type":"list","id":1,"x":' + "[" * 15_000, "\ufeff{}"),
    *('{"type":"list","id":NaN}', '{"type":"list","id":1e999}', '{"type":"list","id":-0}'),
    *('{"type":"list","id":"\\ud800"}', '{"type":"list","type":"send","id":1}', '{"type":"list"}'),
    *('{"type":"got","id":1}', '{"type":"got","id":"x"}', "\ud800", "{}\0", "\0{}"),
    *(b'"\xc3\x28"', b"\xff", b"\xf0\x9f\x98", b'{"type":"list","id":"\xed\xa0\x80"}'),
    '{"type":"send","id":1,"to":"nobody","text":"' + "\\u0000" * 2_000 + '"}',
]


def random_frame(rng: random.Random) -> bytes:
    payload: bytes | str = rng.choice([rng.choice(BAD_FRAMES), rng.randbytes(rng.randrange(200))])
    first = rng.choice([0x81, 0x81, 0x82, 0x01, 0x80, 0x00, 0x89, 0x8A, 0x88, 0x83, 0xC1, 0x0F])
    data = frame(
        payload, first, rng.choice([b"\0\0\0\0", rng.randbytes(4), rng.randbytes(4), None])
    )
    return data if rng.random() < 0.9 else data[: rng.randrange(len(data) + 1)]


# The honest pair ----------------------------------------------------------------------------


class Honest:
    """A peer that confirms all it gets, and tells apart what its partner says."""

    def __init__(self, client: Client, name: str, partner: str) -> None:
        self.client, self.name, self.partner = client, name, partner
        self.heard: asyncio.Queue[str] = asyncio.Queue()
        self.acks: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def listen(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for data in self.client.websocket:
                answer = json.loads(data)
                if answer["type"] == "message":
                    await self.client.got(answer)  # whoever sent it: hostile ones write to @all
                    if answer["from"] == self.partner:
                        self.heard.put_nowait(answer["text"])
                else:
                    self.acks.put_nowait(answer)


class HonestPair:
    """Two peers that pass numbered messages to and fro until they are told to stop."""

    def __init__(self, alice: Client, bob: Client) -> None:
        self.peers = Honest(alice, "alice", "bob"), Honest(bob, "bob", "alice")
        self.count = 0
        self._progress = asyncio.Event()

    async def talk(self, until: asyncio.Event) -> None:
        while not until.is_set():
            sender, recipient = self.peers[:: 1 if self.count % 2 else -1]
            text = f"message {self.count} " + "x" * (self.count % 7 * 1_000)
            await self.say(sender, recipient, text)
            assert await recipient.heard.get() == text
            self.count += 1
            self._progress.set()
            self._progress = asyncio.Event()

    async def say(self, sender: Honest, recipient: Honest, text: str) -> None:
        while True:
            await sender.client.send(type="send", id=self.count, to=recipient.name, text=text)
            answer = await sender.acks.get()
            assert answer["id"] == self.count
            if answer["type"] == "ack":
                return
            # What hostile ones wrote to @all waits for it to be read: any client may do that.
            assert "waiting" in answer["error"] or "queues are full" in answer["error"], answer

    async def progress(self) -> None:
        """Wait until one more message has got through that was sent from now on."""
        for _ in range(2):
            await self._progress.wait()


class Metrics:
    """What the relay tells about itself."""

    def __init__(self, relay: RelayProcess) -> None:
        self.relay = relay
        self.process = psutil.Process(relay.pid)

    async def gauges(self) -> dict[str, float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.relay.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: relay\r\n\r\n")
        lines = (await reader.read()).decode().splitlines()
        writer.close()
        names = ("connections", "peers_online", "queued", "queued_bytes", "in_flight")
        values = dict(line.split() for line in lines if line.startswith("hoptell_") and " " in line)
        return {name: float(values[f"hoptell_{name}"]) for name in names}

    def memory(self) -> int:
        return self.process.memory_info().rss

    async def at_rest(self) -> int:
        """Wait until there is only the honest pair; the number of file descriptors then."""
        pair = {"connections": 2, "peers_online": 2, "queued": 0, "queued_bytes": 0, "in_flight": 0}
        expected = pair, 3  # sockets: one listens
        seen: tuple[dict[str, float], int] | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE / 5):
                while seen != expected:
                    gauges = await self.gauges()
                    await asyncio.sleep(0.02)  # that connection has an end too
                    seen = gauges, len(self.process.net_connections("tcp"))
        assert seen == expected
        return self.process.num_fds()


async def attack(
    relay: RelayProcess, attacks: Iterator[tuple[int, Attack]], pair: HonestPair
) -> None:
    for number, method in attacks:
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        ends = (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
        with contextlib.suppress(*ends, TimeoutError):
            async with asyncio.timeout(0.5):
                await method(random.Random(SEED * 1_000 + number), reader, writer)
        await pair.progress()
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def dawdle(relay: RelayProcess, said: bytes) -> None:
    """Never silent and never logged in, until the relay ends it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    writer.write(said)
    more = frame("", 0x89) if said == HANDSHAKE else b"x"
    ended = asyncio.ensure_future(reader.read())
    while not ended.done():
        writer.write(more)
        await asyncio.wait([ended], timeout=0.2)
    with contextlib.suppress(ConnectionError):
        await ended
    writer.transport.abort()


async def be_known(relay: RelayProcess, name: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    roles = [f"{number:x<64}" for number in range(16)]
    writer.write(HANDSHAKE + hello(name, roles=roles, host="x" * 255))
    await reader.readuntil(b"}")
    writer.close()
    await writer.wait_closed()


async def read_what_waits(relay: RelayProcess) -> None:
    """Some of the attackers' own messages have no deadline."""
    asking = await login(relay.url, "asking", mode="send")
    while waiting := [
        peer["name"]
        for peer in (await asking.ask(type="list", id=1))["peers"]
        if peer["queued"] and not peer["online"]
    ]:
        client = await login(relay.url, waiting[0])
        await client.send(type="list", id=1)
        while (answer := await client.receive())["type"] == "message":
            await client.got(answer)
        await client.close()
    await asking.close()


async def test_hostile_clients_disturb_neither_the_relay_nor_two_honest_peers(
    tmp_path: Path,
) -> None:
    with relay_process(tmp_path, HOPTELL_RATE="0") as relay:
        metrics = Metrics(relay)
        for number in range(BYSTANDERS):
            await be_known(relay, f"bystander-{number}")
        over = asyncio.Event()
        pair = HonestPair(await login(relay.url, "alice"), await login(relay.url, "bob"))
        descriptors = await metrics.at_rest()
        before = largest = metrics.memory()
        attacks = ATTACKS * ROUNDS
        random.Random(SEED).shuffle(attacks)
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
            listening = [tasks.create_task(peer.listen()) for peer in pair.peers]
            talking = tasks.create_task(pair.talk(over))
            starts = (b"", HANDSHAKE[:8], HANDSHAKE[:-4], HANDSHAKE)
            dawdling = [tasks.create_task(dawdle(relay, start)) for start in starts * 4]
            numbered = iter(enumerate(attacks))
            attacking = [tasks.create_task(attack(relay, numbered, pair)) for _ in range(ATTACKERS)]
            left = {*attacking, *dawdling}
            while left:
                _, left = await asyncio.wait(left, timeout=0.02)
                largest = max(largest, metrics.memory())
                assert largest - before < MAX_GROWTH
            over.set()
            await talking
            await read_what_waits(relay)
            assert await metrics.at_rest() == descriptors
            for peer in pair.peers:
                await peer.client.close()
            await asyncio.wait(listening)
        print(f"{pair.count} messages, +{largest - before >> 20} MiB")
        assert relay.stop() == 0
        bugs = [line for line in relay.lines() if " error " in line or " critical " in line]
        assert bugs == []
