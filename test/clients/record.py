"""Record two real agents that hand work to each other, as the animated SVG in the README.

    python test/clients/record.py docs/two-agents.svg

Needs what the suite here needs (README.md beside this file). Claude Code and Codex are the real
programs, registered by `hoptell init --apply` as a user would, each in a tmux terminal, in a
network namespace with nothing but loopback; what they show is captured five times a second.
What their model says is scripted below, and the picture says so.
"""

import argparse
import contextlib
import ctypes
import json
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from clients.conftest import Relay
from clients.lab import (
    Pane,
    Site,
    descendants,
    end_descendants,
    enter_namespace,
    eventually,
    obstacle,
    write,
)
from clients.model import Action, Call, Model, Request, Say
from clients.svg import Recording, Terminal, animation, thinned

COLUMNS, ROWS = 68, 30
INTERVAL = 0.2
CLONE_NEWUTS = 0x04000000

FILE = '''\
import time


def fetch(get, url):
    """Call get(url) until it works."""
    delay = 1
    while True:
        try:
            return get(url)
        except OSError:
            time.sleep(delay)
            delay *= 2
'''
TASK = "Have codex review retry.py, and fix what it finds."
REQUEST = "Please review ~/shop/retry.py. Are its pauses right?"
REVIEW = (
    "One finding: delay doubles without a limit. The pause after the 13th failure is 4096 s,"
    " more than an hour. Cap it: delay = min(delay * 2, 60). The rest is fine."
)
FIXED = (
    "codex reviewed retry.py: the pause doubled without a limit and would have passed an hour"
    " after the 13th failure. It now stays at 60 s or less."
)
BEFORE, AFTER = "delay *= 2", "delay = min(delay * 2, 60)"


# What the model says ------------------------------------------------------------------------


def thinking(action: Action, seconds: float = 1.6) -> Action:
    """As long as a reader needs to see that something happens."""
    time.sleep(seconds)
    return action


