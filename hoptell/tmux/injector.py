"""Deliveries from the relay into the agent's pane: stored, confirmed, then typed.

The injector holds the peer's relay connection, so that the name is online from the launch to
the agent's end, whatever the agent runs. What arrives is stored in the inbox and confirmed at
once; from there on it is the inbox that keeps it. A message is claimed only when the prompt is
seen to be empty, and its claim is removed only when its text was seen to leave the prompt
again: whatever goes wrong between, it is still there for the next attempt, or for the agent's
own `read_inbox`. An injector that ends before its agent leaves what it was typing to the next
one (unfinished.py), whether it was asked to end or killed.

While nothing waits, the pane is not looked at.
"""

import asyncio
import contextlib
import functools
import os
import secrets
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from hoptell import processes
from hoptell.client import RelayClient
from hoptell.errors import HoptellError, InboxError
from hoptell.frames import Message
from hoptell.inbox import Claim, Inbox
from hoptell.render import render
from hoptell.settings import PeerSettings, load_peer_settings
from hoptell.sidecar.texts import listen_command
from hoptell.sidecar.wake import REMINDERS
from hoptell.tmux import foreground
from hoptell.tmux.batch import choose
from hoptell.tmux.folder import LOCK_TIMEOUT, SETTINGS_FILE, forget_secrets, locked
from hoptell.tmux.pane import NoAnswer, Pane, Tmux
from hoptell.tmux.session import Session
from hoptell.tmux.status import Reporter, Status, agent_runs, read_status
from hoptell.tmux.typist import Done, Enter, Look, Paste, Phase, Typist, Unclear, Wait
from hoptell.tmux.unfinished import Unfinished, UnfinishedFile

ALIVE_INTERVAL = 0.5
"""Seconds between looks whether the agent still runs."""
RECOGNIZE_INTERVALS = (0.5, 10.0)
"""Seconds between looks until the agent's screen is recognized for the first time: at the
start, and after backing off."""
RECHECK_INTERVAL = 30.0
"""Seconds after which the inbox is looked at though nothing arrived: a sidecar may have put
back what it could not hand over."""
COUNT_INTERVAL = 2.0
"""Seconds between looks whether what is held still waits: the agent may read it itself."""
RETRY_INTERVAL = 5.0
"""Seconds until an inbox that refuses, or a tmux that does not answer, is tried again."""
LOGIN_INTERVALS = (1.0, 60.0)
"""Seconds until a relay that refused the login is asked again: at first, and at most."""
END_WAIT = 3.0
"""Seconds that an agent has to end once its pane is gone."""
MAX_CLAIMS = 50
IDLE = "waits for messages"

Connect = Callable[[], contextlib.AbstractAsyncContextManager[RelayClient]]


@dataclass
class _Announced:
    """What was announced and stays in the inbox."""

    at: float
    times: int = 1

    @property
    def due_at(self) -> float:
        """When to say it again, on the monotonic clock."""
        return self.at + dict(enumerate(REMINDERS, start=1)).get(self.times, float("inf"))


