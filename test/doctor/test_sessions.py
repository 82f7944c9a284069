"""Sidecars, hooks, inboxes and agents on this machine, as the doctor sees them."""

import asyncio
import json
import os
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.agents import Computer
from support.doctor import Findings
from support.fake_claude import FakeClaude
from support.relay import TOKEN, RelayProcess, relay_process, running_relay
from support.sidecar import raw_sidecar
from support.tmux import message
from support.wake import Silent

from hoptell import processes
from hoptell.doctor import sessions
from hoptell.inbox import Inbox
from hoptell.settings import default_name
from hoptell.sidecar.presence import Presence
from hoptell.sidecar.wake import Notice

DEAD_RELAY = "ws://127.0.0.1:9"


@pytest.fixture
def computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Computer:
    monkeypatch.setattr("hoptell.setup.machine.USUAL_FOLDERS", ())
    computer = Computer(tmp_path)
    computer.write_settings(relay=DEAD_RELAY, token=TOKEN)
    return computer


@pytest.fixture
def home(computer: Computer) -> Path:
    return computer.home / ".hoptell"


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    with relay_process(tmp_path_factory.mktemp("relay")) as relay:
        yield relay


def look(computer: Computer, **environ: str) -> Findings:
    return Findings(computer.environ | environ)


def store(home: Path, name: str, *, age: float = 0, count: int = 1) -> Path:
    """An inbox with messages that arrived `age` seconds ago."""
    inbox = Inbox(home, name)
    for _ in range(count):
        inbox.store(message("hello"))
    for file in inbox.folder.glob("*.json"):
        os.utime(file, (time.time() - age,) * 2)
    return inbox.folder


def session(home: Path, name: str, mode: str = "codex", *, proven: bool = True) -> Presence:
    """A sidecar that this process says it is."""
    presence = Presence(home, name, Silent())
    presence.update(mode, proven)
    return presence


async def announce(presence: Presence) -> None:
    await presence.announce(Notice(1, ()))


# Inboxes --------------------------------------------------------------------------------------


def test_without_anything_each_check_says_that_there_is_nothing(computer: Computer) -> None:
    findings = look(computer)
    for check in ("sidecars", "hooks", "inbox", "injectors", "agents"):
        assert findings[check]["status"] == "info"


