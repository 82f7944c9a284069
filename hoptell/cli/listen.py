"""`hoptell listen`: the next messages of an inbox on this machine, without a relay connection.

Agents run it in the background and are woken by its end, so it prints messages and nothing
else to standard output, and starts and waits as cheaply as can be: neither the relay's nor
the MCP library is loaded.

Nothing is lost: messages are removed only once all of their text has left this process; if the
reader is gone, or this process is ended before, they stay. From then on they count as shown,
even if `kill -9` comes before they are removed (see departure.py; here the last newline is
what it calls the last byte, and all that a kill right before it costs). What remains is a kill
in the microsecond after the text: it shows them once more. Not to who takes nothing before the
last newline, which is written later.
"""

import contextlib
import math
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

import click

from hoptell.cli.options import NOTHING_ARRIVED, Duration
from hoptell.inbox import Claim, Inbox, release, settle
from hoptell.render import Batch, batch, send_command
from hoptell.settings import load_peer_settings

OUTPUT_LENGTH = 20_000
"""Characters at most: agents cut the output of commands, Claude Code at 30,000."""
_END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def _seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        return Duration(lowest=0).convert(value, param, ctx)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise click.BadParameter("a number of seconds is 0 or more")
    return seconds


@click.command(
    epilog="""\b
Examples:
  hoptell listen alice          wait for as long as it takes
  hoptell listen alice 10m      at most ten minutes
  hoptell listen alice 0        print what is there, do not wait

Exit codes: 0 printed, 1 failed, 2 wrong usage, 3 nothing arrived in time."""
)
@click.argument("name")
@click.argument("seconds", required=False, callback=_seconds)
def listen_command(name: str, seconds: float | None) -> None:
    """Wait on the inbox of NAME on this machine, print what arrives, and end.

    The inbox is filled by the session that is online as NAME (`hoptell mcp` or `hoptell tmux`),
    which may also start later; this command needs no relay. Without SECONDS (or 30s, 10m, 2h) it
    waits until something arrives. What it prints is removed from the inbox; very long messages
    come in parts, one part each time.
    """
    inbox = Inbox(load_peer_settings().home, name)
    with _ended_by_signals():
        _show(inbox, _next_claims(inbox, seconds))


def _next_claims(inbox: Inbox, seconds: float | None) -> list[Claim]:
    deadline = None if seconds is None else time.monotonic() + seconds
    left = seconds
    if seconds != 0 and not inbox.wait_blocking(0):
        click.echo(f"hoptell: waiting for messages to {inbox.name}", err=True)
    while inbox.wait_blocking(left):
        # Another consumer may have been faster: then there is nothing to claim.
        if claims := inbox.claim(characters=OUTPUT_LENGTH):
            return claims
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
    click.echo(f"hoptell: nothing arrived for {inbox.name} in time", err=True)
    raise click.exceptions.Exit(NOTHING_ARRIVED)


def _show(inbox: Inbox, claims: list[Claim]) -> None:
    departure = inbox.departure()
    has_left = False
    try:
        output = _rendered(inbox, claims)
        departure.prepare(map(Claim.move, claims, output.ends))
        # Bytes, since agents read UTF-8 whatever this machine's locale says.
        data = output.text.encode()
        out = sys.stdout.fileno()
        _write(out, data[:-1])
        departure.begin()
        _wait_for_room(out)
        with _signals_held():  # from here none must make it appear once more
            _write(out, data[-1:])
            has_left = True
            settle(claims, output.ends)
            departure.end()
    except BaseException:
        if not has_left:  # else the note says what is to become of what could not be settled
            departure.end()
            release(claims)
        raise


def _rendered(inbox: Inbox, claims: list[Claim]) -> Batch:
    waiting = inbox.waiting()
    return batch(
        claims,
        more=waiting.count,
        again=f"run hoptell listen {inbox.name}",
        bad=waiting.bad,
        now_ms=time.time_ns() // 1_000_000,
        send_command=send_command(inbox.name),
        limit=OUTPUT_LENGTH,
    )


def _write(out: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(out, rest) :]
        except BlockingIOError:  # whoever started us made it so
            _wait_for_room(out)


def _wait_for_room(out: int) -> None:
    """Wait until something can be written without waiting, or nothing ever again."""
    room = select.poll()
    room.register(out, select.POLLOUT)
    room.poll()


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*_END_SIGNALS, signal.SIGINT))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn the signals that end a process into an exception, so that claims are put back."""
    before = {number: signal.signal(number, _end) for number in _END_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)  # nothing on the way takes it for an error