class Injector:
    """Types what is in `inbox` into `pane`, for as long as the agent runs."""

    def __init__(
        self,
        pane: Pane,
        inbox: Inbox,
        reporter: Reporter,
        unfinished: UnfinishedFile,
        *,
        command: str,
        notice: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`command` reads the inbox from a shell, for the notices; `notice`: nothing but these."""
        self._pane = pane
        self._inbox = inbox
        self._reporter = reporter
        self._file = unfinished
        self._command = command
        self._notice = notice
        self._now = now
        self._typist = Typist()
        self._arrived = asyncio.Event()
        self._arrived.set()  # something may be left from before
        self._batch: Unfinished | None = None
        self._claims: list[Claim] = []
        self._announced: dict[str, _Announced] = {}
        self._client: RelayClient | None = None
        self._refusal: str | None = None
        self._counted_at = float("-inf")

    async def run(self, connect: Connect, stopped: asyncio.Event) -> None:
        """Work until the agent has ended, or `stopped` is set; `connect` makes a new client."""
        tasks = [
            asyncio.create_task(self._watch()),
            asyncio.create_task(self._until(stopped)),
            asyncio.create_task(self._receive(connect)),
            asyncio.create_task(self._deliver()),
        ]
        try:
            pending = set(tasks)
            while pending and not (tasks[0].done() or tasks[1].done()):
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.to_thread(self._finish)

    async def _until(self, stopped: asyncio.Event) -> None:
        await stopped.wait()

    async def _watch(self) -> None:
        """Return when the agent has ended."""
        pause, longest = RECOGNIZE_INTERVALS
        look_at = self._now()
        while await asyncio.to_thread(self._pane.alive):
            self._report_connection()
            if self._pane.agent is None and self._now() >= look_at:
                with contextlib.suppress(NoAnswer):
                    await self._look()
                look_at = self._now() + pause
                pause = min(pause * 1.2, longest)
            await asyncio.sleep(ALIVE_INTERVAL)

    # From the relay to the inbox -----------------------------------------------------------

    async def _receive(self, connect: Connect) -> None:
        wait, longest = LOGIN_INTERVALS
        while True:
            try:
                async with connect() as self._client:
                    async for delivery in self._client:
                        await self._store(delivery.message)
                        await delivery.confirm()
            except HoptellError as error:  # the relay does not want us: the inbox is still there
                if self._refusal is None:
                    wait = LOGIN_INTERVALS[0]
                self._refusal = str(error)
            self._report_connection()
            await asyncio.sleep(wait)
            wait = min(wait * 2, longest)

    def _report_connection(self) -> None:
        client = self._client
        if client is not None and client.connected:
            self._refusal = None
            self._reporter.update(connected=True, problem=None)
        elif client is not None:  # while it asks again, the last answer is the news
            self._reporter.update(connected=False, problem=self._refusal or client.problem)

    async def _store(self, message: Message) -> None:
        while True:
            try:
                await asyncio.to_thread(self._inbox.store, message)
            except InboxError as error:
                self._reporter.update(state=str(error))
                await asyncio.sleep(RETRY_INTERVAL)
            else:
                self._arrived.set()
                return

    # From the inbox into the pane ----------------------------------------------------------

    async def _deliver(self) -> None:
        taken_over = False
        while True:
            try:
                if not taken_over:
                    await asyncio.to_thread(self._take_over)
                    taken_over = True
                await self._until_something_waits()
                await self._type_what_waits()
                self._report_idle()
                continue
            except InboxError as error:
                self._reporter.update(state=str(error))
            except NoAnswer as error:  # the watch says when the agent has ended
                self._reporter.update(state=f"tmux does not show the pane: {error}")
                taken_over = False  # what was typed and what not, only the pane's mark tells
            await asyncio.sleep(RETRY_INTERVAL)
            self._arrived.set()  # what waited then waits still

    def _take_over(self) -> None:
        """Go on with what was left in the prompt: by an injector before this one, or by this
        one when tmux did not answer.
        """
        if (holder := self._holder()) is None:
            return  # no agent's prompt was ever seen here, so nothing was typed
        found, mark = self._file.read(), self._pane.mark()
        self._claims = self._inbox.held_by(holder)
        if found is None or found.paste != mark.paste:
            self._release()
            self._typist.reset()
            return
        self._batch = found
        entered = mark.done == "entered"
        self._typist.resume(
            found.text, found.pasted_at, found.label, entered=entered, now=self._now()
        )

    def _holder(self) -> processes.Process | None:
        agent = self._pane.agent
        return None if agent is None else processes.of(agent.pid)

    async def _until_something_waits(self) -> None:
        while self._batch is None and not self._arrived.is_set():
            due_at = min((entry.due_at for entry in self._announced.values()), default=float("inf"))
            pause = min(RECHECK_INTERVAL, max(0.0, due_at - self._now()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._arrived.wait()
            if await self._count():
                return
            self._announced.clear()
            self._report_idle()
        self._arrived.clear()
        self._counted_at = float("-inf")  # what was counted may be from before the arrival

    def _report_idle(self) -> None:
        state, count = IDLE, len(self._announced)
        if count and all(entry.due_at == float("inf") for entry in self._announced.values()):
            unread = "1 message is" if count == 1 else f"{count} messages are"
            state = (
                f"announces no more: {unread} unread after {1 + len(REMINDERS)} notices; tell the"
                f" agent to call read_inbox, or run: {self._command}"
            )
        self._reporter.update(state=state)

    async def _look(self) -> Look:
        look = await asyncio.to_thread(self._pane.look)
        status = self._reporter.status
        if not status.agent and (holder := self._holder()) is not None:
            status.agent = str(holder)
            self._reporter.write()  # before anything is typed: the next injector must know it
        return look

    async def _type_what_waits(self) -> None:
        """Until nothing is left but what was announced."""
        while self._batch is not None or await self._anything():
            look = await self._look()
            step = self._typist.next(look, self._now())
            await asyncio.to_thread(self._note_label)
            match step:
                case Wait(reason, seconds):
                    self._reporter.update(state=reason or None)
                    if self._batch is not None and self._typist.phase is Phase.WAITING:
                        # What was pasted got lost; until the next attempt others may read it.
                        await asyncio.to_thread(self._release)
                    await asyncio.sleep(seconds)
                case Paste(stamp):
                    if not await self._paste(stamp):
                        return
                case Enter(stamp):
                    await self._enter(stamp)
                case Done():
                    await asyncio.to_thread(self._settle)
                case Unclear():
                    await asyncio.to_thread(self._keep_announced)

    async def _anything(self) -> bool:
        if self._now() - self._counted_at < COUNT_INTERVAL:
            return self._reporter.status.waiting > 0
        return await self._count() > 0

    async def _count(self) -> int:
        waiting = await asyncio.to_thread(self._inbox.waiting)
        self._counted_at = self._now()
        status = self._reporter.status
        status.waiting = waiting.count + len(self._claims)
        status.oldest_at = status.oldest_at if self._claims else waiting.oldest_at
        status.announced = len(self._announced)
        return waiting.count

    async def _paste(self, stamp: str) -> bool:
        """Paste the next batch, or the last one again; False if there is nothing to paste."""
        if self._batch is None:
            await asyncio.to_thread(self._take_batch)
        if self._batch is None:
            self._counted_at = float("-inf")
            return False
        batch = self._batch
        batch.pasted_at = self._now()
        await asyncio.to_thread(self._write_note)
        if await asyncio.to_thread(self._pane.paste, batch.text, stamp, batch.paste):
            self._typist.pasted(batch.text, batch.pasted_at)
        else:
            await asyncio.to_thread(self._release)
            self._typist.turned_down()
        return True

    async def _enter(self, stamp: str) -> None:
        assert self._batch is not None
        if await asyncio.to_thread(self._pane.enter, stamp, self._batch.paste):
            self._typist.entered(self._now())
        else:
            self._typist.turned_down()

    def _write_note(self) -> None:
        assert self._batch is not None
        try:
            self._file.write(self._batch)
        except OSError as error:
            self._release()
            raise InboxError(f"nothing can be noted before it is typed: {error}") from None

    def _note_label(self) -> None:
        if self._batch is not None and self._batch.label != self._typist.label:
            self._batch.label = self._typist.label
            with contextlib.suppress(OSError):  # it is known without, but for a person's own
                self._file.write(self._batch)

    def _take_batch(self) -> None:
        # For the agent, not for this process: see unfinished.py.
        limit = MAX_CLAIMS + len(self._announced)
        self._claims = claims = self._inbox.claim(limit, holder=self._holder())
        self._forget_what_was_read(claims)
        fresh = [claim for claim in claims if claim.message.id not in self._announced]
        messages = [claim.message for claim in fresh]
        batch = choose(messages, render=_rendered, notice=self._notice, command=self._command)
        if batch is None and any(e.due_at <= self._now() for e in self._announced.values()):
            fresh, messages = claims, [claim.message for claim in claims]
            batch = choose(messages, render=_rendered, notice=True, command=self._command)
        taken = fresh[: batch.count] if batch is not None else []
        announcing = [claim.message.id for claim in taken if batch and batch.notice]
        self._claims = [] if announcing else taken
        for claim in claims:
            if claim not in self._claims:
                claim.release()
        if batch is not None:
            self._batch = Unfinished(secrets.token_hex(8), batch.text, self._now(), announcing)

    def _forget_what_was_read(self, claims: Sequence[Claim]) -> None:
        there = {claim.message.id for claim in claims}
        self._announced = {id: entry for id, entry in self._announced.items() if id in there}
        for claim in claims:  # a long message that the agent reads in parts: it knows of it
            if claim.offset:
                self._announced.setdefault(claim.message.id, _Announced(self._now()))

    def _settle(self) -> None:
        """The batch was submitted."""
        assert self._batch is not None
        for claim in self._claims:
            claim.remove()
        self._announce(self._batch.announcing)
        self._forget_batch()
        self._typist.reset()

    def _keep_announced(self) -> None:
        """Nobody knows what became of the batch: the agent may have it, so type it no more."""
        assert self._batch is not None
        for claim in self._claims:
            claim.release()
        self._announce([claim.message.id for claim in self._claims] or self._batch.announcing)
        self._forget_batch()
        self._typist.reset()

    def _announce(self, ids: Sequence[str]) -> None:
        for id in ids:
            if id in self._announced:
                self._announced[id].times += 1
            else:
                self._announced[id] = _Announced(self._now())

    def _release(self) -> None:
        """The batch was not submitted: back to the inbox with it."""
        for claim in self._claims:
            claim.release()
        self._forget_batch()

    def _forget_batch(self) -> None:
        self._file.remove()
        self._batch, self._claims = None, []
        self._counted_at = float("-inf")

    def _finish(self) -> None:
        """The agent has ended, or this injector has to."""
        if self._pane.alive():
            return  # what is in the prompt is the next injector's
        if self._batch is not None and self._was_submitted():
            self._settle()
        else:
            self._release()

    def _was_submitted(self) -> bool:
        """Whether an agent that ended right after Enter took it, as far as can be proven.

        What it left on the screen may show its prompt without the text. If it cleared the
        screen nothing tells, and the message goes back to the inbox, for the next agent of that
        name: it may come twice then, but does not get lost.
        """
        try:
            return self._typist.saw_it_submitted(self._pane.look())
        except NoAnswer:
            return False


def _rendered(message: Message) -> str:
    # An agent without hoptell's tools answers from its shell, which has our settings.
    now_ms = int(time.time() * 1000)
    return render(message, now_ms=now_ms, send_command="hoptell send").rstrip("\n")


def main(folder: Path) -> NoReturn:
    """Run the injector of the session in `folder` until its agent has ended, and exit."""
    with locked(folder, LOCK_TIMEOUT) as held:
        code = _run(folder) if held else 1
        # From here, since Python waits for its threads at the end, and one of them may be asking
        # a name server that does not answer: the user's terminal would stay on this window.
        with contextlib.suppress(OSError):  # the window may be gone
            sys.stdout.flush()
        os._exit(code)


def _run(folder: Path) -> int:
    session = Session.load(folder)
    myself = processes.current()
    status = Status(session.name, myself.pid, session.pane, str(myself), session.process)
    if (before := read_status(folder)) is not None:
        status.agent = before.agent
    pane = _pane(session, status)
    reporter = Reporter(status, folder, functools.partial(print, flush=True))
    reporter.tell(f"types messages for {session.name} into {session.command}, pane {pane.id}")
    reporter.tell("this window ends with the agent; here is why something is held")
    last_word = None
    loop = asyncio.new_event_loop()
    try:
        settings = load_peer_settings({"HOPTELL_ENV": str(folder / SETTINGS_FILE)})
        loop.run_until_complete(_main(session, settings, pane, reporter, folder))
    except HoptellError as error:
        last_word = f"stopped: {error}"
    except Exception as error:
        last_word = f"stopped by a bug in hoptell: {_where(error)}"
    finally:
        _end(pane, reporter, last_word, folder)
    return 1 if last_word else 0


def _pane(session: Session, status: Status) -> Pane:
    """The pane of the session, with the agent in it that an injector before this one knew.

    Whatever has taken that agent's place, the shell below it or another agent, is not it.
    """
    pane = Pane(Tmux(tmux_bin=session.tmux), session.pane, session.pid, session.kind)
    if not agent_runs(status):
        pane.agent = foreground.GONE
    elif (agent := processes.parse(status.agent)) is not None:
        pane.agent = foreground.find(agent.pid) or foreground.GONE
    return pane


def _where(error: Exception) -> str:
    # Not its text, which may hold anything.
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {os.path.basename(frame.filename)} line {frame.lineno}"


async def _main(
    session: Session, settings: PeerSettings, pane: Pane, reporter: Reporter, folder: Path
) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stopped.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # Ctrl-C in the wrong window
    inbox = await asyncio.to_thread(Inbox, settings.home, session.name)
    injector = Injector(
        pane,
        inbox,
        reporter,
        UnfinishedFile(folder),
        command=f"{listen_command(session.name, settings.home)} 0",
        notice=session.notice,
    )
    roles = list(settings.roles)
    connect = functools.partial(RelayClient, settings, name=session.name, roles=roles, wake="tmux")
    await injector.run(connect, stopped)


def _end(pane: Pane, reporter: Reporter, last_word: str | None, folder: Path) -> None:
    """Leave the last word for who started the session; remove and close what nobody needs."""
    status = reporter.status
    agent_ended = _has_ended(pane)
    if agent_ended:
        forget_secrets(folder)
    gone = foreground.find(pane.pid) is None
    if gone:
        status.exit_status = pane.exit_status()
        status.last_words = pane.last_words() if status.exit_status else []
    status.connected, status.ended_at = False, time.time()
    reporter.update(state=last_word or ("the agent has ended" if agent_ended else "stopped"))
    reporter.write()
    pane.let_go()


def _has_ended(pane: Pane) -> bool:
    deadline = time.monotonic() + END_WAIT
    while pane.alive():
        if time.monotonic() > deadline or pane.exists():
            return False
        time.sleep(0.05)
    return True
