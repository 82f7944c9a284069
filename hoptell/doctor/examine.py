"""All checks, in their order: what stands earlier explains what fails later.

A check that goes wrong itself is one line of its own and ends nothing. What blocks (a name
server, a program that hangs) is waited for in threads that nobody has to wait for at the end,
so that the doctor ends in time.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from hoptell.doctor import basics, network, sessions, terminal
from hoptell.doctor.report import CHECKS, Line, failed
from hoptell.errors import HoptellError
from hoptell.settings import PeerSettings, Values
from hoptell.setup.machine import Machine

LOCAL_TIMEOUT = 10.0
"""Seconds for a check that asks no relay: one that runs an agent's own command takes some."""
FROM_SETTINGS = tuple(CHECKS)[list(CHECKS).index("relay") :]
"""Checks that need settings."""


def examine(environ: Mapping[str, str] | None = None) -> list[Line]:
    """Make all checks; never raises for what they find."""
    environ = os.environ if environ is None else environ
    return asyncio.run(_all(environ))


def secrets(environ: Mapping[str, str]) -> list[str]:
    """The tokens that no line may hold."""
    found = [environ.get("HOPTELL_TOKEN", "").strip()]
    try:
        found.append(Values.load(environ).from_file.get("HOPTELL_TOKEN", "").strip())
    except HoptellError:
        pass
    return [secret for secret in found if secret]


async def _all(environ: Mapping[str, str]) -> list[Line]:
    asyncio.get_running_loop().set_default_executor(_Daemons())
    lines: list[Line] = []
    lines += await _local("python", basics.python)
    lines += await _local("system", basics.system)
    settings: PeerSettings | None = None

    def read_settings() -> list[Line]:
        nonlocal settings
        settings, found = basics.settings(environ)
        return found

    lines += await _local("settings", read_settings)
    if settings is None:
        skipped = (
            Line(check, "info", "not tried, since settings failed") for check in FROM_SETTINGS
        )
        return [*lines, *skipped]
    return lines + [line async for line in _with_settings(settings, environ)]


async def _with_settings(settings: PeerSettings, environ: Mapping[str, str]) -> AsyncIterator[Line]:
    found = network.Found()
    async for line in _safe("login", network.Way(settings, environ, found).examine()):
        yield line
    async for line in _safe("name", network.name(settings, environ, found)):
        yield line
    try:
        machine = Machine.here(environ)
    except HoptellError as error:
        yield failed("agents", error)
        return
    for check, look in _looks(settings, machine, found).items():
        for line in await _local(check, look):
            yield line
    async for line in _safe("tmux", terminal.examine(settings, machine, environ)):
        yield line
    for line in await _local("agents", lambda: sessions.agents(machine)):
        yield line


def _looks(
    settings: PeerSettings, machine: Machine, found: network.Found
) -> dict[str, Callable[[], Iterable[Line]]]:
    def inboxes() -> Iterable[Line]:
        typed = {status.name for status in terminal.live_statuses(settings)}
        return sessions.inboxes(settings, typed)

    return {
        "wake": lambda: sessions.wake(settings, machine),
        "sidecars": lambda: sessions.sidecars(settings, found.peers),
        "hooks": lambda: sessions.hooks(settings),
        "inbox": inboxes,
    }


async def _local(check: str, look: Callable[[], Iterable[Line]]) -> list[Line]:
    """Make a check that blocks, for a bounded time."""
    try:
        async with asyncio.timeout(LOCAL_TIMEOUT):
            return await asyncio.to_thread(lambda: list(look()))
    except TimeoutError:
        return [Line(check, "fail", f"this took more than {LOCAL_TIMEOUT:.0f} s: the disk hangs")]
    except Exception as error:
        return [_broken(check, error)]


async def _safe(check: str, lines: AsyncIterator[Line]) -> AsyncIterator[Line]:
    try:
        async for line in lines:
            yield line
    except Exception as error:
        yield _broken(check, error)


def _broken(check: str, error: Exception) -> Line:
    if isinstance(error, HoptellError):
        return failed(check, error)
    if isinstance(error, OSError) and error.strerror:
        return Line(check, "fail", f"{error.filename or 'the system'}: {error.strerror}")
    return Line(check, "fail", f"this check itself failed ({type(error).__name__}): report it")


class _Daemons(ThreadPoolExecutor):
    """Runs each call in a thread that does not keep the process from ending."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="doctor", daemon=True).start()
        return future
