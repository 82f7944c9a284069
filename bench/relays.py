"""The relays that can be measured, each started as a process of its own.

All run on one core, with the same token, no rate limit, and their log in a file. A relay is
ended by its own process handle when the block that started it ends.
"""

import contextlib
import json
import os
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
START_TIMEOUT = 20.0


class Unavailable(Exception):
    """Something that this relay needs is not installed; the text says what to do."""


class Failed(Exception):
    """A relay or a run went wrong; the text says how."""


@dataclass(frozen=True)
class Contestant:
    """A relay that can take part."""

    name: str
    command: tuple[str, ...]
    """With `{port}` where the port goes."""
    title: str
    environment: dict[str, str] = field(default_factory=dict)
    needs: str = "python"


@dataclass(frozen=True)
class Running:
    """A relay that answers on `port`."""

    pid: int
    port: int
    token: str
    log: Path
    started_at: float
    """By `time.perf_counter`."""


def hoptell(root: Path = ROOT, name: str = "hoptell", *more: str) -> Contestant:
    """This project's relay, from the source tree `root`; `more` are further arguments."""
    command = (sys.executable, "-m", "hoptell", "relay", "--port", "{port}", *more)
    return Contestant(name, command, name, {"PYTHONPATH": str(root)})


def _node(*more: str) -> tuple[str, ...]:
    return ("node", str(BENCH / "rivals/relay.mjs"), "{port}", *more)


_FLOOR = (sys.executable, str(BENCH / "rivals/floor.py"), "{port}")

CONTESTANTS = {
    relay.name: relay
    for relay in (
        hoptell(),
        hoptell(ROOT, "hoptell-journal", "--journal", "{folder}/journal.db"),
        Contestant("node", _node(), "Node `ws`, plain", needs="node"),
        Contestant("node-joined", _node("--joined"), "Node `ws`, writes joined", needs="node"),
        Contestant("floor", _FLOOR, "bare asyncio echo"),
    )
}


def contestant(text: str) -> Contestant:
    """Find a contestant by name; `name=FOLDER` is hoptell from another source tree."""
    name, _, folder = text.partition("=")
    if folder:
        return hoptell(Path(folder).resolve(), name)
    if name not in CONTESTANTS:
        raise Unavailable(f"no relay is called {name}: use one of {', '.join(CONTESTANTS)}")
    return CONTESTANTS[name]


def check_available(relay: Contestant) -> None:
    """See whether what a contestant needs is installed.

    Raises:
        Unavailable: it is not.
    """
    if relay.needs != "node":
        return
    if shutil.which("node") is None:
        raise Unavailable("node is not installed: install Node 20 or newer")
    if not (BENCH / "node_modules/ws").is_dir():
        raise Unavailable("npm's ws is not installed: run npm install in bench/")


def cores() -> tuple[int, int]:
    """The core for the relay and the one for everything else; the same on a one-core machine."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[-1]


def allow_many_files() -> None:
    """Raise the limit of open files as far as it goes: 5,000 peers need as many sockets."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def running(relay: Contestant) -> Iterator[Running]:
    """Start a relay in a fresh home, wait until it listens, and end it afterwards.

    Raises:
        Unavailable: what it needs is not installed.
        Failed: it ended or did not listen in time; the text ends with its last log lines.
    """
    check_available(relay)
    allow_many_files()
    token = secrets.token_urlsafe(24)
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="hoptell-bench-") as folder:
        log = Path(folder) / "relay.log"
        command = [part.format(port=port, folder=folder) for part in relay.command]
        environment = _environment(folder, token) | relay.environment
        core, _ = cores()
        with log.open("wb") as stderr:
            started_at = time.perf_counter()
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            )
        try:
            _wait_until_it_listens(process, port, log)
            yield Running(process.pid, port, token, log, started_at)
            if process.poll() is not None:
                raise Failed(f"{relay.name} ended by itself: {_tail(log)}")
        finally:
            _end(process)


def _environment(folder: str, token: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return kept | {
        "HOME": folder,
        "HOPTELL_ENV": _empty_settings(folder),
        "HOPTELL_TOKEN": token,
        "HOPTELL_RATE": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _empty_settings(folder: str) -> str:
    file = Path(folder) / "settings.env"
    file.touch(mode=0o600)
    return str(file)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Failed(f"the relay ended with code {process.returncode}: {_tail(log)}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.005)
    raise Failed(f"the relay did not listen within {START_TIMEOUT:.0f} s: {_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-500:].strip() or "it logged nothing"


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def versions() -> dict[str, str]:
    """What ran: for the table's caption."""
    found = {"python": sys.version.split()[0]}
    if shutil.which("node"):
        answer = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False)
        found["node"] = answer.stdout.strip().lstrip("v")
    package = BENCH / "node_modules/ws/package.json"
    if package.is_file():
        found["ws"] = json.loads(package.read_text())["version"]
    return found
