"""`hoptell doctor` as a person meets it: text, exit codes, and the broken links of real set-ups."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.agents import Computer
from support.doctor import Findings
from support.relay import TOKEN, RelayProcess, relay_process
from support.tmux import message
from support.wake import Silent

from hoptell import __version__, cli
from hoptell.inbox import Inbox
from hoptell.sidecar.presence import Presence
from hoptell.sidecar.wake import Notice


@pytest.fixture
def computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Computer:
    monkeypatch.setattr("hoptell.setup.machine.USUAL_FOLDERS", ())
    return Computer(tmp_path)


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    with relay_process(tmp_path_factory.mktemp("relay")) as relay:
        yield relay


def test_a_set_up_that_works_is_ok_and_ends_with_0(computer: Computer, relay: RelayProcess) -> None:
    computer.write_settings(relay=relay.url, token=TOKEN)
    result = CliRunner(env=computer.environ).invoke(cli.command_line, ["doctor"])
    assert result.exit_code == 0 and result.stderr == ""
    lines = result.stdout.splitlines()
    assert all(line[:6] in ("ok    ", "info  ", "warn  ") for line in lines)
    assert any(line.startswith("ok    login: the relay lets us in") for line in lines)
    assert TOKEN not in result.output


def test_as_a_process_it_fails_with_1_and_one_line_a_check(computer: Computer) -> None:
    computer.write_settings(relay="ws://127.0.0.1:9", token=TOKEN)
    command = [sys.executable, "-m", "hoptell", "doctor"]
    done = subprocess.run(
        command, env=computer.environ, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1 and done.stderr == ""
    assert "FAIL  tcp: no relay answers at ws://127.0.0.1:9: start one with `hoptell" in done.stdout
    assert TOKEN not in done.stdout
    as_json = subprocess.run(
        [*command, "--json"], env=computer.environ, capture_output=True, timeout=30, check=False
    )
    assert as_json.returncode == 1 and json.loads(as_json.stdout)["version"] == __version__


def wrong_token(computer: Computer, relay: RelayProcess) -> None:
    computer.write_settings(relay=relay.url, token="not-the-relays-token")


def dead_relay(computer: Computer, relay: RelayProcess) -> None:
    computer.write_settings(relay="ws://127.0.0.1:9", token=TOKEN)


def wrong_address(computer: Computer, relay: RelayProcess) -> None:
    computer.write_settings(relay=f"{relay.url.replace('ws:', 'wss:')}/relay", token=TOKEN)


def no_token(computer: Computer, relay: RelayProcess) -> None:
    computer.write_settings(relay=relay.url)


def no_tmux(computer: Computer, relay: RelayProcess) -> None:
    computer.write_settings(relay=relay.url, token=TOKEN, push="tmux")


def old_tmux(computer: Computer, relay: RelayProcess) -> None:
    computer.write_settings(relay=relay.url, token=TOKEN)
    computer.install("tmux", script="#!/bin/sh\necho tmux 2.8\n")


def unread(computer: Computer, relay: RelayProcess) -> None:
    computer.write_settings(relay=relay.url, token=TOKEN)
    inbox = Inbox(computer.home / ".hoptell", "alice")
    inbox.store(message("wake up"))
    (file,) = inbox.folder.glob("*.json")
    os.utime(file, (time.time() - 1000,) * 2)
    presence = Presence(computer.home / ".hoptell", "alice", Silent())
    presence.update("hook", True)
    with pytest.raises(StopIteration):
        presence.announce(Notice(1, ())).send(None)


def moved_command(computer: Computer, relay: RelayProcess) -> None:
    computer.write_settings(relay=relay.url, token=TOKEN)
    computer.write(".cursor/mcp.json", {"mcpServers": {"hoptell": {"command": "/old/hoptell"}}})


@pytest.mark.parametrize(
    ("break_it", "failing"),
    [
        (wrong_token, {"login"}),
        (dead_relay, {"tcp"}),
        (wrong_address, {"tls"}),
        (no_token, {"token"}),
        (no_tmux, {"tmux", "wake"}),
        (old_tmux, {"tmux"}),
        (unread, {"inbox"}),
        (moved_command, {"agents"}),
    ],
)
def test_a_broken_link_fails_by_its_name_and_no_other_does(
    computer: Computer, relay: RelayProcess, break_it: object, failing: set[str]
) -> None:
    break_it(computer, relay)  # type: ignore[operator]
    findings = Findings(computer.environ, secrets=(TOKEN, "not-the-relays-token"))
    assert findings.failed == failing and findings.exit_code == 1
    for entry in findings.value["checks"]:
        assert entry["status"] != "fail" or entry["fix"]
