"""What has arrived for the agent: stored, waited for, claimed for one answer.

The inbox on disk holds the messages; this is where the tools of one session meet it. An
answer takes messages along as a `Parcel`: they are claimed while it is on its way, gone once
it has left the process, and back in the inbox if it never does. So a call that is cancelled,
or a process that is killed, loses nothing, and what was shown is not shown again.

Of several calls that wait at the same time the newest gets what comes: an older one may be
one that its client has given up on without a word. An answer that `ask_peer` waits for goes
to that call alone.

Everything that touches the disk runs in a thread, since a slow one, or another process that
holds the inbox's lock, must not stop the session. Such work cannot be cancelled: what a call
claimed that was cancelled meanwhile is put back, and whoever reads next waits until it is.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from hoptell.departure import Departure
from hoptell.errors import ConfigurationError, HoptellError
from hoptell.frames import Message
from hoptell.inbox import Claim, Inbox, release, restore, settle
from hoptell.render import MAX_ANSWER_LENGTH, Batch, batch
from hoptell.sidecar.wake import Announcer, Notice, Sender, Wake

logger = logging.getLogger(__name__)

LOOK_INTERVAL = 5.0
"""Seconds between looks for what came without this process: put back by another one."""
ANSWER_LOOK_INTERVAL = 0.25
"""The same where another process stores what arrives, for the answer to a question."""
REMEMBERED_HOSTS = 1_000


class Mailbox:
    """The inbox of this session, once its name and folder are known.

    Attributes:
        inbox: set by `use`; until then every method that needs it raises `problem`.
        problem: why there is no inbox.
        fed_by_others: another process is online under this name and stores what arrives.
    """

    def __init__(self, wake: Wake, *, fed_by_others: bool = False) -> None:
        self.problem: HoptellError = ConfigurationError("hoptell is still starting: try again")
        self.fed_by_others = fed_by_others
        self.announcer = Announcer(wake, self.notice)
        self._inbox: Inbox | None = None
        self._in_use: tuple[Path, str] | None = None
        self._changed = asyncio.Event()
        self._waiters: list[object] = []
        self._questions: list[_Question] = []
        self._hosts: dict[str, str] = {}
        self._reading = asyncio.Lock()  # so that two calls share what waits in its order
        self._returning: set[asyncio.Future[None]] = set()

    @property
    def inbox(self) -> Inbox:
        if self._inbox is None:
            raise self.problem.with_traceback(None)
        return self._inbox

    async def use(self, home: Path, name: str) -> None:
        """Use this inbox from now on; what waits in it already is announced.

        Raises:
            InboxError: it cannot be used.
        """
        if self._in_use == (home, name):
            return
        inbox = await asyncio.to_thread(Inbox, home, name)
        waiting = await asyncio.to_thread(inbox.waiting)
        self._inbox, self._in_use = inbox, (home, name)
        if waiting.count:
            self._come("left by an earlier session")

    async def all_returned(self) -> None:
        """Wait until everything that was claimed in vain is back in the inbox."""
        while self._returning:
            await asyncio.wait(self._returning)

    async def store(self, message: Message) -> None:
        """Keep a delivery; when this returns it may be confirmed.

        Raises:
            InboxError: it is not stored.
        """
        inbox = self.inbox
        if not await asyncio.to_thread(inbox.store, message):
            return
        self._hosts.pop(message.sender, None)
        self._hosts[message.sender] = message.host
        if len(self._hosts) > REMEMBERED_HOSTS:
            del self._hosts[next(iter(self._hosts))]
        if not await self._hand_to_question(inbox, message):
            self._come(message.id)

    async def notice(self) -> Notice:
        """What there is to announce.

        Raises:
            InboxError: the inbox cannot be used.
        """
        waiting = await asyncio.to_thread(self.inbox.waiting)
        senders = (Sender(name, self._hosts.get(name, "")) for name in waiting.senders)
        return Notice(waiting.count, tuple(senders))

    async def take(self) -> "Parcel | None":
        """Claim what waits, oldest first, as much as one answer holds; None if nothing does.

        Raises:
            InboxError: the inbox cannot be used.
        """
        return await self._parcel(lambda inbox: inbox.claim(characters=MAX_ANSWER_LENGTH))

    async def wait(self, timeout: float) -> "Parcel | None":
        """Wait up to `timeout` seconds for something to take.

        Raises:
            InboxError: the inbox cannot be used.
        """
        deadline = time.monotonic() + timeout
        waiter = object()
        self._waiters.append(waiter)
        try:
            while True:
                changed = self._changed  # before looking: what comes meanwhile sets it
                newest = self._waiters[-1] is waiter
                if newest and (parcel := await self.take()) is not None:
                    return parcel
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                if newest and self.fed_by_others:
                    await self.inbox.wait(min(left, LOOK_INTERVAL))
                else:
                    await _happened(changed, min(left, LOOK_INTERVAL))
        finally:
            self._waiters.remove(waiter)
            self._tell()

    async def answer(self, sender: str, reference: str, timeout: float) -> "Parcel | None":
        """Wait up to `timeout` seconds for the answer of `sender` to a message of ours.

        Raises:
            InboxError: the inbox cannot be used.
        """
        deadline = time.monotonic() + timeout
        question = _Question(sender, reference)
        self._questions.append(question)
        try:
            while True:
                # It may be here already: the acknowledgement that told the reference can be late.
                question.arrived.clear()
                if (parcel := await self._parcel(question.finder())) is not None:
                    return parcel
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                pause = min(left, ANSWER_LOOK_INTERVAL) if self.fed_by_others else left
                await _happened(question.arrived, pause)
        finally:
            self._questions.remove(question)
            if (late := question.withdraw()) is not None:
                self._put_back([late], release)

    async def _hand_to_question(self, inbox: Inbox, message: Message) -> bool:
        for question in self._questions:
            if question.claim is None and question.asks_for(message):
                claim = await asyncio.to_thread(question.look, inbox)
                if claim is not None and question not in self._questions:
                    self._put_back([claim], release)
                    return False
                question.claim = claim
                question.arrived.set()
                return claim is not None
        return False

    async def _parcel(self, find: Callable[[Inbox], list[Claim]]) -> "Parcel | None":
        """What `find` claims, ready to be handed over."""
        async with self._reading:
            await self.all_returned()
            inbox = self.inbox
            packing = asyncio.ensure_future(asyncio.to_thread(_pack, inbox, find))
            try:
                packed = await asyncio.shield(packing)
                # If the client has cancelled the call meanwhile, it is told so here, and not when
                # the next one has looked in vain.
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                self._return(self._unpack(packing))
                raise
            except Exception:
                self._come("put back")
                raise
        if packed is None:
            return None
        shown, claims = packed
        self.announcer.read(claim.message.id for claim in claims)
        return Parcel(shown.text, claims, shown.ends, inbox.departure(), self._put_back)

    # What was claimed in vain

    async def _unpack(self, packing: "asyncio.Future[_Packed | None]") -> None:
        if (packed := await packing) is not None:
            await self._back(packed[1], release)

    def _put_back(self, claims: list[Claim], how: "_PutBack") -> None:
        self._return(self._back(claims, how))

    async def _back(self, claims: list[Claim], how: "_PutBack") -> None:
        try:
            await asyncio.to_thread(how, claims)
        finally:
            for claim in claims:
                self._come(claim.message.id)

    def _return(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._returning.add(task)
        task.add_done_callback(self._returned)

    def _returned(self, task: "asyncio.Future[None]") -> None:
        self._returning.discard(task)
        if not task.cancelled() and (problem := task.exception()):
            logger.error("messages were not put back into the inbox", exc_info=problem)

    def _come(self, identity: str) -> None:
        self.announcer.arrived(identity)
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Parcel:
    """Messages on their way to the agent, in one answer (a `stdio.Handover`).

    Attributes:
        text: what the agent is shown.
    """

    def __init__(
        self,
        text: str,
        claims: list[Claim],
        ends: list[int],
        departure: Departure,
        put_back: "Callable[[list[Claim], _PutBack], None]",
    ) -> None:
        self.text = text
        self._claims = claims
        self._ends = ends
        self._departure = departure
        self._put_back = put_back

    def prepare(self) -> None:
        """They are about to be handed over."""
        self._departure.prepare(map(Claim.move, self._claims, self._ends))

    def leave(self) -> None:
        """They are handed over by what is written next."""
        self._departure.begin()

    def stay(self) -> None:
        """They were not handed over after all."""
        self._departure.end()

    def done(self) -> None:
        """They are the agent's now; of a long one, a part is."""
        settle(self._claims, self._ends)
        self._departure.end()

    def undo(self) -> None:
        """They were not handed over, and wait again soon."""
        self._put_back(self._claims, release)

    def recall(self) -> None:
        """They left this process, but to a client that had stopped waiting for them."""
        self._put_back(self._claims, restore)


