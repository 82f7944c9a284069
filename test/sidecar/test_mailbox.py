"""What has arrived for the agent: stored, waited for, claimed for one answer."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.inbox import ids, message
from support.sidecar import texts_in

from hoptell.errors import ConfigurationError, HoptellError, InboxError
from hoptell.frames import Message
from hoptell.inbox import Inbox, release
from hoptell.sidecar import mailbox as mailbox_module
from hoptell.sidecar.mailbox import Mailbox, Parcel
from hoptell.sidecar.wake import Notice

NAME = "alice"


class RecordingWake:
    """Keeps what was announced."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.announced = asyncio.Event()

    async def announce(self, notice: Notice) -> None:
        self.notices.append(notice)
        self.announced.set()


@pytest.fixture
async def wake() -> RecordingWake:
    return RecordingWake()


@pytest.fixture
async def mailbox(tmp_path: Path, wake: RecordingWake) -> Mailbox:
    mailbox = Mailbox(wake)
    await mailbox.use(tmp_path, NAME)
    return mailbox


@pytest.fixture
def inbox(tmp_path: Path, mailbox: Mailbox) -> Inbox:
    """The same inbox, as another process sees it."""
    return Inbox(tmp_path, NAME)


def text(parcel: Parcel | None) -> list[str]:
    assert parcel is not None
    return texts_in(parcel.text)


async def soon(task: "asyncio.Task[Parcel | None]") -> Parcel | None:
    async with asyncio.timeout(5):
        return await task


