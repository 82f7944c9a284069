"""Measure hoptell's relay: starts it and a load generator as separate processes.

python bench/relay.py                  all six scenarios, about a minute
python bench/relay.py --quick          a look instead of a measurement
python bench/relay.py window-16 storm  only these
python bench/relay.py --json           one JSON object a line
"""

import argparse
import json
import sys
from dataclasses import asdict

from relays import CONTESTANTS, Failed, Unavailable, contestant
from scenarios import SCENARIOS, Result, Scenario, run

SHOWN = ("ping-pong", "window-16", "fan-out", "large", "idle-2000", "storm")
HEAD = (
    f"{'scenario':<36}{'messages/s':>11}{'CPU s/10,000':>14}{'p50 ms':>9}{'p99 ms':>9}"
    f"{'RSS MB':>8}{'peak':>7}  load"
)


def main() -> int:
    """Run what the command line asks for; 1 if a run went wrong."""
    options = _arguments().parse_args()
    relay = contestant(options.relay)
    if not options.json:
        print(HEAD)
    for key in options.scenario or SHOWN:
        scenario = SCENARIOS[key].shorter(0.2) if options.quick else SCENARIOS[key]
        try:
            result = run(relay, scenario)
        except (Failed, Unavailable) as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
        print(_as_json(result) if options.json else _as_line(scenario, result), flush=True)
    if not options.json:
        print(
            "\nFor the idle peers the rate stands for nothing; their memory is KiB for each peer."
            "\nFor the storm it is logins a second. `load` is the share of its core that the load"
            "\ngenerator used: near 1.0 it, and not the relay, was the limit."
        )
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    # With `*` argparse checks the empty list too, as if it were a scenario.
    parser.add_argument("scenario", nargs="*", metavar="SCENARIO", choices=(*SCENARIOS, []))
    parser.add_argument("--relay", default="hoptell", help=f"{', '.join(CONTESTANTS)} or NAME=TREE")
    parser.add_argument("--quick", action="store_true", help="a fifth of the time")
    parser.add_argument("--json", action="store_true")
    return parser


def _as_json(result: Result) -> str:
    more = {"rate": result.rate, "cpu_per_10k": result.cpu_per_10k}
    return json.dumps(asdict(result) | more)


def _as_line(scenario: Scenario, result: Result) -> str:
    idle = scenario.kind == "idle"
    rate = "" if idle else f"{result.rate:,.0f}"
    cpu = "" if idle else f"{result.cpu_per_10k:.3f}"
    note = f"  {result.kib_per_peer:.1f} KiB each" if idle else f"  {result.load_share:.2f}"
    return (
        f"{scenario.title:<36}{rate:>11}{cpu:>14}{result.p50_us / 1e3:>9.2f}"
        f"{result.p99_us / 1e3:>9.2f}{result.rss_kib / 1024:>8.1f}{result.peak_kib / 1024:>7.1f}"
        f"{note}"
    )


if __name__ == "__main__":
    sys.exit(main())
