"""Measure how cost grows: with the number of peers, and with the number of queued messages.

    python bench/growth.py               about two minutes
    python bench/growth.py --quick

The first table comes from the real relay and the load generator; the second one drives the
core in this process, with its limits raised far over what a relay allows, since a relay holds
2,000 messages and 50 for one peer at most. Every figure is for one message or one peer: a
column that stays about level down the table grows linearly in all, and one that grows with
the table grows faster than that.
"""

import argparse
import sys
import time
from collections.abc import Callable

from relays import ROOT, contestant
from scenarios import Scenario, run

sys.path.insert(0, str(ROOT))

from hoptell import frames  # noqa: E402
from hoptell.relay.core import Relay  # noqa: E402
from hoptell.relay.model import Connection, Credential, Deliver, Limits  # noqa: E402
from hoptell.settings import Rate  # noqa: E402

PEERS = (10, 100, 1000, 5000)
QUEUED = (1, 10, 100, 1000, 10_000, 100_000)
SHARED = Credential(None, "0" * 64)
TEXT = "The build is green again; I moved the retry loop into the client and kept its tests." * 2
DAY = 86_400.0


def main() -> int:
    """Run what the command line asks for."""
    options = _arguments().parse_args()
    if options.what in ("peers", "all"):
        _peers(0.4 if options.quick else 2.0)
    if options.what in ("queued", "all"):
        _queued(QUEUED[:-1] if options.quick else QUEUED)
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("peers", "queued", "all"), default="all")
    parser.add_argument("--quick", action="store_true")
    return parser


# Peers --------------------------------------------------------------------------------------


def _peers(seconds: float) -> None:
    print("| peers | direct, us a message | `@all`, us a copy | login, us | idle, KiB a peer |")
    print("| ---: | ---: | ---: | ---: | ---: |", flush=True)
    relay = contestant("hoptell")
    for count in PEERS:
        # The same number of messages on their way whatever the number of peers, so that the
        # relay can join as many writes; the rest of the peers takes turns.
        pairs = run(relay, Scenario("pairs", "", "pairs", count // 2, 1, seconds=seconds))
        everyone = run(relay, Scenario("all", "", "fanout", count - 1, 1, seconds=seconds))
        storm = run(relay, Scenario("storm", "", "storm", count, warmup=0.2, repeat=3))
        idle = run(relay, Scenario("idle", "", "idle", count, seconds=0.3, warmup=0.3))
        print(
            f"| {count:,} | {pairs.cpu_per_10k * 100:.1f} | {everyone.cpu_per_10k * 100:.1f}"
            f" | {storm.cpu_per_10k * 100:.0f} | {idle.kib_per_peer:.1f} |",
            flush=True,
        )


# Queued messages ----------------------------------------------------------------------------


def _queued(counts: tuple[int, ...]) -> None:
    print("\nMicroseconds of the core for one message, with so many queued for one peer:\n")
    print(
        "| queued | queue one more | drain | return when the connection is lost"
        " | expire one | expire all |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for count in counts:
        columns = (_queue_more, _drain, _return, _expire_one, _expire_all)
        spans = [min(column(count) for _ in range(3)) * 1e6 for column in columns]
        print(f"| {count:,} | {' | '.join(f'{span:.2f}' for span in spans)} |", flush=True)


class _Core:
    """A core with a sender, and `count` messages queued for a peer that is away."""

    def __init__(self, count: int, *, in_flight: int = 50) -> None:
        limits = Limits(
            in_flight=in_flight, queued_per_peer=10**7, queued=10**7, queued_bytes=10**12
        )
        self.relay = Relay(id_seed="5eed" * 8, rate=Rate(0), limits=limits)
        self.sender = self.login("alice", 0.0)
        self.relay.closed(self.login("bob", 0.0), now=0.0)
        self.sent = 0
        for _ in range(count):
            self.send()

    def login(self, name: str, now: float) -> Connection:
        connection = Connection(None)
        self.relay.opened(connection, now=now)
        self.relay.login(connection, frames.Hello(name=name, token=""), SHARED, now=now)
        return connection

    def send(self) -> None:
        """Queue one more; each expires a second after the one before it."""
        self.sent += 1
        frame = frames.Send(self.sent, "bob", TEXT, ttl=self.sent)
        self.relay.receive(self.sender, frame, now=0.0)
        self.relay.take_effects()


def _span(work: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) / count


def _queue_more(count: int) -> float:
    core = _Core(count)
    return _span(lambda: [core.send() for _ in range(200)], 200)


def _drain(count: int) -> float:
    core = _Core(count)

    def drain() -> None:
        connection = core.login("bob", 0.0)
        left = count
        while left:
            for effect in core.relay.take_effects():
                if type(effect) is Deliver:
                    left -= 1
                    got = frames.Got(effect.delivery.id)
                    core.relay.receive(connection, got, now=0.0)

    return _span(drain, count)


def _return(count: int) -> float:
    core = _Core(count, in_flight=10**7)
    connection = core.login("bob", 0.0)
    core.relay.take_effects()
    return _span(lambda: core.relay.closed(connection, now=0.0), count)


def _expire_one(count: int) -> float:
    core = _Core(count)
    times = range(1, min(count, 100) + 1)
    return _span(lambda: [core.relay.tick(at + 0.5) for at in times], len(times))


def _expire_all(count: int) -> float:
    core = _Core(count)
    return _span(lambda: core.relay.tick(count + DAY), count)


if __name__ == "__main__":
    sys.exit(main())
