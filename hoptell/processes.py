"""Which process is it, and does it still run? Pid and start time, fit for a file name.

A pid alone proves nothing: pids are used again. With the start time it names one process,
as long as both are read in the same place, so the place is part of the identity: a process of
an earlier boot is gone, and of one in another container nobody here can tell.

On Linux the start time is read from /proc in clock ticks since boot, which never change.
psutil's `create_time` would not do there: it adds the boot time and so follows every
correction of the system clock, and a live process would look like a stranger. Elsewhere
psutil reads what the kernel recorded when the process began.
"""

import functools
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

_IDENTITY = re.compile(r"(\d{1,10})-(\d{1,20})-([0-9a-z]{1,16})-([0-9a-z]{1,20})", re.ASCII)
_CREATE_TIME_TOLERANCE = 2_000
"""Milliseconds by which psutil's answers for one process may differ in two processes."""


class Process(NamedTuple):
    """One process, told from every earlier and later one with its pid; `str` for a file name."""

    pid: int
    started: int
    """Linux: clock ticks since boot. Elsewhere: Unix time in ms."""
    boot: str
    """Which boot of the machine; where `started` tells that, `0`."""
    namespace: str
    """Where the pid counts: on Linux its pid namespace (a container has its own), else `0`."""

    def __str__(self) -> str:
        return f"{self.pid}-{self.started}-{self.boot}-{self.namespace}"


def parse(text: str) -> Process | None:
    """Read what `str` of a Process gave; None if it is anything else."""
    match = _IDENTITY.fullmatch(text)
    if match is None:
        return None
    pid, started, boot, namespace = match.groups()
    return Process(int(pid), int(started), boot, namespace)


def current() -> Process:
    """The calling process; right in a forked child too."""
    return _identity(os.getpid())


def of(pid: int) -> Process | None:
    """The process that has this pid now, in our own pid namespace; None if there is none."""
    started = _started(pid)
    return None if started is None else current()._replace(pid=pid, started=started)


def is_alive(process: Process) -> bool | None:
    """Tell whether `process` still runs; None where that cannot be seen from here.

    One that ended but that its parent has not collected (a zombie) does not run.
    """
    here = current()
    if process == here:
        return True
    if here.started == 0:
        return None
    if process.boot != here.boot:
        return False
    if process.namespace != here.namespace:
        return None
    started = _started(process.pid)
    if sys.platform == "linux":
        return started == process.started
    return started is not None and abs(started - process.started) < _CREATE_TIME_TOLERANCE


@functools.lru_cache(maxsize=1)
def _identity(pid: int) -> Process:
    started = _started(pid)
    if started is None:  # /proc is not mounted: nothing tells when a process began
        return Process(pid, 0, "0", "0")
    return Process(pid, started, _boot(), _namespace())


def kernel_fields(pid: int) -> tuple[str, list[str]] | None:
    """A process as /proc/<pid>/stat has it: its short name, and what follows the name there
    (state, parent, group …); None if it is gone, or there is no /proc.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # pid (name) state ppid …: the name may hold spaces and brackets, the rest does not.
    start, _, rest = stat.rpartition(")")
    return start.partition("(")[2], rest.split()


if sys.platform == "linux":

    def _started(pid: int) -> int | None:
        if (found := kernel_fields(pid)) is None:
            return None
        try:
            return None if found[1][0] in "ZX" else int(found[1][19])
        except (IndexError, ValueError):
            return None

    def parent_of(pid: int) -> int | None:
        """The pid of a process's parent; None where that cannot be seen."""
        if (found := kernel_fields(pid)) is None:
            return None
        try:
            return int(found[1][1])
        except (IndexError, ValueError):
            return None

    def _boot() -> str:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
        except OSError:
            return "0"

    def _namespace() -> str:
        try:
            return os.readlink("/proc/self/ns/pid").removeprefix("pid:[").removesuffix("]")
        except OSError:
            return "0"

else:

    def _started(pid: int) -> int | None:
        import psutil  # type: ignore[import-untyped]

        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return int(process.create_time() * 1000)
        except psutil.Error:
            return None

    def parent_of(pid: int) -> int | None:
        """The pid of a process's parent; None where that cannot be seen."""
        import psutil

        try:
            return psutil.Process(pid).ppid()  # type: ignore[no-any-return]
        except psutil.Error:
            return None

    def _boot() -> str:
        return "0"

    def _namespace() -> str:
        return "0"