def codex_says(request: Request) -> Action | None:
    if request.api != "responses":
        return None
    last = request.items[-1]
    if last.kind == "user" and "Join hoptell" in last.text:
        return thinking(Call("list_peers"))
    if last.kind != "result":
        return None  # a notice: the model's own rule calls read_inbox
    if REQUEST in last.text:
        return thinking(Call("exec_command", {"cmd": "cat retry.py"}))
    if "def fetch" in last.text:
        asked = next(item.text for item in request.items if REQUEST in item.text)
        reference = re.search(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", asked)
        assert reference is not None
        answer = {"to": "claude", "message": REVIEW, "reply_to": reference[0]}
        return thinking(Call("send_message", answer), 2.6)
    if "elivered to claude" in last.text:
        return thinking(Say(f"I sent my review to claude. {REVIEW}"))
    return thinking(Say("I am codex in hoptell, and wait for work."))


def claude_says(request: Request, file: Path) -> Action | None:
    if request.api != "anthropic":
        return None
    work = request.items[-1]
    if work.kind == "result":
        if "elivered to codex" in work.text:
            return thinking(
                Say("I asked codex whether its pauses are right. I go on when it answers.")
            )
        if REVIEW[:40] in work.text:
            return thinking(Call("Read", {"file_path": str(file)}))
        if "def fetch" in work.text:
            names = ("file_path", "old_string", "new_string")
            values = (str(file), BEFORE, AFTER)
            return thinking(Call("Edit", dict(zip(names, values, strict=True))), 2.0)
        return thinking(Say(FIXED))
    if request.shows(TASK) and not any(item.kind == "call" for item in request.items):
        return thinking(Call("send_message", {"to": "codex", "message": REQUEST}))
    return None


# Where it happens -----------------------------------------------------------------------------


class Desk(Site):
    """A site whose names may be seen: the work folder is ~/shop."""

    @property
    def work(self) -> Path:
        return self.home / "shop"

    @property
    def file(self) -> Path:
        return self.work / "retry.py"

    def _seed_claude(self) -> None:
        super()._seed_claude()
        allowed = {"allow": ["mcp__hoptell", "Read", "Edit"]}
        settings = {"theme": "dark", "permissions": allowed}
        write(self.home / ".claude" / "settings.json", json.dumps(settings))

    def _seed_codex(self) -> None:
        super()._seed_codex()
        config = self.home / ".codex" / "config.toml"
        text = config.read_text().replace("mock-model", "scripted")
        config.write_text(text)

    def is_online(self, name: str) -> bool:
        return f'"name": "{name}"' in self.run("hoptell", "list", "--json")


@contextlib.contextmanager
def desk() -> Iterator[tuple[Desk, Model]]:
    """The relay, the model, and a home where hoptell is registered with both agents."""
    folder = Path(tempfile.mkdtemp(prefix="ht-"))
    commands = folder / "bin"
    commands.mkdir()
    (commands / "hoptell").symlink_to(Path(sys.executable).parent / "hoptell")
    before = set(descendants())
    relay = Relay(folder)
    try:
        with Model() as model:
            size = {"columns": COLUMNS, "rows": ROWS}
            site = Desk(folder, model.url, relay.url, relay.token, commands, **size)
            site.seed()
            write(site.file, FILE)
            site.run("hoptell", "init", "--relay", relay.url, "--token-stdin", input=relay.token)
            for agent in ("claude", "codex"):
                site.run("hoptell", "init", "--apply", agent, "--name", agent)
            yield site, model
    finally:
        end_descendants([pid for pid in descendants() if pid not in before])
        shutil.rmtree(folder, ignore_errors=True)


class Camera:
    """Captures both terminals in one call to tmux, in a thread, while the context is open."""

    SEPARATOR = "=-=-=-=-=-=-=-="

    def __init__(self, site: Site) -> None:
        self._site = site
        self.frames: list[tuple[float, tuple[str, ...]]] = []
        self.captions: list[tuple[float, str]] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Camera":
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join()

    def say(self, text: str) -> None:
        self.captions.append((round(time.monotonic() - self._began, 2), text))

    def _run(self) -> None:
        capture = ["capture-pane", "-e", "-N", "-p", "-t"]
        command = [*capture, "pane0", ";", "display-message", "-p", self.SEPARATOR, ";"]
        while not self._end.wait(INTERVAL):
            at = round(time.monotonic() - self._began, 2)
            screens = self._site.tmux(*command, *capture, "pane1").split(f"{self.SEPARATOR}\n")
            self.frames.append((at, tuple(screens)))


def type_slowly(pane: Pane, text: str) -> None:
    for at in range(0, len(text), 2):
        pane.type(text[at : at + 2])
        time.sleep(0.09)


def scene(site: Desk, model: Model) -> Recording:
    model.rules += [codex_says, lambda request: claude_says(request, site.file)]
    model.title = "review of retry.py"
    claude = site.start(
        "claude", "--permission-mode", "manual",
        ANTHROPIC_MODEL="scripted", ANTHROPIC_CUSTOM_MODEL_OPTION="scripted",
        CLAUDE_CODE_MAX_CONTEXT_TOKENS="200000",
    )  # fmt: skip
    codex = site.start("codex")
    for name in ("claude", "codex"):
        assert eventually(lambda name=name: site.is_online(name), timeout=20), name
    codex.submit("Join hoptell, and wait for work.")
    assert codex.shows("wait for work.\n", timeout=20), codex.screen()
    assert eventually(codex.idle)
    time.sleep(3)
    with Camera(site) as camera:

        def until(pane: Pane, text: str, says: str) -> None:
            if not pane.shows(text, timeout=30):
                sys.exit(f"{pane.program} does not show {text!r}:\n{pane.screen()}")
            camera.say(says)

        camera.say("Two agents, each in its own terminal. Both are idle.")
        time.sleep(3)
        type_slowly(claude, TASK)
        time.sleep(0.6)
        claude.press("Enter")
        camera.say("Claude Code is asked to have a review done.")
        until(codex, "1 message waits", "hoptell wakes Codex, which reads the message …")
        until(codex, "Read retry.py", "… and reviews the file.")
        until(codex, "send_message", "Its answer goes back …")
        until(
            claude, "messages from other agents", "… and wakes Claude Code, which goes on with it."
        )
        until(claude, "It now stays", "Done. Nobody carried anything from one to the other.")
        time.sleep(1.5)
    terminals = (
        Terminal("Claude Code, peer “claude”", COLUMNS, ROWS),
        Terminal("Codex, peer “codex”", COLUMNS, ROWS),
    )
    footnote = (
        "The real programs with hoptell between them, in real time;"
        " what their language model says is scripted."
    )
    assert AFTER in site.file.read_text()
    return Recording(terminals, tuple(thinned(camera.frames)), tuple(camera.captions), footnote)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("svg", type=Path, help="where the picture goes")
    parser.add_argument("--keep", type=Path, help="keep what was captured, as JSON")
    arguments = parser.parse_args()
    if reason := obstacle() or enter_namespace():
        sys.exit(reason)
    if ctypes.CDLL(None).unshare(CLONE_NEWUTS) == 0:
        socket.sethostname("laptop")
    with desk() as (site, model):
        recording = scene(site, model)
    if arguments.keep:
        frames = {"frames": recording.frames, "captions": recording.captions}
        arguments.keep.write_text(json.dumps(frames))
    arguments.svg.write_text(animation(recording), encoding="utf-8")
    size = arguments.svg.stat().st_size >> 10
    print(f"{arguments.svg}: {recording.length:.0f} s, {len(recording.frames)} frames, {size} KB")


if __name__ == "__main__":
    main()
