"""Waking Claude Code: the sidecar's side against real hook processes under a fake parent."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.fake_claude import FakeClaude

from hoptell import processes
from hoptell.errors import InboxError
from hoptell.processes import Process
from hoptell.sidecar import registry
from hoptell.sidecar.claude import HookWake, NotListening, has_channel
from hoptell.sidecar.wake import Notice, Sender

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake parent renames itself")

NOTICE = Notice(2, (Sender("alice", "laptop"), Sender("bob", "")))
SHORT = 5


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ht-") as folder:
        yield Path(folder)


@pytest.fixture
async def claude(home: Path) -> AsyncIterator[FakeClaude]:
    async with FakeClaude(home) as claude:
        yield claude


async def test_a_notice_ends_the_hook_with_exit_code_2_and_the_notice_as_it_is(
    home: Path, claude: FakeClaude
) -> None:
    async with HookWake(home, claude.process, "reader") as wake, asyncio.timeout(SHORT):
        hook = await claude.hook()
        assert await wake.wait_proven(SHORT)
        await wake.announce(NOTICE)
        assert await claude.end_of(hook) == (2, f"{NOTICE}\n")


async def test_a_hook_that_runs_before_the_sidecar_finds_it_when_it_comes(
    home: Path, claude: FakeClaude
) -> None:
    async with asyncio.timeout(SHORT):
        hook = await claude.hook("SessionStart")
        while registry.listener_of(home, claude.process) is None:
            await asyncio.sleep(0.01)
        started_at = time.monotonic()
        async with HookWake(home, claude.process, "reader") as wake:
            assert await wake.wait_proven(SHORT)
            assert time.monotonic() - started_at < 1
            await wake.announce(NOTICE)
            assert (await claude.end_of(hook))[0] == 2


async def test_without_a_listener_an_announcement_fails_and_its_coming_is_told(
    home: Path, claude: FakeClaude
) -> None:
    came = asyncio.Event()
    async with HookWake(home, claude.process, "reader", came.set) as wake, asyncio.timeout(SHORT):
        assert not wake.proven
        with pytest.raises(NotListening):
            await wake.announce(NOTICE)
        await claude.hook()
        await came.wait()
        assert wake.proven
        await wake.announce(NOTICE)


async def test_one_listener_runs_however_many_hooks_fire(home: Path, claude: FakeClaude) -> None:
    async with HookWake(home, claude.process, "reader") as wake, asyncio.timeout(SHORT):
        first = await claude.hook("SessionStart")
        assert await wake.wait_proven(SHORT)
        for event in ("UserPromptSubmit", "Stop", "StopFailure"):
            assert await claude.end_of(await claude.hook(event)) == (0, "")
        await wake.announce(NOTICE)
        assert (await claude.end_of(first))[0] == 2


async def test_a_session_that_starts_anew_replaces_the_listener(
    home: Path, claude: FakeClaude
) -> None:
    came: asyncio.Queue[None] = asyncio.Queue()
    async with (
        HookWake(home, claude.process, "reader", lambda: came.put_nowait(None)) as wake,
        asyncio.timeout(SHORT),
    ):
        first = await claude.hook("SessionStart")
        await came.get()
        second = await claude.hook("SessionStart")
        assert await claude.end_of(first) == (-signal.SIGTERM, "")
        await came.get()
        await wake.announce(NOTICE)
        assert (await claude.end_of(second))[0] == 2


async def test_the_listener_leaves_when_claude_code_is_gone(home: Path) -> None:
    async with FakeClaude(home) as claude, asyncio.timeout(SHORT):
        process = claude.process
        async with HookWake(home, process, "reader") as wake:
            pid = await claude.hook()
            assert await wake.wait_proven(SHORT)
            claude.kill()
            await ended(pid)


async def test_the_listener_leaves_when_claude_code_is_gone_before_any_sidecar_came(
    home: Path,
) -> None:
    async with FakeClaude(home) as claude, asyncio.timeout(SHORT):
        pid = await claude.hook()
        while registry.listener_of(home, claude.process) is None:
            await asyncio.sleep(0.01)
        claude.kill()
        await ended(pid)


async def test_the_listener_leaves_when_what_started_it_is_gone_so_that_the_next_is_heard(
    home: Path, claude: FakeClaude
) -> None:
    """A shell or uvx hands the exit code on: without it nobody learns that messages wait."""
    async with HookWake(home, claude.process, "reader") as wake, asyncio.timeout(SHORT):
        shell = await claude.run("sh", "-c", f"{sys.executable} -m hoptell hook; exit $?")
        assert await wake.wait_proven(SHORT)
        orphan = registry.listener_of(home, claude.process)
        assert orphan is not None and orphan.pid != shell
        os.kill(shell, signal.SIGKILL)
        await ended(orphan.pid)
        next_hook = await claude.hook("Stop")
        while registry.listener_of(home, claude.process) in (None, orphan):
            await asyncio.sleep(0.01)
        while True:
            try:
                await wake.announce(NOTICE)
                break
            except NotListening:  # it has named itself, and not connected yet
                await asyncio.sleep(0.01)
        assert (await claude.end_of(next_hook))[0] == 2


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["hoptell", "sh", "claude", "bash", "systemd"], "claude"),
        (["hoptell", "python3.12", "uvx", "node", "systemd"], "node"),
        (["hoptell", "sh", "claude"], "claude"),
        (["hoptell", "node"], "node"),
        (["hoptell", "sh", "systemd"], None),
        (["hoptell", "tini"], None),
    ],
)
def test_claude_code_is_found_even_as_all_that_a_container_runs(
    names: list[str], found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of the names has pid 1, and what adopts orphans is no agent."""
    parents = {pid: pid - 1 for pid in range(1, len(names))} | {os.getpid(): len(names) - 1}
    monkeypatch.setattr(processes, "parent_of", parents.get)
    monkeypatch.setattr(registry, "_names", lambda pid: (names[len(names) - pid], ""))
    monkeypatch.setattr(processes, "of", lambda pid: Process(pid, 1, "0", "0"))
    agent = registry.agent_process()
    assert (agent and names[len(names) - agent.pid]) == found