@pytest.fixture(autouse=True)
async def worker() -> None:
    """One thread does all the work with the disk, in order."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))


async def settled() -> None:
    """Let everything that can go on do so."""
    for _ in range(5):
        await asyncio.to_thread(lambda: None)
        for _ in range(5):
            await asyncio.sleep(0)


async def test_what_is_there_comes_together_oldest_first(mailbox: Mailbox) -> None:
    await mailbox.store(message("1", "one"))
    await mailbox.store(message("2", "two"))
    assert text(await mailbox.take()) == ["one", "two"]


async def test_an_empty_inbox_gives_nothing(mailbox: Mailbox) -> None:
    assert await mailbox.take() is None
    assert await mailbox.wait(0) is None


async def test_what_an_answer_took_along_is_gone_once_it_has_left(
    mailbox: Mailbox, inbox: Inbox
) -> None:
    await mailbox.store(message())
    parcel = await mailbox.take()
    assert parcel is not None and inbox.waiting().count == 0
    parcel.done()
    assert ids(inbox) == [] and await mailbox.take() is None


async def test_what_an_answer_took_along_returns_if_it_never_leaves(mailbox: Mailbox) -> None:
    await mailbox.store(message("1", "one"))
    await mailbox.store(message("2", "two"))
    parcel = await mailbox.take()
    assert parcel is not None
    parcel.undo()
    assert text(await mailbox.take()) == ["one", "two"]


async def test_an_answer_that_crossed_with_a_cancellation_gives_back_what_it_took(
    mailbox: Mailbox,
) -> None:
    await mailbox.store(message("1", "one"))
    parcel = await mailbox.take()
    assert parcel is not None
    parcel.done()
    await mailbox.store(message("2", "two"))
    parcel.recall()
    assert text(await mailbox.take()) == ["one", "two"], "in the old order"


async def test_a_long_message_comes_in_consecutive_parts_each_within_the_limit(
    mailbox: Mailbox,
) -> None:
    whole = "".join(f"line {number}\n" for number in range(9_000)).rstrip()
    await mailbox.store(message("1", whole))
    await mailbox.store(message("2", "short"))
    parts: list[str] = []
    number = 0
    while (parcel := await mailbox.take()) is not None:
        number += 1
        assert len(parcel.text) <= 40_000
        if number == 1:
            assert "part 1 of 3" in parcel.text
            assert (
                "the rest of this message and 1 more message wait: call read_inbox" in parcel.text
            )
        parts += text(parcel)
        parcel.done()
    assert "".join(parts[:-1]) == whole and parts[-1] == "short"


async def test_a_part_that_never_left_comes_again(mailbox: Mailbox) -> None:
    await mailbox.store(message("1", "x" * 90_000))
    first = await mailbox.take()
    assert first is not None
    first.done()
    second = await mailbox.take()
    assert second is not None and "part 2 of 3" in second.text
    second.undo()
    again = await mailbox.take()
    assert again is not None and "part 2 of 3" in again.text
    again.done()
    again.recall()
    once_more = await mailbox.take()
    assert once_more is not None and "part 2 of 3" in once_more.text


async def test_messages_that_do_not_fit_stay_and_are_counted(
    mailbox: Mailbox, inbox: Inbox
) -> None:
    for number in range(7):
        await mailbox.store(message(f"{number}", "x" * 9_000))
    parcel = await mailbox.take()
    assert parcel is not None and len(text(parcel)) == 4
    assert "3 more messages wait" in parcel.text
    assert inbox.waiting().count == 3, "and another process can have them"


async def test_a_delivery_that_comes_twice_is_kept_and_announced_once(
    mailbox: Mailbox, wake: RecordingWake, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mailbox.store(message())
    parcel = await mailbox.take()
    assert parcel is not None
    parcel.done()
    await mailbox.store(message())
    assert await mailbox.take() is None
    assert mailbox.announcer._schedule.next_at() is None


async def test_files_that_cannot_be_read_are_reported_with_the_next_messages(
    mailbox: Mailbox, inbox: Inbox
) -> None:
    await mailbox.store(message("1"))
    await mailbox.store(message("2"))
    next(inbox.folder.glob("*1-*.json")).write_text("no message")
    parcel = await mailbox.take()
    assert parcel is not None and "1 file in this inbox could not be read" in parcel.text


# Waiting -------------------------------------------------------------------------------------


async def test_a_waiting_call_gets_what_arrives(mailbox: Mailbox) -> None:
    waiting = asyncio.create_task(mailbox.wait(5))
    await settled()
    await mailbox.store(message("1", "hello"))
    assert text(await soon(waiting)) == ["hello"]


async def test_a_wait_ends_in_time(mailbox: Mailbox) -> None:
    async with asyncio.timeout(5):
        assert await mailbox.wait(0.05) is None


async def test_of_several_waiting_calls_the_newest_gets_it_and_the_next_one_the_next(
    mailbox: Mailbox,
) -> None:
    older = asyncio.create_task(mailbox.wait(5))
    await settled()
    newer = asyncio.create_task(mailbox.wait(5))
    await settled()
    await mailbox.store(message("1", "one"))
    assert text(await soon(newer)) == ["one"]
    assert not older.done()
    await mailbox.store(message("2", "two"))
    assert text(await soon(older)) == ["two"]


async def test_an_older_call_takes_over_when_the_newest_is_cancelled(mailbox: Mailbox) -> None:
    older = asyncio.create_task(mailbox.wait(5))
    await settled()
    newer = asyncio.create_task(mailbox.wait(5))
    await settled()
    await mailbox.store(message())
    newer.cancel()
    await settled()
    assert text(await soon(older)) == ["hello"]


async def test_a_waiting_call_gets_what_comes_back_from_a_cancelled_one(mailbox: Mailbox) -> None:
    await mailbox.store(message())
    parcel = await mailbox.take()
    waiting = asyncio.create_task(mailbox.wait(5))
    await settled()
    assert parcel is not None
    parcel.undo()
    assert text(await soon(waiting)) == ["hello"]


async def test_a_waiting_call_finds_what_another_process_put_back(
    mailbox: Mailbox, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox_module, "LOOK_INTERVAL", 0.05)
    await mailbox.store(message())
    claims = inbox.claim()
    waiting = asyncio.create_task(mailbox.wait(5))
    await settled()
    release(claims)
    assert text(await soon(waiting)) == ["hello"]


async def test_messages_that_another_process_stores_wake_a_waiting_call_at_once(
    tmp_path: Path, wake: RecordingWake
) -> None:
    mailbox = Mailbox(wake, fed_by_others=True)
    await mailbox.use(tmp_path, NAME)
    waiting = asyncio.create_task(mailbox.wait(5))
    await asyncio.sleep(0.1)
    await asyncio.to_thread(Inbox(tmp_path, NAME).store, message())
    async with asyncio.timeout(1):
        assert text(await waiting) == ["hello"]


async def test_two_calls_that_wait_for_another_process_do_not_keep_each_other_busy(
    tmp_path: Path, wake: RecordingWake
) -> None:
    mailbox = Mailbox(wake, fed_by_others=True)
    await mailbox.use(tmp_path, NAME)
    calls = [asyncio.create_task(mailbox.wait(5)) for _ in range(2)]
    await asyncio.sleep(0.1)
    await asyncio.to_thread(Inbox(tmp_path, NAME).store, message())
    async with asyncio.timeout(4):
        done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    assert done == {calls[1]}
    calls[0].cancel()
    await asyncio.wait(calls)


# Questions -----------------------------------------------------------------------------------


def answer(identity: str = "answer", text: str = "yes", **fields: str) -> Message:
    return message(identity, text, **{"reply_to": "question", "sender": "bob", **fields})


async def asked(mailbox: Mailbox, timeout: float = 5) -> "asyncio.Task[Parcel | None]":
    task = asyncio.create_task(mailbox.answer("bob", "question", timeout))
    await settled()
    return task


async def test_an_answer_goes_to_its_question_past_everything_else(mailbox: Mailbox) -> None:
    await mailbox.store(message("0", "older"))
    asking = await asked(mailbox)
    await mailbox.store(message("1", "another matter"))
    await mailbox.store(answer())
    assert text(await soon(asking)) == ["yes"]
    assert text(await mailbox.take()) == ["older", "another matter"]


async def test_only_the_asked_peers_answer_to_this_question_counts(mailbox: Mailbox) -> None:
    asking = await asked(mailbox, 0.3)
    await mailbox.store(answer("1", "forged", sender="mallory"))
    await mailbox.store(answer("2", "to another", reply_to="other"))
    assert await soon(asking) is None
    assert text(await mailbox.take()) == ["forged", "to another"]


async def test_an_answer_that_came_before_the_question_was_acknowledged_is_found(
    mailbox: Mailbox,
) -> None:
    await mailbox.store(answer())
    assert text(await soon(await asked(mailbox))) == ["yes"]


async def test_a_late_answer_goes_to_the_inbox_and_is_announced(
    mailbox: Mailbox, wake: RecordingWake
) -> None:
    announcing = asyncio.create_task(mailbox.announcer.run())
    assert await soon(await asked(mailbox, 0)) is None
    await mailbox.store(answer())
    async with asyncio.timeout(5):
        await wake.announced.wait()
    assert text(await mailbox.take()) == ["yes"]
    announcing.cancel()
    await asyncio.wait([announcing])


async def test_a_second_answer_goes_to_the_inbox(mailbox: Mailbox) -> None:
    asking = await asked(mailbox)
    await mailbox.store(answer("1", "yes"))
    await mailbox.store(answer("2", "and more"))
    assert text(await soon(asking)) == ["yes"]
    assert text(await mailbox.take()) == ["and more"]


async def test_an_answer_that_comes_with_the_cancellation_of_its_question_stays(
    mailbox: Mailbox,
) -> None:
    asking = await asked(mailbox)
    await mailbox.store(answer())
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()
    assert text(await mailbox.take()) == ["yes"]


async def test_a_call_that_waits_for_anything_does_not_get_the_answer_to_a_question(
    mailbox: Mailbox,
) -> None:
    asking = await asked(mailbox)
    waiting = asyncio.create_task(mailbox.wait(0.2))
    await settled()
    await mailbox.store(answer())
    assert text(await soon(asking)) == ["yes"]
    assert await soon(waiting) is None


async def test_an_answer_that_another_process_stores_is_found(
    tmp_path: Path, wake: RecordingWake
) -> None:
    mailbox = Mailbox(wake, fed_by_others=True)
    await mailbox.use(tmp_path, NAME)
    asking = await asked(mailbox)
    other = Inbox(tmp_path, NAME)
    await asyncio.to_thread(other.store, message("1", "another matter"))
    await asyncio.to_thread(other.store, answer())
    assert text(await soon(asking)) == ["yes"]
    assert text(await mailbox.take()) == ["another matter"]


async def test_an_answer_that_another_process_took_leaves_its_question_waiting_without_haste(
    mailbox: Mailbox, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    find = Inbox.claim_answer

    def claim_answer(*arguments: object) -> None:
        nonlocal looks
        looks += 1

    monkeypatch.setattr(Inbox, "claim_answer", claim_answer)
    asking = await asked(mailbox, 0.2)
    await mailbox.store(answer())
    assert await soon(asking) is None
    assert looks <= 4
    monkeypatch.setattr(Inbox, "claim_answer", find)


# Announcing ----------------------------------------------------------------------------------


async def test_what_arrives_is_announced_with_its_senders_name_and_host(
    mailbox: Mailbox, wake: RecordingWake
) -> None:
    announcing = asyncio.create_task(mailbox.announcer.run())
    await mailbox.store(message("1", sender="bob", host="laptop"))
    await mailbox.store(message("2", sender="carol", host="server"))
    async with asyncio.timeout(5):
        await wake.announced.wait()
    (notice,) = wake.notices
    assert "2 messages wait for you, from bob (on laptop) and carol (on server)." in str(notice)
    announcing.cancel()
    await asyncio.wait([announcing])


async def test_what_an_earlier_session_left_is_announced(
    tmp_path: Path, wake: RecordingWake
) -> None:
    Inbox(tmp_path, NAME).store(message())
    mailbox = Mailbox(wake)
    await mailbox.use(tmp_path, NAME)
    announcing = asyncio.create_task(mailbox.announcer.run())
    async with asyncio.timeout(5):
        await wake.announced.wait()
    assert wake.notices[0].count == 1
    announcing.cancel()
    await asyncio.wait([announcing])


async def test_what_a_waiting_call_takes_is_not_announced(mailbox: Mailbox) -> None:
    waiting = asyncio.create_task(mailbox.wait(5))
    await settled()
    await mailbox.store(message())
    await soon(waiting)
    assert mailbox.announcer._schedule.next_at() is None


async def test_what_comes_back_from_a_cancelled_call_is_announced(mailbox: Mailbox) -> None:
    await mailbox.store(message())
    parcel = await mailbox.take()
    assert parcel is not None and mailbox.announcer._schedule.next_at() is None
    parcel.undo()
    await mailbox.all_returned()
    assert mailbox.announcer._schedule.next_at() is not None


# Beside a slow disk, and a lock that another process holds ------------------------------------


@pytest.fixture
async def workers(worker: None) -> None:
    """Several threads, as in earnest."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=4))


