"""Which process is the agent, and whether it has the terminal."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.tmux import wait_until

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
    assert replace(by_proc, started="") == replace(by_ps, started="")
    assert foreground._from_ps(2**22 + 1) is None


def test_below_a_shell_the_agent_is_what_the_shell_runs() -> None:
    process = subprocess.Popen(["bash", "-c", "sleep 60; true"], start_new_session=True)
    try:
        shell = wait_until(lambda: find(process.pid), "the shell")
        wait_until(lambda: list(foreground._below_shells(shell)), "its child")
        [child] = foreground._below_shells(shell)
        assert child.name == "sleep"
        # Without a terminal nobody is in the foreground.
        assert foreground.agent_below(process.pid) is None
    finally:
        os.killpg(process.pid, 9)
        process.wait()
