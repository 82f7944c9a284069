"""Telling one process from every other that has, or had, its pid."""

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from types import ModuleType

import psutil  # before sys.platform is another: it looks there too
import pytest

from hoptell import processes


@pytest.fixture(params=["here", "without /proc"])
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module as it is on this machine, and as it is where there is no /proc."""
    if request.param == "here":
        return processes
    assert psutil.__name__ in sys.modules
    monkeypatch.setattr(sys, "platform", "darwin")
    spec = importlib.util.find_spec("hoptell.processes")
    assert spec and spec.loader
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that runs until its standard input is closed."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        yield child
        child.kill()


def test_this_process_is_alive(module: ModuleType) -> None:
    me = module.current()
    assert me.pid == os.getpid()
    assert me.started > 0
    assert module.is_alive(me) is True
    assert module.parse(str(me)) == me


def test_another_process_is_alive_until_it_ends(
    module: ModuleType, child: "subprocess.Popen[bytes]"
) -> None:
    started = module._started(child.pid)
    other = module.current()._replace(pid=child.pid, started=started)
    assert module.is_alive(other) is True
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert module.is_alive(other) is False, "a zombie"
    child.wait()
    assert module.is_alive(other) is False


def test_an_earlier_process_with_the_same_pid_is_not_alive(
    module: ModuleType, child: "subprocess.Popen[bytes]"
) -> None:
    earlier = module._started(child.pid) - 5_000
    assert module.is_alive(module.current()._replace(pid=child.pid, started=earlier)) is False


def test_a_forked_child_is_another_process(module: ModuleType) -> None:
    script = (
        "import os\n"
        "from hoptell import processes\n"
        "parent = processes.current()\n"
        "if (pid := os.fork()) == 0:\n"
        "    os._exit(processes.current() == parent or processes.current().pid != os.getpid())\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=20).returncode == 0


def test_of_a_process_in_another_container_nothing_can_be_told() -> None:
    me = processes.current()
    assert processes.is_alive(me._replace(pid=1, namespace="7")) is None
    assert processes.is_alive(me._replace(pid=1, boot="beef")) is False


def test_without_start_times_nothing_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_started", lambda pid: None)
    processes._identity.cache_clear()
    try:
        me = processes.current()
        assert processes.is_alive(me) is True
        assert processes.is_alive(me._replace(pid=1)) is None
    finally:
        processes._identity.cache_clear()


@pytest.mark.parametrize(
    "text", ["", "1", "1-2-3", "a-1-b-c", "1-2-3-4-5", "1-2-3-4\n", "-1-2-a-b"]
)
def test_what_names_no_process_is_none(text: str) -> None:
    assert processes.parse(text) is None


def test_it_is_known_by_the_wall_clock_when_a_process_began() -> None:
    earliest = time.time() - 0.1
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        latest = time.time() + 0.1
        process = processes.of(child.pid)
        assert process is not None
        assert earliest <= processes.began_at(process) <= latest
        child.communicate(b"\n")
