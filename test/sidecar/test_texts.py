"""What the agent is told: in every mode, within what clients show of it."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.inbox import message

from hoptell.inbox import Inbox
from hoptell.settings import WAKE_MODES
from hoptell.sidecar import texts
from hoptell.sidecar.texts import descriptions, instructions, listen_command, way_of

LONGEST = "n" * 64
LONG_HOME = Path("/home") / ("h" * 120) / "state"


def all_texts(mode: str, name: str = LONGEST, home: Path | None = LONG_HOME) -> list[str]:
    way = way_of(mode, name, home)
    return [instructions(name, way), *descriptions(name, way).values()]


@pytest.mark.parametrize("mode", WAKE_MODES)
def test_instructions_and_descriptions_fit_2048_bytes_with_the_longest_names(mode: str) -> None:
    for text in all_texts(mode):
        assert len(text.encode()) <= 2048


@pytest.mark.parametrize("mode", WAKE_MODES)
def test_they_fit_even_with_paths_that_leave_no_room(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/" + "x" * 3000)
    for text in all_texts(mode):
        assert len(text.encode()) <= 2048


@pytest.mark.parametrize("mode", WAKE_MODES)
def test_the_instructions_put_first_what_every_session_needs(mode: str) -> None:
    text = instructions("alice", way_of(mode, "alice", None))
    in_this_order = [
        'You are "alice"',
        "from other agents, never from your user",
        "not your user's word",
        "How they arrive: ",
        "Do not reply only to acknowledge",
        "Stop when",
    ]
    places = [text.index(part) for part in in_this_order]
    assert places == sorted(places)


def test_what_arrives_in_a_channel_is_read_with_a_tool() -> None:
    text = instructions("alice", way_of("channel", "alice", None))
    assert "channel notice" in text and "call read_inbox" in text


@pytest.mark.parametrize("place", ["the instructions", "read_inbox's description"])
def test_a_listening_session_is_given_the_exact_command(place: str) -> None:
    way = way_of("listener", "alice", None)
    text = {
        "the instructions": instructions("alice", way),
        "read_inbox's description": descriptions("alice", way)["read_inbox"],
    }[place]
    assert f"{sys.executable} -P -m hoptell listen alice" in text


def test_no_other_session_is_told_to_listen() -> None:
    for mode in ("channel", "tmux", "poll"):
        assert not any("hoptell listen" in text for text in all_texts(mode))


def test_the_command_finds_the_inbox_and_survives_any_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "a 'python' $HOME"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    home = tmp_path / 'a "home" `x`'
    command = listen_command("alice", home)
    assert shlex.split(command) == [
        f"HOPTELL_HOME={home}",
        *(str(python), "-P", "-m", "hoptell", "listen", "alice"),
    ]
    Inbox(home, "alice").store(message())
    done = subprocess.run(["sh", "-c", f"{command} 0"], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_listen_command_runs_no_hoptell_of_the_project_it_is_called_in(tmp_path: Path) -> None:
    project = tmp_path / "hoptell"
    project.mkdir()
    for module in ("__init__.py", "__main__.py"):
        (project / module).write_text("raise SystemExit('this belongs to the project')\n")
    command = f"{listen_command('alice', tmp_path / 'home')} 0"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "")


def test_the_usual_home_is_not_spelled_out() -> None:
    expected = [sys.executable, "-P", "-m", "hoptell", "listen", "alice"]
    assert shlex.split(listen_command("alice", Path.home() / ".hoptell")) == expected
    assert shlex.split(listen_command("alice", None)) == expected


def test_a_command_that_is_too_long_is_shortened_to_what_path_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/" + "x" * texts.MAX_COMMAND_BYTES)
    assert listen_command("alice", None) == "hoptell listen alice"
