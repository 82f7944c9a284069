"""With a journal, a message is told of only once it is on disk, and outlives the relay."""

import asyncio
import contextlib
import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.relay import PATIENCE, Client, RunningRelay, login, relay_process, running_relay

from hoptell import frames
from hoptell.relay import journal as module
from hoptell.relay.database import lock_file
from hoptell.relay.model import Limits
from hoptell.relay.server import Timing
from hoptell.relay.store import Batch, Store


class Disk:
    """Stands between the journal and its file: it can be slow, and it can be full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commits = 0
        self._full = False
        self._loop = asyncio.get_running_loop()
        self._free = asyncio.Event()
        self._free.set()
        self.reached = asyncio.Event()
        commit = Store.commit

        def slow_commit(store: Store, batch: Batch) -> None:
            if not self._free.is_set():
                self._loop.call_soon_threadsafe(self.reached.set)
                asyncio.run_coroutine_threadsafe(self._free.wait(), self._loop).result(PATIENCE)
            if self._full:
                raise sqlite3.OperationalError("database or disk is full")
            self.commits += 1
            commit(store, batch)

        monkeypatch.setattr(Store, "commit", slow_commit)
        monkeypatch.setattr(module, "RETRY_INTERVAL", 0.01)

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        """Until the end of the block nothing is written."""
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        self._full = True
        try:
            yield
        finally:
            self._full = False


@pytest.fixture
async def disk(monkeypatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "journal"


async def test_nobody_hears_of_a_message_before_it_is_on_disk_and_all_else_goes_on(file, disk):
    async with running_relay(journal=file) as relay:
        alice, bob = await relay.login("alice"), await relay.login("bob")
        with disk.stalled():
            await bob.send(type="send", id=1, to="alice", text="hi")
            await disk.reached.wait()
            await bob.send(type="send", id=2, to="alice", text="there")
            # What a client hears first is the answer to what it asked last.
            assert (await bob.ask(type="list", id=3))["type"] == "peers"
            assert (await alice.ask(type="list", id=1))["type"] == "peers"
            assert (await (await relay.login("carol")).ask(type="list", id=1))["type"] == "peers"
        for text in ("hi", "there"):
            message = await alice.receive()
            assert message["text"] == text
            await alice.got(message)
        assert [(await bob.receive())["state"] for _ in range(2)] == ["delivered"] * 2


async def test_what_arrives_together_is_one_commit(file, disk):
    async with running_relay(journal=file) as relay:
        alice, bob = await relay.login("alice"), await relay.login("bob")
        with disk.stalled():
            await bob.send(type="send", id=0, to="alice", text="first")
            await disk.reached.wait()
            for number in range(1, 40):
                await bob.send(type="send", id=number, to="alice", text="more")
            await bob.ask(type="list", id="in between")
            before = disk.commits
        for _ in range(40):
            await alice.receive_type("message")
        assert disk.commits - before <= 3


async def test_a_recipient_that_came_back_while_the_disk_was_slow_gets_the_message_once(file, disk):
    async with running_relay(journal=file) as relay:
        older, bob = await relay.login("alice"), await relay.login("bob")
        with disk.stalled():
            await bob.send(type="send", id=1, to="alice", text="hi")
            await disk.reached.wait()
            newer = await relay.login("alice")
            assert await older.close_code() == 4004
        message = await newer.receive_type("message")
        await newer.got(message)
        assert (await bob.receive())["state"] == "delivered"
        assert (await newer.ask(type="list", id=1))["type"] == "peers"


async def test_messages_that_a_full_disk_refuses_together_leave_nothing_behind(file, disk):
    async with running_relay(journal=file, limits=Limits(in_flight=1)) as relay:
        await relay.login("alice")
        bob = await relay.login("bob")
        with disk.full():
            with disk.stalled():
                await bob.send(type="send", id=0, to="alice", text="first")
                await disk.reached.wait()
                for id in (1, 2, 3):  # one commit, and room for one in flight
                    await bob.send(type="send", id=id, to="alice", text="more")
                await bob.ask(type="list", id="all were read")
            answers = [await bob.receive() for _ in range(4)]
        assert {answer["type"] for answer in answers} == {"error"}
        await bob.ask(type="list", id="all was done")
        assert not relay.server._not_durable and not relay.server.core.gauges().queued


async def test_a_full_disk_refuses_messages_while_the_relay_lives_on_and_recovers(file, disk):
    async with running_relay(journal=file) as relay:
        alice, bob = await relay.login("alice"), await relay.login("bob")
        (await relay.login("offline")).abort()
        await relay.event("disconnected")
        with disk.full():
            for to in ("alice", "offline", "@all"):
                error = await bob.ask(type="send", id=to, to=to, text="lost", key=to)
                assert error["type"] == "error" and error["id"] == to
                assert "disk full" in error["error"]
            peers = (await bob.ask(type="list", id=1))["peers"]
            assert [peer["queued"] for peer in peers] == [0, 0]
            assert relay.server.metrics.withdrawn == 3
        while True:  # the next try finds out that there is room again
            await bob.send(type="send", id=2, to="alice", text="kept", key="alice")
            answer = asyncio.create_task(bob.receive())
            message = asyncio.create_task(alice.receive())
            await asyncio.wait({answer, message}, return_when=asyncio.FIRST_COMPLETED)
            if message.done():
                break
            message.cancel()
        assert message.result()["text"] == "kept"
        await alice.got(message.result())
        assert (await answer)["state"] == "delivered"


async def test_a_repeat_that_waits_for_the_same_message_is_refused_with_it(file, disk):
    async with running_relay(journal=file) as relay:
        (await relay.login("alice")).abort()
        await relay.event("disconnected")
        first, second = await relay.login("bob"), await relay.login("bob", mode="send")
        with disk.stalled(), disk.full():
            await first.send(type="send", id=1, to="alice", text="hi", key="k")
            await disk.reached.wait()
            await second.send(type="send", id=2, to="alice", text="hi", key="k")
            await second.ask(type="list", id=3)
            disk._free.set()
            errors = [await first.receive(), await second.receive()]
        assert [(error["type"], error["id"]) for error in errors] == [("error", 1), ("error", 2)]


async def test_a_restart_keeps_2000_queued_messages_as_they_were(file):
    names = [f"peer-{number}" for number in range(40)]
    sends = [
        {"id": number, "to": names[number % 40], "text": f"text {number} é"}
        | ({"ttl": 600 + number} if number % 2 else {})
        | ({"reply_to": f"00000000-0000-4000-8000-{number:012x}"} if number % 3 else {})
        for number in range(2000)
    ]
    acks = []
    async with running_relay(journal=file) as relay:
        for number, name in enumerate(names):
            peer = await relay.login(name, roles=[f"r{number % 3}"], host=f"h{number}", wake="hook")
            peer.abort()
        bob = await relay.login("bob")
        for send in sends:
            await bob.send(type="send", **send)
        for _ in sends:
            acks.append(await bob.receive())
            assert acks[-1]["state"] in ("queued", "unconfirmed")
        error = await bob.ask(type="send", id=1, to=names[0], text="too many")
        assert error["type"] == "error"
        peers = (await bob.ask(type="list", id=1))["peers"]
        queued = {name: relay.server.core._peers[name].queue for name in names}
        before = {
            name: [json.loads(frames.encode(delivery.frame())) for delivery in queue]
            for name, queue in queued.items()
        }
    assert sum(map(len, before.values())) == 2000
    async with running_relay(journal=file) as relay:
        bob = await relay.login("bob")
        assert (await bob.ask(type="list", id=1))["peers"] == peers
        found = {}
        for name in names:
            peer = await relay.login(name)
            found[name] = [await peer.receive() for _ in before[name]]
            for message in found[name]:
                await peer.got(message)
        assert found == before
    for send, ack in zip(sends, acks, strict=True):
        message = before[send["to"]][send["id"] // 40]
        assert message["message_id"] == ack["message_id"]
        assert message["text"] == send["text"]
        assert message.get("reply_to") == send.get("reply_to")
        assert message.get("expires") == ack.get("expires")
        assert ("ttl" in send) == ("expires" in message)
    with closing(sqlite3.connect(file)) as database:
        assert database.execute("SELECT count(*) FROM messages").fetchone() == (0,)


async def test_the_same_key_twice_across_a_restart_is_one_message(file):
    async with running_relay(journal=file) as relay:
        (await relay.login("alice")).abort()
        bob = await relay.login("bob")
        send = {"type": "send", "id": 1, "to": "alice", "text": "hi", "key": "k"}
        first = await bob.ask(**send)
    async with running_relay(journal=file) as relay:
        bob = await relay.login("bob")
        assert await bob.ask(**send) == first
        alice = await relay.login("alice")
        assert (await alice.receive())["message_id"] == first["message_id"]
        assert (await alice.ask(type="list", id=1))["type"] == "peers"


# The end


async def stuck_peer(relay: RunningRelay) -> None:
    """A peer that reads nothing, not even that it is to close, with much to be written to it."""
    alice, bob = await relay.login("alice"), await relay.login("bob")
    bob.websocket.transport.pause_reading()
    for id in range(40):
        await alice.send(type="send", id=id, to="bob", text="x" * 100_000)
    await alice.ask(type="list", id="all were taken")


async def test_a_stop_is_over_in_time_whatever_peers_and_disk_do(file, disk):
    timing = Timing(close_wait=600, stop_wait=0.1)
    async with running_relay(journal=file, timing=timing) as relay:
        await stuck_peer(relay)
        with disk.stalled():
            alice = await relay.login("carol")
            await alice.send(type="send", id=1, to="alice", text="hi")
            await disk.reached.wait()
            async with asyncio.timeout(PATIENCE):  # far less than the peer, or the disk, takes
                await relay.server.stop()
        relay.server.abort()
    # The command gives the log's last lines another 0.3 s.
    assert Timing().close_wait < Timing().stop_wait <= 1.5


async def test_the_journal_is_closed_while_connections_still_are(file):
    timing = Timing(close_wait=600, stop_wait=600)
    async with running_relay(journal=file, timing=timing) as relay:
        await stuck_peer(relay)
        stopping = asyncio.create_task(relay.server.stop())
        async with asyncio.timeout(PATIENCE):
            while relay.server._journal._thread.is_alive():
                await asyncio.sleep(0.005)
        assert relay.server._websockets and not stopping.done()
        os.close(lock_file(file))  # another relay may have it
        relay.server.abort()
        await stopping


# As a process


needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounting needs root and unshare"
)


def with_mounts(script: str, folder: Path) -> list[str]:
    """What to put before a command that is to see what `script` mounts on `folder`, `$0`."""
    return ["unshare", "-m", "sh", "-c", f'{script} && exec "$@"', str(folder)]


def start_fails(folder: Path, file: Path, *before: str) -> str:
    """The one line with which a relay on this journal gives up."""
    command = [sys.executable, "-m", "hoptell", "relay", "--port", "0", "--journal", str(file)]
    command = [*before, *command]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "HOPTELL_TOKEN": "t" * 20}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=10)
    assert (ended.returncode, ended.stdout) == (1, "")
    [line] = [line for line in ended.stderr.splitlines() if line.startswith("hoptell: ")]
    assert "Traceback" not in ended.stderr
    return line


def test_a_second_relay_on_the_same_journal_does_not_start_and_names_the_first(tmp_path):
    file = tmp_path / "journal"
    with relay_process(tmp_path, "--journal", str(file)) as relay:
        assert f"pid {relay.pid} " in start_fails(tmp_path, file)
        relay.kill()
        relay.start()
        assert relay.stop() == 0


def test_a_damaged_journal_is_explained_and_left_as_it_is(tmp_path):
    file = tmp_path / "journal"
    file.write_bytes(b"not a database" * 1000)
    assert "cannot be used" in start_fails(tmp_path, file)
    assert file.read_bytes() == b"not a database" * 1000


@needs_mounts
@pytest.mark.parametrize("made_before", [False, True])
def test_a_journal_on_a_read_only_disk_is_explained_and_left_as_it_is(tmp_path, made_before):
    folder = tmp_path / "mounted"
    folder.mkdir()
    file = folder / "journal"
    if made_before:
        Store(file, key_lifetime=600).close()
        file.with_name("journal.lock").touch()
    before = {path: path.read_bytes() for path in folder.iterdir()}
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"'
    line = start_fails(tmp_path, file, *with_mounts(mount, folder))
    assert "Read-only file system" in line and "make it and its folder writable" in line
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@needs_mounts
def test_a_journal_on_a_full_disk_is_not_to_be_moved(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    kept = tmp_path / "kept"
    Store(kept, key_lifetime=600).close()
    mount = (
        'mount -t tmpfs -o size=1m tmpfs "$0" && cp "$0"/../kept "$0"/journal'
        ' && (cat /dev/zero > "$0"/ballast 2> /dev/null; true)'
    )
    line = start_fails(tmp_path, small / "journal", *with_mounts(mount, small))
    assert "make room on its disk; do not move it" in line


def test_a_relay_says_once_whether_it_keeps_messages(tmp_path):
    with relay_process(tmp_path) as relay:
        assert "memory" in relay.wait_for("memory only")
    with relay_process(tmp_path, "--journal", str(tmp_path / "journal")) as relay:
        relay.wait_for("journal")
        assert not [line for line in relay.lines() if "memory only" in line]


@needs_mounts
async def test_a_real_full_disk_refuses_messages_and_the_relay_recovers(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    script = 'mount -t tmpfs -o size=8m tmpfs "$0" && head -c 6m /dev/zero > "$0/ballast"'
    command = [*with_mounts(script, small), sys.executable, "-m", "hoptell"]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "HOPTELL_TOKEN": "a-token-for-tests-only",
        "HOPTELL_RATE": "0",
    }
    process = await asyncio.create_subprocess_exec(
        *command,
        *("relay", "--port", "0", "--journal", str(small / "journal")),
        env=environment,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(20):
            assert process.stderr is not None
            while b"listening" not in (line := await process.stderr.readline()):
                assert line, "the relay did not start (no right to mount?)"
            url = line.decode().split()[-1].strip('"')
            drain = asyncio.create_task(process.stderr.read())
            alice, bob = await login(url, "alice"), await login(url, "bob")
            await alice.close()
            state = ""
            for number in range(50):
                await bob.send(type="send", id=number, to="alice", text="x" * 90_000)
                answer = await bob.receive()
                state = answer.get("state") or answer["error"]
                if "disk full" in state:
                    break
                assert state == "queued"
            assert "disk full" in state
            assert 2 < number < 25
            alice = await login(url, "alice")
            for _ in range(number):
                await alice.got(await alice.receive_type("message"))
            await alice.close()
            in_its_mounts = ("nsenter", "-t", str(process.pid), "-m")
            subprocess.run([*in_its_mounts, "rm", str(small / "ballast")], check=True)
            while (await bob.ask(type="send", id=0, to="alice", text="after"))["type"] == "error":
                await asyncio.sleep(0.05)
            await bob.close()
            process.terminate()
            assert await process.wait() == 0
            await drain
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


# A crowd


async def all_log_in(relay: RunningRelay, names: list[str]) -> list[Client]:
    """Log so many in, some at a time: none is to wait longer than the relay waits for a hello."""
    peers: list[Client] = []
    for start in range(0, len(names), 50):
        peers += await asyncio.gather(*map(relay.login, names[start : start + 50]))
    return peers


@pytest.mark.timeout(240)  # 2,000 logins, perhaps while others need the machine
@pytest.mark.parametrize("journalled", [False, True])
async def test_a_thousand_peers_that_drop_at_once_lose_nothing(file, journalled):
    """Each has one message in flight and one in the queue behind it, and comes back for them."""
    count = 1000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3 * count:
        pytest.skip("too few open files are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3 * count), hard))
    names = [f"peer-{number}" for number in range(count)]
    journal = file if journalled else None
    async with running_relay(journal=journal, limits=Limits(in_flight=1)) as relay:
        peers = await all_log_in(relay, names)
        bob = await relay.login("bob")
        for text in ("first", "second"):
            assert (await bob.ask(type="send", id=text, to="@all", text=text))["count"] == count
        before = [await peer.receive() for peer in peers]
        for peer in peers:
            peer.abort()
        peers = await all_log_in(relay, names)
        for peer, message in zip(peers, before, strict=True):
            assert await peer.receive() == message  # the same delivery again
            await peer.got(message)
            second = await peer.receive()
            assert second["text"] == "second"
            await peer.got(second)
            assert (await peer.ask(type="list", id=1))["type"] == "peers"  # and nothing else
