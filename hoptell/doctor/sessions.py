"""What runs and waits on this machine: sidecars, hook listeners, inboxes, agents.

Everything is read as it lies there. Nothing is repaired, claimed or created, so that looking
twice shows the same.
"""

import os
import shlex
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hoptell import frames
from hoptell.doctor.report import Line, Status, span
from hoptell.errors import HoptellError
from hoptell.inbox_files import Glance, all_inboxes, folder_of, glance
from hoptell.processes import Process
from hoptell.programs import NO_CHANNELS
from hoptell.settings import PeerSettings
from hoptell.setup.agents.agent import Agent, Registration
from hoptell.setup.agents.table import AGENTS
from hoptell.setup.machine import Machine
from hoptell.sidecar.presence import Session, sessions

if TYPE_CHECKING:
    from hoptell.sidecar.registry import Meeting

UNREAD_TIMEOUT = 120.0
"""Seconds that announced messages may be unread: by then the first reminder is due."""
WAITING_TIMEOUT = 600.0
"""Seconds that messages may wait where nobody is there to be told of them."""


def wake(settings: PeerSettings, machine: Machine) -> Iterator[Line]:
    """What HOPTELL_PUSH asks for, and what stands in its way."""
    mode = settings.push
    if mode is None:
        yield Line(
            "wake", "info", "HOPTELL_PUSH is not set: each session finds out how it is woken"
        )
        return
    problem = _wake_problem(mode, machine)
    if problem is not None:
        yield Line("wake", "fail", f"HOPTELL_PUSH is {mode}, but {problem[0]}", problem[1])
    elif mode == "poll":
        said = "HOPTELL_PUSH is poll, so nothing wakes a session"
        yield Line("wake", "warn", said, "unset it, and hoptell finds out what works")
    else:
        yield Line("wake", "ok", f"HOPTELL_PUSH is {mode}; the sidecars say whether it is proven")


def _wake_problem(mode: str, machine: Machine) -> tuple[str, str] | None:
    match mode:
        case "hook":
            claude = AGENTS["claude"]
            if machine.find("claude") is None:
                return "the command `claude` is not here", "install Claude Code, or unset it"
            with suppress(HoptellError):
                if not claude.registrations(machine):
                    return (
                        "hoptell is not registered with Claude Code",
                        "hoptell init --apply claude",
                    )
                if (problem := claude.problem(machine)) is not None:
                    return f"with Claude Code {problem}", "hoptell init --apply claude"
        case "channel":
            if machine.find("claude") is None:
                return "the command `claude` is not here", "install Claude Code, or unset it"
            if found := [name for name in NO_CHANNELS if machine.environ.get(name, "").strip()]:
                return (
                    f"{found[0]} is set, and Claude Code then has no channels",
                    f"unset {found[0]}",
                )
        case "codex":
            if machine.find("codex") is None:
                return "the command `codex` is not here", "install Codex, or unset it"
        case "tmux":
            if machine.find("tmux") is None:
                return "tmux is not installed", "install tmux, or unset it"
    return None


# Sidecars and hooks ---------------------------------------------------------------------------


def sidecars(settings: PeerSettings, peers: list[frames.PeerInfo] | None) -> Iterator[Line]:
    """The sessions of agents that run here, how each is woken, and whether it is online."""
    found = sessions(settings.home)
    names = [session.name for _, session in found]
    groups = [meeting.sidecars for meeting in _meetings(settings.home)]
    for process, session in found:
        beside = next((len(group) for group in groups if process in group), 0)
        yield _sidecar(process, session, peers, names.count(session.name), beside)
    if not found:
        yield Line("sidecars", "info", "no agent runs `hoptell mcp` here now")


def _sidecar(
    process: Process,
    session: Session,
    peers: list[frames.PeerInfo] | None,
    count: int,
    beside: int,
) -> Line:
    """`count` sidecars have this name; `beside` belong to the same Claude Code session."""
    proven = "proven" if session.proven else "not proven"
    if session.mode in ("listener", "poll", "tmux"):
        proven = {"poll": "nothing wakes it", "tmux": "by the injector"}.get(
            session.mode, "as long as the agent keeps `hoptell listen` running"
        )
    age = span(time.time() - session.started_at)
    said = f"pid {process.pid}, for {age}, wake mode {session.mode or 'unknown'} ({proven})"
    status: Status = "ok"
    fix = None
    if session.failure is not None:
        status = "warn"
        said += f"; the last announcement failed ({session.failure})"
    if session.mode in ("hook", "channel", "codex") and not session.proven:
        status, fix = "warn", _how_to_prove(session.mode)
    if count > 1:
        status = "warn"
        said += f"; {count} sessions here have this name, and take it from each other"
        fix = "start each with a HOPTELL_NAME of its own"
    if beside > 1:
        status = "warn"
        said += f"; its Claude Code session runs {beside} hoptell servers"
        fix = "keep one of them: `claude mcp list` shows where they come from"
    online = next((peer.online for peer in peers or [] if peer.name == session.name), False)
    if peers is not None and not online:
        status = "warn"
        said += "; the relay does not see it online"
        fix = fix or "ask the agent to call list_peers: the answer says why"
    return Line("sidecars", status, said, fix, about=session.name)


