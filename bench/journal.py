"""Measure what the journal costs: a relay with one beside a relay without, in interleaved runs.

    python bench/journal.py               seven rounds, about 3 minutes
    python bench/journal.py --rounds 1    a look

The journal's file is in the folder for temporary files (TMPDIR): let that be on a real disk.
A message waits for the commit that runs when it comes, and then for its own; how many commits
the journal added to the latency is printed beside it.
"""

import argparse
import statistics
import sys
from collections.abc import Callable

from relays import CONTESTANTS, Failed, Unavailable
from scenarios import SCENARIOS, Result, run

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
    try:
        rounds = [
            (run(WITHOUT, scenario), run(WITH, scenario)) for _ in range(max(1, options.rounds))
        ]
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
