"""Real tmux for tests: a private server with hostile settings, fake agents, a scripted relay."""

import asyncio
import contextlib
import fcntl
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hoptell import processes
from hoptell.errors import LoginRefused
from hoptell.frames import Message
from hoptell.inbox import Inbox
from hoptell.tmux.injector import Injector
from hoptell.tmux.pane import Pane, Tmux
from hoptell.tmux.status import Reporter, Status
from hoptell.tmux.unfinished import UnfinishedFile

FAKE_AGENT = Path(__file__).with_name("fake_agent.py")
HOSTILE_SETTINGS = """
set -g base-index 3
set -g pane-base-index 5
set -g prefix C-a
set -g destroy-unattached on
set -g remain-on-exit on
set -g renumber-windows on
set -g automatic-rename on
set -g set-titles on
set -g mode-keys vi
set -g mouse on
set -g default-command 'echo this is not the agent'
set -g history-limit 0
set -g exit-empty off
"""

_numbers = itertools.count(1)


@contextlib.contextmanager
def private_tmux(settings: str = HOSTILE_SETTINGS) -> Iterator[dict[str, str]]:
    """An environment in which tmux means a server of its own; it is reaped in the end."""
    # Unix sockets have short names: not in pytest's long folders.
    folder = Path(tempfile.mkdtemp(prefix="hoptell-", dir="/tmp"))
    (folder / "home").mkdir()
    (folder / "home" / ".tmux.conf").write_text(settings)
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TMUX", "HOPTELL_", "LC_", "LANG", "XDG_"))
    }
    environ |= {"HOME": str(folder / "home"), "TMUX_TMPDIR": str(folder), "TERM": "xterm-256color"}
    try:
        yield environ
    finally:
        _reap(environ)
        shutil.rmtree(folder, ignore_errors=True)