class Slow:
    """Holds back what a function of the inbox returns, until it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self._called = threading.Event()
        self._let_go = threading.Event()
        call = getattr(Inbox, name)

        def slow(*arguments: Any, **options: Any) -> Any:
            found = call(*arguments, **options)
            self._called.set()
            assert self._let_go.wait(10)
            return found

        monkeypatch.setattr(Inbox, name, slow)

    async def called(self) -> None:
        assert await asyncio.to_thread(self._called.wait, 5)

    def let_go(self) -> None:
        self._let_go.set()


@pytest.mark.usefixtures("workers")
async def test_a_lock_that_another_process_holds_stops_neither_the_session_nor_reading(
    mailbox: Mailbox, inbox: Inbox
) -> None:
    await mailbox.store(message("1", "one"))
    await mailbox.store(message("2", "two"))
    first = await mailbox.take()
    assert first is not None
    first.done()
    async with asyncio.timeout(5):
        with inbox._locked():
            storing = asyncio.create_task(mailbox.store(message("3", "three")))
            assert (await mailbox.notice()).count == 0
            first.recall()  # needs the lock, and does not wait for it here
            taking = asyncio.create_task(mailbox.take())
            assert (await mailbox.notice()).count == 0
            assert not taking.done(), "what comes back is not passed over"
        assert text(await taking)[:2] == ["one", "two"]
        await storing


@pytest.mark.usefixtures("workers")
async def test_what_a_call_claims_that_is_cancelled_meanwhile_is_there_for_the_next(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mailbox.store(message())
    slow = Slow(monkeypatch, "claim")
    taking = asyncio.create_task(mailbox.take())
    await slow.called()
    taking.cancel()
    await asyncio.wait([taking])
    assert taking.cancelled()
    again = asyncio.create_task(mailbox.take())
    slow.let_go()
    async with asyncio.timeout(5):
        assert text(await again) == ["hello"]


@pytest.mark.usefixtures("workers")
async def test_what_arrives_while_a_waiting_call_looks_is_not_missed(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox_module, "LOOK_INTERVAL", 60.0)
    slow = Slow(monkeypatch, "claim")
    waiting = asyncio.create_task(mailbox.wait(60))
    await slow.called()
    await mailbox.store(message())
    slow.let_go()
    assert text(await soon(waiting)) == ["hello"]


@pytest.mark.usefixtures("workers")
async def test_an_answer_that_is_found_as_its_question_gives_up_stays(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = await asked(mailbox)
    slow = Slow(monkeypatch, "claim_answer")
    storing = asyncio.create_task(mailbox.store(answer()))
    await slow.called()
    asking.cancel()
    await asyncio.wait([asking])
    slow.let_go()
    await storing
    assert text(await mailbox.take()) == ["yes"]


async def test_messages_that_cannot_be_shown_go_back(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(inbox: Inbox) -> None:
        raise InboxError("cannot use the inbox")

    await mailbox.store(message())
    with monkeypatch.context() as patched:
        patched.setattr(Inbox, "waiting", fail)
        with pytest.raises(InboxError):
            await mailbox.take()
    assert text(await mailbox.take()) == ["hello"]


# Without an inbox ----------------------------------------------------------------------------


async def test_without_an_inbox_every_use_says_why(wake: RecordingWake) -> None:
    mailbox = Mailbox(wake)
    mailbox.problem = ConfigurationError("HOPTELL_NAME: write it better")
    for attempt in (mailbox.take, mailbox.notice):
        with pytest.raises(ConfigurationError, match="write it better"):
            await attempt()
    with pytest.raises(HoptellError):
        await mailbox.wait(5)
    with pytest.raises(HoptellError):
        await mailbox.answer("bob", "question", 5)


async def test_an_unsafe_folder_is_refused(tmp_path: Path, wake: RecordingWake) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "inbox").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InboxError):
        await Mailbox(wake).use(tmp_path, NAME)