_PutBack = Callable[[Iterable[Claim]], None]
_Packed = tuple[Batch, list[Claim]]


def _pack(inbox: Inbox, find: Callable[[Inbox], list[Claim]]) -> _Packed | None:
    """Claim, and show what one answer holds of it; the rest goes back."""
    if not (claims := find(inbox)):
        return None
    try:
        waiting = inbox.waiting()
        shown = batch(
            claims, now_ms=time.time_ns() // 1_000_000, more=waiting.count, bad=waiting.bad
        )
        release(claims[len(shown.ends) :])
    except BaseException:
        release(claims)
        raise
    return shown, claims[: len(shown.ends)]


async def _happened(event: asyncio.Event, timeout: float) -> None:
    """Wait for it, or until the time is up."""
    try:
        async with asyncio.timeout(timeout):
            await event.wait()
    except TimeoutError:
        pass


class _Question:
    """A call of `ask_peer` that waits for its answer."""

    def __init__(self, sender: str, reference: str) -> None:
        self.sender = sender
        self.reference = reference
        self.seen: set[str] = set()
        """Files in the inbox that are not the answer."""
        self.claim: Claim | None = None
        self.arrived = asyncio.Event()

    def asks_for(self, message: Message) -> bool:
        return (message.sender, message.reply_to) == (self.sender, self.reference)

    def look(self, inbox: Inbox) -> Claim | None:
        """Claim the answer if it is in the inbox."""
        return inbox.claim_answer(self.sender, self.reference, self.seen)

    def finder(self) -> Callable[[Inbox], list[Claim]]:
        """Finds it: it was claimed for this question, or waits in the inbox."""
        if (claim := self.withdraw()) is not None:
            return lambda inbox: [claim]
        return lambda inbox: [found] if (found := self.look(inbox)) is not None else []

    def withdraw(self) -> Claim | None:
        """Take the answer out, if it has come."""
        claim, self.claim = self.claim, None
        return claim
