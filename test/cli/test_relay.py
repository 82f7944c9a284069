"""`hoptell relay` as a process: zero configuration, refusals, signals, logs."""

import asyncio
import json
import os
import pty
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.relay import TOKEN, RelayProcess, login, open_client, relay_process

from hoptell.relay.credentials import add_member, remove_member
from hoptell.relay.listening import listen


def fails(folder: Path, *options: str, token: str | None = TOKEN, **environment: str) -> str:
    """What `hoptell relay` says when it refuses to start: one line, and exit code 1."""
    relay = RelayProcess(folder, token=token, **environment)
    result = subprocess.run(
        [sys.executable, "-m", "hoptell", "relay", *options],
        env=relay.environment,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert result.returncode == 1 and result.stdout == "", result
    assert result.stderr.count("\n") == 1 and "Traceback" not in result.stderr
    return result.stderr


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def taken_port() -> Iterator[int]:
    (listener,) = listen("127.0.0.1", 0)
    with listener:
        yield listener.getsockname()[1]


def settings_file(relay: RelayProcess) -> Path:
    return Path(relay.environment["XDG_CONFIG_HOME"], "hoptell", ".env")


def variables(file: Path) -> dict[str, str]:
    lines = file.read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


# Zero configuration -------------------------------------------------------------------------


async def test_without_settings_it_makes_a_token_where_others_find_it(tmp_path: Path) -> None:
    with relay_process(tmp_path, token=None) as relay:
        file = settings_file(relay)
        token = variables(file)["HOPTELL_TOKEN"]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and len(token) >= 32
        assert str(file) in relay.wait_for("token")
        assert not any(token in line for line in relay.lines()), "it is not printed"
        await (await login(relay.url, "alice", token)).close()
        assert relay.stop() == 0
        relay.start()
        assert variables(file)["HOPTELL_TOKEN"] == token, "the next start takes the same"
        assert not any("token" in line for line in relay.lines())


def test_without_settings_it_listens_on_loopback_port_7777_only() -> None:
    from hoptell.settings import RelaySettings

    assert (RelaySettings().host, RelaySettings().port) == ("127.0.0.1", 7777)


def test_an_unusual_port_is_kept_with_the_token(tmp_path: Path, free_port: int) -> None:
    with relay_process(tmp_path, "--port", str(free_port), token=None) as relay:
        assert relay.port == free_port
        assert variables(settings_file(relay))["HOPTELL_PORT"] == str(free_port)


def test_a_port_that_will_be_another_one_next_time_is_not_kept(tmp_path: Path) -> None:
    with relay_process(tmp_path, token=None) as relay:
        assert "HOPTELL_PORT" not in variables(settings_file(relay))


def test_an_unusual_loopback_host_is_kept_with_the_token(tmp_path: Path) -> None:
    with relay_process(tmp_path, "--host", "127.0.0.2", token=None) as relay:
        assert variables(settings_file(relay))["HOPTELL_HOST"] == "127.0.0.2"


@pytest.mark.parametrize("settings", [{}, {"HOPTELL_HOST": "127.0.0.2"}])
def test_a_host_where_the_commands_here_do_not_look_is_told(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    with relay_process(tmp_path, "--host", "127.0.0.2", **settings) as relay:
        told = any("put HOPTELL_HOST=127.0.0.2 into the" in line for line in relay.lines())
        assert told is not bool(settings)


@pytest.mark.parametrize("known", [False, True])
def test_a_port_where_the_commands_here_do_not_look_is_told(
    tmp_path: Path, free_port: int, known: bool
) -> None:
    port = str(free_port)
    settings = {"HOPTELL_PORT": port} if known else {}
    with relay_process(tmp_path, "--port", port, **settings) as relay:
        told = any(f"put HOPTELL_PORT={port} into the" in line for line in relay.lines())
        assert told is not known


@pytest.mark.parametrize(
    ("mode", "token", "told"),
    [
        (0o644, TOKEN, True),
        (0o600, TOKEN, False),
        (0o644, "", False),
        (0o644, f"sha256:{64 * 'a'}", False),
    ],
)
def test_a_token_that_others_on_the_machine_can_read_is_told_at_the_start(
    tmp_path: Path, mode: int, token: str, told: bool
) -> None:
    file = tmp_path / "its settings"
    file.write_text(f"HOPTELL_TOKEN={token}\n")
    file.chmod(mode)
    with relay_process(tmp_path, HOPTELL_ENV=str(file)) as relay:
        lines = [line for line in relay.lines() if "can read" in line]
        assert len(lines) == told
        assert not told or f"{file}, and the token in it: chmod 600 '{file}'" in lines[0]
        assert TOKEN not in "".join(relay.lines())


def test_a_second_relay_does_not_change_the_token_of_the_first(
    tmp_path: Path, taken_port: int
) -> None:
    assert "is in use" in fails(tmp_path, "--port", str(taken_port), token=None)
    assert not list(tmp_path.rglob(".env"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "*"])
def test_a_host_for_others_needs_a_token_first(tmp_path: Path, host: str) -> None:
    sentence = fails(tmp_path, "--host", host, "--port", "0", token=None)
    assert "HOPTELL_TOKEN" in sentence and "hoptell members add" in sentence
    assert not list(tmp_path.rglob(".env")), "nothing is made up"


async def test_a_host_for_others_works_with_a_token(tmp_path: Path) -> None:
    with relay_process(tmp_path, "--host", "0.0.0.0") as relay:
        await (await login(relay.url, "alice")).close()


async def test_members_alone_are_enough(tmp_path: Path) -> None:
    file = tmp_path / "members.json"
    token = add_member(file, "alice")
    with relay_process(tmp_path, "--members", str(file), token=None) as relay:
        await (await login(relay.url, "alice-1", token)).close()
        assert not settings_file(relay).exists()


# What it says at the start ------------------------------------------------------------------


def test_it_says_where_it_listens_and_that_queued_means_memory(tmp_path: Path) -> None:
    with relay_process(tmp_path) as relay:
        assert relay.wait_for("listening").endswith(f"ws://127.0.0.1:{relay.port}")
        assert "queued" in relay.wait_for("memory only")


def test_ipv6_is_shown_as_a_url(tmp_path: Path) -> None:
    with relay_process(tmp_path, "--host", "::1") as relay:
        assert f"ws://[::1]:{relay.port}" in relay.wait_for("listening")


@pytest.mark.parametrize(
    ("options", "environment", "sentence"),
    [
        (["--host", "203.0.113.7"], {}, "203.0.113.7 is not an address of this machine"),
        (["--host", "no-such-host.invalid"], {}, "not a host name or address"),
        ([], {"HOPTELL_PORT": "http"}, "HOPTELL_PORT"),
        ([], {"HOPTELL_RATE": "often"}, "HOPTELL_RATE"),
        ([], {"HOPTELL_TOKEN": "short"}, "fewer than 16 characters"),
        ([], {"HOPTELL_TOKEN": "change-me-to-your-own"}, "placeholder"),
        ([], {"HOPTELL_TOKEN": "sha256:abc"}, "64 hex digits"),
        ([], {"HOPTELL_ENV": "/nowhere/.env"}, "HOPTELL_ENV"),
        (["--members", "/nowhere/members.json"], {}, "hoptell members add NAME --file"),
        ([], {"HOPTELL_MEMBERS": "/nowhere/members.json"}, "/nowhere/members.json"),
    ],
)
def test_a_bad_setting_is_one_sentence_with_the_fix(
    tmp_path: Path, options: list[str], environment: dict[str, str], sentence: str
) -> None:
    port = [] if "HOPTELL_PORT" in environment else ["--port", "0"]
    token = environment.pop("HOPTELL_TOKEN", TOKEN)
    assert sentence in fails(tmp_path, *port, *options, token=token, **environment)


def test_a_port_in_use_is_one_sentence_with_the_fix(tmp_path: Path, taken_port: int) -> None:
    sentence = fails(tmp_path, "--port", str(taken_port))
    assert f"port {taken_port} of 127.0.0.1 is in use" in sentence and "--port" in sentence


@pytest.mark.parametrize(
    "options",
    [
        ["--port", "70000"],
        ["--port", "x"],
        ["--log-format", "xml"],
        ["--journal", ""],  # as from a variable that is not set
        ["--members", " "],
    ],
)
def test_wrong_usage_is_2(tmp_path: Path, options: list[str]) -> None:
    relay = RelayProcess(tmp_path)
    result = subprocess.run(
        [sys.executable, "-m", "hoptell", "relay", *options],
        env=relay.environment,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert result.returncode == 2 and "Traceback" not in result.stderr


# Signals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_stops_with_0_even_with_peers_that_are_stuck(tmp_path: Path, number: int) -> None:
    with relay_process(tmp_path, HOPTELL_RATE="0") as relay:
        alice, bob = await login(relay.url, "alice"), await login(relay.url, "bob")
        half_open = socket.create_connection(("127.0.0.1", relay.port))
        bob.websocket.transport.pause_reading()
        for id in range(40):
            await alice.send(type="send", id=id, to="bob", text="x" * 100_000)
        await alice.ask(type="list", id=1)
        relay.signal(number)
        assert await alice.close_code() == 1001
        assert await asyncio.to_thread(relay.wait) == 0
        half_open.close()
        bob.abort()


async def test_asked_twice_it_stops_with_0(tmp_path: Path) -> None:
    with relay_process(tmp_path) as relay:
        alice = await login(relay.url, "alice")
        alice.websocket.transport.pause_reading()
        relay.signal(signal.SIGTERM)
        relay.wait_for("stopping")
        relay.signal(signal.SIGTERM)
        assert await asyncio.to_thread(relay.wait) == 0
        alice.abort()


async def test_sighup_reads_the_members_file_again(tmp_path: Path) -> None:
    file = tmp_path / "members.json"
    tokens = {name: add_member(file, name) for name in ("alice", "bob")}
    with relay_process(tmp_path, "--members", str(file)) as relay:
        alice, bob = [await login(relay.url, name, tokens[name]) for name in tokens]
        whole = file.read_bytes()
        file.write_bytes(whole[:-10])
        relay.signal(signal.SIGHUP)
        assert "not valid JSON" in relay.wait_for("reload refused")
        assert (await alice.ask(type="list", id=1))["type"] == "peers"
        file.write_bytes(whole)
        remove_member(file, "alice")
        relay.signal(signal.SIGHUP)
        assert await alice.close_code() == 4003
        assert (await bob.ask(type="list", id=1))["type"] == "peers"
        await bob.close()


async def test_sighup_without_members_is_no_reason_to_end(tmp_path: Path) -> None:
    with relay_process(tmp_path) as relay:
        relay.signal(signal.SIGHUP)
        relay.wait_for("no members file")
        await (await login(relay.url, "alice")).close()


def test_it_ends_with_the_terminal_it_was_started_in(tmp_path: Path, free_port: int) -> None:
    environment = RelayProcess(tmp_path).environment
    command = [sys.executable, "-m", "hoptell", "relay", "--port", str(free_port)]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, command, environment)
    seen = b""
    while b"listening" not in seen:
        seen += os.read(terminal, 1000)
    os.close(terminal)  # as a terminal window does
    deadline = time.monotonic() + 20
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.02)
    if ended == (0, 0):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert ended == (pid, 0)


async def test_a_restarted_relay_is_there_for_new_connections(tmp_path: Path) -> None:
    with relay_process(tmp_path) as relay:
        alice = await login(relay.url, "alice")
        relay.kill()
        assert await alice.close_code() == 1006
        relay.start()
        await (await login(relay.url, "alice")).close()


# Logs and limits ----------------------------------------------------------------------------


async def test_json_lines_all_through(tmp_path: Path) -> None:
    with relay_process(tmp_path, "--log-format", "json") as relay:
        alice = await login(relay.url, "alice", host="box\nforged line")
        await alice.close()
        relay.wait_for("disconnected")
        relay.stop()
        lines = [json.loads(line) for line in relay.lines()]
    events = [line["event"] for line in lines]
    assert events[0] == "listening" and events[-1] == "stopped"
    assert {"connected", "disconnected"} <= set(events)


async def test_a_log_that_nobody_reads_does_not_hold_up_the_relay(tmp_path: Path) -> None:
    relay = RelayProcess(tmp_path, HOPTELL_RATE="0")
    (listener,) = listen("127.0.0.1", 0)
    with listener:
        relay.port = listener.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "hoptell", "relay", "--port", str(relay.port)],
        env=relay.environment,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        while b"listening" not in process.stderr.readline():
            assert process.poll() is None
        alice = await login(relay.url, "alice")
        for _ in range(20):  # 20,000 lines: 1.5 MB, where a pipe takes 64 kB
            for id in range(1000):
                await alice.send(type="send", id=id, to="nobody", text="hi")
            for id in range(1000):
                assert (await alice.receive())["id"] == id
        await alice.close()
        process.terminate()
        assert await asyncio.to_thread(process.wait, 20) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


