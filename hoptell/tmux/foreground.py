"""Who is in the foreground of a terminal: the agent, or the shell that it leaves behind.

tmux knows the process that it started in a pane. Mostly that is the agent. Where it is a shell
that runs the agent (`sh -c 'agent; exec sh'`), what is typed after the agent's end would run as
a command, so the agent proper is the first process below the shells that is none, in the
terminal's foreground. It is pinned by pid and start time: pids are used again.

Linux answers from /proc, in microseconds; elsewhere `ps` does.
"""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hoptell.processes import kernel_fields

SHELLS = frozenset(
    "sh bash dash ash zsh ksh mksh oksh fish csh tcsh nu pwsh elvish xonsh rbash busybox".split()
)


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

    @property
    def is_shell(self) -> bool:
        return self.name in SHELLS

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


GONE = Process(pid=0, started="", name="", state="X", group=0, foreground=-1)
"""Stands for a process that has ended."""


def find(pid: int) -> Process | None:
    """The process with that pid; None if there is none, or only what is left of it."""
    found = _from_proc(pid) if _PROC.exists() else _from_ps(pid)
    return None if found is None or found.state in "ZX" else found


def agent_below(pid: int) -> Process | None:
    """The agent that runs in the pane whose first process is `pid`; None if only shells do."""
    process = find(pid)
    if process is None or not process.is_shell:
        return process
    return next(filter(_runs_in_front, _below_shells(process)), None)


def _runs_in_front(process: Process) -> bool:
    return not process.is_shell and process.in_foreground


def _below_shells(shell: Process, depth: int = 8) -> Iterator[Process]:
    for pid in _children(shell.pid):
        child = find(pid)
        if child is None:
            continue
        if child.is_shell and depth:
            yield from _below_shells(child, depth - 1)
        else:
            yield child


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
    )


def _from_ps(pid: int) -> Process | None:
    line = _ps("-o", "stat=,pgid=,tpgid=,lstart=,comm=", "-p", str(pid)).strip()
    fields = line.split(None, 8)
    if len(fields) < 9:
        return None
    return Process(
        pid=pid,
        started=" ".join(fields[3:8]),
        name=os.path.basename(fields[8]).lstrip("-"),
        state=fields[0][0],
        group=int(fields[1]),
        foreground=int(fields[2]),
    )


def _children(pid: int) -> list[int]:
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        pairs = (line.split() for line in _ps("-axo", "pid=,ppid=").splitlines())
        return [int(child) for child, parent in pairs if parent == str(pid)]


def _ps(*options: str) -> str:
    return subprocess.run(["ps", *options], capture_output=True, text=True, check=False).stdout
