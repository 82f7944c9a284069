"""Where the agent programs run: a loopback-only network namespace, fresh homes, a private tmux.

`enter_namespace` moves the test process itself into the namespace, so that whatever it starts
can reach nothing but 127.0.0.1; the relay and the mock model are there too. The process also
adopts what its descendants leave behind (Codex starts a daemon), so that `end_descendants`
can end all of it by pid.
"""

import ctypes
import fcntl
import json
import os
import pwd
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PROGRAMS = ("claude", "codex", "opencode")
CLAUDE_VERSION = "2.1.332"
DUMMY_KEY = "sk-ant-dummy-0123456789abcdefghijklmnop"
CLONE_NEWNET = 0x40000000
PR_SET_CHILD_SUBREAPER = 36


def lab_folder() -> Path:
    """The folder that setup.sh filled."""
    if configured := os.environ.get("HOPTELL_CLIENTS_LAB"):
        return Path(configured)
    # Not Path.home(): the tests have a home folder of their own.
    return Path(pwd.getpwuid(os.getuid()).pw_dir) / ".cache" / "hoptell-clients"


def programs() -> Path:
    """The folder of the agent programs' commands."""
    return lab_folder() / "node_modules" / ".bin"


def obstacle() -> str | None:
    """Why the suite cannot run here, and what to do; None if it can."""
    missing = [name for name in PROGRAMS if not (programs() / name).exists()]
    if missing:
        return f"{', '.join(missing)} not in {programs()}: run test/clients/setup.sh"
    if shutil.which("tmux") is None:
        return "tmux is not installed"
    if not sys.platform.startswith("linux"):
        return "network namespaces are a thing of Linux"
    if os.geteuid() != 0:
        return "a network namespace needs root"
    return None


def enter_namespace() -> str | None:
    """Put this process where there is only loopback; the reason if that is not possible."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        return f"no network namespace: {os.strerror(ctypes.get_errno())}"
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with socket.socket() as any_socket:
        up = struct.pack("16sh14x", b"lo", 0x1)  # struct ifreq with IFF_UP
        fcntl.ioctl(any_socket, 0x8914, up)  # SIOCSIFFLAGS
    assert [name for _, name in socket.if_nameindex()] == ["lo"]
    return None


# Processes ----------------------------------------------------------------------------------


def _status(pid: int) -> tuple[int, str] | None:
    """Parent and state of a process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]), fields[0]


def descendants() -> list[int]:
    """All living processes that this one started, directly or not."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (status := _status(int(entry.name))):
            parents[int(entry.name)] = status
    found, todo = [], [os.getpid()]
    while todo:
        parent = todo.pop()
        for pid, (its_parent, state) in parents.items():
            if its_parent == parent and state != "Z":
                found.append(pid)
                todo.append(pid)
    return found


def end_descendants(pids: list[int]) -> None:
    """End these, of which this process is the ancestor, and wait until they are gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            if pid in descendants():
                with suppress(ProcessLookupError):  # it has ended meanwhile
                    os.kill(pid, number)
        end = time.monotonic() + 3
        while set(pids) & set(descendants()) and time.monotonic() < end:
            time.sleep(0.05)
    reap()


def reap() -> None:
    """Collect orphans that were adopted and have ended; leaves known children alone."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _status(int(entry.name)) == (os.getpid(), "Z"):
            try:
                command = Path(f"/proc/{entry.name}/comm").read_text().strip()
                if command not in ("python", "python3"):
                    os.waitpid(int(entry.name), os.WNOHANG)
            except OSError:
                pass


def hoptell_processes(home: Path) -> list[str]:
    """The command lines of living hoptell processes whose state folder is under `home`."""
    found = []
    for pid in descendants():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"HOME={home}".encode() in environment and re.search(
            r"\bhoptell\b.* (mcp|hook|listen)", command
        ):
            found.append(f"{pid} {command.strip()}")
    return found


def eventually(condition: Callable[[], object], *, timeout: float = 10) -> bool:
    """Whether `condition` becomes true in time. For what gives no event: screens, /proc."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


