"""When the agent is told that messages wait: the schedule, and the interface of every way.

Messages that arrive together are announced once; what stays unread is announced again after
2, 10 and 30 minutes, then not again; nothing is announced that has been read. An announcement
that fails changes nothing about the message, which lies in the inbox, and is tried again.

A way of waking is one class with `announce` (a module for each that needs its own code, such
as channel.py). It only ever says that messages wait: a way that drops the announcement, as
idle sessions are known to do, loses no text. `Schedule` decides and knows no clock;
`Announcer` carries it out.
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

logger = logging.getLogger(__name__)

TOGETHER_WAIT = 0.1
"""Seconds after an arrival in which others join its announcement, and in which a tool call
that is waiting for it takes it, so that it needs none."""
REMINDERS = (120.0, 600.0, 1800.0)
"""Seconds after the announcement at which it is repeated while messages are unread."""
FIRST_RETRY_WAIT = 5.0
LONGEST_RETRY_WAIT = 600.0
SHOWN_SENDERS = 5

_start_of_host_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII).match


class Sender(NamedTuple):
    """Who wrote: the name is verified by the relay, the host is what that peer calls it."""

    name: str
    host: str

    def __str__(self) -> str:
        # The host is the one part of a notice that a peer chooses: nothing but a host name.
        host = _start_of_host_name(self.host)
        return f"{self.name} (on {host[0]})" if host else self.name


@dataclass(frozen=True)
class Notice:
    """What is announced: how many messages wait and from whom. Never what they say."""

    count: int
    senders: tuple[Sender, ...]
    """In the order of arrival, each once."""

    def __str__(self) -> str:
        names = [str(sender) for sender in self.senders[:SHOWN_SENDERS]]
        if (more := len(self.senders) - SHOWN_SENDERS) > 0:
            names.append(f"{more} more")
        who = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
        messages = "1 message waits" if self.count == 1 else f"{self.count} messages wait"
        return (
            f"[hoptell: {messages} for you{who and f', from {who}'}. Call read_inbox to read"
            f" {'it' if self.count == 1 else 'them'}. This notice and the messages come from"
            " other agents, not from your user.]"
        )


class Wake(Protocol):
    """One way to make an idle agent look at its inbox."""

    async def announce(self, notice: Notice) -> None:
        """Tell the agent that messages wait; any exception means that it was not told."""


class Schedule:
    """When to announce. Times are seconds of one clock that never jumps."""

    def __init__(self) -> None:
        self._fresh: set[str] = set()
        """Arrived and not yet announced."""
        self._fresh_at = 0.0
        """When these are due."""
        self._reminders: list[float] = []
        """Instants of the announcements still to be repeated."""
        self._failed = False
        self._retry_wait = FIRST_RETRY_WAIT

    def arrived(self, identity: str, now: float) -> None:
        """A message came, or came back from an answer that was not delivered."""
        if not self._fresh:
            self._fresh_at = now + TOGETHER_WAIT
        self._fresh.add(identity)

    def read(self, identities: Iterable[str]) -> None:
        """These messages were claimed for an answer."""
        self._fresh.difference_update(identities)

    def emptied(self) -> None:
        """Nothing waits any more."""
        self._fresh.clear()
        self._reminders.clear()

    def next_at(self) -> float | None:
        """When `announced` or `failed` is to be called next; None if there is no need."""
        due = self._reminders[:1]
        if self._fresh:
            due.append(self._fresh_at)
        return min(due, default=None)

    def announced(self, now: float) -> None:
        """All that waits has been announced."""
        if self._fresh:
            self._fresh.clear()
            self._reminders = [now + wait for wait in REMINDERS]
        else:
            del self._reminders[:1]
        self._failed = False
        self._retry_wait = FIRST_RETRY_WAIT

    def failed(self, now: float) -> None:
        """The announcement that was due did not get through."""
        self._failed = True
        again_at = now + self._retry_wait
        self._retry_wait = min(self._retry_wait * 3, LONGEST_RETRY_WAIT)
        if self._fresh:
            self._fresh_at = again_at
        else:
            self._reminders[:1] = [again_at]

    def retry(self, now: float) -> None:
        """What failed may get through from now on: do not wait any longer."""
        self._retry_wait = FIRST_RETRY_WAIT
        if self._failed and self._fresh:
            self._fresh_at = now
        elif self._failed and self._reminders:
            self._reminders[0] = now


class Announcer:
    """Announces what waits in one inbox, in one way, until it is cancelled.

    `waiting` looks into the inbox: how many messages, and from whom.
    """

    def __init__(
        self,
        wake: Wake,
        waiting: Callable[[], Awaitable[Notice]],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._wake = wake
        self._waiting = waiting
        self._clock = clock
        self._sleep = sleep
        self._schedule = Schedule()
        self._changed = asyncio.Event()

    def arrived(self, identity: str) -> None:
        """A message that nobody has read is in the inbox."""
        self._schedule.arrived(identity, self._clock())
        self._changed.set()

    def read(self, identities: Iterable[str]) -> None:
        """These were claimed for an answer, and need no announcement."""
        self._schedule.read(identities)
        self._changed.set()

    def retry(self) -> None:
        """The way of waking may work from now on, where it failed before."""
        self._schedule.retry(self._clock())
        self._changed.set()

    async def run(self) -> None:
        """Announce what is due, for ever."""
        while True:
            due_at = self._schedule.next_at()
            if due_at is not None and due_at <= self._clock():
                await self._announce()
            else:
                await self._until(due_at)

    async def _until(self, due_at: float | None) -> None:
        self._changed.clear()
        waits: list[asyncio.Future[object]] = [asyncio.ensure_future(self._changed.wait())]
        if due_at is not None:
            rest = self._sleep(max(0.0, due_at - self._clock()))
            waits.append(asyncio.ensure_future(rest))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _announce(self) -> None:
        try:
            notice = await self._waiting()
            if notice.count == 0:
                self._schedule.emptied()
                return
            await self._wake.announce(notice)
        except Exception as error:
            # Whatever it is, the messages are safe in the inbox; only the telling is repeated.
            logger.warning("could not announce waiting messages, trying again: %s", error)
            self._schedule.failed(self._clock())
        else:
            self._schedule.announced(self._clock())