async def test_messages_that_were_announced_and_are_unread_fail(
    computer: Computer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(home, "alice", age=5, count=2)
    presence = session(home, "alice", "channel")
    await announce(presence)
    fresh = await asyncio.to_thread(look, computer)
    assert fresh.about("inbox", "alice")["status"] == "info"
    monkeypatch.setattr(sessions, "UNREAD_TIMEOUT", 1)
    late = await asyncio.to_thread(look, computer)
    entry = late.about("inbox", "alice")
    assert entry["status"] == "fail" and late.exit_code == 1
    assert entry["message"].endswith("2 announced by channel and never read")
    assert "read_inbox" in entry["fix"]
    presence.close()


async def test_what_arrived_after_the_announcement_is_not_counted_as_announced(
    computer: Computer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    presence = session(home, "alice")
    await announce(presence)
    store(home, "alice", age=-60)
    monkeypatch.setattr(sessions, "UNREAD_TIMEOUT", -1000)
    findings = await asyncio.to_thread(look, computer)
    assert findings.about("inbox", "alice")["status"] == "info"
    presence.close()


@pytest.mark.parametrize(
    ("mode", "status", "words"),
    [
        ("listener", "fail", "the agent does not keep `hoptell listen alice` running"),
        ("poll", "warn", "nothing wakes it"),
    ],
)
async def test_where_nothing_is_announced_unread_messages_say_why(
    computer: Computer, home: Path, mode: str, status: str, words: str
) -> None:
    store(home, "alice", age=1000)
    presence = session(home, "alice", mode)
    await announce(presence)
    entry = (await asyncio.to_thread(look, computer)).about("inbox", "alice")
    assert entry["status"] == status and words in entry["message"]
    presence.close()


@pytest.mark.parametrize(("age", "status"), [(5, "info"), (1000, "warn")])
def test_messages_for_a_session_that_does_not_run_say_so(
    computer: Computer, home: Path, age: float, status: str
) -> None:
    store(home, "alice", age=age)
    entry = look(computer).about("inbox", "alice")
    assert entry["status"] == status and "no session with that name runs" in entry["message"]
    assert "hoptell listen alice 0" in entry["fix"]


def test_looking_changes_nothing(computer: Computer, home: Path) -> None:
    folder = store(home, "alice")
    (folder / "claimed" / f"x.json.{2**30}-1-0-0").write_text("{}")
    (home / "inbox").chmod(0o755)

    def state() -> list[Any]:
        files = sorted(computer.home.rglob("*"))
        return [(f, f.lstat().st_mode, f.lstat().st_mtime_ns) for f in files]

    before = state()
    look(computer)
    assert state() == before


def test_an_inbox_that_others_can_look_into_fails(computer: Computer, home: Path) -> None:
    folder = store(home, "alice")
    folder.chmod(0o755)
    entry = look(computer).about("inbox", "alice")
    assert entry["status"] == "fail" and entry["fix"] == f"chmod 700 {folder}"


def test_an_inbox_behind_a_link_fails(computer: Computer, home: Path) -> None:
    store(home, "alice")
    (home / "inbox" / "bob").symlink_to(home / "inbox" / "alice")
    entry = look(computer).about("inbox", "bob")
    assert entry["status"] == "fail" and "symbolic link" in entry["message"]


def test_a_message_that_others_can_read_is_a_warning(computer: Computer, home: Path) -> None:
    folder = store(home, "bob", count=2)
    first, _ = folder.glob("*.json")
    first.chmod(0o644)
    entry = look(computer).all("inbox", "bob")[0]
    assert entry["status"] == "warn"
    assert entry["message"] == f"the mode of 1 message in {folder} lets others read them"
    subprocess.run(entry["fix"], shell=True, check=True)
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    assert look(computer).about("inbox", "bob")["status"] == "info"


def test_messages_that_are_being_shown_are_told_and_a_dead_holders_wait(
    computer: Computer, home: Path
) -> None:
    folder = store(home, "bob", count=3)
    first, second, _ = folder.glob("*.json")
    (folder / "claimed").mkdir(mode=0o700, exist_ok=True)
    first.rename(folder / "claimed" / f"{first.name}.{processes.current()}")
    said = look(computer).about("inbox", "bob")["message"]
    assert said.startswith("2 messages wait, ") and ", and 1 is being shown" in said
    second.rename(folder / "claimed" / f"{second.name}.{2**30}-1-0-0")
    assert look(computer).about("inbox", "bob")["message"] == said, "nobody shows it any more"
    for file in folder.rglob("*.json*"):
        if not file.name.endswith(str(processes.current())):
            file.unlink()
    assert look(computer).about("inbox", "bob")["message"] == "nothing waits, and 1 is being shown"


def test_bad_files_are_a_warning(computer: Computer, home: Path) -> None:
    folder = store(home, "alice")
    (folder / "bad" / "0001.json").write_text("x")
    entries = look(computer).all("inbox", "alice")
    assert [e["status"] for e in entries] == ["warn", "info"]
    assert f"1 file in {folder / 'bad'} could not be read" in entries[0]["message"]


# Sidecars -------------------------------------------------------------------------------------


async def test_a_running_sidecar_is_told_with_pid_age_and_wake_mode(
    computer: Computer, relay: RelayProcess
) -> None:
    computer.write_settings(relay=relay.url, token=TOKEN)
    environ = computer.environ | {"HOPTELL_NAME": "alice", "HOPTELL_PUSH": "poll"}
    async with asyncio.timeout(30), raw_sidecar(environ) as sidecar:
        await sidecar.handshake()
        await sidecar.result("list_peers")
        findings = await asyncio.to_thread(look, computer)
        entry = findings.about("sidecars", "alice")
        assert entry["message"].startswith(f"pid {sidecar.pid}, for ")
        assert "wake mode poll (nothing wakes it)" in entry["message"]
        assert entry["status"] == "ok"
        await sidecar.close_stdin()
        await sidecar.wait()
    gone = await asyncio.to_thread(look, computer)
    assert gone["sidecars"]["about"] is None
    assert not list((computer.home / ".hoptell" / "run").glob("session.*"))


async def test_a_sidecar_that_announced_in_vain_is_found_from_its_own_record(
    computer: Computer, relay: RelayProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "UNREAD_TIMEOUT", 0)
    computer.write_settings(relay=relay.url, token=TOKEN)
    environ = computer.environ | {"HOPTELL_NAME": "carol", "HOPTELL_PUSH": "channel"}
    async with asyncio.timeout(30), raw_sidecar(environ) as carol:
        await carol.handshake()
        sender = computer.environ | {"HOPTELL_NAME": "dave", "HOPTELL_PUSH": "poll"}
        async with raw_sidecar(sender) as dave:
            await dave.handshake()
            await carol.result("list_peers")
            await dave.result("send_message", to="carol", message="wake up")
        while (await carol.notifications.get())["method"] != "notifications/claude/channel":
            pass
        findings = await asyncio.to_thread(look, computer)
        while not findings.failed:  # the record is written just after the notice
            findings = await asyncio.to_thread(look, computer)
        assert findings.failed == {"inbox"}
        assert "announced by channel and never read" in findings.about("inbox", "carol")["message"]
        entry = findings.about("sidecars", "carol")
        assert entry["status"] == "warn" and "wake mode channel (not proven)" in entry["message"]


async def test_a_sidecar_that_was_killed_counts_for_nothing(computer: Computer, home: Path) -> None:
    environ = computer.environ | {"HOPTELL_NAME": "alice", "HOPTELL_PUSH": "poll"}
    async with asyncio.timeout(30), raw_sidecar(environ) as sidecar:
        await sidecar.handshake()
        assert look_names(home) == ["alice"]
        sidecar.process.kill()
        await sidecar.wait()
    assert list((home / "run").glob("session.*"))
    assert (await asyncio.to_thread(look, computer))["sidecars"]["about"] is None
    async with asyncio.timeout(30), raw_sidecar(environ) as sidecar:
        await sidecar.handshake()
        assert len(list((home / "run").glob("session.*"))) == 1


def look_names(home: Path) -> list[str]:
    return [entry.name for _, entry in sessions.sessions(home)]


async def test_an_announcement_that_failed_is_told_with_its_reason(
    computer: Computer, home: Path
) -> None:
    class Broken:
        async def announce(self, notice: Notice) -> None:
            raise ValueError("codex was not found")

    presence = Presence(home, "alice", Broken())
    presence.update("codex", False)
    with pytest.raises(ValueError):
        await announce(presence)
    entry = (await asyncio.to_thread(look, computer)).about("sidecars", "alice")
    assert entry["status"] == "warn"
    assert "the last announcement failed (codex was not found)" in entry["message"]
    assert "call one of hoptell's tools" in entry["fix"]
    presence.close()


async def test_two_sessions_with_one_name_are_a_warning(
    computer: Computer, relay: RelayProcess
) -> None:
    environ = computer.environ | {"HOPTELL_NAME": "alice", "HOPTELL_PUSH": "poll"}
    async with asyncio.timeout(30), raw_sidecar(environ) as one, raw_sidecar(environ) as two:
        await one.handshake()
        await two.handshake()
        entries = (await asyncio.to_thread(look, computer)).all("sidecars", "alice")
    assert [entry["status"] for entry in entries] == ["warn", "warn"]
    assert "2 sessions here have this name" in entries[0]["message"]


def test_two_servers_in_one_claude_code_session_are_a_warning(
    computer: Computer, home: Path
) -> None:
    claude, run = processes.current(), home / "run"
    run.mkdir(parents=True, mode=0o700)
    for name, pid in (("alice", os.getpid()), ("bob", os.getppid()), ("carol", 1)):
        sidecar = processes.of(pid)
        said = {"name": name, "started_at": time.time(), "mode": "hook", "proven": True}
        (run / f"session.{sidecar}").write_text(json.dumps(said))
        if name != "carol":
            (run / f"sidecar.{claude}.{sidecar}").write_text("{}")
    findings = look(computer)
    for name in ("alice", "bob"):
        entry = findings.about("sidecars", name)
        assert entry["status"] == "warn" and "runs 2 hoptell servers" in entry["message"]
        assert "claude mcp list" in entry["fix"]
    assert findings.about("sidecars", "carol")["status"] == "ok"


async def test_a_session_that_the_relay_does_not_see_is_a_warning(
    computer: Computer, home: Path
) -> None:
    presence = session(home, "alice")
    async with asyncio.timeout(20), running_relay() as relay:
        computer.write_settings(relay=relay.url, token=TOKEN)
        entry = (await asyncio.to_thread(look, computer)).about("sidecars", "alice")
    assert entry["status"] == "warn" and "does not see it online" in entry["message"]
    presence.close()


def test_two_homes_share_nothing_but_the_relay(tmp_path: Path) -> None:
    """WSL and its host, or two users: each sees its own sessions and writes its own files."""
    with ExitStack() as stack:
        homes = [tmp_path / "one", tmp_path / "two"]
        for home in homes:
            stack.callback(session(home, default_name()).close)
        for home in homes:
            assert look_names(home) == [default_name()]
        files = [file.relative_to(home) for home in homes for file in home.rglob("session.*")]
        assert len(files) == 2


def test_the_default_name_tells_wsl_from_its_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.node", lambda: "DESK")
    monkeypatch.setattr("platform.release", lambda: "10")
    windows = default_name()
    monkeypatch.setattr("platform.release", lambda: "5.15-microsoft-standard-WSL2")
    assert default_name() == f"DESK-wsl-{os.getpid()}" != windows


# Hooks ----------------------------------------------------------------------------------------


async def test_a_listener_of_claude_code_is_told_with_both_pids(
    computer: Computer, home: Path
) -> None:
    async with asyncio.timeout(30), FakeClaude(home) as claude:
        listener = await claude.hook("SessionStart")
        while True:
            findings = await asyncio.to_thread(look, computer, HOPTELL_HOME=str(home))
            if findings["hooks"]["status"] == "ok":
                break
        expected = f"pid {listener} listens for Claude Code, pid {claude.process.pid}, for"
        assert findings["hooks"]["message"].startswith(expected)
        assert findings["hooks"]["about"] is None, "no sidecar runs in this session"


def test_a_claude_code_without_a_listener_is_a_warning(computer: Computer, home: Path) -> None:
    me = processes.current()
    (home / "run").mkdir(parents=True, mode=0o700)
    (home / "run" / f"sidecar.{me}.{me}").write_text("{}")
    (home / "run" / f"sidecar.{2**30}-1-0-0.{me}").write_text("{}")
    (home / "run" / "listener.nonsense").write_text("x")
    session(home, "bob")
    entry = look(computer)["hooks"]
    assert entry["about"] == "bob", "whose session it is"
    assert entry["status"] == "warn" and f"Claude Code, pid {os.getpid()}," in entry["message"]


# Wake modes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "programs", "variables", "words"),
    [
        ("hook", [], {}, "`claude` is not here"),
        ("hook", ["claude"], {}, "hoptell is not registered with Claude Code"),
        ("channel", [], {}, "`claude` is not here"),
        ("channel", ["claude"], {"DISABLE_TELEMETRY": "1"}, "DISABLE_TELEMETRY is set"),
        ("codex", [], {}, "`codex` is not here"),
        ("tmux", [], {}, "tmux is not installed"),
    ],
)
def test_a_wake_mode_that_cannot_work_fails_with_the_reason(
    computer: Computer, mode: str, programs: list[str], variables: dict[str, str], words: str
) -> None:
    computer.install(*programs)
    findings = look(computer, HOPTELL_PUSH=mode, **variables)
    assert findings["wake"]["status"] == "fail" and words in findings["wake"]["message"]
    assert findings["wake"]["message"].startswith(f"HOPTELL_PUSH is {mode}, but ")


def test_hooks_that_are_switched_off_are_the_reason(computer: Computer) -> None:
    computer.install("claude")
    computer.write(".claude.json", {"mcpServers": {"hoptell": {"command": "/bin/sh"}}})
    computer.write(".claude/settings.json", {"disableAllHooks": True})
    assert "disableAllHooks" in look(computer, HOPTELL_PUSH="hook")["wake"]["message"]


@pytest.mark.parametrize(
    ("mode", "status"), [("", "info"), ("poll", "warn"), ("listener", "ok"), ("codex", "ok")]
)
def test_a_wake_mode_that_may_work_is_no_failure(
    computer: Computer, mode: str, status: str
) -> None:
    computer.install("codex")
    assert look(computer, HOPTELL_PUSH=mode)["wake"]["status"] == status


# Agents ---------------------------------------------------------------------------------------


def server(command: str, **entry: Any) -> dict[str, Any]:
    return {"mcpServers": {"hoptell": {"command": command, "args": ["mcp"], **entry}}}


@pytest.mark.parametrize(
    ("entry", "status", "words"),
    [
        (server("/bin/sh"), "ok", "Cursor has hoptell"),
        (server("/bin/sh", env={"HOPTELL_NAME": "carol"}), "ok", "as carol"),
        (server("/no/where"), "fail", "starts /no/where, which is not there"),
        (server("no-such-program"), "fail", "which is not there"),
        (server("/bin/sh", disabled=True), "warn", "switched off"),
        (server("/bin/sh", env={"HOPTELL_TOKEN": "hush-hush"}), "warn", "has a token in it"),
        ({"mcpServers": {"other": {}}}, "info", "hoptell is not registered with it"),
        ("broken", "info", "hoptell is not registered with it"),
    ],
)
def test_what_an_agent_has_of_hoptell_is_told(
    computer: Computer, entry: Any, status: str, words: str
) -> None:
    computer.write(".cursor/mcp.json", entry)
    findings = Findings(computer.environ, secrets=("hush-hush",))
    found = findings.about("agents", "cursor")
    assert found["status"] == status and words in found["message"]
    if entry == "broken":
        assert found["fix"].startswith("add this to it yourself: {")
    elif status == "fail" or words.startswith("hoptell is not"):
        assert found["fix"] == "hoptell init --apply cursor"


def test_a_stale_entry_in_a_file_that_cannot_be_changed_is_to_be_corrected_by_hand(
    computer: Computer,
) -> None:
    entry = {"mcp": {"hoptell": {"type": "local", "command": ["/no/where", "x"]}}}
    text = json.dumps(entry).replace('"x"', '"x" // mine\n')  # a comment in the list
    computer.write(".config/opencode/opencode.jsonc", text)
    found = look(computer).about("agents", "opencode")
    assert found["status"] == "fail" and "starts /no/where" in found["message"]
    assert found["fix"].startswith('add this to it yourself: {"mcp": {"hoptell": ')


def test_claude_code_that_nothing_wakes_is_a_warning(computer: Computer) -> None:
    computer.write(".claude.json", server("/bin/sh"))
    computer.write(".claude/settings.json", {})
    found = look(computer).about("agents", "claude")
    assert found["status"] == "warn" and "hooks are missing" in found["message"]
    assert found["fix"] == "hoptell init --apply claude"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_configuration_that_cannot_be_read_is_a_warning(computer: Computer) -> None:
    computer.write(".cursor/mcp.json", "{}").chmod(0)
    assert look(computer).about("agents", "cursor")["status"] == "warn"