async def test_the_listener_goes_over_to_the_sidecar_that_follows(
    home: Path, claude: FakeClaude
) -> None:
    async with asyncio.timeout(SHORT):
        async with HookWake(home, claude.process, "reader") as first:
            hook = await claude.hook()
            assert await first.wait_proven(SHORT)
        async with HookWake(home, claude.process, "reader") as second:
            assert await second.wait_proven(SHORT)
            await second.announce(NOTICE)
            assert (await claude.end_of(hook))[0] == 2


async def test_a_state_folder_that_was_removed_is_made_again_and_the_hook_is_heard(
    home: Path, claude: FakeClaude
) -> None:
    async with (
        HookWake(home, claude.process, "reader") as wake,
        asyncio.timeout(SHORT),
    ):
        shutil.rmtree(registry.run_folder(home))
        hook = await claude.hook()
        while registry.listener_of(home, claude.process) is None:
            await asyncio.sleep(0.01)
        with pytest.raises(NotListening):
            await wake.announce(NOTICE)
        assert await wake.wait_proven(SHORT)
        await wake.announce(NOTICE)
        assert (await claude.end_of(hook))[0] == 2
    assert registry.sidecars(home, claude.process) == []


async def test_two_sessions_in_one_home_wake_only_themselves(home: Path) -> None:
    async with (
        FakeClaude(home) as one,
        FakeClaude(home) as other,
        HookWake(home, one.process, "reader") as wake_one,
        HookWake(home, other.process, "reader") as wake_other,
        asyncio.timeout(SHORT),
    ):
        hook_one, hook_other = await one.hook(), await other.hook()
        assert await wake_one.wait_proven(SHORT) and await wake_other.wait_proven(SHORT)
        await wake_other.announce(NOTICE)
        assert (await other.end_of(hook_other))[0] == 2
        await wake_one.announce(NOTICE)
        assert (await one.end_of(hook_one))[0] == 2