# Agents -------------------------------------------------------------------------------------


@dataclass
class Site:
    """One machine's worth of state: homes, a work folder, a tmux server, the relay's address."""

    root: Path
    model_url: str
    relay_url: str
    token: str
    commands: Path
    """Folder with `hoptell` (and nothing else), put on the agents' PATH."""
    panes: list["Pane"] = field(default_factory=list)
    columns: int = 120
    rows: int = 40

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def work(self) -> Path:
        return self.root / "work"

    def environment(self, **more: str) -> dict[str, str]:
        """What agents start with: dummy keys only."""
        return {
            "PATH": f"{self.commands}:{programs()}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "SHELL": "/bin/bash",
            "USER": "tester",
            "ANTHROPIC_BASE_URL": self.model_url,
            "ANTHROPIC_API_KEY": DUMMY_KEY,
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "MOCK_KEY": "dummy",
            # So that another checkout than the installed one can be tried.
            **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
            **more,
        }

    def seed(self) -> None:
        """Homes without onboarding, trust and theme dialogs, and a work folder under git."""
        self.work.mkdir(parents=True)
        subprocess.run(["git", "init", "-q", str(self.work)], check=True)
        self._seed_claude()
        self._seed_codex()
        self._seed_opencode()

    def _seed_claude(self) -> None:
        project = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
        state = {
            "hasCompletedOnboarding": True,
            "lastOnboardingVersion": CLAUDE_VERSION,
            "theme": "dark",
            "numStartups": 5,
            "customApiKeyResponses": {"approved": [DUMMY_KEY[-20:]], "rejected": []},
            "projects": {str(self.work): project},
        }
        write(self.home / ".claude.json", json.dumps(state))
        write(self.home / ".claude" / "settings.json", json.dumps({"theme": "dark"}))

    def _seed_codex(self) -> None:
        lines = [
            'model = "mock-model"',
            'model_provider = "mock"',
            'approval_policy = "on-request"',
            'sandbox_mode = "workspace-write"',
            "check_for_update_on_startup = false",
            "[model_providers.mock]",
            'name = "mock"',
            f'base_url = "{self.model_url}/v1"',
            'env_key = "MOCK_KEY"',
            'wire_api = "responses"',
            "request_max_retries = 1",
            "stream_max_retries = 1",
            f'[projects."{self.work}"]',
            'trust_level = "trusted"',
            "[analytics]",
            "enabled = false",
            "",
        ]
        write(self.home / ".codex" / "config.toml", "\n".join(lines))

    def _seed_opencode(self) -> None:
        model = {"name": "Mock", "tool_call": True, "limit": {"context": 200000, "output": 8192}}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Mock",
            "options": {"baseURL": f"{self.model_url}/v1", "apiKey": "dummy"},
            "models": {"mock-model": model},
        }
        config = {
            "$schema": "https://opencode.ai/config.json",
            "autoupdate": False,
            "share": "disabled",
            "model": "mock/mock-model",
            "small_model": "mock/mock-model",
            "permission": {"bash": "ask", "edit": "ask"},
            "provider": {"mock": provider},
        }
        write(self.home / ".config" / "opencode" / "opencode.json", json.dumps(config))

    def run(self, *command: str, input: str = "", timeout: float = 60, **more: str) -> str:
        """Run a command of an agent to its end and return what it printed; it must succeed."""
        done = subprocess.run(
            command,
            cwd=self.work,
            env=self.environment(**more),
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def tmux(self, *arguments: str, input: str | None = None) -> str:
        done = subprocess.run(
            ["tmux", "-u", "-S", str(self.root / "tmux"), "-f", "/dev/null", *arguments],
            env={
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "TERM": "xterm-256color",
                "LANG": "C.UTF-8",
                "HOME": str(self.root),
            },
            input=input,
            capture_output=True,
            text=True,
            timeout=20,
        )
        return done.stdout

    def start(self, *command: str, **more: str) -> "Pane":
        """Start an interactive agent and wait until its prompt stands there."""
        pane = Pane(self, command, self.environment(**more))
        self.panes.append(pane)
        return pane


IDLE = {
    "claude": re.compile(r"^❯", re.M),
    "codex": re.compile(r"^› ", re.M),
    "opencode": re.compile(r"Ask anything|ctrl\+p commands"),
}

SETTLE_WAIT = {"claude": 1.0, "codex": 3.0, "opencode": 1.0}
"""Seconds after the first prompt is drawn in which agents drop keys; nothing shows it."""


class Pane:
    """An agent in a tmux pane of its own."""

    def __init__(self, site: Site, command: tuple[str, ...], environment: dict[str, str]) -> None:
        self._site = site
        self._name = f"pane{len(site.panes)}"
        self.program = command[0]
        script = site.root / f"{self._name}.sh"
        lines = [f"export {name}={_quoted(value)}" for name, value in environment.items()]
        write(script, "\n".join([*lines, f"exec {' '.join(map(_quoted, command))}", ""]))
        size = ["-x", str(site.columns), "-y", str(site.rows)]
        start = ["env", "-i", "/bin/sh", str(script)]
        site.tmux("new-session", "-d", "-s", self._name, *size, "-c", str(site.work), *start)
        site.tmux("set-option", "-t", self._name, "remain-on-exit", "on")
        assert eventually(self.idle, timeout=40), f"{command} did not start:\n{self.screen()}"
        time.sleep(SETTLE_WAIT[self.program])

    def screen(self) -> str:
        # Claude Code puts a no-break space behind its prompt glyph.
        return self._site.tmux("capture-pane", "-p", "-t", self._name).replace("\xa0", " ")

    def idle(self) -> bool:
        return IDLE[self.program].search(self.screen()) is not None

    def shows(self, text: str, *, timeout: float = 10) -> bool:
        return eventually(lambda: text in self.screen(), timeout=timeout)

    def type(self, text: str) -> None:
        self._site.tmux("send-keys", "-t", self._name, "-l", "--", text)

    def press(self, *keys: str) -> None:
        self._site.tmux("send-keys", "-t", self._name, *keys)

    def submit(self, text: str) -> None:
        """Type a line and send it, as a person would: again if the first Enter had no effect.

        Codex drops one now and then while it is still starting.
        """
        self.type(text)
        if self.program == "codex":
            assert eventually(lambda: self._typed(text)), self.screen()
        for _ in range(5):
            time.sleep(0.5)
            self.press("Enter")
            if self.program != "codex" or eventually(lambda: not self._typed(text), timeout=2):
                return
        raise AssertionError(f"Enter has no effect:\n{self.screen()}")

    def _typed(self, text: str) -> bool:
        """Whether Codex's prompt, its last line with that glyph, still holds the text."""
        prompts = [line for line in self.screen().splitlines() if line.startswith("› ")]
        return bool(prompts) and prompts[-1].startswith(f"› {text[:40]}")

    def ended(self) -> bool:
        return (
            self._site.tmux("display-message", "-p", "-t", self._name, "#{pane_dead}").strip()
            == "1"
        )

    def exit(self) -> None:
        """Leave the agent as its user would."""
        self.press("C-c")
        time.sleep(0.3)
        self.press("C-c")
        assert eventually(self.ended, timeout=10), self.screen()

    def close(self) -> None:
        """Close its terminal."""
        self._site.tmux("kill-session", "-t", self._name)


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def export_checkout(folder: Path) -> Path:
    """A copy of this checkout as git would give it to others, uncommitted changes included."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        source = REPOSITORY / name
        if source.is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name)
    return folder
