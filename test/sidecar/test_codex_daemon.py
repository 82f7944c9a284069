"""What is asked of Codex's daemon, by a fake one on a socket of its own."""

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, unix_serve

from hoptell.sidecar import codex_daemon
from hoptell.sidecar.codex_daemon import NotAnswered, Queued

THREAD = "01a22cb7-cd7a-7be0-a49d-b8c225fbee9c"
BEGUN = int("01a22cb7cd7a", 16) / 1000
OTHER = "01a22cb8-cd7a-7be0-a49d-b8c225fbee9c"
SHORTLY_BEFORE = f"{int('01a22cb7cd7a', 16) - 3_000:012x}"
SHORTLY_BEFORE = f"{SHORTLY_BEFORE[:8]}-{SHORTLY_BEFORE[8:]}-7be0-a49d-b8c225fbee9c"
linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc tells who is connected")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ht-") as folder:
        yield Path(folder)


def entry(number: int, text: str) -> dict[str, object]:
    return {"id": f"q{number}", "input": [{"type": "text", "text": text}]}


Answers = dict[str, Callable[[Any], object]]


@asynccontextmanager
async def daemon(socket: Path, answers: Answers) -> AsyncIterator[list[Any]]:
    """Codex's daemon as far as we use it; yields what it was asked to start."""
    started: list[Any] = []

    async def serve(connection: ServerConnection) -> None:
        async for frame in connection:
            request = json.loads(frame)
            method, parameters = request["method"], request.get("params")
            if method == "initialized":
                continue
            await connection.send(json.dumps({"method": "some/news", "params": {}}))
            if method == "thread/queue/start":
                started.append(parameters)
            answer: Any = {"result": {}}
            if method != "initialize":
                unknown = {"error": {"message": "unknown method"}}
                answer = answers[method](parameters) if method in answers else unknown
            await connection.send(json.dumps({"id": request["id"], **answer}))

    async with unix_serve(serve, str(socket)):
        yield started


def queues(queue: object, start: object) -> Answers:
    return {"thread/queue/list": lambda _: queue, "thread/queue/start": lambda _: start}


def threads(*found: dict[str, object]) -> Answers:
    known = {one["id"]: {"ephemeral": False, "status": {"type": "idle"}, **one} for one in found}
    return {
        "thread/loaded/list": lambda _: {"result": {"data": list(known)}},
        "thread/read": lambda given: {"result": {"thread": known[given["threadId"]]}},
    }


async def test_only_our_own_notice_is_started(folder: Path) -> None:
    queue = {"result": {"data": [entry(1, "the user's"), entry(2, "ours"), entry(3, "more")]}}
    async with daemon(folder / "s", queues(queue, {"result": {"turn": {}}})) as asked:
        assert await codex_daemon.start_queued(folder / "s", THREAD, "ours") is Queued.STARTED
        assert await codex_daemon.start_queued(folder / "s", THREAD, "not there") is Queued.RAN
    assert asked == [{"threadId": THREAD, "queuedSubmissionId": "q2"}]


async def test_a_running_turn_and_an_open_approval_are_not_disturbed(folder: Path) -> None:
    queue = {"result": {"data": [entry(1, "ours")]}}
    busy = {"error": {"code": -32600, "message": "thread already has an active or pending turn"}}
    async with daemon(folder / "s", queues(queue, busy)):
        assert await codex_daemon.start_queued(folder / "s", THREAD, "ours") is Queued.LATER


@pytest.mark.parametrize(
    "queue", [{"error": {"message": "unknown method"}}, {"result": []}, {"result": {"data": [7]}}]
)
async def test_a_daemon_that_answers_otherwise_is_no_way(folder: Path, queue: object) -> None:
    async with daemon(folder / "s", queues(queue, {"error": {"message": "not loaded"}})):
        with pytest.raises(NotAnswered):
            await codex_daemon.start_queued(folder / "s", THREAD, "ours")
    with pytest.raises(NotAnswered, match="FileNotFoundError"):
        await codex_daemon.start_queued(folder / "missing", THREAD, "ours")


