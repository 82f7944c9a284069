"""Who is in the foreground of a terminal: the agent, a shell, or a program that nobody knows.

tmux knows the process that it started in a pane. Mostly that is the agent. Where it is a shell
or a launcher that runs the agent (`sh -c 'agent; exec sh'`, npx), what is typed after the
agent's end would run as a command, so the agent proper is looked for below it. It is pinned by
pid and start time: pids are used again.

Only what has the same terminal counts. ssh, script, sudo, screen and the like make another one,
and who reads there nobody can tell from here.

Linux answers from /proc, in microseconds; elsewhere `ps` does.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hoptell.processes import kernel_fields

SHELLS = frozenset(
    "sh bash dash ash zsh ksh mksh oksh fish csh tcsh nu pwsh elvish xonsh rbash busybox".split()
)
CARRIERS = frozenset(
    "ssh mosh mosh-client et telnet script sudo su doas docker podman nerdctl kubectl screen tmux"
    " zellij dtach abduco expect unbuffer socat lxc incus machinectl wsl".split()
)
"""Programs that show what runs on a terminal of its own, here or on another machine."""
DEPTH = 8
"""Generations below the pane's process in which an agent is looked for."""

_INTERPRETER = re.compile(r"node(?:js)?|bun|deno|tsx|python[\d.]*")
_CODE_OPTIONS = frozenset("-c -e -m -p --eval --print".split())
_ENDING = re.compile(r"\.(?:exe|[cm]?js|ts|py)$")


@dataclass(frozen=True)
class Process:
    """One process as it was found."""

    pid: int
    started: str
    """Tells it from a later process with the same pid."""
    name: str
    state: str
    group: int
    foreground: int
    """The process group in the foreground of its terminal."""
    tty: str
    """Its terminal."""

    @cached_property
    def names(self) -> frozenset[str]:
        """What its program goes by, without ending: to the kernel, as a file, in its command line,
        and for a script the script's.
        """
        return frozenset(_ENDING.sub("", name) for name in _names(self.pid, self.name))

    @property
    def is_shell(self) -> bool:
        # By any of them: the kernel calls a shell that runs a script by the script's name.
        return not self.names.isdisjoint(SHELLS)

    @property
    def is_carrier(self) -> bool:
        return not self.names.isdisjoint(CARRIERS)

    @property
    def in_foreground(self) -> bool:
        return self.group == self.foreground

    @property
    def suspended(self) -> bool:
        return self.state in "Tt"

    def alive(self) -> bool:
        """It is still there: the same process, not just the same pid."""
        found = find(self.pid)
        return found is not None and found.started == self.started


GONE = Process(pid=0, started="", name="", state="X", group=0, foreground=-1, tty="")
"""Stands for a process that has ended."""


def find(pid: int) -> Process | None:
    """The process with that pid; None if there is none, or only what is left of it."""
    found = _from_proc(pid) if _PROC.exists() else _from_ps(pid)
    return None if found is None or found.state in "ZX" else found


def in_front(pid: int) -> Iterator[Process]:
    """What is in the foreground of the terminal of `pid`, of it and of what it started: the outer
    ones first.
    """
    first = find(pid)
    level = [] if first is None else [first]
    for _ in range(DEPTH):
        yield from (process for process in level if process.in_foreground)
        below = (find(child) for process in level for child in _children(process.pid))
        level = [child for child in below if first and child and child.tty == first.tty]


def _names(pid: int, name: str) -> Iterator[str]:
    yield name
    words = [name]
    if _PROC.exists():
        try:
            yield os.path.basename(os.readlink(f"/proc/{pid}/exe")).removesuffix(" (deleted)")
        except OSError:
            pass  # it is another user's
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            words = line.rstrip("\0").split("\0")
        except OSError:
            pass
    else:
        words = _ps("-o", "args=", "-p", str(pid)).split()
    if not words or (" " in words[0] and not words[0].startswith("/")):
        return  # a title that the program gave itself (`npm exec @openai/codex`)
    program = os.path.basename(words[0].lstrip("-"))
    yield program
    if _INTERPRETER.fullmatch(program) and (script := _script(words[1:])):
        yield os.path.basename(script)


def _script(words: list[str]) -> str | None:
    for word in words:
        if not word.startswith("-"):
            return word
        if word in _CODE_OPTIONS:
            return None
    return None


_PROC = Path("/proc/self/stat")


def _from_proc(pid: int) -> Process | None:
    if (found := kernel_fields(pid)) is None:
        return None
    name, fields = found
    return Process(
        pid=pid,
        started=fields[19],
        name=name,
        state=fields[0],
        group=int(fields[2]),
        foreground=int(fields[5]),
        tty=fields[4],
    )


def _from_ps(pid: int) -> Process | None:
    line = _ps("-o", "stat=,pgid=,tpgid=,tty=,lstart=,comm=", "-p", str(pid)).strip()
    fields = line.split(None, 9)
    if len(fields) < 10:
        return None
    return Process(
        pid=pid,
        started=" ".join(fields[4:9]),
        name=os.path.basename(fields[9]).lstrip("-"),
        state=fields[0][0],
        group=int(fields[1]),
        foreground=int(fields[2]),
        tty=fields[3],
    )


def _children(pid: int) -> list[int]:
    if not _PROC.exists():
        pairs = (line.split() for line in _ps("-axo", "pid=,ppid=").splitlines())
        return [int(child) for child, parent in pairs if parent == str(pid)]
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):  # a child has a thread for parent
        try:
            found += map(int, task.read_text().split())
        except OSError:
            continue
    return found


def _ps(*options: str) -> str:
    return subprocess.run(["ps", *options], capture_output=True, text=True, check=False).stdout
