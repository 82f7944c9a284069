"""Waking Codex, with a fake clock, a fake queue and fake `codex` commands."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, unix_serve

from hoptell.sidecar import codex
from hoptell.sidecar.codex import Codex, CodexWake, NotWoken, Queued, start_queued
from hoptell.sidecar.wake import Notice, Sender

NOTICE = Notice(1, (Sender("alice", "laptop"),))
THREAD = "01a22cb7-cd7a-7be0-a49d-b8c225fbee9c"


class Bench:
    """A CodexWake whose sleeping ends when the test says so."""

    def __init__(self) -> None:
        self.unread = True
        self.queued: list[tuple[str, str]] = []
        self.started: list[tuple[str, str]] = []
        self.told: list[bool] = []
        """Whether it was proven each time that a change was told."""
        self.state: Queued | NotWoken = Queued.STARTED
        self.failure: NotWoken | None = None
        self._sleeping: asyncio.Queue[asyncio.Event] = asyncio.Queue()
        self.wake = CodexWake(
            lambda: self.unread, queue=self._queue, start=self._start, sleep=self._sleep,
            on_change=lambda: self.told.append(self.wake.proven),
        )  # fmt: skip

    async def _queue(self, thread: str, message: str) -> None:
        if self.failure is not None:
            raise self.failure
        self.queued.append((thread, message))

    async def _start(self, thread: str, message: str) -> Queued:
        if isinstance(self.state, NotWoken):
            raise self.state
        self.started.append((thread, message))
        return self.state

    async def _sleep(self, seconds: float) -> None:
        over = asyncio.Event()
        self._sleeping.put_nowait(over)
        await over.wait()

    @property
    def looks_no_more(self) -> bool:
        return self._sleeping.empty()

    async def time_passes(self) -> None:
        (await self._sleeping.get()).set()
        for _ in range(5):
            await asyncio.sleep(0)


async def test_before_a_tool_call_has_told_the_thread_there_is_no_way() -> None:
    bench = Bench()
    with pytest.raises(NotWoken, match="not called a tool yet"):
        await bench.wake.announce(NOTICE)
    assert not bench.wake.proven


async def test_the_notice_is_queued_for_the_thread_that_the_last_tool_call_told() -> None:
    bench = Bench()
    bench.wake.learn({"threadId": "0" * 36})
    bench.wake.learn({"threadId": THREAD})
    assert bench.wake.proven
    await bench.wake.announce(NOTICE)
    assert bench.queued == [(THREAD, str(NOTICE))]
    bench.wake.close()


@pytest.mark.parametrize(
    "meta",
    [None, {}, {"threadId": 7}, {"threadId": ""}, {"threadId": "--help --help"}, "threadId",
     {"threadId": "-01a22cb7"}, {"threadId": "01a22cb7\n--x"}, {"threadId": "é" * 36}],
)  # fmt: skip
async def test_what_is_no_thread_id_is_not_taken_for_one(meta: object) -> None:
    bench = Bench()
    bench.wake.learn(meta)
    assert not bench.wake.proven


async def test_a_notice_that_was_acted_on_is_left_alone() -> None:
    bench = Bench()
    bench.wake.learn({"threadId": THREAD})
    await bench.wake.announce(NOTICE)
    bench.unread = False
    await bench.time_passes()
    assert len(bench.queued) == 1 and bench.started == [] and bench.looks_no_more


async def test_a_queue_that_stands_still_is_started() -> None:
    bench = Bench()
    bench.wake.learn({"threadId": THREAD})
    await bench.wake.announce(NOTICE)
    await bench.time_passes()
    assert bench.started == [(THREAD, str(NOTICE))]
    bench.unread = False
    await bench.time_passes()
    assert len(bench.queued) == 1 and len(bench.started) == 1 and bench.looks_no_more


async def test_a_busy_session_is_looked_after_until_the_notice_ran() -> None:
    bench = Bench()
    bench.wake.learn({"threadId": THREAD})
    await bench.wake.announce(NOTICE)
    bench.state = Queued.LATER
    for _ in range(3):
        await bench.time_passes()
    bench.state = Queued.RAN
    await bench.time_passes()
    assert len(bench.started) == 4 and bench.looks_no_more
    assert len(bench.queued) == 1 and not bench.wake.stalled


async def test_without_a_daemon_an_unread_notice_is_queued_once_more_and_then_not_woken() -> None:
    bench = Bench()
    bench.state = NotWoken("no daemon")
    bench.wake.learn({"threadId": THREAD})
    await bench.wake.announce(NOTICE)
    await bench.time_passes()
    await bench.time_passes()
    assert len(bench.queued) == 2
    assert not bench.wake.stalled
    await bench.time_passes()
    assert len(bench.queued) == 2
    assert bench.wake.stalled and not bench.wake.proven
    bench.unread = False
    assert not bench.wake.stalled and bench.wake.proven


async def test_that_it_does_not_wake_and_that_it_does_again_is_told() -> None:
    """Peers are shown how each is woken, and only what is proven."""
    bench = Bench()
    bench.state = NotWoken("no daemon")
    bench.wake.learn({"threadId": THREAD})
    await bench.wake.announce(NOTICE)
    for _ in range(3):
        await bench.time_passes()
    assert bench.told == [True, False]
    assert bench.wake.stalled
    bench.unread = False
    assert not bench.wake.stalled
    assert bench.told == [True, False, True]


async def test_a_new_announcement_takes_the_place_of_the_repetition() -> None:
    bench = Bench()
    bench.wake.learn({"threadId": THREAD})
    await bench.wake.announce(NOTICE)
    await bench.wake.announce(NOTICE)
    await asyncio.sleep(0)
    bench.unread = False
    await bench.time_passes()
    assert len(bench.queued) == 2


async def test_a_queue_that_fails_is_an_announcement_that_failed() -> None:
    bench = Bench()
    bench.wake.learn({"threadId": THREAD})
    bench.failure = NotWoken("no")
    with pytest.raises(NotWoken):
        await bench.wake.announce(NOTICE)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ht-") as folder:
        yield Path(folder)


def entry(number: int, text: str) -> dict[str, object]:
    return {"id": f"q{number}", "input": [{"type": "text", "text": text}]}


@asynccontextmanager
async def daemon(socket: Path, queue: object, start: object) -> AsyncIterator[list[Any]]:
    """Codex's daemon as far as we use it; yields what it was asked to start."""
    asked: list[Any] = []

    async def serve(connection: ServerConnection) -> None:
        async for frame in connection:
            request = json.loads(frame)
            if request["method"] == "initialized":
                continue
            await connection.send(json.dumps({"method": "some/news", "params": {}}))
            answers = {"initialize": {"result": {}}, "thread/queue/list": queue}
            if request["method"] == "thread/queue/start":
                asked.append(request["params"])
            answer = answers.get(request["method"], start)
            await connection.send(json.dumps({"id": request["id"], **answer}))  # type: ignore[dict-item]

    async with unix_serve(serve, str(socket)):
        yield asked


