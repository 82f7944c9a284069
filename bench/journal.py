"""Measure what the journal costs: a relay with one beside a relay without, in interleaved runs.

    python bench/journal.py               seven rounds, about 3 minutes
    python bench/journal.py --rounds 1    a look

Beside that, how long a relay takes from its start to its first answer when 2,000 messages wait
in its journal, the most that may wait.

The journal's file is in the folder for temporary files (TMPDIR): let that be on a real disk.
A message waits for the commit that runs when it comes, and then for its own; how many commits
the journal added to the latency is printed beside it.
"""

import argparse
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from relays import CONTESTANTS, ROOT, Contestant, Failed, Unavailable, hoptell, running
from scenarios import SCENARIOS, Result, run

from hoptell.relay.model import Accepted, Delivery, Limits, Message, Peer, Receipt
from hoptell.relay.store import Batch, Store

MIN_RATE = 0.5
"""Of the rate without a journal."""
WITHOUT, WITH = CONTESTANTS["hoptell"], CONTESTANTS["hoptell-journal"]


def main() -> int:
    """Run the rounds and print their medians; 1 if a run went wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("-s", "--scenario", choices=SCENARIOS, default="window-16")
    options = parser.parse_args()
    scenario = SCENARIOS[options.scenario]
    rounds, starts = [], []
    try:
        for _ in range(max(1, options.rounds)):
            rounds.append((run(WITHOUT, scenario), run(WITH, scenario)))
            starts.append((time_to_answer(WITHOUT), time_to_answer_with(Limits.queued)))
    except (Failed, Unavailable) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1

    def middle(measure: Callable[[Result, Result], float]) -> float:
        return statistics.median(measure(without, with_it) for without, with_it in rounds)

    print(f"{scenario.title}, {len(rounds)} rounds (medians)")
    for title, number in (("without a journal", 0), ("with a journal", 1)):
        results = [found[number] for found in rounds]
        rate, p50, p99 = (
            statistics.median(values)
            for values in zip(*((r.rate, r.p50_us, r.p99_us) for r in results), strict=True)
        )
        print(f"{title:<30}{rate:>11,.0f}/s   p50 {p50 / 1e3:.2f} ms   p99 {p99 / 1e3:.2f} ms")
    ratio = middle(lambda without, with_it: with_it.rate / without.rate)
    kept = "kept" if ratio >= MIN_RATE else "MISSED"
    print(f"{'rate':<30}{ratio:>11.2f} times, at least {MIN_RATE}: {kept}")
    print(f"{'a commit takes':<30}{middle(lambda _, r: r.commit_us) / 1e3:>11.2f} ms on average")
    for name, measure in (
        ("median", lambda without, r: (r.p50_us - without.p50_us) / r.commit_us),
        ("p99", lambda without, r: (r.p99_us - without.p99_us) / r.commit_us),
    ):
        print(f"{f'added to the {name}':<30}{middle(measure):>11.2f} commits")
    without, with_it = (statistics.median(times) for times in zip(*starts, strict=True))
    ratio = statistics.median(restart / start for start, restart in starts)
    print(f"{'start to answer, without':<30}{without:>11.2f} s")
    print(f"{f'with {Limits.queued:,} queued messages':<30}{with_it:>11.2f} s, {ratio:.2f} times")
    return 0


def time_to_answer(relay: Contestant) -> float:
    """Seconds from a relay's start to its first answer: it listens a little earlier."""
    with running(relay) as process:
        with urllib.request.urlopen(f"http://127.0.0.1:{process.port}/healthz", timeout=20):
            return time.perf_counter() - process.started_at


def time_to_answer_with(queued: int) -> float:
    """The same with so many messages that wait in its journal."""
    with tempfile.TemporaryDirectory(prefix="hoptell-bench-") as folder:
        file = Path(folder) / "journal"
        fill(file, queued)
        return time_to_answer(hoptell(ROOT, "hoptell-restarted", "--journal", str(file)))


def fill(file: Path, count: int) -> None:
    """Make a journal in which messages of 1,000 characters wait, 50 for each of some peers."""
    batch = Batch()
    for number in range(count):
        name = f"peer-{number // Limits.queued_per_peer}"
        peer = batch.peers.setdefault(name, Peer(name))
        assert peer is not None
        reference = f"00000000-0000-4000-8000-{number:012x}"
        text, ts = "x" * 1_000, int(time.time() * 1000)
        message = Message(
            reference, "sender", None, "host", name, text, len(text), ts, None, None, False
        )
        receipt = Receipt(reference, 0.0, None, "queued", ())
        delivery = Delivery(f"{reference}-{name}", message, peer, receipt)
        batch.accepted.append(Accepted(message, (delivery,), receipt, f"key-{number}"))
    store = Store(file, key_lifetime=Limits.key_lifetime)
    store.commit(batch)
    store.close()


if __name__ == "__main__":
    sys.exit(main())
