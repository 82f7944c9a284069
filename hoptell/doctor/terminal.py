"""tmux: its version, what the injectors do, and settings that leaked into every pane."""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from hoptell.doctor.report import Line, span
from hoptell.settings import PeerSettings
from hoptell.setup.machine import Machine
from hoptell.tmux.status import Status, agent_runs, read_status, runs

COMMAND_TIMEOUT = 3.0
OLDEST = (3, 2)
DEAD_AFTER = 60.0
"""Seconds without news from an injector, which has some every ten, after which it counts as dead
though its process may be there."""
HELD_TIMEOUT = 120.0
"""Seconds that a message may wait for the agent's prompt before it is worth a warning."""
ENDED_SHOWN = 86_400.0
"""Seconds for which an agent that failed is shown."""
VARIABLE = re.compile(r"(HOPTELL_[A-Z_]+)=")


async def examine(
    settings: PeerSettings, machine: Machine, environ: Mapping[str, str]
) -> AsyncIterator[Line]:
    """Everything about tmux, as far as it is here."""
    program = machine.find("tmux")
    if program is None:
        yield _missing(settings)
    else:
        yield await _version(program, environ)
    for line in injectors(settings):
        yield line
    if program is not None:
        async for line in _leaks(program, environ):
            yield line


def _missing(settings: PeerSettings) -> Line:
    if settings.push == "tmux":
        return Line("tmux", "fail", "tmux is not installed, and HOPTELL_PUSH is tmux", _INSTALL)
    if live_statuses(settings):
        return Line("tmux", "fail", "tmux is not found, though agents run under it", _INSTALL)
    return Line("tmux", "info", "tmux is not installed: only `hoptell tmux` needs it")


_INSTALL = "install tmux 3.2 or newer"


async def _version(program: str, environ: Mapping[str, str]) -> Line:
    code, output = await _run([program, "-V"], environ)
    said = output.strip().splitlines()[0] if output.strip() else ""
    match = re.search(r"(\d+)\.(\d+)", said)
    if code != 0 or match is None:
        if said.startswith("tmux "):  # `tmux master`
            return Line("tmux", "ok", f"{program} is {said}")
        return Line("tmux", "fail", f"{program} does not say its version", _INSTALL)
    if (int(match[1]), int(match[2])) < OLDEST and "openbsd" not in said:
        return Line("tmux", "fail", f"{program} is {said}, which is too old", _INSTALL)
    return Line("tmux", "ok", f"{program} is {said}")


# Injectors ------------------------------------------------------------------------------------


def statuses(settings: PeerSettings) -> list[Status]:
    """What the injectors on this machine last said, those of the past included."""
    folder = settings.home / "tmux"
    names: list[str] = []
    with suppress(OSError):
        names = sorted(os.listdir(folder))
    found = (read_status(Path(folder, name)) for name in names)
    return [status for status in found if status is not None]


def live_statuses(settings: PeerSettings) -> list[Status]:
    """Those of injectors that run."""
    return [status for status in statuses(settings) if _is_live(status)]


def _is_live(status: Status) -> bool:
    if status.ended_at is not None or not runs(status.injector):
        return False
    return time.time() - status.updated_at < DEAD_AFTER


def injectors(settings: PeerSettings) -> Iterator[Line]:
    """Each agent under `hoptell tmux`."""
    lines = [line for status in statuses(settings) if (line := _injector(status)) is not None]
    yield from lines
    if not lines:
        yield Line("injectors", "info", "no agent runs under `hoptell tmux` here now")


def _injector(status: Status) -> Line | None:
    now = time.time()
    about = status.name
    if not _is_live(status):
        return _without_injector(status, now)
    said = f"pid {status.pid}, pane {status.pane}, {status.state} for {span(now - status.since)}"
    if status.waiting:
        said += f"; {status.waiting} waiting"
    if status.announced:
        said += f"; {status.announced} announced and unread"
    if not status.connected:
        problem = status.problem or "it is still connecting"
        return Line("injectors", "warn", f"{said}; not online: {problem}", about=about)
    held = now - status.oldest_at if status.oldest_at is not None and status.waiting else 0
    if held > HELD_TIMEOUT:
        return Line(
            "injectors",
            "warn",
            f"{said}, the oldest for {span(held)}",
            f"look at the agent: hoptell tmux {about} (which prompts are known: hoptell tmux"
            " --help)",
            about=about,
        )
    return Line("injectors", "ok", said, about=about)


def _without_injector(status: Status, now: float) -> Line | None:
    ended_at = status.ended_at or status.updated_at
    age = span(now - ended_at)
    if agent_runs(status):
        fix = f"hoptell tmux {status.name}"
        if status.ended_at is not None:
            said = f"it ended {age} ago ({status.state})"
        elif not runs(status.injector):
            said = f"it has died (pid {status.pid}; its last word is from {age} ago)"
        else:
            said, fix = f"it said nothing for {age} (pid {status.pid})", f"kill {status.pid}; {fix}"
        return Line("injectors", "warn", f"{said}, and the agent runs on", fix, about=status.name)
    if not status.exit_status or now - ended_at > ENDED_SHOWN:
        return None
    said = f"the agent failed {age} ago (exit {status.exit_status})"
    if status.last_words:
        said += f", saying {status.last_words[-1].strip()[:120]!r}"
    return Line("injectors", "info", said, about=status.name)


# The server's environment ---------------------------------------------------------------------


async def _leaks(program: str, environ: Mapping[str, str]) -> AsyncIterator[Line]:
    code, output = await _run([program, "show-environment", "-g"], environ)
    if code != 0:
        yield Line("tmux-environment", "info", "no tmux server runs")
        return
    names = [match[1] for line in output.splitlines() if (match := VARIABLE.match(line))]
    if not names:
        yield Line("tmux-environment", "ok", "no setting of hoptell is in it")
        return
    fix = " && ".join(f"tmux set-environment -gu {name}" for name in names)
    yield Line(
        "tmux-environment",
        "warn",
        f"every new pane gets {', '.join(names)} from tmux's global environment, and that wins"
        " over the settings file",
        fix,
    )


async def _run(command: list[str], environ: Mapping[str, str]) -> tuple[int | None, str]:
    """Exit code and output of a command; None as the code where it did not end in time."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=dict(environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return None, ""
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return None, ""
    return process.returncode, output.decode(errors="replace")