def _how_to_prove(mode: str) -> str:
    match mode:
        case "hook":
            return "hoptell init --apply claude, and start the session anew"
        case "channel":
            return "start Claude Code with --dangerously-load-development-channels server:hoptell"
    return "have the agent call one of hoptell's tools once, or start Codex with its daemon"


def hooks(settings: PeerSettings) -> Iterator[Line]:
    """The listeners of Claude Code's hooks, and Claude Code sessions that have none."""
    found = _meetings(settings.home)
    names = {process: session.name for process, session in sessions(settings.home)}
    for claude, listener, since, beside in found:
        about = ", ".join(names[sidecar] for sidecar in beside if sidecar in names) or None
        if listener is not None:
            age = span(time.time() - since)
            said = f"pid {listener.pid} listens for Claude Code, pid {claude.pid}, for {age}"
            yield Line("hooks", "ok", said, about=about)
            continue
        yield Line(
            "hooks",
            "warn",
            f"nothing listens for Claude Code, pid {claude.pid}, so it cannot be woken by its hook",
            "it starts at the next prompt if `hoptell init --apply claude` was run",
            about=about,
        )
    if not found:
        yield Line("hooks", "info", "no Claude Code session with hoptell runs here now")


def _meetings(home: Path) -> "list[Meeting]":
    try:
        from hoptell.sidecar.registry import meetings
    except ImportError:  # a system without file locks
        return []
    return meetings(home)


# Inboxes --------------------------------------------------------------------------------------


def inboxes(settings: PeerSettings, typed: set[str]) -> Iterator[Line]:
    """Each inbox of this machine; `typed` are the peers whose messages hoptell tmux types."""
    sidecars = {session.name: session for _, session in sessions(settings.home)}
    folders = all_inboxes(settings.home)
    for folder in folders:
        yield from _inbox(folder, sidecars.get(folder.name), folder.name in typed)
    if not folders:
        root = folder_of(settings.home)
        yield Line("inbox", "info", f"nothing has arrived on this machine yet ({root})")


def _inbox(folder: Path, session: Session | None, is_typed: bool) -> Iterator[Line]:
    name = folder.name
    if (problem := _unsafe(folder)) is not None:
        yield Line("inbox", "fail", problem[0], problem[1], about=name)
        return
    seen = glance(folder)
    if seen.bad:
        count = f"{seen.bad} {'file' if seen.bad == 1 else 'files'}"
        yield Line(
            "inbox",
            "warn",
            f"{count} in {seen.bad_folder} could not be read",
            "look at them, and remove them",
            about=name,
        )
    if seen.open:
        count = f"{seen.open} {'message' if seen.open == 1 else 'messages'}"
        yield Line(
            "inbox",
            "warn",
            f"the mode of {count} in {folder} lets others read them",
            f"find {shlex.quote(str(folder))} -name '*.json*' -exec chmod 600 {{}} +",
            about=name,
        )
    if seen.stored_at:
        yield _waiting(name, seen, session, is_typed)
    elif seen.shown:
        yield Line("inbox", "info", f"nothing waits, and {_being_shown(seen)}", about=name)
    else:
        yield Line("inbox", "ok", "nothing waits", about=name)


def _being_shown(seen: Glance) -> str:
    return f"{seen.shown} {'is' if seen.shown == 1 else 'are'} being shown"


def _waiting(name: str, seen: Glance, session: Session | None, is_typed: bool) -> Line:
    now, stored = time.time(), seen.stored_at
    count = f"{len(stored)} {'message waits' if len(stored) == 1 else 'messages wait'}"
    said = f"{count}, the oldest for {span(now - stored[0])}"
    if seen.shown:
        said += f", and {_being_shown(seen)}"
    if is_typed:
        return Line("inbox", "info", f"{said} (see injectors)", about=name)
    if session is None:
        late = now - stored[0] > WAITING_TIMEOUT
        return Line(
            "inbox",
            "warn" if late else "info",
            f"{said}, and no session with that name runs here",
            f"start it, or print them with `hoptell listen {name} 0`",
            about=name,
        )
    announced = [at for at in stored if at <= (session.announced_at or 0)]
    if announced and now - announced[0] > UNREAD_TIMEOUT:
        if session.mode in ("listener", "poll"):
            return _unread_by_itself(name, said, session.mode)
        how = f"by {session.mode}" if session.mode else "once"
        return Line(
            "inbox",
            "fail",
            f"{said}; {len(announced)} announced {how} and never read",
            "tell the agent to call read_inbox; if that happens again, see sidecars for its wake"
            " mode",
            about=name,
        )
    return Line("inbox", "info", said, about=name)