async def test_a_closed_standard_error_does_not_end_the_relay(
    tmp_path: Path, free_port: int
) -> None:
    relay = RelayProcess(tmp_path)
    relay.port = free_port
    command = f"exec {sys.executable} -m hoptell relay --port {free_port} 2>&- >&-"
    process = subprocess.Popen(["/bin/sh", "-c", command], env=relay.environment)
    try:
        async with asyncio.timeout(10):
            while True:
                try:
                    client = await open_client(relay.url)
                    break
                except OSError:
                    assert process.poll() is None
                    await asyncio.sleep(0.02)
        answer = await client.ask(type="hello", name="alice", token=TOKEN)
        assert answer["type"] == "welcome"
        await client.close()
        process.terminate()
        assert await asyncio.to_thread(process.wait, 20) == 0
    finally:
        process.kill()
        process.wait()


def test_it_takes_as_many_connections_as_the_system_allows(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        relay = RelayProcess(tmp_path)
        relay.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        soft_of_relay, _ = resource.prlimit(relay.pid, resource.RLIMIT_NOFILE)
        assert soft_of_relay == min(hard, 1 << 20) or hard == resource.RLIM_INFINITY
    finally:
        relay.stop()


def test_help_has_examples() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "hoptell", "relay", "--help"], capture_output=True, text=True
    )
    assert result.returncode == 0 and "hoptell relay --host" in result.stdout
