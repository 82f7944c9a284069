"""The benchmarks' instrument works: every scenario runs, and a relay that is wrong is caught."""

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

BENCH = Path(__file__).resolve().parent.parent / "bench"
WRITE = "peers[address].write("
LITTLE = {"seconds": 0.05, "warmup": 0.05}

if sys.platform != "linux":
    pytest.skip("the benchmarks read /proc and use epoll", allow_module_level=True)
if shutil.which("cc") is None and shutil.which("gcc") is None:
    pytest.skip("the load generator needs a C compiler", allow_module_level=True)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a scenario, made small, in a process of its own: it pins processes to cores."""

    def run(relay: str, scenario: str, **changes: object) -> subprocess.CompletedProcess[str]:
        program = (
            "import dataclasses, json, sys; from relays import *; from scenarios import *\n"
            "relay, scenario, changes = json.loads(sys.argv[1])\n"
            "relay = Contestant(**relay) if isinstance(relay, dict) else contestant(relay)\n"
            "try:\n"
            "    scenario = dataclasses.replace(SCENARIOS[scenario], **changes)\n"
            "    result = run(relay, scenario)\n"
            "    print(json.dumps(dataclasses.asdict(result) | {'rate': result.rate}))\n"
            "except Unavailable as error:\n"
            "    sys.exit(f'unavailable: {error}')\n"
        )
        words = json.dumps([relay, scenario, LITTLE | changes])
        answer = subprocess.run(
            [sys.executable, "-c", program, words],
            cwd=BENCH, capture_output=True, text=True, timeout=40,
        )  # fmt: skip
        if "unavailable: " in answer.stderr:
            pytest.skip(answer.stderr.rpartition("unavailable: ")[2].strip())
        return answer

    return run


@pytest.mark.parametrize(
    ("scenario", "changes"),
    [
        ("ping-pong", {}),
        ("window-16", {"peers": 3}),
        ("window-16-mixed", {"peers": 2}),
        ("fan-out", {"peers": 20}),
        ("large", {}),
        ("idle-2000", {"peers": 50}),
        ("storm", {"peers": 50, "repeat": 1}),
    ],
)
def test_a_scenario_runs_against_hoptell_and_every_figure_makes_sense(
    bench: Callable[..., subprocess.CompletedProcess[str]],
    scenario: str,
    changes: dict[str, object],
) -> None:
    answer = bench("hoptell", scenario, **changes)
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout)
    assert result["messages"] > 0
    assert result["rate"] > 0
    assert 0 < result["p50_us"] <= result["p99_us"] <= result["highest_us"] < 5e6
    assert 10_000 < result["rss_kib"] <= result["peak_kib"] < 200_000
    assert result["load_cpu"] < result["seconds"]
    if scenario != "idle-2000":
        assert 0 < result["relay_cpu"] <= result["seconds"] * 1.5


def test_with_a_journal_the_length_of_its_commits_is_measured(
    bench: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    answer = bench("hoptell-journal", "window-16", peers=2)
    assert answer.returncode == 0, answer.stderr
    assert 0 < json.loads(answer.stdout)["commit_us"] < 5e6


@pytest.mark.parametrize("relay", ["node", "node-joined"])
def test_the_node_relay_that_hoptell_is_compared_with_runs(
    bench: Callable[..., subprocess.CompletedProcess[str]], relay: str
) -> None:
    answer = bench(relay, "window-16", peers=2)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["messages"] > 0


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("doubles", "lost, doubled, overtaken or altered"),
        ("loses", "lost, doubled, overtaken or altered"),
        ("alters", "lost, doubled, overtaken or altered"),
        ("lies", "ended queued, not delivered"),
    ],
)
def test_a_relay_that_breaks_its_promise_fails_the_run(
    bench: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    fault: str,
    complaint: str,
) -> None:
    answer = bench(_wrong_relay(tmp_path, fault), "window-16", peers=1)
    assert answer.returncode != 0
    assert complaint in answer.stderr


def _wrong_relay(folder: Path, fault: str) -> dict[str, object]:
    """The echo relay with one line changed."""
    right, wrong = {
        "doubles": (WRITE, f"for _ in range(1 + (count % 100 == 0)): {WRITE}"),
        "loses": (WRITE, f"count % 100 == 0 or {WRITE}"),
        "alters": (
            WRITE,
            f"if count == 100: frame = frame.replace(b'b', b'g')\n            {WRITE}",
        ),
        "lies": ("delivered", "queued"),
    }[fault]
    text = (BENCH / "rivals/floor.py").read_text()
    assert right in text
    file = folder / "wrong.py"
    file.write_text(text.replace(right, wrong))
    return {"name": fault, "title": fault, "command": [sys.executable, str(file), "{port}"]}


def test_the_node_relay_answers_as_hoptell_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    from relays import Unavailable, contestant, running

    del sys.modules["relays"]
    answers = {}
    for name in ("hoptell", "node", "node-joined"):
        try:
            with running(contestant(name)) as relay:
                with contextlib.ExitStack() as clients:
                    answers[name] = list(_dialogue(relay.port, relay.token, clients))
        except Unavailable as error:
            pytest.skip(str(error))
    assert answers["node"] == answers["hoptell"]
    assert answers["node-joined"] == answers["hoptell"]
    assert len(answers["hoptell"]) == 25


def _dialogue(port: int, token: str, clients: contextlib.ExitStack) -> Iterator[object]:
    """Play through the protocol; yield what the relay answers, without what differs by nature."""

    def peer(name: str, **more: object) -> ClientConnection:
        url = f"ws://127.0.0.1:{port}"
        client = clients.enter_context(connect(url, compression=None, close_timeout=1))
        hello = {"type": "hello", "name": name, "token": token, "host": "here", **more}
        client.send(json.dumps(hello))
        return client

    def answer(client: ClientConnection) -> object:
        try:
            frame = json.loads(client.recv(timeout=5))
        except ConnectionClosed as closed:
            assert closed.rcvd is not None
            return closed.rcvd.code
        for changing in ("message_id", "ts", "error", "expires"):
            if changing in frame:
                frame[changing] = type(frame[changing]).__name__
        return frame

    def ask(client: ClientConnection, **frame: object) -> object:
        client.send(json.dumps(frame))
        return answer(client)

    def take(client: ClientConnection, *, confirm: bool = True) -> object:
        message = answer(client)
        assert isinstance(message, dict)
        id = message.pop("id")
        if confirm:
            client.send(json.dumps({"type": "got", "id": id}))
        return message

    yield answer(peer("x", token="wrong"))
    yield answer(peer("not a name"))
    yield answer(peer("x", roles=["all"]))
    yield answer(peer("x", v=2))
    yield answer(peer("x", mode=1))
    alice, bob = peer("alice"), peer("bob", roles=["reviewer"])
    yield answer(alice)
    yield answer(bob)
    yield ask(alice, type="send", id=1, to="nobody", text="x")
    yield ask(alice, type="send", id=2, to="alice", text="x")
    yield ask(alice, type="send", id=3, to="bob", text=" \n")
    yield ask(alice, type="send", id="four", to="@nobody", text="x")
    yield ask(alice, type="nonsense", id=5)
    yield ask(alice, type="send", id=6, to="bob", text="x", ttl=0)
    alice.send(json.dumps({"type": "send", "id": None, "to": "bob", "text": "ä\n", "key": "k"}))
    yield take(bob)
    yield answer(alice)
    yield ask(alice, type="send", id=7, to="bob", text="again", key="k")
    yield ask(alice, type="send", id=8, to="@reviewer", text="all", ttl=60)
    yield take(bob)
    alice.send(json.dumps({"type": "send", "id": 9, "to": "bob", "text": "returns"}))
    yield take(bob, confirm=False)
    bob.close()
    yield answer(alice)
    yield ask(alice, type="send", id=10, to="bob", text="behind it")
    yield ask(alice, type="list", id=11)
    bob = peer("bob")
    yield answer(bob)
    yield [take(bob), take(bob)]
    peer("bob")
    yield answer(bob)