def _unread_by_itself(name: str, said: str, mode: str) -> Line:
    """Nothing announces messages in these modes: the agent has to look."""
    if mode == "poll":
        said += "; the session's wake mode is poll, so nothing wakes it"
        return Line("inbox", "warn", said, "tell the agent to call read_inbox", about=name)
    return Line(
        "inbox",
        "fail",
        f"{said}; the agent does not keep `hoptell listen {name}` running",
        "tell it to, in the background, and to call read_inbox now",
        about=name,
    )


def _unsafe(folder: Path) -> tuple[str, str] | None:
    for part in (folder.parent.parent, folder.parent, folder):
        try:
            status = os.lstat(part)
        except OSError as error:
            return f"cannot look at {part} ({error.strerror})", "make it yours"
        if stat.S_ISLNK(status.st_mode):
            return f"{part} is a symbolic link, which is refused", "put a folder there"
        if os.name != "posix":
            continue
        if status.st_uid != os.geteuid():
            return f"{part} belongs to another user", "set HOPTELL_HOME to a folder of yours"
        if status.st_mode & 0o077:
            mode = stat.S_IMODE(status.st_mode)
            return f"others can look into {part} (mode {mode:04o})", f"chmod 700 {part}"
        if status.st_mode & 0o700 != 0o700:
            return f"{part} cannot be used (mode {stat.S_IMODE(status.st_mode):04o})", (
                f"chmod 700 {part}"
            )
    return None


# Agents ---------------------------------------------------------------------------------------


def agents(machine: Machine) -> Iterator[Line]:
    """The agent programs found here, and what each has of hoptell."""
    here = [agent for agent in AGENTS.values() if agent.is_here(machine)]
    for agent in here:
        yield from _agent(agent, machine)
    if not here:
        titles = ", ".join(agent.title for agent in AGENTS.values())
        yield Line("agents", "info", f"none of {titles} is found on this machine")


def _agent(agent: Agent, machine: Machine) -> Iterator[Line]:
    try:
        found = agent.registrations(machine)
        problem = agent.problem(machine)
    except HoptellError as error:
        yield Line("agents", "warn", error.problem, error.fix, about=agent.key)
        return
    if not found:
        said = f"{agent.title} is here, and hoptell is not registered with it"
        yield Line("agents", "info", said, _fix(agent, machine), about=agent.key)
        return
    for registration in found:
        if (wrong := _registration_problem(registration, machine)) is not None:
            fix = wrong[2] or _fix(agent, machine)
            yield Line("agents", wrong[0], wrong[1], fix, about=agent.key)
            return
    if problem is not None:
        said = f"{agent.title}: {problem}"
        yield Line("agents", "warn", said, _fix(agent, machine), about=agent.key)
        return
    name = found[0].name
    as_name = f", as {name}" if name else ""
    said = f"{agent.title} has hoptell ({found[0].where}){as_name}"
    yield Line("agents", "ok", said, about=agent.key)


def _fix(agent: Agent, machine: Machine) -> str:
    """How to register hoptell: by the command, or by hand where that would refuse."""
    try:
        agent.steps(machine, None)
    except HoptellError as error:
        if error.fix is not None:
            return error.fix
    return f"hoptell init --apply {agent.key}"


def _registration_problem(
    registration: Registration, machine: Machine
) -> tuple[Status, str, str | None] | None:
    where = registration.where
    if not registration.enabled:
        return "warn", f"hoptell is switched off in {where}", None
    command = registration.command
    if command and not _can_start(command[0], machine):
        return "fail", f"{where} starts {command[0]}, which is not there", None
    if "HOPTELL_TOKEN" in registration.environment:
        return (
            "warn",
            f"{where} has a token in it, which is used instead of the settings file's",
            "remove it there",
        )
    return None


def _can_start(program: str, machine: Machine) -> bool:
    if "${" in program:  # the agent's own variables
        return True
    if os.path.isabs(program):
        return os.access(program, os.X_OK)
    return machine.find(program) is not None