async def test_only_our_own_notice_is_started(folder: Path) -> None:
    queue = {"result": {"data": [entry(1, "the user's"), entry(2, "ours"), entry(3, "more")]}}
    async with daemon(folder / "s", queue, {"result": {"turn": {}}}) as asked:
        assert await start_queued(folder / "s", THREAD, "ours") is Queued.STARTED
        assert await start_queued(folder / "s", THREAD, "not there") is Queued.RAN
    assert asked == [{"threadId": THREAD, "queuedSubmissionId": "q2"}]


async def test_a_running_turn_and_an_open_approval_are_not_disturbed(folder: Path) -> None:
    queue = {"result": {"data": [entry(1, "ours")]}}
    busy = {"error": {"code": -32600, "message": "thread already has an active or pending turn"}}
    async with daemon(folder / "s", queue, busy):
        assert await start_queued(folder / "s", THREAD, "ours") is Queued.LATER


@pytest.mark.parametrize(
    "queue", [{"error": {"message": "unknown method"}}, {"result": []}, {"result": {"data": [7]}}]
)
async def test_a_daemon_that_answers_otherwise_is_no_way(folder: Path, queue: object) -> None:
    async with daemon(folder / "s", queue, {"error": {"message": "not loaded"}}):
        with pytest.raises(NotWoken):
            await start_queued(folder / "s", THREAD, "ours")
    with pytest.raises(NotWoken, match="FileNotFoundError"):
        await start_queued(folder / "missing", THREAD, "ours")