@asynccontextmanager
async def another_sidecar(
    home: Path, claude: FakeClaude, name: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[HookWake]:
    """A sidecar of the same session, which takes its place under another process's identity."""
    stand_in = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = processes.of(stand_in.pid)
    wake = HookWake(home, claude.process, name)
    with monkeypatch.context() as patch:
        patch.setattr(processes, "current", lambda: process)
        await wake.__aenter__()
    try:
        yield wake
    finally:
        await wake.__aexit__(None, None, None)
        stand_in.communicate(b"\n")


async def test_with_two_servers_in_a_session_either_wakes_it_and_says_whose_messages_wait(
    home: Path, claude: FakeClaude, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin's and a project's, under two names."""
    async with (
        asyncio.timeout(3 * SHORT),
        HookWake(home, claude.process, "reader") as old,
        another_sidecar(home, claude, "writer", monkeypatch) as new,
    ):
        for wake, name in ((old, "reader"), (new, "writer")):
            came = asyncio.Event()
            wake._on_listener = came.set
            hook = await claude.hook()
            await came.wait()
            await wake.announce(NOTICE)
            code, said = await claude.end_of(hook)
            assert (code, said.startswith(str(NOTICE))) == (2, True)
            assert said.endswith(f'call read_inbox of the one in which you are "{name}".\n')


async def test_two_servers_with_one_name_have_one_inbox_so_nothing_is_added_to_the_notice(
    home: Path, claude: FakeClaude, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        asyncio.timeout(SHORT),
        HookWake(home, claude.process, "reader") as wake,
        another_sidecar(home, claude, "reader", monkeypatch),
    ):
        hook = await claude.hook()
        assert await wake.wait_proven(SHORT)
        await wake.announce(NOTICE)
        assert await claude.end_of(hook) == (2, f"{NOTICE}\n")


async def test_a_server_that_comes_later_is_heard_too_and_the_listener_stays_for_it(
    home: Path, claude: FakeClaude, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(SHORT):
        async with HookWake(home, claude.process, "reader") as first:
            hook = await claude.hook()
            assert await first.wait_proven(SHORT)
            second = another_sidecar(home, claude, "writer", monkeypatch)
            wake = await second.__aenter__()
            assert await wake.wait_proven(SHORT)
        await wake.announce(NOTICE)
        assert (await claude.end_of(hook))[0] == 2
        await second.__aexit__(None, None, None)


async def test_of_two_announcements_at_once_one_is_made_and_the_other_fails(
    home: Path, claude: FakeClaude, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        asyncio.timeout(SHORT),
        HookWake(home, claude.process, "reader") as one,
        another_sidecar(home, claude, "writer", monkeypatch) as other,
    ):
        hook = await claude.hook()
        assert await one.wait_proven(SHORT) and await other.wait_proven(SHORT)
        became = await asyncio.gather(
            one.announce(NOTICE), other.announce(NOTICE), return_exceptions=True
        )
        assert {type(result) for result in became} == {type(None), NotListening}
        assert (await claude.end_of(hook))[0] == 2


async def test_a_listener_that_dies_leaves_the_notice_unannounced(
    home: Path, claude: FakeClaude
) -> None:
    async with HookWake(home, claude.process, "reader") as wake, asyncio.timeout(SHORT):
        hook = await claude.hook()
        assert await wake.wait_proven(SHORT)
        os.kill(hook, signal.SIGSTOP)
        announcement = asyncio.create_task(wake.announce(NOTICE))
        await asyncio.sleep(0)
        os.kill(hook, signal.SIGKILL)
        with pytest.raises(NotListening):
            await announcement


async def test_an_idle_listener_uses_no_cpu(home: Path, claude: FakeClaude) -> None:
    async with HookWake(home, claude.process, "reader") as wake, asyncio.timeout(10):
        hook = await claude.hook()
        assert await wake.wait_proven(SHORT)
        await asyncio.sleep(0.2)
        before = cpu_ticks(hook)
        await asyncio.sleep(2)
        assert cpu_ticks(hook) == before


async def test_a_hook_outside_claude_code_says_so(home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hoptell", "hook"], stdin=subprocess.DEVNULL,
        env={"HOPTELL_HOME": str(home)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "hoptell: Claude Code runs this by itself: see 'hoptell hooks'\n"


async def test_the_files_are_private_and_gone_with_the_sidecar(
    home: Path, claude: FakeClaude
) -> None:
    async with HookWake(home, claude.process, "reader"):
        folder = registry.run_folder(home)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
    assert list(folder.iterdir()) == []


async def test_a_long_state_folder_gets_its_socket_elsewhere(
    home: Path, claude: FakeClaude
) -> None:
    deep = home / ("x" * 120)
    async with HookWake(deep, claude.process, "reader"):
        (registration,) = registry.sidecars(deep, claude.process)
        assert len(os.fsencode(registration.socket)) <= registry.MAX_SOCKET_PATH
        assert registration.socket.parent.stat().st_mode & 0o777 == 0o700
    assert not registration.socket.parent.exists()


def test_what_dead_processes_left_is_swept(home: Path) -> None:
    child = subprocess.Popen(["true"])
    dead = processes.current()._replace(pid=child.pid, started=1)
    child.wait()
    folder = registry.run_folder(home)
    for name in (f"sidecar.{dead}.{dead}", f"listener.{dead}"):
        (folder / name).write_text(json.dumps({"socket": "/nowhere"}))
    registry.sweep(home)
    assert list(folder.iterdir()) == []


def test_a_run_folder_that_is_a_link_is_refused(home: Path) -> None:
    (home / "elsewhere").mkdir()
    (home / "run").symlink_to(home / "elsewhere")
    with pytest.raises(InboxError, match="is a symbolic link"):
        registry.run_folder(home)


@pytest.mark.parametrize(
    ("arguments", "plugin", "found"),
    [
        (["claude"], False, False),
        (["claude", "--dangerously-load-development-channels", "server:hoptell"], False, True),
        (["claude", "--dangerously-load-development-channels=server:hoptell"], False, True),
        (["claude", "--dangerously-load-development-channels", "server:other"], False, False),
        (["claude", "--channels", "plugin:x@y", "plugin:hoptell@hoptell"], True, True),
        (["claude", "--channels", "plugin:x@y,plugin:hoptell@local"], True, True),
        (["claude", "--channels", "plugin:hoptell@hoptell"], False, False),
        (["claude", "--channels", "server:hoptell"], True, False),
        (["claude", "--channels", "plugin:x@y", "-p", "plugin:hoptell@hoptell"], True, False),
        (["claude", "write about --channels server:hoptell"], False, False),
    ],
)
def test_channels_are_on_exactly_when_claude_code_was_started_with_them(
    arguments: list[str], plugin: bool, found: bool
) -> None:
    assert has_channel(arguments, plugin=plugin) is found


async def ended(pid: int) -> None:
    while processes.of(pid) is not None:
        await asyncio.sleep(0.01)


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
