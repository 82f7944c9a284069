"""What is measured: the scenarios, and one run of one scenario against one relay."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path

from relays import BENCH, Contestant, Failed, Running, Unavailable, cores, running

BUILD = BENCH / "build"


@dataclass(frozen=True)
class Scenario:
    """One kind of traffic."""

    key: str
    title: str
    kind: str
    """`pairs`, `pingpong`, `fanout`, `idle` or `storm`: what load.c calls it."""
    peers: int
    """Pairs, recipients or connections."""
    window: int = 1
    """Messages that each sender has on their way at once."""
    size: int = 200
    """Characters of each text."""
    seconds: float = 3.0
    """The measured span."""
    warmup: float = 1.5
    """Time before it, for connections and for compilers that compile while running."""
    repeat: int = 1
    text: str = "ascii"

    def shorter(self, factor: float) -> "Scenario":
        """The same with spans cut, for a look instead of a measurement."""
        return replace(self, seconds=self.seconds * factor, warmup=self.warmup * factor)


SCENARIOS = {
    scenario.key: scenario
    for scenario in (
        Scenario("ping-pong", "ping-pong, one pair", "pingpong", 1, warmup=1.0),
        Scenario("window-16", "50 pairs, window 16, 200 B", "pairs", 50, 16),
        Scenario("window-16-4k", "50 pairs, window 16, 4 KB", "pairs", 50, 16, 4096),
        Scenario("window-1", "50 pairs, window 1, 200 B", "pairs", 50, 1),
        Scenario(
            "window-16-mixed",
            "50 pairs, window 16, not only ASCII",
            "pairs",
            50,
            16,
            200,
            text="mixed",
        ),
        Scenario("fan-out", "`@all` to 500", "fanout", 500),
        Scenario("large", "100,000 characters", "pairs", 1, 1, 100_000),
        Scenario("idle-2000", "2,000 idle peers", "idle", 2000, seconds=0.5, warmup=0.5),
        Scenario("idle-5000", "5,000 idle peers", "idle", 5000, seconds=0.5, warmup=0.5),
        Scenario("storm", "1,000 reconnect at once", "storm", 1000, warmup=0.3, repeat=3),
    )
}


@dataclass(frozen=True)
class Result:
    """What one run showed. Times in seconds or, where named so, microseconds; memory in KiB."""

    relay: str
    scenario: str
    messages: int
    seconds: float
    relay_cpu: float
    load_cpu: float
    p50_us: float
    p90_us: float
    p99_us: float
    highest_us: float
    rss_before_kib: int
    rss_kib: int
    peak_kib: int
    peers: int
    commit_us: float = 0.0
    """How long the journal's commits took on average, if it has one."""

    @property
    def rate(self) -> float:
        """Messages (or logins) a second."""
        return self.messages / self.seconds

    @property
    def cpu_per_10k(self) -> float:
        """CPU seconds of the relay for 10,000 messages."""
        return self.relay_cpu / max(1, self.messages) * 10_000

    @property
    def load_share(self) -> float:
        """How much of its core the load generator used: near 1 it was the limit itself."""
        return self.load_cpu / self.seconds

    @property
    def kib_per_peer(self) -> float:
        """Resident memory that each connected peer added."""
        return (self.rss_kib - self.rss_before_kib) / self.peers


def load_generator() -> Path:
    """Compile load.c, unless this very text is compiled already.

    Raises:
        Unavailable: there is no C compiler.
    """
    source = BENCH / "load.c"
    version = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    program = BUILD / f"load-{version}"
    if program.exists():
        return program
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Unavailable("there is no C compiler: install gcc (apt-get install gcc libc6-dev)")
    BUILD.mkdir(exist_ok=True)
    fresh = BUILD / f"load-{os.getpid()}"
    subprocess.run([compiler, "-O2", "-Wall", "-o", fresh, source], check=True)
    fresh.rename(program)
    return program


def run(relay: Contestant, scenario: Scenario) -> Result:
    """Start the relay and run one scenario against it.

    Raises:
        Failed: the relay ended, or did anything that the load generator knows to be wrong.
        Unavailable: the relay or the load generator needs something that is not installed.
    """
    program = load_generator()
    with running(relay) as process:
        if scenario.kind == "idle":
            time.sleep(0.5)  # past the start, so that its own memory has settled
        result = _measure(program, relay.name, process, scenario)
        if "--journal" in relay.command:
            result = replace(result, commit_us=_commit_us(process.port))
        return result


def _measure(program: Path, name: str, process: Running, scenario: Scenario) -> Result:
    options = {
        "scenario": scenario.kind,
        "port": process.port,
        "pid": process.pid,
        "token": process.token,
        "peers": scenario.peers,
        "window": scenario.window,
        "size": scenario.size,
        "seconds": scenario.seconds,
        "warmup": scenario.warmup,
        "repeat": scenario.repeat,
        "text": scenario.text,
    }
    words = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    _, core = cores()
    try:
        answer = subprocess.run(
            [program, *words],
            capture_output=True,
            text=True,
            timeout=180,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{name}, {scenario.key}: not done in 180 s") from None
    if answer.returncode != 0:
        raise Failed(f"{name}, {scenario.key}: {answer.stderr.strip()}")
    runs = [json.loads(line) for line in answer.stdout.splitlines()]
    middle = sorted(runs, key=lambda run: run["seconds"])[len(runs) // 2]
    return Result(name, scenario.key, **middle)


def _commit_us(port: int) -> float:
    """The mean of all commits since the relay's start, from its metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    name = "hoptell_journal_commit_seconds"
    found = dict(re.findall(rf"^{name}_(sum|count) (\S+)$", text, re.MULTILINE))
    return float(found["sum"]) / max(1.0, float(found["count"])) * 1e6