def script(file: Path, body: str) -> Codex:
    file.write_text(f"#!{sys.executable}\nimport sys, json\n{body}\n")
    file.chmod(0o755)
    return Codex(str(file), {})


async def test_no_shell_ever_sees_the_notice(tmp_path: Path) -> None:
    out = tmp_path / "out"
    program = script(tmp_path / "codex", f"json.dump(sys.argv[1:], open({str(out)!r}, 'w'))")
    hostile = "`touch x`; $(touch y) 'a' \"b\" \\ *\n--resume"
    await codex.run(program, "queue", "--message", hostile)
    assert json.loads(out.read_text()) == ["queue", "--message", hostile]


async def test_a_command_that_fails_is_reported_in_its_own_last_line(tmp_path: Path) -> None:
    program = script(tmp_path / "codex", "sys.exit('first\\nno such thread \\x1b[0m')")
    with pytest.raises(NotWoken, match=r"failed \(1\): 'no such thread \\x1b"):
        await codex.run(program)
    with pytest.raises(NotWoken, match="cannot run"):
        await codex.run(Codex(str(tmp_path / "missing"), {}))


async def test_a_command_that_hangs_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codex, "QUEUE_TIMEOUT", 0.1)
    program = script(tmp_path / "codex", "import time; time.sleep(60)")
    with pytest.raises(NotWoken, match="did not end"):
        await codex.run(program)


def test_codex_is_found_on_path_and_in_the_usual_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(codex, "USUAL_FOLDERS", (str(tmp_path / "usual"),))
    assert codex.find() is None
    (tmp_path / "usual").mkdir()
    script(tmp_path / "usual" / "codex", "")
    found = codex.find()
    assert found is not None and found.program == str(tmp_path / "usual" / "codex")


def test_without_a_home_folder_codex_is_just_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(codex, "USUAL_FOLDERS", ("~/.local/bin",))
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 2)  # has no entry in passwd either
    assert codex.find() is None


async def test_without_a_home_folder_its_queue_cannot_be_looked_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "codex", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 2)  # has no entry in passwd either
    with pytest.raises(NotWoken, match="no home folder, set CODEX_HOME"):
        await codex._start(THREAD, str(NOTICE))


@pytest.mark.parametrize("path", [None, "", "/nonexistent:", "."])
def test_a_codex_of_the_current_folder_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | None
) -> None:
    script(tmp_path / "codex", "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(codex, "USUAL_FOLDERS", (str(tmp_path / "usual"),))
    if path is None:
        monkeypatch.delenv("PATH")
    else:
        monkeypatch.setenv("PATH", path)
    assert codex.find() is None


@pytest.mark.skipif(sys.platform != "linux", reason="needs a program that does not mind its name")
def test_the_codex_that_runs_us_comes_before_path_and_lends_its_home(tmp_path: Path) -> None:
    # Any program that can start another: here the real interpreter under the name of Codex.
    program = tmp_path / "codex"
    shutil.copy(Path(sys.executable).resolve(), program)
    say = "f = codex.find(); print(f.program, f.environment['CODEX_HOME'])"
    inner = [sys.executable, "-c", f"from hoptell.sidecar import codex; {say}"]
    outer = f"import subprocess; subprocess.run({inner!r}, env={{}}, check=True)"
    done = subprocess.run(
        [str(program), "-S", "-c", outer],
        env={"PATH": "/nonexistent", "CODEX_HOME": "/elsewhere", "PYTHONHOME": sys.base_prefix},
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (f"{program} /elsewhere\n", "")