def _reap(environ: dict[str, str]) -> None:
    answer = subprocess.run(
        ["tmux", "display-message", "-p", "#{pid}", ";", "list-panes", "-a", "-F", "#{pane_pid}"],
        env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    subprocess.run(["tmux", "kill-server"], env=environ, capture_output=True, check=False)
    for pid in map(int, answer.stdout.split()):
        wait_until(lambda pid=pid: not _is_alive(pid), f"process {pid} to end", 5)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def tmux_environ(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A private tmux, in this process's environment too."""
    with private_tmux() as environ:
        for name in set(os.environ) - set(environ):
            monkeypatch.delenv(name)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        yield environ


def wait_until(condition: Callable[[], Any], what: str, timeout: float = 5.0) -> Any:
    """Poll for what gives no event: another process's screen or file."""
    end = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)
    return found


async def eventually(condition: Callable[[], Any], what: str, timeout: float = 5.0) -> Any:
    """`wait_until` that lets the injector in this process go on."""
    end = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < end, f"waited in vain for {what}"
        await asyncio.sleep(0.01)
    return found


FRAMED = re.compile(
    r"\[hoptell message (\w+) begins\]\n.*?\n\n(.*?)\n\[hoptell message \1 ends\]", re.DOTALL
)


def texts_in(prompt: str) -> list[str]:
    """The messages' texts in what was submitted, without their frames."""
    return [match[2] for match in FRAMED.finditer(prompt)]


class Agent:
    """A fake agent in a tmux pane."""

    def __init__(
        self,
        folder: Path,
        style: str = "claude",
        *,
        shell: str | None = None,
        program: str | None = None,
        **options: Any,
    ) -> None:
        """`shell` runs it below a shell: a script with `AGENT` for its command line.

        Its program is called like the agent that it draws like, or `program`.
        """
        number = next(_numbers)
        self.pane: Pane = None  # type: ignore[assignment]
        self.folder = folder
        self.session = f"test-{number}"
        self.log_file = folder / f"agent-{number}.log"
        self.control = folder / f"agent-{number}.control"
        os.mkfifo(self.control)
        file = folder / f"bin-{number}" / (program or style)
        file.parent.mkdir()
        file.symlink_to(FAKE_AGENT)
        self.command = [sys.executable, "-S", str(file), "--style", style]
        self.command += ["--log", str(self.log_file), "--control", str(self.control)]
        for name, value in options.items():
            self.command += [f"--{name.replace('_', '-')}", str(value)]
        if shell is not None:
            self.command = ["bash", "-c", shell.replace("AGENT", shlex.join(self.command))]

    def start(self, *, columns: int = 100, rows: int = 30) -> Pane:
        """Run it in a session of its own; returns once it has drawn itself."""
        tmux = Tmux()
        answer = tmux.cmd(
            "new-session", "-d", "-s", self.session, "-x", columns, "-y", rows,
            "-P", "-F", "#{pane_id} #{pane_pid}", *self.command,
            ";", "set-option", "-t", f"={self.session}:", "destroy-unattached", "off",
        )  # fmt: skip
        assert answer.returncode == 0, answer.stderr
        pane_id, pid = answer.stdout[0].split()
        self.pane = Pane(tmux, pane_id, int(pid))
        self.wait_ready()
        return self.pane

    def wait_ready(self) -> None:
        wait_until(lambda: self.events("ready"), "the agent to start")

    def tell(self, *lines: str) -> None:
        """Write commands to the agent's FIFO."""
        handle = os.open(self.control, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(handle, "".join(f"{line}\n" for line in lines).encode())
        finally:
            os.close(handle)

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """What it logged, of these kinds."""
        if not self.log_file.exists():
            return []
        entries = map(json.loads, self.log_file.read_text().splitlines())
        return [entry for entry in entries if entry["event"] in kinds]

    @property
    def submitted(self) -> list[str]:
        return [entry["text"] for entry in self.events("submit")]

    async def gets(self, count: int, timeout: float = 8.0) -> list[str]:
        """Wait until so many prompts were submitted."""
        await eventually(lambda: len(self.submitted) >= count, f"{count} prompts", timeout)
        return self.submitted

    @property
    def harm(self) -> list[dict[str, Any]]:
        """Whatever must never happen."""
        return self.events("approve", "dialog_key", "submit_draft", "control", "command")

    def screen(self) -> str:
        return "\n".join(self.pane.tmux.cmd("capture-pane", "-p", "-t", self.pane.id).stdout)


class ScriptedClient:
    """Stands for RelayClient: hands out what the test feeds it."""

    def __init__(self, refusals: int = 0) -> None:
        self.connected = not refusals
        self.problem: str | None = None
        self.refusals = refusals
        """So many logins are refused."""
        self.confirmed: list[str] = []
        self._queue: asyncio.Queue[Message] = asyncio.Queue()

    def feed(self, *texts: str, sender: str = "alice") -> list[Message]:
        messages = [message(text, sender=sender) for text in texts]
        for item in messages:
            self._queue.put_nowait(item)
        return messages

    async def __aenter__(self) -> "ScriptedClient":
        self.connected, self.problem = not self.refusals, "still connecting"
        return self

    async def __aexit__(self, *exception: object) -> None:
        pass

    def __aiter__(self) -> "ScriptedClient":
        return self

    async def __anext__(self) -> "ScriptedDelivery":
        if self.refusals:
            self.refusals -= 1
            raise LoginRefused("the relay does not let you in", code=4001)
        return ScriptedDelivery(await self._queue.get(), self.confirmed)


class ScriptedDelivery:
    def __init__(self, message: Message, confirmed: list[str]) -> None:
        self.message = message
        self._confirmed = confirmed

    async def confirm(self) -> None:
        self._confirmed.append(self.message.id)


def message(text: str, *, sender: str = "alice") -> Message:
    number = next(_numbers)
    return Message(
        f"delivery-{number}", f"reference-{number}", sender, "laptop", "bob", text,
        int(time.time() * 1000), member=None,
    )  # fmt: skip


class Running:
    """An injector at work in this process."""

    def __init__(self, client: ScriptedClient, inbox: Inbox, status: Status) -> None:
        self.client, self.inbox, self.status = client, inbox, status
        self.said: list[str] = []
        self.task: asyncio.Task[None]

    @property
    def state(self) -> str:
        return self.status.state

    async def reaches(self, state: str, timeout: float = 5.0) -> None:
        """Wait until the injector says so of itself."""
        await eventually(lambda: state in self.status.state, state, timeout)


@contextlib.asynccontextmanager
async def injecting(
    agent: Agent,
    folder: Path,
    *,
    notice: bool = False,
    command: str = "hoptell listen bob 0",
    refusals: int = 0,
) -> AsyncIterator[Running]:
    """Start `agent`, if it does not run, and an injector that types into it."""
    pane = agent.pane or await asyncio.to_thread(agent.start)
    inbox = Inbox(folder / "home", "bob")
    status = Status("bob", os.getpid(), pane.id, str(processes.current()), "")
    running = Running(ScriptedClient(refusals), inbox, status)
    reporter = Reporter(status, folder, running.said.append)
    note = UnfinishedFile(folder)
    injector = Injector(pane, inbox, reporter, note, command=command, notice=notice)
    stopped = asyncio.Event()
    connect: Any = lambda: running.client  # noqa: E731
    running.task = asyncio.create_task(injector.run(connect, stopped))
    try:
        yield running
    except BaseException:
        print("\n".join([*running.said, agent.screen()]))  # pytest shows it
        raise
    finally:
        stopped.set()
        await running.task


class Terminal:
    """A person at a terminal that runs a command, whose keys we press."""

    def __init__(self, environ: dict[str, str], command: list[str]) -> None:
        self._seen = b""
        self._exit: int | None = None
        self.pid, self.handle = os.forkpty()
        if self.pid == 0:
            os.execvpe(command[0], command, environ)
        fcntl.ioctl(self.handle, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 100, 0, 0))
        os.set_blocking(self.handle, False)

    def press(self, keys: str) -> None:
        self.output()
        os.write(self.handle, keys.encode())

    def output(self) -> str:
        """Everything that was shown so far, escapes included."""
        with contextlib.suppress(OSError):  # nothing there, or the other end is gone
            while data := os.read(self.handle, 65536):
                self._seen += data
        return self._seen.decode(errors="replace")

    def exit_code(self) -> int:
        """The command's exit code, once it ends."""
        wait_until(lambda: self.output() and self._ended(), "the command to end", 10)
        assert self._exit is not None
        return self._exit

    def _ended(self) -> bool:
        if self._exit is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._exit = os.waitstatus_to_exitcode(status) if pid else None
        return self._exit is not None

    def close(self) -> None:
        if not self._ended():
            os.kill(self.pid, signal.SIGTERM)
            wait_until(lambda: self.output() is not None and self._ended(), "its end")
        os.close(self.handle)
