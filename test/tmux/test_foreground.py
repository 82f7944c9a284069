"""Which process is the agent, and whether it has the terminal."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.tmux import Terminal, wait_until

from hoptell.tmux import foreground
from hoptell.tmux.foreground import find


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_a_process_is_found_with_its_name_and_start(sleeper: "subprocess.Popen[bytes]") -> None:
    wait_until(lambda: (found := find(sleeper.pid)) and found.name == "sleep", "the sleeper")
    found = find(sleeper.pid)
    assert found is not None and found.alive() and not found.is_shell and not found.suspended


def test_another_process_with_the_same_pid_is_another(sleeper: "subprocess.Popen[bytes]") -> None:
    found = find(sleeper.pid)
    assert found is not None
    assert not replace(found, started="yesterday").alive()


def test_what_has_ended_is_not_found_even_before_its_parent_looks(
    sleeper: "subprocess.Popen[bytes]",
) -> None:
    sleeper.kill()
    wait_until(lambda: find(sleeper.pid) is None, "the end")
    assert sleeper.returncode is None


def test_a_name_with_spaces_and_parentheses_disturbs_nothing(tmp_path) -> None:  # type: ignore[no-untyped-def]
    odd = tmp_path / "a) (b c"
    odd.symlink_to(sys.executable)
    process = subprocess.Popen([odd, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = wait_until(lambda: find(process.pid), "the process")
        assert found.group == os.getpgid(process.pid)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(not os.path.exists("/bin/ps"), reason="no ps")
def test_ps_and_proc_agree(sleeper: "subprocess.Popen[bytes]") -> None:
    wait_until(lambda: (found := find(sleeper.pid)) and found.name == "sleep", "the sleeper")
    by_proc, by_ps = foreground._from_proc(sleeper.pid), foreground._from_ps(sleeper.pid)
    assert by_proc is not None and by_ps is not None
    # It may have been running at one of the two moments; the start is written differently.
    differ = {"started": "", "state": "", "tty": ""}
    assert replace(by_proc, **differ) == replace(by_ps, **differ)
    assert foreground._from_ps(2**22 + 1) is None


def in_front(*command: str, last: str) -> list[list[str]]:
    """The names in the foreground of a terminal that runs `command`, once `last` is there."""
    terminal = Terminal(dict(os.environ), list(command))
    try:
        wait_until(lambda: last in _everything_below(terminal.pid), last)
        return [sorted(process.names) for process in foreground.in_front(terminal.pid)]
    finally:
        for pid in reversed(list(_pids_below(terminal.pid))):
            with contextlib.suppress(ProcessLookupError):  # it had no other child
                os.kill(pid, signal.SIGKILL)
        terminal.close()


def _pids_below(pid: int) -> Iterator[int]:
    yield pid
    for child in foreground._children(pid):
        yield from _pids_below(child)


def _everything_below(pid: int) -> set[str]:
    found = filter(None, map(find, _pids_below(pid)))
    return {name for process in found for name in process.names}


def test_in_front_is_what_has_the_terminal_the_outer_ones_first() -> None:
    assert in_front("bash", "-c", "sleep 60; true", last="sleep") == [["bash"], ["sleep"]]


def test_what_runs_on_a_terminal_of_its_own_is_not_in_front() -> None:
    found = in_front("script", "-qc", "sleep 60; true", "/dev/null", last="sleep")
    assert found == [["script"]]


def test_a_shell_with_job_control_is_not_in_front_while_it_runs_something() -> None:
    found = in_front("bash", "--norc", "-ic", "set -m; sleep 60; true", last="sleep")
    assert found == [["sleep"]]


def test_without_a_terminal_nobody_is_in_front() -> None:
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        wait_until(lambda: find(process.pid), "the process")
        assert list(foreground.in_front(process.pid)) == []
    finally:
        process.kill()
        process.wait()


def names_of(*command: str | Path, **options: Any) -> set[str]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
    try:
        assert process.stdout is not None and process.stdout.readline()
        found = find(process.pid)
        assert found is not None
        return set(found.names)
    finally:
        process.kill()
        process.communicate()


SCRIPT = "import sys; print('here', flush=True); sys.stdin.read()"


def test_an_interpreter_goes_by_the_name_of_its_script_too(tmp_path: Path) -> None:
    script = tmp_path / "claude.js"
    script.write_text(SCRIPT)
    assert "claude" in names_of(sys.executable, "-S", script)
    assert "claude" not in names_of(sys.executable, "-S", "-c", SCRIPT, "claude")
    script.write_text(f"#!{sys.executable}\n{SCRIPT}")
    script.chmod(0o755)
    assert {"claude", "claude.js"} & names_of(script)


def test_a_shell_that_runs_a_script_with_an_agents_name_is_a_shell(tmp_path: Path) -> None:
    script = tmp_path / "claude"
    script.write_text("#!/bin/sh\necho here\nread line\n")
    script.chmod(0o755)
    assert names_of(script) & foreground.SHELLS


def test_a_title_that_a_program_gave_itself_is_not_its_name() -> None:
    names = names_of("npm exec @openai/codex", "-c", SCRIPT, executable=sys.executable)
    assert "codex" not in names
