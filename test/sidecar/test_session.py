"""One sidecar as a process, from its start to its end, over its real standard input and output."""

import asyncio
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any

import psutil
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from support.inbox import message
from support.relay import TOKEN, RunningRelay, running_relay
from support.sidecar import COMMAND, RawSidecar, raw_sidecar, text_of, texts_in, within

from hoptell import processes
from hoptell.inbox import Inbox

START_TIMEOUT = 5.0
"""Seconds for starting Python on a busy machine; what is measured begins after it."""


@pytest.fixture
async def relay() -> AsyncIterator[RunningRelay]:
    async with running_relay() as relay:
        yield relay


@pytest.fixture
def alice(relay: RunningRelay, tmp_path: Path) -> dict[str, str]:
    """The environment of a sidecar that is alice."""
    return environment(tmp_path, HOPTELL_RELAY=relay.url, HOPTELL_TOKEN=TOKEN)


def environment(home: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), "HOPTELL_NAME": "alice", **more}


def a_port_where_nobody_is() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


async def online(relay: RunningRelay, name: str, is_online: bool = True) -> None:
    """Wait until the relay says so."""
    watcher = await relay.login("watcher", mode="send")
    async with asyncio.timeout(10):
        while True:
            peers = (await watcher.ask(type="list", id=1))["peers"]
            if is_online == any(peer["name"] == name and peer["online"] for peer in peers):
                return
            await asyncio.sleep(0.02)


# The handshake -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"])
async def test_protocol_versions_with_a_handshake_work(tmp_path: Path, version: str) -> None:
    async with raw_sidecar(environment(tmp_path)) as sidecar:
        result = await sidecar.handshake(protocolVersion=version)
        assert result["protocolVersion"] == version
        assert result["serverInfo"]["name"] == "hoptell"
        tools = (await sidecar.request("tools/list"))["result"]["tools"]
        assert len(tools) == 5
        assert "No messages" in await sidecar.call("read_inbox")


async def test_a_newer_client_is_led_to_the_handshake(tmp_path: Path) -> None:
    async with raw_sidecar(environment(tmp_path)) as sidecar:
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "newer", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        answer = await sidecar.request("server/discover", _meta=meta)
        assert answer["error"]["code"] == -32601
        assert (await sidecar.handshake())["protocolVersion"] == "2025-11-25"


async def test_the_mcp_packages_newest_client_comes_to_terms_with_it(tmp_path: Path) -> None:
    server = StdioServerParameters(
        command=COMMAND[0], args=COMMAND[1:], env=environment(tmp_path, HOPTELL_PUSH="poll")
    )
    with open(os.devnull, "w") as nowhere:
        async with Client(stdio_client(server, errlog=nowhere)) as client:
            assert client.protocol_version == "2025-11-25"
            assert len((await client.list_tools()).tools) == 5


@pytest.mark.parametrize("push", ["channel", "listener", "poll", "tmux", ""])
async def test_the_channel_is_declared_exactly_when_it_is_on(tmp_path: Path, push: str) -> None:
    async with raw_sidecar(environment(tmp_path, HOPTELL_PUSH=push)) as sidecar:
        answer = await sidecar.request(
            "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=CLIENT
        )
        experimental = answer["result"]["capabilities"].get("experimental") or {}
        assert experimental == ({"claude/channel": {}} if push == "channel" else {})


CLIENT = {"name": "a test", "version": "0"}


async def test_it_goes_online_once_the_handshake_is_answered(
    relay: RunningRelay, alice: dict[str, str]
) -> None:
    async with raw_sidecar(alice) as sidecar:
        await sidecar.handshake()
        await online(relay, "alice")


async def test_arguments_that_are_no_object_are_answered_as_a_tools_error(tmp_path: Path) -> None:
    async with raw_sidecar(environment(tmp_path)) as sidecar:
        await sidecar.handshake()
        answer = await sidecar.request("tools/call", name="read_inbox", arguments=["x"])
        assert answer["result"]["isError"] and "object" in text_of(answer["result"])