@pytest.mark.parametrize(
    ("found", "thread"),
    [
        ([{"id": THREAD}, {"id": OTHER}], THREAD),
        ([{"id": THREAD, "threadSource": "user"}, {"id": OTHER}], THREAD),
        ([{"id": SHORTLY_BEFORE}, {"id": THREAD}, {"id": OTHER}], THREAD),
        ([{"id": OTHER}], OTHER),
        ([{"id": THREAD}, {"id": THREAD[:-1] + "d"}], None),
        ([{"id": OTHER}, {"id": OTHER[:-1] + "d"}], None),
        ([{"id": OTHER}, {"id": THREAD, "ephemeral": True}], OTHER),
        ([{"id": OTHER}, {"id": THREAD, "threadSource": "thread_title"}], OTHER),
        ([{"id": OTHER}, {"id": THREAD, "parentThreadId": OTHER}], OTHER),
        ([{"id": "no id of this kind"}, {"id": OTHER}], None),
        ([], None),
    ],
)
async def test_the_thread_is_the_one_that_began_as_we_did_or_the_only_one(
    folder: Path, found: list[dict[str, object]], thread: str | None
) -> None:
    async with daemon(folder / "s", threads(*found)):
        ours = await codex_daemon.thread_begun_at(folder / "s", BEGUN + 0.2)
        assert ours == (thread if thread == THREAD else None), "ours may still be starting"
        assert thread == await codex_daemon.thread_begun_at(folder / "s", BEGUN + 0.2, or_only=True)


async def test_a_daemon_that_does_not_tell_its_threads_tells_none(folder: Path) -> None:
    async with daemon(folder / "s", {}):
        with pytest.raises(NotAnswered):
            await codex_daemon.thread_begun_at(folder / "s", BEGUN)


@linux
async def test_clients_of_a_daemon_are_counted_but_not_of_another_or_none(folder: Path) -> None:
    (folder / "link").symlink_to(folder / "s")
    assert codex_daemon.clients(folder / "link") is None
    async with daemon(folder / "s", {}), daemon(folder / "other", {}):
        assert codex_daemon.clients(folder / "link") == 0
        async with AsyncExitStack() as stack:
            for name in ("s", "s", "other"):
                _, writer = await asyncio.open_unix_connection(folder / name)
                stack.push_async_callback(writer.wait_closed)
                stack.callback(writer.close)
            while codex_daemon.clients(folder / "link") != 2:
                await asyncio.sleep(0.01)


class Looks:
    """A sleep that ends at once, so often; then the test is over."""

    def __init__(self, *before: Callable[[], object]) -> None:
        self._before = list(before)

    async def __call__(self, seconds: float) -> None:
        await asyncio.sleep(0)
        if not self._before:
            raise InterruptedError
        self._before.pop(0)()


@linux
@pytest.mark.parametrize(
    ("state", "remote", "leaves"),
    [("idle", None, True), ("active", None, False), ("idle", "disabled", True),
     ("idle", "connected", False)],
)  # fmt: skip
async def test_it_is_left_alone_without_clients_once_no_turn_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, state: str, remote: str | None, leaves: bool
) -> None:
    seen: list[int | None] = [1, 0, 1, None, 0, 0, 0]
    monkeypatch.setattr(codex_daemon, "clients", lambda control: seen.pop(0))
    looks = Looks(*[lambda: None] * 7)
    answers = threads({"id": THREAD, "status": {"type": state}})
    if remote is not None:
        answers["remoteControl/status/read"] = lambda _: {"result": {"status": remote}}
    async with daemon(folder / "s", answers):
        if leaves:
            await codex_daemon.left_alone(folder / "s", sleep=looks)
            assert seen == [0]
        else:
            with pytest.raises(InterruptedError):
                await codex_daemon.left_alone(folder / "s", sleep=looks)


async def test_a_daemon_that_cannot_tell_whether_a_turn_runs_is_not_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codex_daemon, "clients", lambda control: 0)
    async with daemon(folder / "s", {}):
        with pytest.raises(InterruptedError):
            await codex_daemon.left_alone(folder / "s", sleep=Looks(*[lambda: None] * 4))
