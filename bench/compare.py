"""Compare relays side by side, in interleaved runs.

Other work on the machine disturbs single runs, so each round runs every relay once in each
scenario, one right after the other, and the ratio to the plain Node relay is taken within
the round; what is shown is the median over the rounds.

    python bench/compare.py                                   five rounds, about 20 minutes
    python bench/compare.py --rounds 1 --quick                a look
    python bench/compare.py --relays hoptell,node -s window-16
    python bench/compare.py --relays hoptell,mine=../tree,node   another source tree of hoptell
    python bench/compare.py --save                            update results/ and the plot
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from plot import Bar, draw
from relays import (
    BENCH,
    CONTESTANTS,
    Contestant,
    Failed,
    Unavailable,
    check_available,
    contestant,
    versions,
)
from scenarios import SCENARIOS, Result, Scenario, load_generator, run

BASE = "node"
RELAYS = ("hoptell", "node", "node-joined", "floor")
COMPARED = (
    "window-16",
    "window-16-4k",
    "window-1",
    "fan-out",
    "large",
    "ping-pong",
    "idle-5000",
    "storm",
)
RESULTS = BENCH / "results"

Measure = Callable[[Result], float]


def _cpu(result: Result) -> float:
    return result.cpu_per_10k


def _per_peer(result: Result) -> float:
    return result.kib_per_peer


def _span(result: Result) -> float:
    return result.seconds


MEASURES: dict[str, tuple[Measure, str]] = {
    "pairs": (_cpu, "CPU s/10,000"),
    "pingpong": (_cpu, "CPU s/10,000"),
    "fanout": (_cpu, "CPU s/10,000"),
    "idle": (_per_peer, "KiB a peer"),
    "storm": (_span, "seconds"),
}
"""What counts in a scenario, by its kind: less is better in all of them."""


@dataclass(frozen=True)
class Target:
    """At most this, as a ratio to the plain Node relay (or absolute)."""

    scenario: str
    words: str
    measure: Measure
    most: float
    absolute: bool = False


TARGETS = (
    Target("window-16", "CPU per message", _cpu, 0.22),
    Target("window-16", "time per message", lambda r: 1 / r.rate, 0.25),
    Target("window-16-4k", "CPU per message", _cpu, 0.22),
    Target("window-1", "CPU per message", _cpu, 0.60),
    Target("fan-out", "CPU per message", _cpu, 0.60),
    Target("large", "CPU per message", _cpu, 0.25),
    Target("ping-pong", "CPU per message", _cpu, 0.95),
    Target("ping-pong", "p50", lambda r: r.p50_us, 1.0),
    Target("ping-pong", "p99", lambda r: r.p99_us, 1.0),
    Target("idle-5000", "KB a peer", lambda r: r.kib_per_peer * 1.024, 7.0, absolute=True),
    Target("storm", "time", _span, 0.25),
    Target(
        "window-16", "peak memory, MB", lambda r: r.peak_kib * 1.024 / 1000, 45.0, absolute=True
    ),
)

Rounds = list[dict[tuple[str, str], Result]]
"""For each round: (relay, scenario) -> result."""


def main() -> int:
    """Run what the command line asks for; 1 if a run went wrong."""
    options = _arguments().parse_args()
    try:
        load_generator()
        relays = [contestant(name) for name in options.relays.split(",")]
        for relay in relays:
            check_available(relay)
    except Unavailable as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    scenarios = [SCENARIOS[key] for key in options.scenario or COMPARED]
    if options.quick:
        scenarios = [scenario.shorter(0.3) for scenario in scenarios]
    rounds, failures = _run(relays, scenarios, options.rounds)
    table = _table(relays, scenarios, rounds)
    targets = _targets(rounds)
    caption = _caption(len(rounds))
    print(f"\n{caption}\n\n{table}\n\n{targets}")
    if options.save:
        _save(relays, scenarios, rounds, f"{caption}\n\n{table}\n\n{targets}\n")
    for failure in failures:
        print(f"bench: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--relays", default=",".join(RELAYS), help=f"of {', '.join(CONTESTANTS)}")
    parser.add_argument("-s", "--scenario", action="append", choices=SCENARIOS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a third of the time for each run")
    parser.add_argument("--save", action="store_true", help="write results/ and its plot")
    return parser


def _run(
    relays: list[Contestant], scenarios: list[Scenario], count: int
) -> tuple[Rounds, list[str]]:
    rounds: Rounds = []
    failures: list[str] = []
    for number in range(count):
        rounds.append({})
        for scenario in scenarios:
            # Every other round the other way round: what comes first meets a cooler machine.
            for relay in relays if number % 2 == 0 else reversed(relays):
                try:
                    result = run(relay, scenario)
                except Failed as error:
                    failures.append(str(error))
                    continue
                rounds[-1][relay.name, scenario.key] = result
                _progress(number, result)
    return rounds, failures


def _progress(number: int, result: Result) -> None:
    print(
        f"round {number + 1}  {result.scenario:<16}{result.relay:<18}{result.rate:>10,.0f}/s"
        f"  {result.cpu_per_10k:.4f} CPU s/10,000  p50 {result.p50_us:,.0f} us"
        f"  p99 {result.p99_us:,.0f} us  {result.rss_kib / 1024:.0f} MiB"
        f"  load {result.load_share:.2f}",
        file=sys.stderr,
        flush=True,
    )


def _middle(rounds: Rounds, relay: str, scenario: str, measure: Measure) -> float | None:
    values = [measure(found[relay, scenario]) for found in rounds if (relay, scenario) in found]
    return statistics.median(values) if values else None


def _ratio(rounds: Rounds, relay: str, scenario: str, measure: Measure) -> float | None:
    """The median over the rounds of the ratio within a round."""
    ratios = []
    for found in rounds:
        if (relay, scenario) in found and (BASE, scenario) in found:
            base = measure(found[BASE, scenario])
            if base > 0:
                ratios.append(measure(found[relay, scenario]) / base)
    return statistics.median(ratios) if ratios else None


def _table(relays: list[Contestant], scenarios: list[Scenario], rounds: Rounds) -> str:
    lines = [
        "| scenario | relay | messages/s | CPU s/10,000 | to Node | p50 ms | p99 ms | MB |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for scenario in scenarios:
        for relay in relays:
            lines.append(_row(relay, scenario, rounds))
    return "\n".join(lines)


def _row(relay: Contestant, scenario: Scenario, rounds: Rounds) -> str:
    def middle(measure: Measure, form: str) -> str:
        value = _middle(rounds, relay.name, scenario.key, measure)
        return "failed" if value is None else format(value, form)

    measure, _ = MEASURES[scenario.kind]
    ratio = _ratio(rounds, relay.name, scenario.key, measure)
    rate, cpu = middle(lambda r: r.rate, ",.0f"), middle(_cpu, ".3f")
    if scenario.kind == "idle":
        rate, cpu = "", f"{middle(_per_peer, '.1f')} KiB a peer"
    elif scenario.kind == "storm":
        rate, cpu = f"{middle(_span, '.2f')} s", middle(_cpu, ".2f")
    cells = [
        scenario.title,
        relay.name,
        rate,
        cpu,
        "" if ratio is None else f"{ratio:.2f}",
        middle(lambda r: r.p50_us / 1e3, ".2f"),
        middle(lambda r: r.p99_us / 1e3, ".2f"),
        middle(lambda r: r.peak_kib * 1.024 / 1000, ".0f"),
    ]
    return f"| {' | '.join(cells)} |"


def _targets(rounds: Rounds) -> str:
    lines = ["| target | at most | measured | |", "| --- | ---: | ---: | --- |"]
    for target in TARGETS:
        reader = _middle if target.absolute else _ratio
        value = reader(rounds, "hoptell", target.scenario, target.measure)
        if value is None:
            continue
        title = SCENARIOS[target.scenario].title
        kept = "kept" if value <= target.most else f"**missed by {value / target.most - 1:.0%}**"
        unit = "" if target.absolute else " of Node's"
        lines.append(f"| {title}: {target.words} | {target.most:g}{unit} | {value:.2f} | {kept} |")
    return "\n".join(lines)


def _caption(rounds: int) -> str:
    found = versions()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{time.strftime('%Y-%m-%d')}: {platform.machine()} with {os.cpu_count()} cores and"
        f" {memory:.0f} GiB, Linux {platform.release().split('-')[0]};"
        f" {', '.join(f'{name} {version}' for name, version in found.items())}."
        f" Medians of {rounds} interleaved rounds; the relay on one core, the load on the other."
    )


def _save(relays: list[Contestant], scenarios: list[Scenario], rounds: Rounds, text: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "comparison.md").write_text(text)
    runs = [
        asdict(result) | {"round": n + 1}
        for n, found in enumerate(rounds)
        for result in found.values()
    ]
    lines = ",\n".join(json.dumps(run) for run in runs)
    (RESULTS / "comparison.json").write_text(
        f'{{"caption": {json.dumps(_caption(len(rounds)))},\n"runs": [\n{lines}\n]}}\n'
    )
    groups = []
    for scenario in scenarios:
        measure, unit = MEASURES[scenario.kind]
        bars = []
        for relay in relays:
            value = _middle(rounds, relay.name, scenario.key, measure)
            ratio = _ratio(rounds, relay.name, scenario.key, measure)
            if value is not None and ratio is not None:
                bars.append(Bar(relay.name, ratio, f"{value:.3g} {unit}"))
        groups.append((scenario.title.replace("`", ""), bars))
    titles = {relay.name: relay.title.replace("`", "") for relay in relays}
    (RESULTS / "comparison.svg").write_text(draw(groups, titles, _caption(len(rounds))))


if __name__ == "__main__":
    sys.exit(main())
