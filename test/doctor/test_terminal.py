"""tmux as the doctor sees it: its version, injectors, and settings that leaked into panes."""

import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.agents import Computer
from support.doctor import Findings
from support.relay import TOKEN
from support.tmux import private_tmux

from hoptell import processes
from hoptell.doctor import terminal
from hoptell.tmux.session import OLDEST_TMUX
from hoptell.tmux.status import Status

SECRET = "a-token-in-the-environment"


@pytest.fixture
def computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Computer:
    monkeypatch.setattr("hoptell.setup.machine.USUAL_FOLDERS", ())
    computer = Computer(tmp_path)
    computer.write_settings(relay="ws://127.0.0.1:9", token=TOKEN)
    return computer


def tmux(computer: Computer, version: str, environment: str = "") -> None:
    script = f'#!/bin/sh\n[ "$1" = -V ] && echo "{version}" && exit\n'
    script += f"printf '{environment}'\n" if environment else "exit 1\n"
    computer.install("tmux", script=script)


RUNS = str(processes.current())
ENDED = f"{2**30}-1-0-0"


def injector(computer: Computer, **more: Any) -> None:
    now = time.time()
    values: dict[str, Any] = {"connected": True, "state": "idle", "since": now, "updated_at": now}
    values |= {"injector": RUNS, "process": RUNS} | more
    status = Status("bob", 4242, "%5", **values)
    computer.write(".hoptell/tmux/bob/status.json", msgspec.json.encode(status).decode())


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("tmux 2.9a", "fail"),
        ("tmux 3.1c", "fail"),
        ("tmux 3.2", "ok"),
        ("tmux 3.10", "ok"),
        ("tmux next-3.6", "ok"),
        ("tmux master", "ok"),
        ("something else", "fail"),
    ],
)
def test_a_tmux_that_is_too_old_fails(computer: Computer, version: str, status: str) -> None:
    tmux(computer, version)
    findings = Findings(computer.environ)
    assert findings["tmux"]["status"] == status
    if status == "fail":
        assert findings["tmux"]["fix"] == "install tmux 3.2 or newer"
    assert ("tmux" in findings.failed) == (status == "fail")


def test_the_oldest_tmux_is_the_one_that_hoptell_tmux_takes() -> None:
    assert ".".join(map(str, terminal.OLDEST)) == OLDEST_TMUX


def test_no_tmux_fails_only_where_it_is_wanted(computer: Computer) -> None:
    assert Findings(computer.environ)["tmux"]["status"] == "info"
    wanted = Findings(computer.environ | {"HOPTELL_PUSH": "tmux"})
    assert wanted["tmux"]["status"] == "fail"
    injector(computer)
    assert "agents run under it" in Findings(computer.environ)["tmux"]["message"]


def test_a_tmux_that_hangs_ends_in_a_line(
    computer: Computer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "COMMAND_TIMEOUT", 0.2)
    computer.install("tmux", script="#!/bin/sh\nexec /bin/sleep 30\n")
    assert Findings(computer.environ)["tmux"]["message"].endswith("does not say its version")


def test_settings_that_leaked_are_named_without_their_values(computer: Computer) -> None:
    tmux(computer, "tmux 3.4", f"PATH=/x\\nHOPTELL_TOKEN={SECRET}\\nHOPTELL_NAME=x\\n-HOPTELL_ENV")
    entry = Findings(computer.environ, secrets=(SECRET,))["tmux-environment"]
    assert entry["status"] == "warn" and "HOPTELL_TOKEN, HOPTELL_NAME from" in entry["message"]
    assert entry["fix"] == (
        "tmux set-environment -gu HOPTELL_TOKEN && tmux set-environment -gu HOPTELL_NAME"
    )


def test_with_a_real_tmux_the_leak_is_found_and_the_fix_mends_it(computer: Computer) -> None:
    with private_tmux("set -g exit-empty off") as environ:
        environ |= {"HOME": str(computer.home)}
        command = ["tmux", "new-session", "-d", "sleep 60"]
        subprocess.run(command, env=environ | {"HOPTELL_TOKEN": SECRET}, check=True)
        leaked = Findings(environ, secrets=(SECRET,))["tmux-environment"]
        assert leaked["status"] == "warn"
        subprocess.run(leaked["fix"], shell=True, env=environ, check=True)
        mended = Findings(environ)
        assert mended["tmux-environment"]["status"] == "ok"
        assert mended["tmux"]["status"] == "ok"


def test_an_injector_that_works_is_ok(computer: Computer) -> None:
    injector(computer)
    entry = Findings(computer.environ).about("injectors", "bob")
    assert entry["status"] == "ok"
    assert entry["message"].startswith("pid 4242, pane %5, idle for 0 s")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            {"state": "the agent asks", "waiting": 2, "oldest_at": 1.0, "announced": 1},
            "the agent asks for 0 s; 2 waiting; 1 announced and unread, the oldest for",
        ),
        ({"connected": False, "problem": "no relay answers"}, "not online: no relay answers"),
        ({"updated_at": 1.0}, "it said nothing for"),
    ],
)
def test_an_injector_that_is_held_up_is_a_warning_with_its_reason(
    computer: Computer, status: dict[str, Any], words: str
) -> None:
    injector(computer, **status)
    entry = Findings(computer.environ).about("injectors", "bob")
    assert entry["status"] == "warn" and words in entry["message"]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"injector": ENDED}, "it has died (pid 4242;"),
        ({"ended_at": 1.0, "state": "stopped"}, "(stopped), and the agent runs on"),
        ({"injector": ENDED, "agent": RUNS}, "and the agent runs on"),
    ],
)
def test_an_agent_that_has_lost_its_injector_is_a_warning_with_the_command_that_mends_it(
    computer: Computer, status: dict[str, Any], words: str
) -> None:
    injector(computer, **status)
    entry = Findings(computer.environ).about("injectors", "bob")
    assert (entry["status"], entry["fix"]) == ("warn", "hoptell tmux bob")
    assert words in entry["message"]


@pytest.mark.parametrize("status", [{"process": ENDED}, {"agent": ENDED}])
def test_an_injector_that_ended_with_its_agent_is_no_news(
    computer: Computer, status: dict[str, Any]
) -> None:
    injector(computer, injector=ENDED, **status)
    assert Findings(computer.environ)["injectors"]["about"] is None


def test_an_agent_that_failed_lately_is_told_with_its_last_words(computer: Computer) -> None:
    ended = {
        "ended_at": time.time(),
        "process": ENDED,
        "exit_status": 3,
        "last_words": ["\x1b[31mno key"],
    }
    injector(computer, **ended)
    entry = Findings(computer.environ).about("injectors", "bob")
    assert entry["status"] == "info" and "exit 3" in entry["message"]
    assert "no key" in entry["message"] and "\x1b" not in entry["message"]
    injector(computer, **(ended | {"ended_at": 5.0}))
    assert Findings(computer.environ)["injectors"]["about"] is None


def test_a_status_that_cannot_be_read_is_passed_over(computer: Computer) -> None:
    computer.write(".hoptell/tmux/bob/status.json", "broken")
    assert Findings(computer.environ)["injectors"]["about"] is None
