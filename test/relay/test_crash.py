"""kill -9 at any instant loses and doubles nothing.

CRASH_TEST_KILLS sets how many processes are killed in the random run, and CRASH_TEST_SECONDS
after how long it has to do with fewer: a machine that has much else to do is not to fail here.
"""

import asyncio
import os
import random
import socket
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from support import crash

from hoptell.errors import Refused, RelayUnreachable
from hoptell.inbox import Inbox

CRASHES = int(os.environ.get("CRASH_TEST_KILLS", "200"))
SECONDS = int(os.environ.get("CRASH_TEST_SECONDS", "30"))
RECEIVERS = ("alice", "bob", "carol")
SENDERS = ("x", "y")
RELAY_FAULTS = (
    ("recorded, not committed", "here"),
    ("recorded, not committed", "away"),
    ("committed, not written", "here"),
    ("committed, not written", "away"),
    ("written, not confirmed", "here"),
    ("written, not confirmed", "received, not stored"),
    ("confirmed, not recorded", "here"),
)
"""At which point the relay dies, and what its receivers do meanwhile."""
RECEIVER_FAULTS = ("received, not stored", "stored, not confirmed")


class Site:
    """A relay and its receivers, which are started again whenever they died."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.relay = self.start_relay()
        self.receivers = {name: self.start_receiver(name) for name in RECEIVERS}
        self.accepted: dict[str, list[str]] = {name: [] for name in RECEIVERS}
        self.unknown: set[str] = set()
        self.total = 0
        self.progress = asyncio.Event()
        self.is_over = False

    def start_relay(self, fault: str = "") -> BaseProcess:
        return crash.start(crash.relay, self.port, self.folder / "journal", fault)

    def start_receiver(self, name: str, fault: str = "") -> BaseProcess:
        return crash.start(crash.receiver, self.port, self.folder, name, fault)

    async def send(self, sender: str) -> None:
        """Send numbered messages, a few at a time, as long as processes are killed."""
        async with crash.client(self.port, sender) as peer:
            number = 0
            while not self.is_over:
                recipient = self.random.choice(RECEIVERS)
                texts = [f"{sender} {number + n}" for n in range(self.random.randint(1, 5))]
                number += len(texts)
                sends = [self.send_one(peer, recipient, text) for text in texts]
                for text, accepted in zip(texts, await asyncio.gather(*sends), strict=True):
                    if accepted:
                        self.accepted[recipient].append(text)
                        self.total += 1
                self.progress.set()

    async def send_one(self, peer, recipient: str, text: str) -> bool:
        try:
            await peer.send(recipient, text)
        except Refused:  # a full queue, or a name that is not known yet
            await asyncio.sleep(0.01)
            return False
        except RelayUnreachable:
            self.unknown.add(text)
            return False
        return True

    async def kill(self, crashes: int, seconds: int) -> int:
        """Kill so many processes at random instants, and start them again; how many they were.

        After `seconds` no more are killed.
        """
        until = time.monotonic() + seconds
        for number in range(crashes):
            if time.monotonic() > until:
                return number
            if self.random.random() < 0.8:
                await self.more_accepted(self.random.randint(1, 9))
            # Else it may be killed while it starts.
            await asyncio.sleep(self.random.uniform(0, 0.03))
            if self.random.random() < 0.7:
                self.relay.kill()
                await asyncio.to_thread(self.relay.join)
                self.relay = self.start_relay()
            else:
                name = self.random.choice(RECEIVERS)
                self.receivers[name].kill()
                await asyncio.to_thread(self.receivers[name].join)
                self.receivers[name] = self.start_receiver(name)
        return crashes

    def have_receivers(self, what: str) -> None:
        """Have them `here`, `away`, or with a fault."""
        for name, process in self.receivers.items():
            process.kill()
            process.join()
            if what != "away":
                fault = "" if what == "here" else what
                self.receivers[name] = self.start_receiver(name, fault)

    async def more_accepted(self, count: int) -> None:
        """Wait until as many more messages were accepted."""
        target = self.total + count
        while self.total < target:
            await self.progress.wait()
            self.progress.clear()

    async def check(self) -> None:
        """Every accepted message is in exactly one inbox, once, in order; wait for the last."""
        found: dict[str, list[str]] = {name: [] for name in RECEIVERS}
        inboxes = {name: Inbox(self.folder, name) for name in RECEIVERS}
        async with asyncio.timeout(60):
            for name, inbox in inboxes.items():
                while not set(self.accepted[name]) <= set(found[name]):
                    await inbox.wait(1)
                    for claim in inbox.claim():
                        found[name].append(claim.message.text)
                        claim.remove()
        for name, texts in found.items():
            assert len(texts) == len(set(texts)), f"shown twice to {name}"
            assert set(texts) <= set(self.accepted[name]) | self.unknown
            for sender in SENDERS:
                numbers = [int(text.split()[1]) for text in texts if text.split()[0] == sender]
                assert numbers == sorted(numbers), f"out of order for {name}"

    def end(self) -> None:
        for process in (self.relay, *self.receivers.values()):
            process.kill()
            process.join()


@pytest.fixture
def site(tmp_path):
    made = Site(tmp_path, seed=time.time_ns())
    yield made
    made.end()


@pytest.mark.timeout(120 + SECONDS)
async def test_random_kills_of_relay_and_receivers_under_load_lose_and_double_nothing(site):
    senders = [asyncio.create_task(site.send(name)) for name in SENDERS]
    killed = await site.kill(CRASHES, SECONDS)
    site.is_over = True
    await asyncio.gather(*senders)
    print(f"{killed} processes were killed, {site.total} messages accepted")
    assert site.total > killed
    await site.check()


@pytest.mark.parametrize(("fault", "receivers"), RELAY_FAULTS)
async def test_a_relay_that_dies_between_two_steps_loses_and_doubles_nothing(
    site, fault, receivers
):
    senders = [asyncio.create_task(site.send(name)) for name in SENDERS]
    while not all(site.accepted.values()):  # every receiver is known
        await site.more_accepted(1)
    for _ in range(4):
        site.relay.kill()
        site.relay.join()
        site.have_receivers(receivers)
        site.relay = site.start_relay(fault)
        await asyncio.to_thread(site.relay.join, 30)
        assert site.relay.exitcode is not None, f"it never got to {fault!r}"
    site.have_receivers("here")
    site.relay = site.start_relay()
    site.is_over = True
    await asyncio.gather(*senders)
    await site.check()


@pytest.mark.parametrize("fault", RECEIVER_FAULTS)
async def test_a_receiver_that_dies_between_two_steps_loses_and_doubles_nothing(site, fault):
    senders = [asyncio.create_task(site.send(name)) for name in SENDERS]
    for _ in range(4):
        site.receivers["alice"].kill()
        site.receivers["alice"].join()
        site.receivers["alice"] = site.start_receiver("alice", fault)
        await asyncio.to_thread(site.receivers["alice"].join, 30)
        assert site.receivers["alice"].exitcode is not None, f"it never got to {fault!r}"
    site.receivers["alice"] = site.start_receiver("alice")
    site.is_over = True
    await asyncio.gather(*senders)
    assert site.total
    await site.check()
