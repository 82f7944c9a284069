"""On a system without file locks, Unix sockets and tmux, such as Windows, most commands work, and
the others say what is missing. Simulated: a process in which these cannot be imported."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.relay import TOKEN, RelayProcess, relay_process

from hoptell.cli import COMMANDS

BARE = """
import socket, sys
for name in ("fcntl", "pwd", "grp", "termios", "tty", "resource"):
    sys.modules[name] = None
pair, unix = socket.socketpair, socket.AF_UNIX
socket.socketpair = lambda *_: pair(unix)  # asyncio's own; Windows has another way for it
del socket.AF_UNIX
import hoptell.cli
sys.argv[0] = "hoptell"
hoptell.cli.main()
"""
NEED_LOCKS = {"listen", "mcp", "hook"}


def bare(
    environ: dict[str, str], *args: str, input: str = ""
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", BARE, *args],
        env={**environ, "PATH": "/nonexistent"},
        input=input,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    with relay_process(tmp_path_factory.mktemp("relay")) as relay:
        yield relay


def test_help_is_there(environ: dict[str, str]) -> None:
    done = bare(environ, "--help")
    assert done.returncode == 0 and "Commands:" in done.stdout


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - NEED_LOCKS))
def test_every_command_that_needs_none_of_it_can_be_imported(
    environ: dict[str, str], command: str
) -> None:
    done = bare(environ, command, "--help")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("args", [["listen", "alice", "0"], ["mcp"], ["hook"]])
def test_the_others_say_what_is_missing_in_one_line(
    environ: dict[str, str], args: list[str]
) -> None:
    done = bare(environ | {"CLAUDECODE": "1"}, *args)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == (
        "hoptell: this command needs Linux, macOS or WSL: the Python of this system has no fcntl\n"
    )


def test_tmux_that_is_not_there_is_one_line(environ: dict[str, str]) -> None:
    done = bare(environ | {"HOPTELL_TOKEN": TOKEN}, "tmux", "bob", "--", "codex")
    assert done.returncode == 1
    assert done.stderr == "hoptell: tmux is not installed: install tmux 3.2 or newer\n"


def test_a_machine_is_set_up_and_its_relay_runs(environ: dict[str, str], tmp_path: Path) -> None:
    made = bare(environ, "init")
    assert made.returncode == 0, made.stderr
    command = [sys.executable, "-c", BARE, "relay", "--port", "0"]
    process = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        line = next(line for line in lines if "listening" in line)
        url = "ws://127.0.0.1:" + line.strip().rpartition(":")[2].rstrip('"}')
        listed = bare(environ | {"HOPTELL_RELAY": url}, "list")
        assert listed.returncode == 0, listed.stderr
    finally:
        process.terminate()
        process.wait(10)
        process.stderr.close()  # type: ignore[union-attr]


def test_messages_are_sent_and_listed(environ: dict[str, str], relay: RelayProcess) -> None:
    joined = bare(environ, "init", "--relay", relay.url, "--token-stdin", input=TOKEN)
    assert joined.returncode == 0, joined.stderr
    done = bare(environ, "send", "nobody", "hello")
    assert done.returncode == 1 and "no peer named" in done.stderr
    listed = bare(environ, "list", "--json")
    assert listed.returncode == 0 and json.loads(listed.stdout) == []


def test_the_doctor_says_what_is_missing(environ: dict[str, str], relay: RelayProcess) -> None:
    environ |= {"HOPTELL_RELAY": relay.url, "HOPTELL_TOKEN": TOKEN}
    done = bare(environ, "doctor", "--json")
    found = {entry["check"]: entry for entry in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0, done.stdout
    assert found["system"]["status"] == "warn"
    assert "fcntl" in found["system"]["message"] and "Unix sockets" in found["system"]["message"]
    assert found["login"]["status"] == "ok" and found["tmux"]["status"] == "info"
