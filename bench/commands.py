"""Measure what users wait for: `hoptell send`, the sidecar's start, and idle processes' CPU.

    python bench/commands.py             about a minute
    python bench/commands.py --runs 5 --seconds 3

`hoptell send` is held against what it cannot do without: Python's start with
`import asyncio, websockets`, plus one round trip (connect, login, send, acknowledgement) of a
client that runs already. All spans are medians of interleaved runs.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from relays import ROOT, Running, contestant, running
from websockets.asyncio.client import ClientConnection, connect

MAX_SEND_RATIO = 1.5
MAX_SIDECAR_START = 0.6
MAX_SIDECAR_MB = 75
MAX_IDLE_SHARE = 0.001
SETTLE_TIME = 3.0

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}

FAKE_CLAUDE = """
import json, subprocess, sys
with open("/proc/self/comm", "w") as comm:
    comm.write("claude")  # the hook and its sidecar meet at the process that started both
sidecar = subprocess.Popen(
    [sys.executable, "-m", "hoptell", "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
for frame in json.loads(sys.argv[1]):
    sidecar.stdin.write(json.dumps(frame).encode() + b"\\n")
sidecar.stdin.flush()
sidecar.stdout.readline()
hook = subprocess.Popen([sys.executable, "-m", "hoptell", "hook"], stdin=subprocess.PIPE)
hook.stdin.write(b'{"hook_event_name": "SessionStart"}')
hook.stdin.close()
print(sidecar.pid, hook.pid, flush=True)
sys.stdin.read()
sidecar.stdin.close()
hook.terminate()
sidecar.wait()
hook.wait()
"""


@dataclass(frozen=True)
class Figure:
    """One line of the report."""

    words: str
    value: float
    unit: str
    most: float | None = None
    detail: str = ""

    def __str__(self) -> str:
        form = ".4f" if self.unit == "of a core" else ".2f" if self.value < 10 else ".1f"
        text = f"{self.words:<58}{format(self.value, form):>9} {self.unit}"
        if self.most is not None:
            text += f", at most {self.most:g}: {'kept' if self.value <= self.most else 'MISSED'}"
        return f"{text}  ({self.detail})" if self.detail else text


def main() -> int:
    """Run what the command line asks for."""
    options = _arguments().parse_args()
    with running(contestant("hoptell")) as relay, tempfile.TemporaryDirectory() as home:
        environment = _environment(relay, home)
        figures = [
            *asyncio.run(_send(relay, environment, options.runs)),
            *_sidecar(environment, max(3, options.runs // 3)),
            *_idle(environment, Path(home), options.seconds),
        ]
    for figure in figures:
        print(json.dumps(figure.__dict__) if options.json else figure)
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=15, help="of each command")
    parser.add_argument("--seconds", type=float, default=15.0, help="to watch idle processes")
    parser.add_argument("--json", action="store_true")
    return parser


def _environment(relay: Running, home: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": home,
        "PYTHONPATH": str(ROOT),
        "HOPTELL_HOME": home,
        "HOPTELL_RELAY": f"ws://127.0.0.1:{relay.port}",
        "HOPTELL_TOKEN": relay.token,
    }


# hoptell send -------------------------------------------------------------------------------


async def _send(relay: Running, environment: dict[str, str], runs: int) -> list[Figure]:
    importing = [sys.executable, "-c", "import asyncio, websockets"]
    program = str(Path(sys.executable).with_name("hoptell"))
    sending = [program, "send", "bob", "the tests pass"]
    runs_of_each = []
    async with _recipient(relay):
        for _ in range(runs + 1):
            runs_of_each.append(
                (
                    *await _times(importing, environment),
                    *await _times(sending, environment | {"HOPTELL_NAME": "alice"}),
                    await _round_trip(relay),
                )
            )
    # The first run fills caches: of files, and of compiled Python.
    base, base_cpu, send, send_cpu, trip = (
        statistics.median(spans) * 1e3 for spans in zip(*runs_of_each[1:], strict=True)
    )
    cpu_ratio = f"{send_cpu / base_cpu:.2f} times its CPU time, whatever else ran meanwhile"
    return [
        Figure(
            "python -c 'import asyncio, websockets'", base, "ms", None, f"CPU {base_cpu:.0f} ms"
        ),
        Figure("round trip of a client that runs already", trip, "ms"),
        Figure("hoptell send, start to exit", send, "ms", None, f"CPU {send_cpu:.0f} ms"),
        Figure("… to the two above", send / (base + trip), "times", MAX_SEND_RATIO, cpu_ratio),
    ]


async def _times(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Seconds from a command's start to its exit, and those of CPU that it took."""
    cpu_before = _cpu_of_children()
    start = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    _, errors = await process.communicate()
    span = time.perf_counter() - start
    if process.returncode != 0:
        raise SystemExit(f"bench: {' '.join(command)}: {errors.decode().strip()}")
    return span, _cpu_of_children() - cpu_before


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@contextlib.asynccontextmanager
async def _logged_in(relay: Running, name: str) -> AsyncIterator[ClientConnection]:
    async with connect(f"ws://127.0.0.1:{relay.port}", compression=None) as client:
        await client.send(json.dumps({"type": "hello", "name": name, "token": relay.token}))
        await client.recv()
        yield client


@contextlib.asynccontextmanager
async def _recipient(relay: Running) -> AsyncIterator[None]:
    async def confirm(client: ClientConnection) -> None:
        async for frame in client:
            message = json.loads(frame)
            await client.send(json.dumps({"type": "got", "id": message["id"]}))

    async with _logged_in(relay, "bob") as client:
        task = asyncio.create_task(confirm(client))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


async def _round_trip(relay: Running) -> float:
    start = time.perf_counter()
    async with _logged_in(relay, "carol") as client:
        await client.send(json.dumps({"type": "send", "id": 1, "to": "bob", "text": "hello"}))
        answer = json.loads(await client.recv())
        span = time.perf_counter() - start
    if answer.get("state") != "delivered":
        raise SystemExit(f"bench: the relay answered {answer}")
    return span


# The sidecar --------------------------------------------------------------------------------


def _sidecar(environment: dict[str, str], runs: int) -> list[Figure]:
    starts, memories = [], []
    for number in range(runs + 1):
        start = time.perf_counter()
        with _started(["mcp"], environment | {"HOPTELL_NAME": f"side-{number}"}) as process:
            _tell(process, INITIALIZE)
            assert process.stdout is not None
            answer = json.loads(process.stdout.readline())
            span = time.perf_counter() - start
            cpu = _cpu_time(process.pid)
            if "result" not in answer:
                raise SystemExit(f"bench: the sidecar answered {answer}")
            _tell(process, INITIALIZED)
            time.sleep(1.0)  # it connects, and has all loaded that it needs
            if number > 0:
                starts.append((span, cpu))
                memories.append(_resident_mb(process.pid))
    start, cpu = (statistics.median(spans) for spans in zip(*starts, strict=True))
    return [
        Figure(
            "sidecar, start to its answer to initialize",
            start,
            "s",
            MAX_SIDECAR_START,
            f"CPU {cpu:.2f} s",
        ),
        Figure("sidecar, resident", statistics.median(memories), "MB", MAX_SIDECAR_MB),
    ]


@contextlib.contextmanager
def _started(
    arguments: list[str], environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "hoptell", *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(BrokenPipeError):
            process.communicate(timeout=10)


def _tell(process: subprocess.Popen[bytes], frame: dict[str, object]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(frame).encode() + b"\n")
    process.stdin.flush()


def _resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise SystemExit(f"bench: process {pid} is gone")


# Idle processes -----------------------------------------------------------------------------


def _idle(environment: dict[str, str], home: Path, seconds: float) -> list[Figure]:
    with (
        _started(["listen", "somebody"], environment) as listener,
        _claude(environment | {"HOPTELL_NAME": "claude", "CLAUDECODE": "1"}) as (sidecar, hook),
    ):
        watched = {"sidecar": sidecar, "listener (hoptell listen)": listener.pid, "hook": hook}
        time.sleep(SETTLE_TIME)
        before = {name: _cpu_time(pid) for name, pid in watched.items()}
        time.sleep(seconds)
        return [
            Figure(
                f"idle {name}",
                (_cpu_time(pid) - before[name]) / seconds,
                "of a core",
                MAX_IDLE_SHARE,
                f"{_resident_mb(pid):.0f} MB resident",
            )
            for name, pid in watched.items()
        ]


@contextlib.contextmanager
def _claude(environment: dict[str, str]) -> Iterator[tuple[int, int]]:
    """A process that looks like Claude Code and runs a sidecar and its hook; their pids."""
    process = subprocess.Popen(
        [sys.executable, "-c", FAKE_CLAUDE, json.dumps([INITIALIZE, INITIALIZED])],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        sidecar, hook = process.stdout.readline().split()
        yield int(sidecar), int(hook)
    finally:
        process.communicate(timeout=10)  # closes its standard input: it ends what it started


def _cpu_time(pid: int) -> float:
    """CPU seconds of another process: the id of its CPU clock is made of its pid."""
    return time.clock_gettime(~pid << 3 | 2)


if __name__ == "__main__":
    sys.exit(main())
