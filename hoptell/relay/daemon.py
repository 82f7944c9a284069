"""The relay as a process: signals, the event loop, and what it asks of the system."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable

from hoptell.relay.credentials import Credentials
from hoptell.relay.log import EventLog
from hoptell.relay.server import RelayServer
from hoptell.settings import RelaySettings, relay_url

MAX_FILES = 1 << 20
"""Open files to ask the system for: one a connection."""
KEPT_MEMORY = 4 * 1024 * 1024
"""Bytes of freed memory that are kept for the next messages."""
M_TRIM_THRESHOLD = -1  # as in glibc's <malloc.h>
M_MMAP_THRESHOLD = -3


def run(
    settings: RelaySettings,
    credentials: Credentials,
    log: EventLog,
    sockets: list[socket.socket],
) -> None:
    """Run a relay until SIGTERM or SIGINT; SIGHUP reads members file and certificate again.

    Raises:
        ConfigurationError: the journal or the certificate cannot be used.
    """
    _allow_many_files()
    _spend_less_on_memory()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(settings, credentials, log, sockets))


async def _serve(
    settings: RelaySettings,
    credentials: Credentials,
    log: EventLog,
    sockets: list[socket.socket],
) -> None:
    server = RelayServer(settings, credentials, log)
    stopping = asyncio.Event()
    had_terminal = _has_terminal()

    def stop() -> None:
        if stopping.is_set():
            server.abort()  # asked twice
        stopping.set()

    def hang_up() -> None:
        if had_terminal and not _has_terminal():
            stop()  # nobody asked for a reload: the terminal was closed
        else:
            server.reload()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGINT, stop)
    loop.add_signal_handler(signal.SIGHUP, hang_up)
    await server.start(sockets)
    for host, port in server.addresses:
        log.note("listening", relay_url(host, port, tls=settings.tls_cert is not None))
    if settings.journal is None:
        log.note("memory only", "without a journal, what is queued is lost when the relay stops")
    await stopping.wait()
    log.note("stopping", "closing all connections")
    await server.stop()
    log.note("stopped", "good-bye")


def _has_terminal() -> bool:
    try:
        return os.isatty(sys.__stderr__.fileno()) if sys.__stderr__ is not None else False
    except (OSError, ValueError):
        return False


def _allow_many_files() -> None:
    """Raise the limit of open files as far as this user may."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _spend_less_on_memory() -> None:
    # The collector went over every connection's objects hundreds of times a second, for 5% of
    # the relay's time, though nearly nothing of the relay's is in cycles (see model.py).
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    # glibc gives freed memory back to the system as soon as it is 128 KiB, and has to ask for
    # it again in the next loop turn: with texts of 4 KB that took a quarter of the time.
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, KEPT_MEMORY)
        mallopt(M_MMAP_THRESHOLD, KEPT_MEMORY)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed: it takes 5 to 10% less CPU."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