# Without a relay, without settings -----------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"HOPTELL_RELAY": "ws://127.0.0.1:{free}", "HOPTELL_TOKEN": TOKEN}, "keeps trying"),
        ({"HOPTELL_RELAY": "ws://relay.invalid:7777", "HOPTELL_TOKEN": TOKEN}, "relay.invalid"),
        ({"HOPTELL_RELAY": "ws://127.0.0.1:{silent}", "HOPTELL_TOKEN": TOKEN}, "not answer"),
        ({}, "no token"),
        ({"HOPTELL_RELAY": "http://x"}, "HOPTELL_RELAY: "),
        ({"HOPTELL_NAME": "not a name"}, "HOPTELL_NAME: "),
        ({"HOPTELL_PUSH": "loudly"}, "HOPTELL_PUSH: "),
        ({"HOPTELL_ENV": "/nowhere/.env"}, "HOPTELL_ENV names /nowhere/.env"),
    ],
    ids=[
        "refused",
        "unknown host",
        "silent",
        "no token",
        "bad relay",
        "bad name",
        "bad push",
        "env",
    ],
)
async def test_what_is_missing_is_said_by_the_tools_and_holds_nothing_up(
    tmp_path: Path, settings: dict[str, str], says: str
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        ports = {"free": a_port_where_nobody_is(), "silent": silent.getsockname()[1]}
        settings = {key: value.format(**ports) for key, value in settings.items()}
        async with raw_sidecar(environment(tmp_path, **settings)) as sidecar:
            await sidecar.request("ping")
            with within(1):
                await sidecar.handshake()
                assert len((await sidecar.request("tools/list"))["result"]["tools"]) == 5
            result = await sidecar.result("list_peers")
            assert result["isError"] and says in text_of(result)
            assert "Traceback" not in sidecar.stderr and TOKEN not in sidecar.stderr
            with within(2):
                await sidecar.close_stdin()
                assert await sidecar.wait() == 0


NO_HOME = (
    "import os, sys; os.getuid = lambda: 54321; sys.argv = ['hoptell', 'mcp'];"
    "from hoptell.cli import main; main()"
)
"""Runs as a user id without a name and so, without HOME, has no home folder."""


@pytest.mark.parametrize(
    ("folder", "said"), [("", "set HOME or HOPTELL_HOME"), ("state", "there is no token")]
)
async def test_without_a_home_folder_it_answers_and_says_what_to_set(
    tmp_path: Path, folder: str, said: str
) -> None:
    env = environment(tmp_path, HOPTELL_HOME=str(tmp_path / folder) if folder else "")
    del env["HOME"]
    async with raw_sidecar(env, sys.executable, "-c", NO_HOME) as sidecar:
        with within(START_TIMEOUT):
            await sidecar.handshake()
            result = await sidecar.result("list_peers")
    assert result["isError"]
    assert said in text_of(result)


async def test_its_state_folder_is_the_hooks_while_other_settings_are_broken(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    env = environment(tmp_path, HOPTELL_HOME=str(state), HOPTELL_ROLES="all")
    async with raw_sidecar(env) as sidecar:
        await sidecar.handshake()
        assert (await sidecar.result("list_peers"))["isError"]
        assert [file.name.split(".")[0] for file in (state / "run").iterdir()] == ["session"]


async def test_a_relay_that_starts_later_is_found(tmp_path: Path) -> None:
    port = a_port_where_nobody_is()
    settings = {"HOPTELL_RELAY": f"ws://127.0.0.1:{port}", "HOPTELL_TOKEN": TOKEN}
    async with raw_sidecar(environment(tmp_path, **settings)) as sidecar:
        await sidecar.handshake()
        assert (await sidecar.result("list_peers"))["isError"]
        relay = subprocess.Popen(
            [sys.executable, "-m", "hoptell", "relay", "--port", str(port)],
            env=environment(tmp_path, HOPTELL_TOKEN=TOKEN),
            stderr=subprocess.DEVNULL,
        )
        try:
            while (result := await sidecar.result("list_peers")).get("isError"):
                await asyncio.sleep(0.1)
            assert 'You are "alice"' in text_of(result)
        finally:
            relay.kill()
            relay.wait()


async def test_a_settings_file_that_is_written_later_is_found(
    relay: RunningRelay, tmp_path: Path
) -> None:
    async with raw_sidecar(environment(tmp_path)) as sidecar:
        await sidecar.handshake()
        assert (await sidecar.result("list_peers"))["isError"]
        write_settings(tmp_path, relay)
        while (result := await sidecar.result("list_peers")).get("isError"):
            await asyncio.sleep(0.1)
        assert 'You are "alice"' in text_of(result)


def write_settings(home: Path, relay: RunningRelay, more: str = "") -> None:
    file = home / ".config" / "hoptell" / ".env"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"HOPTELL_RELAY={relay.url}\nHOPTELL_TOKEN={TOKEN}\n{more}")
    file.chmod(0o600)


async def test_an_environment_of_home_and_path_alone_is_enough(
    relay: RunningRelay, tmp_path: Path
) -> None:
    write_settings(tmp_path, relay, "HOPTELL_NAME=from-the-file\nHOPTELL_ROLES=reviewer\n")
    bare = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    async with raw_sidecar(bare) as sidecar:
        await sidecar.handshake()
        text = await sidecar.call("list_peers")
        assert text.startswith('You are "from-the-file" with the roles reviewer.')


async def test_without_a_name_it_takes_the_machines_and_its_own_number(
    relay: RunningRelay, tmp_path: Path
) -> None:
    write_settings(tmp_path, relay)
    async with raw_sidecar({"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}) as sidecar:
        result = await sidecar.handshake()
        name = (await sidecar.call("list_peers")).split('"')[1]
        assert name.endswith(f"-{sidecar.pid}")
        assert f'You are "{name}"' in result["instructions"]


async def test_a_name_that_another_session_took_is_said(
    relay: RunningRelay, alice: dict[str, str]
) -> None:
    async with raw_sidecar(alice) as sidecar:
        await sidecar.handshake()
        await sidecar.call("list_peers")
        await relay.login("alice")
        while not (result := await sidecar.result("list_peers")).get("isError"):
            await asyncio.sleep(0.02)
        assert "another session went online as alice" in text_of(result).lower()


# Messages ------------------------------------------------------------------------------------


async def send(relay: RunningRelay, *texts: str, **more: Any) -> None:
    """Let bob send messages to alice, one after the other."""
    await online(relay, "alice")
    bob = await relay.login("bob")
    for text in texts:
        answer = await bob.ask(type="send", id=1, to="alice", text=text, **more)
        assert answer["type"] == "ack", answer
    await bob.close()


async def test_a_cancelled_wait_is_not_answered_and_loses_nothing(
    relay: RunningRelay, alice: dict[str, str]
) -> None:
    async with raw_sidecar(alice) as sidecar:
        await sidecar.handshake()
        waiting = await sidecar.start_tool("wait_for_message")
        await sidecar.call("read_inbox")
        await sidecar.cancel(waiting)
        await send(relay, "hello")
        assert texts_in(await sidecar.call("wait_for_message")) == ["hello"]
        assert not waiting.reply.done()


async def test_a_message_that_crosses_with_a_cancellation_is_there_for_the_next(
    relay: RunningRelay, alice: dict[str, str], tmp_path: Path
) -> None:
    async with raw_sidecar(alice) as sidecar:
        await sidecar.handshake()
        for number in range(10):
            Inbox(tmp_path / ".hoptell", "alice").store(message(f"{number}", f"text {number}"))
            reading = await sidecar.start_tool("read_inbox")
            await sidecar.cancel(reading)  # the answer may be on its way already
            assert texts_in(await sidecar.call("read_inbox")) == [f"text {number}"]


def bytes_in(pipe: IO[bytes]) -> int:
    """How many bytes wait in a pipe for its reader."""
    found = fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))
    return int.from_bytes(found, sys.byteorder)


async def test_answers_that_the_client_does_not_read_keep_their_messages(
    relay: RunningRelay, alice: dict[str, str], tmp_path: Path
) -> None:
    inbox = Inbox(tmp_path / ".hoptell", "alice")
    for number in range(12):
        inbox.store(message(f"{number}", "x" * 30_000))
    process = subprocess.Popen(
        COMMAND, env=alice, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None and process.stdout is not None
    put = {"jsonrpc": "2.0", "id": 0, "method": "initialize"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}
    lines = [{**put, "params": params}, {"jsonrpc": "2.0", "method": "notifications/initialized"}]
    lines += [
        {"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": {"name": "read_inbox"}}
        for n in range(1, 13)
    ]
    process.stdin.write("".join(json.dumps(line) + "\n" for line in lines).encode())
    process.stdin.flush()
    deadline = time.monotonic() + 10
    full = 60_000  # bytes, of the 64 KiB that a pipe holds
    while inbox.waiting().count or bytes_in(process.stdout) < full:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    assert inbox.waiting().count == 0, "all are on their way, more than a pipe holds"
    process.kill()
    output, _ = process.communicate()
    whole = [line for line in output.splitlines(keepends=True) if line.endswith(b"\n")]
    shown = sum(b"begins]" in line for line in whole)
    assert 0 < shown < 12
    assert inbox.waiting().count == 12 - shown


@pytest.mark.parametrize(
    ("step", "is_left"), [("prepare", True), ("leave", True), ("done", False)], ids=str
)
async def test_a_process_that_is_killed_while_it_answers_shows_each_message_once(
    alice: dict[str, str], tmp_path: Path, step: str, is_left: bool
) -> None:
    # Killed before its newline an answer is none; after it the message is gone, though the
    # process had no time to remove it.
    code = f"""
import os, signal
from hoptell.sidecar.mailbox import Parcel
from hoptell.sidecar.session import main
Parcel.{step} = lambda parcel: os.kill(os.getpid(), signal.SIGKILL)
main(os.getppid())
"""
    inbox = Inbox(tmp_path / ".hoptell", "alice")
    inbox.store(message("1", "x" * 90_000))
    async with raw_sidecar(alice, sys.executable, "-c", code) as sidecar:
        await sidecar.handshake()
        reading = await sidecar.start_tool("read_inbox")
        assert await sidecar.wait() == -signal.SIGKILL
        assert reading.reply.done() != is_left
    (claim,) = inbox.claim()
    assert (claim.offset == 0) == is_left


async def test_channel_mode_pushes_a_notice_and_leaves_the_text_in_the_inbox(
    relay: RunningRelay, alice: dict[str, str]
) -> None:
    async with raw_sidecar({**alice, "HOPTELL_PUSH": "channel"}) as sidecar:
        await sidecar.handshake()
        await send(relay, "secret one", "secret two")
        notification = await sidecar.notification()
        assert notification["method"] == "notifications/claude/channel"
        assert notification["params"]["meta"]["from"] == "bob"
        assert "wait" in notification["params"]["content"]
        assert "secret" not in json.dumps(notification)
        assert texts_in(await sidecar.call("read_inbox")) == ["secret one", "secret two"]


async def test_nothing_is_pushed_before_the_client_is_initialized(
    relay: RunningRelay, alice: dict[str, str], tmp_path: Path
) -> None:
    Inbox(tmp_path / ".hoptell", "alice").store(message())
    async with raw_sidecar({**alice, "HOPTELL_PUSH": "channel"}) as sidecar:
        await sidecar.request(
            "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=CLIENT
        )
        await online(relay, "alice")
        await asyncio.sleep(0.3)
        assert sidecar.notifications.empty()
        await sidecar.notify("notifications/initialized")
        assert (await sidecar.notification())["params"]["meta"]["count"] == "1"


@pytest.mark.parametrize("push", ["listener", "poll", "tmux"])
async def test_in_other_modes_nothing_at_all_is_sent_unasked(
    relay: RunningRelay, alice: dict[str, str], tmp_path: Path, push: str
) -> None:
    async with raw_sidecar({**alice, "HOPTELL_PUSH": push}) as sidecar:
        await sidecar.handshake()
        Inbox(tmp_path / ".hoptell", "alice").store(message())
        if push != "tmux":
            await send(relay, "hello")
        await asyncio.sleep(0.4)
        await sidecar.call("read_inbox")
        assert sidecar.notifications.empty()


async def test_in_tmux_mode_the_name_stays_with_the_injector(
    relay: RunningRelay, alice: dict[str, str], tmp_path: Path
) -> None:
    injector = await relay.login("alice")
    bob = await relay.login("bob")
    async with raw_sidecar({**alice, "HOPTELL_PUSH": "tmux"}) as sidecar:
        await sidecar.handshake()
        asking = await sidecar.start_tool("ask_peer", to="bob", message="ready?")
        question = await bob.receive_type("message")
        await bob.got(question)
        await bob.send(type="send", id=1, to="alice", text="yes", reply_to=question["message_id"])
        answer = await injector.receive_type("message")
        stored = message(answer["id"], answer["text"], sender="bob", reply_to=answer["reply_to"])
        await asyncio.to_thread(Inbox(tmp_path / ".hoptell", "alice").store, stored)
        assert texts_in(await asking.text()) == ["yes"]


async def test_progress_is_reported_to_a_client_that_asked_for_it(
    relay: RunningRelay, alice: dict[str, str]
) -> None:
    # 20 s are too long for a test: the interval is shortened in the process under test.
    code = (
        "import os, hoptell.sidecar.server as server; server.PROGRESS_INTERVAL = 0.1;"
        "from hoptell.sidecar.session import main; main(os.getppid())"
    )
    async with raw_sidecar(alice, sys.executable, "-c", code) as sidecar:
        await sidecar.handshake()
        call = await sidecar.start(
            "tools/call",
            name="wait_for_message",
            arguments={"timeout_seconds": 0.5},
            _meta={"progressToken": 0},
        )
        first, second = await sidecar.notification(), await sidecar.notification()
        for notification in (first, second):
            assert notification["method"] == "notifications/progress"
            assert notification["params"]["progressToken"] == 0
        assert first["params"]["progress"] < second["params"]["progress"]
        assert "Nothing arrived" in await call.text()


# The end -------------------------------------------------------------------------------------


async def started(sidecar: RawSidecar, relay: RunningRelay) -> None:
    """Bring it online, with a call that waits."""
    await sidecar.handshake()
    await online(relay, "alice")
    await sidecar.start_tool("wait_for_message", timeout_seconds=1500)
    await sidecar.request("ping")


async def test_it_ends_when_the_client_closes_its_end(
    relay: RunningRelay, alice: dict[str, str], tmp_path: Path
) -> None:
    async with raw_sidecar(alice) as sidecar:
        await started(sidecar, relay)
        with within(2):
            await sidecar.close_stdin()
            assert await sidecar.wait() == 0
        await online(relay, "alice", False)
    folder = tmp_path / ".hoptell" / "inbox" / "alice"
    assert [file for file in folder.rglob("*") if file.is_file()] == [], "nothing was left behind"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_it_ends_on_a_signal(
    relay: RunningRelay, alice: dict[str, str], number: signal.Signals
) -> None:
    async with raw_sidecar(alice) as sidecar:
        await started(sidecar, relay)
        with within(2):
            os.kill(sidecar.pid, number)
            assert await sidecar.wait() == 0
        assert "Traceback" not in sidecar.stderr
        await online(relay, "alice", False)


async def test_it_ends_when_its_parent_is_gone_even_if_somebody_holds_its_pipes(
    relay: RunningRelay, alice: dict[str, str], tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    # The shell is its parent; this test holds the other ends of its pipes.
    script = f"exec 3<&0; {' '.join(COMMAND)} <&3 & echo $! > {pid_file}; wait"
    async with raw_sidecar(alice, "sh", "-c", script) as sidecar:
        await started(sidecar, relay)
        child = processes.of(int(pid_file.read_text()))
        assert child is not None and processes.is_alive(child)
        with within(2):
            os.kill(sidecar.pid, signal.SIGKILL)
            while processes.is_alive(child):
                await asyncio.sleep(0.01)
        await online(relay, "alice", False)


async def test_it_ends_although_the_client_reads_nothing(
    relay: RunningRelay, alice: dict[str, str], tmp_path: Path
) -> None:
    inbox = Inbox(tmp_path / ".hoptell", "alice")
    for number in range(4):
        inbox.store(message(f"{number}", "x" * 30_000))
    process = subprocess.Popen(
        COMMAND, env=alice, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}
        put = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        lines = [put] + [
            {"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": {"name": "read_inbox"}}
            for n in range(1, 5)
        ]
        process.stdin.write("".join(json.dumps(line) + "\n" for line in lines).encode())
        process.stdin.flush()
        while inbox.waiting().count:
            await asyncio.sleep(0.02)
        with within(2):
            process.terminate()
            assert await asyncio.to_thread(process.wait, 5) == 0
    finally:
        process.kill()
        process.communicate()


async def test_it_ends_although_its_name_server_does_not_answer(tmp_path: Path) -> None:
    # A thread of asyncio's is asking; Python itself would wait for it.
    code = (
        "import os, socket, time; socket.getaddrinfo = lambda *a, **k: time.sleep(60);"
        "from hoptell.sidecar.session import main; main(os.getppid())"
    )
    settings = {"HOPTELL_RELAY": "ws://relay.invalid:7777", "HOPTELL_TOKEN": TOKEN}
    async with raw_sidecar(
        environment(tmp_path, **settings), sys.executable, "-c", code
    ) as sidecar:
        await sidecar.handshake()
        assert (await sidecar.result("list_peers"))["isError"]
        with within(2):
            await sidecar.close_stdin()
            assert await sidecar.wait() == 0


async def test_it_ends_although_everything_hangs(
    relay: RunningRelay, alice: dict[str, str]
) -> None:
    code = (
        "import os, time, hoptell.inbox as inbox;"
        "inbox.Inbox.claim = lambda *a, **k: time.sleep(60);"
        "from hoptell.sidecar.session import main; main(os.getppid())"
    )
    async with raw_sidecar(alice, sys.executable, "-c", code) as sidecar:
        await sidecar.handshake()
        await sidecar.start_tool("read_inbox")
        await asyncio.sleep(0.1)
        with within(2):
            os.kill(sidecar.pid, signal.SIGTERM)
            assert await sidecar.wait() == 0


async def test_requests_that_are_piped_all_at_once_are_answered(tmp_path: Path) -> None:
    async with raw_sidecar(environment(tmp_path)) as sidecar:
        first = await sidecar.start(
            "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=CLIENT
        )
        await sidecar.notify("notifications/initialized")
        second = await sidecar.start("tools/list")
        third = await sidecar.start_tool("read_inbox")
        await sidecar.close_stdin()
        assert await sidecar.wait() == 0
        for call in (first, second, third):
            assert "result" in await call.answer()


async def test_messages_of_a_call_that_the_end_cut_off_are_there_for_the_next_session(
    relay: RunningRelay, alice: dict[str, str], tmp_path: Path
) -> None:
    async with raw_sidecar(alice) as sidecar:
        await started(sidecar, relay)
        await sidecar.close_stdin()
        await sidecar.wait()
    Inbox(tmp_path / ".hoptell", "alice").store(message("1", "after the end"))
    async with raw_sidecar(alice) as sidecar:
        await sidecar.handshake()
        assert texts_in(await sidecar.call("read_inbox")) == ["after the end"]


# Nothing but MCP on standard output ----------------------------------------------------------


async def test_whatever_goes_wrong_standard_output_holds_only_json_rpc(
    relay: RunningRelay, alice: dict[str, str], tmp_path: Path
) -> None:
    code = """
import asyncio, logging, os, sys, warnings
import hoptell.sidecar.server as server
from hoptell.sidecar import mailbox

async def list_peers(self, ctx):
    print("a print")
    os.write(1, b"a library\\n")
    warnings.warn("a warning")
    logging.getLogger("library").error("a log line")
    logging.basicConfig(stream=sys.stdout)
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    os.system("echo a child")
    raise RuntimeError("a bug")

server.Tools.list_peers = list_peers
mailbox.Mailbox.store = lambda *a: 1 / 0
from hoptell.sidecar.session import main
main(os.getppid())
"""
    async with raw_sidecar(alice, sys.executable, "-c", code) as sidecar:
        await sidecar.handshake()
        await online(relay, "alice")
        bob = await relay.login("bob")
        await bob.send(type="send", id=1, to="alice", text="hello")
        assert "error" in await sidecar.request("tools/call", name="list_peers", arguments={})
        await sidecar.write(b"not json\n\xff\xff\n[]\n")
        assert "error" in await sidecar.request("no/such/method")
        await sidecar.request("ping")
        os.kill(sidecar.pid, signal.SIGTERM)
        await sidecar.wait()
        for line in sidecar.lines:
            assert json.loads(line)["jsonrpc"] == "2.0"
        for text in ("a print", "a library", "a warning", "a log line", "a child"):
            assert text in sidecar.stderr
        assert "hello" not in sidecar.stderr and TOKEN not in sidecar.stderr


# What it costs -------------------------------------------------------------------------------


async def test_an_idle_sidecar_uses_no_cpu_worth_measuring(
    relay: RunningRelay, alice: dict[str, str]
) -> None:
    async with raw_sidecar(alice) as sidecar:
        await started(sidecar, relay)
        process = psutil.Process(sidecar.pid)
        before = sum(process.cpu_times()[:2])
        await asyncio.sleep(3)
        used = sum(process.cpu_times()[:2]) - before
        assert used <= 0.02, "two ticks of the clock that measures it"
        assert process.memory_info().rss < 85 * 2**20
