"""What has arrived for the agent: stored, waited for, claimed for one answer.

The inbox on disk holds the messages; this is where the tools of one session meet it. An
answer takes messages along as a `Parcel`: they are claimed while it is on its way, gone once
it has left the process, and back in the inbox if it never does. So a call that is cancelled,
or a process that is killed, loses nothing, and what was shown is not shown again.

Of several calls that wait at the same time the newest gets what comes: an older one may be
one that its client has given up on without a word. An answer that `ask_peer` waits for goes
to that call alone.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from hoptell.departure import Departure
from hoptell.errors import ConfigurationError, HoptellError
from hoptell.frames import Message
from hoptell.inbox import Claim, Inbox, release, settle
from hoptell.render import MAX_ANSWER_LENGTH, batch
from hoptell.sidecar.wake import Announcer, Notice, Sender, Wake

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
        self._departure: Departure | None = None
        self._changed = asyncio.Event()
        self._waiters: list[object] = []
        self._questions: list[_Question] = []
        self._hosts: dict[str, str] = {}

    @property
    def inbox(self) -> Inbox:
        if self._inbox is None:
            raise self.problem.with_traceback(None)
        return self._inbox

    def use(self, home: Path, name: str) -> None:
        """Use this inbox from now on; what waits in it already is announced.

        Raises:
            InboxError: it cannot be used.
        """
        if self._in_use == (home, name):
            return
        inbox = Inbox(home, name)
        self._departure = inbox.departure()
        self._inbox, self._in_use = inbox, (home, name)
        if self._inbox.waiting().count:
            self._come("left by an earlier session")

    def close(self) -> None:
        """Nothing more is handed over."""
        if self._departure is not None:
            self._departure.close()

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
        if not self._hand_to_question(message):
            self._come(message.id)

    def notice(self) -> Notice:
        """What there is to announce."""
        waiting = self.inbox.waiting()
        senders = (Sender(name, self._hosts.get(name, "")) for name in waiting.senders)
        return Notice(waiting.count, tuple(senders))

    def take(self) -> "Parcel | None":
        """Claim what waits, oldest first, as much as one answer holds; None if nothing does.

        Raises:
            InboxError: the inbox cannot be used.
        """
        return self._parcel(self.inbox.claim(characters=MAX_ANSWER_LENGTH))

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
                newest = self._waiters[-1] is waiter
                if newest and (parcel := self.take()) is not None:
                    return parcel
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                if newest and self.fed_by_others:
                    await self.inbox.wait(min(left, LOOK_INTERVAL))
                else:
                    await self._change(min(left, LOOK_INTERVAL))
        finally:
            self._waiters.remove(waiter)
            self._tell()

    async def answer(self, sender: str, reference: str, timeout: float) -> "Parcel | None":
        """Wait up to `timeout` seconds for the answer of `sender` to a message of ours.

        Raises:
            InboxError: the inbox cannot be used.
        """
        question = _Question(sender, reference)
        self._questions.append(question)
        try:
            # It may be here already: the acknowledgement that told the reference can be late.
            if (claim := self.inbox.claim_answer(sender, reference, question.seen)) is None:
                claim = await self._claimed_answer(question, timeout)
            return None if claim is None else self._parcel([claim])
        finally:
            self._questions.remove(question)
            if (late := question.withdraw()) is not None:
                self._put_back([late])

    async def _claimed_answer(self, question: "_Question", timeout: float) -> Claim | None:
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            pause = min(left, ANSWER_LOOK_INTERVAL) if self.fed_by_others else left
            try:
                async with asyncio.timeout(pause):
                    await question.arrived.wait()
            except TimeoutError:
                pass
            question.arrived.clear()
            claim = question.withdraw() or self.inbox.claim_answer(
                question.sender, question.reference, question.seen
            )
            if claim is not None:
                return claim
        return None

    def _hand_to_question(self, message: Message) -> bool:
        for question in self._questions:
            if question.claim is None and question.asks_for(message):
                question.claim = self.inbox.claim_answer(
                    question.sender, question.reference, question.seen
                )
                question.arrived.set()
                return question.claim is not None
        return False

    def _parcel(self, claims: list[Claim]) -> "Parcel | None":
        if not claims:
            return None
        try:
            waiting = self.inbox.waiting()
            shown = batch(
                claims, now_ms=time.time_ns() // 1_000_000, more=waiting.count, bad=waiting.bad
            )
        except BaseException:
            self._put_back(claims)
            raise
        taken = claims[: len(shown.ends)]
        release(claims[len(shown.ends) :])
        self.announcer.read(claim.message.id for claim in taken)
        assert self._departure is not None
        return Parcel(shown.text, taken, shown.ends, self._departure, self._came_back)

    def _put_back(self, claims: list[Claim]) -> None:
        release(claims)
        self._came_back(claims)

    def _came_back(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            self._come(claim.message.id)

    def _come(self, identity: str) -> None:
        self.announcer.arrived(identity)
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            pass


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
        came_back: Callable[[Iterable[Claim]], None],
    ) -> None:
        self.text = text
        self._claims = claims
        self._ends = ends
        self._departure = departure
        self._came_back = came_back

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
        """They were not handed over, and wait again."""
        try:
            release(self._claims)
        finally:
            self._came_back(self._claims)

    def recall(self) -> None:
        """They left this process, but to a client that had stopped waiting for them."""
        try:
            for claim in self._claims:
                claim.restore()
        finally:
            self._came_back(self._claims)


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

    def withdraw(self) -> Claim | None:
        """Take the answer out, if it has come."""
        claim, self.claim = self.claim, None
        return claim
