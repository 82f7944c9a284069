"""The folder where deliveries wait for the agent.

    $HOPTELL_HOME/inbox/<name>/
      <number>-<id>-<sender>.json   a message; the text in it is exact (see inbox_files.py)
      tmp/       being written
      claimed/   being shown: <message's name>.<the process that holds it>; and what is being
                 handed over this instant: leaving.<the process> (see departure.py)
      bad/       what could not be read
      seen       the last 1,000 deliveries, a line each (see seen.py)
      lock       held while something is stored

The folder is made for the first message. Everything that must be known without opening files
is in the names: the order (a number that only grows), the delivery, the sender, and how much of
a long message was shown. So ten thousand waiting messages cost one listing.

**Nothing lost, nothing doubled.** One process at a time stores (a lock that the kernel frees
when its holder dies). It writes the file into tmp/ and syncs it and the folder, then adds the
delivery to `seen` and syncs that, then renames the file into its place. The line in `seen` is
the moment that counts. Whoever dies before it has stored nothing: the relay, not having heard
`got`, delivers again, and the leftover is thrown away. Whoever dies after it has stored the
message: the next process to look finishes the rename, and the second copy that the relay sends
is recognized. There is no moment in which a message can be seen, shown and removed while its
id is not remembered. The rename needs no sync of its own: losing it leaves the file in tmp/.

**One winner.** A consumer claims by renaming into claimed/, under its pid and start time, and
removes the file when what it showed has left the process. A claim whose process died returns
to its old place, since its name still holds its number. So what was handed over for sure is
gone, and what may not have been is shown again. (The very instant of handing over is noted:
see departure.py.) After a part of a long message the file goes back under a name that says how
far it was read: one rename, no second file to agree with.

**Numbers, not times.** The next number is one more than the largest in `seen`, or in any name
if `seen` is new, so clock steps and several storing processes cannot disturb the order. What
was announced can later be remembered as the largest number that was.

**Waiting** arms the file system's events first (watch.py), then looks, then waits: nothing falls
between. Every few seconds it looks all the same, for claims of dead processes and lost events.

Every method may block for as long as the disk takes (and `store` and `Claim.restore` up to
10 s for the lock); all are safe to call from several threads.
"""

import contextlib
import errno
import fcntl
import functools
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hoptell import departure, files, inbox_files, processes
from hoptell.departure import Departure
from hoptell.errors import InboxError
from hoptell.frames import Message, encode
from hoptell.inbox_files import SUFFIX, Unreadable
from hoptell.names import name_problem
from hoptell.processes import Process
from hoptell.seen import Seen
from hoptell.watch import Watch

LEAST_FRAME_LENGTH = 300
"""Characters that stand around a message's text at least when it is shown."""
LOCK_TIMEOUT = 10.0
"""Seconds to wait while another process stores; far more than it takes."""
UNKNOWN_CLAIM_TIMEOUT = 600.0
"""Seconds after which a claim returns whose process cannot be seen (it is in a container)."""

# Why one file cannot be moved while others can.
_IMMOVABLE_ERRORS = {errno.EACCES, errno.EPERM, errno.EBUSY, errno.EXDEV, errno.ENAMETOOLONG}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Waiting:
    """What is in an inbox, as far as names tell."""

    count: int
    """Messages that nobody has claimed."""
    senders: tuple[str, ...]
    """Who sent them, each once, in the order of arrival."""
    oldest_at: float | None
    """Unix time in seconds at which the oldest of them was stored."""
    bad: int
    """Files that cannot be read (`Inbox.bad_files`)."""


class Claim:
    """A message that this process alone shows, until it says what became of it.

    Exactly one of `remove`, `keep_from` and `release` has an effect, the first; `restore`
    takes it back.

    Attributes:
        message: the delivery.
        offset: how many characters of its text were handed over by earlier claims.
        parts: in how many parts that was.
    """

    __slots__ = (
        "_file",
        "_home_name",
        "_inbox",
        "_kept_as",
        "_removed",
        "message",
        "offset",
        "parts",
    )

    def __init__(
        self, inbox: "Inbox", file: Path, name: str, message: Message, offset: int, parts: int
    ) -> None:
        self.message = message
        self.offset = offset
        self.parts = parts
        self._inbox = inbox
        self._file: Path | None = file
        self._home_name = name
        self._kept_as: str | None = None
        self._removed = False

    def remove(self) -> None:
        """Forget the message: it left this process whole."""
        if (file := self._take_file()) is not None:
            self._inbox._remove(file)
            self._removed = True

    def keep_from(self, offset: int) -> None:
        """Put the message back in its place; its text up to `offset` was handed over."""
        kept_as = self._name_from(offset)
        if not kept_as:
            self.remove()
        elif kept_as == self._home_name:
            self.release()
        elif (file := self._take_file()) is not None:
            self._inbox._put_back(file, kept_as)
            self._kept_as = kept_as

    def move(self, offset: int) -> tuple[str, str]:
        """What `keep_from` will do, for a Departure: the file's name now and afterwards."""
        claimed = "" if self._file is None else self._file.name
        return claimed, self._name_from(offset)

    def _name_from(self, offset: int) -> str:
        if offset >= len(self.message.text):
            return ""
        if offset <= self.offset:
            return self._home_name
        return inbox_files.with_progress(self._home_name, offset, self.parts + 1)

    def release(self) -> None:
        """Put the message back in its place: nothing (more) of it was handed over."""
        if (file := self._take_file()) is not None:
            self._inbox._put_back(file, self._home_name)

    def restore(self) -> None:
        """Put the message back as it was claimed: what was handed over did not get there."""
        removed, self._removed = self._removed, False
        kept_as, self._kept_as = self._kept_as, None
        if removed:
            self._inbox._store_again(self._home_name, self.message)
        elif kept_as is not None:
            self._inbox._put_back(self._inbox.folder / kept_as, self._home_name)
        else:
            self.release()

    def _take_file(self) -> Path | None:
        file, self._file = self._file, None
        return file


class Inbox:
    """The inbox of one peer name on this machine, also before anything has arrived in it.

    Several processes may use it at the same time; each message goes to one of them.

    Raises:
        InboxError: `name` is no peer name, or a folder is not safe to use or cannot be made.
            Methods raise it too where the file system refuses.
    """

    def __init__(self, home: Path, name: str) -> None:
        if problem := name_problem(name):
            raise InboxError(problem)
        self.name = name
        self.folder = inbox_files.folder_of(Path(home).absolute()) / name
        self._tmp = self.folder / "tmp"
        self._claimed = self.folder / inbox_files.CLAIMED
        self._bad = self.folder / inbox_files.BAD
        self._seen = Seen(self.folder / "seen")
        self._storing = threading.Lock()  # besides the file's, which holds off other processes
        self._immovable: set[str] = set()  # unreadable, and cannot be moved to bad/ either
        with self._explained():
            self._prepare(make=False)
            self._recover()

    # Storing ------------------------------------------------------------------------------

    def store(self, message: Message) -> bool:
        """Keep one delivery; when this returns it survives a crash, and may be confirmed.

        Returns: False if this delivery was stored before, and may have been read since.

        Raises:
            InboxError: it was not stored, or that is not certain: do not confirm it.
        """
        digest = inbox_files.digest(message.id)
        with self._explained():
            self._prepare()
            with self._locked():
                self._seen.refresh(self._largest_number)
                finished = self._finish_stores()
                if digest in self._seen:
                    return digest in finished
                number = self._seen.last + 1
                name = inbox_files.new_name(number, digest, message.sender)
                files.write(self._tmp / name, encode(message), sync=True)
                files.sync_folder(self._tmp)
                self._seen.add(number, digest)
                os.rename(self._tmp / name, self.folder / name)
        return True

    def _store_again(self, name: str, message: Message) -> None:
        # It is in `seen`: under its own name, what a crash left of it would count as stored.
        file = self._tmp / inbox_files.new_name(0, f"{0:032}", "")
        with self._explained():
            self._prepare()
            with self._locked():
                files.write(file, encode(message), sync=True)
                os.rename(file, self.folder / name)

    def _finish_stores(self) -> set[str]:
        """Finish what others began, or throw it away; the digests of what is stored now."""
        # The caller holds the lock, so whoever wrote these is dead, or has failed.
        finished = set()
        for name in list(files.names(self._tmp)):
            label = inbox_files.label(name)
            if label and self._seen.number_of(label.id) == label.number:
                os.rename(self._tmp / name, self.folder / name)
                finished.add(label.id)
            elif label:
                files.remove(self._tmp / name)
            else:
                self._move_to_bad(self._tmp / name, name, "it is not a message being stored")
        return finished

    def _largest_number(self) -> int:
        names = [*files.names(self.folder), *files.names(self._tmp)]
        names += [name.rpartition(".")[0] for name in files.names(self._claimed)]
        labels = map(inbox_files.label, names)
        return max((label.number for label in labels if label), default=0)

    # Reading ------------------------------------------------------------------------------

    def claim(
        self,
        limit: int | None = None,
        characters: int | None = None,
        *,
        holder: Process | None = None,
    ) -> list[Claim]:
        """Take messages that wait, oldest first; no other process sees them meanwhile.

        Stops at `limit` messages, or once they are sure to fill `characters` when shown. What
        cannot be read is moved to bad/ and left out. Each claim must be settled: what is not
        when its holder ends, this process or the one that is given, returns to the inbox.
        """
        claims: list[Claim] = []
        length = 0
        try:
            with self._explained():
                self._prepare(make=False)
                self._recover()
                for name in self._names():
                    if limit is not None and len(claims) >= limit:
                        break
                    if characters is not None and length >= characters:
                        break
                    if (claim := self._claim(name, holder)) is not None:
                        claims.append(claim)
                        length += len(claim.message.text) - claim.offset + LEAST_FRAME_LENGTH
        except BaseException:
            release(claims)
            raise
        return claims

    def held_by(self, holder: Process) -> list[Claim]:
        """What another process claimed for `holder` and did not settle, oldest first.

        The caller sees to it that the other one does so no more.
        """
        claims = []
        with self._explained():
            for entry in sorted(files.names(self._claimed)):
                name, _, owner = entry.rpartition(".")
                if owner != str(holder) or not name.endswith(SUFFIX):
                    continue
                with contextlib.suppress(FileNotFoundError):  # it returned to the inbox
                    if (claim := self._opened(self._claimed / entry, name)) is not None:
                        claims.append(claim)
        return claims

    def claim_answer(self, sender: str, reference: str, seen: set[str]) -> Claim | None:
        """Take the oldest message of `sender` that answers `reference`; None if none waits.

        Opens only messages of that sender. `seen` keeps the names of those that it is not, so
        that asking again opens only what has come since.
        """
        with self._explained():
            self._prepare(make=False)
            self._recover()
            for name in self._names():
                label = inbox_files.label(name)
                if label is None or label.sender != sender or name in seen:
                    continue
                if not self._answers(name, reference):
                    seen.add(name)
                elif (claim := self._claim(name)) is not None:
                    return claim
        return None

    def _answers(self, name: str, reference: str) -> bool:
        try:
            return inbox_files.read(self.folder / name).reply_to == reference
        except (Unreadable, FileNotFoundError):
            return False  # `claim` will report it; another consumer took it

    def departure(self) -> Departure:
        """Where this process notes what it is handing over from this inbox; one at a time."""
        return Departure(self._claimed / f"{departure.PREFIX}.{processes.current()}")

    def waiting(self) -> Waiting:
        """Tell what waits, without claiming anything."""
        with self._explained():
            self._recover()
            names = self._names()
            labels = map(inbox_files.label, names)
            senders = dict.fromkeys(label.sender for label in labels if label and label.sender)
            oldest_at = None
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # claimed meanwhile
                    oldest_at = os.lstat(self.folder / name).st_mtime
                    break
            bad = len(self.bad_files())
            return Waiting(len(names), tuple(senders), oldest_at, bad)

    def bad_files(self) -> list[Path]:
        """Name the files that could not be read; they stay where they are."""
        with self._explained():
            moved = [self._bad / name for name in sorted(files.names(self._bad))]
            return moved + [self.folder / name for name in sorted(self._immovable)]

    def _names(self) -> list[str]:
        """The names of all waiting messages, oldest first."""
        found = [name for name in files.names(self.folder) if name.endswith(SUFFIX)]
        if self._immovable:
            found = [name for name in found if name not in self._immovable]
        found.sort()
        return found

    def _claim(self, name: str, holder: Process | None = None) -> Claim | None:
        file = self._claimed / f"{name}.{holder or processes.current()}"
        try:
            os.rename(self.folder / name, file)
        except FileNotFoundError:
            return None  # another consumer won it
        except OSError as error:
            if error.errno not in _IMMOVABLE_ERRORS:
                raise
            self._immovable.add(name)
            self._report_bad(name, f"it cannot be moved: {error.strerror}")
            return None
        return self._opened(file, name)

    def _opened(self, file: Path, name: str) -> Claim | None:
        """The claim of a file that has been moved to claimed/."""
        try:
            message = inbox_files.read(file)
        except Unreadable as error:
            self._move_to_bad(file, name, str(error))
            return None
        except BaseException:
            self._put_back(file, name)
            raise
        offset, parts = inbox_files.progress(name)
        if offset >= len(message.text):  # somebody else's doing: show it all
            offset = parts = 0
        return Claim(self, file, name, message, offset, parts)

    def _move_to_bad(self, file: Path, name: str, reason: str) -> None:
        target = self._bad / name
        for count in itertools.count(1):
            if not os.path.lexists(target):
                break
            target = self._bad / f"{name}.{count}"
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            os.rename(file, target)
        self._report_bad(name, reason)

    def _report_bad(self, name: str, reason: str) -> None:
        _log.warning("the inbox file %a cannot be read (%s): see %s", name, reason, self._bad)

    def _remove(self, file: Path) -> None:
        with self._explained():
            files.remove(file)

    def _put_back(self, file: Path, name: str) -> None:
        with self._explained(), contextlib.suppress(FileNotFoundError):
            os.rename(file, self.folder / name)

    # Waiting ------------------------------------------------------------------------------

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until a message waits, at most `timeout` seconds (None: for ever).

        Returns: True when one was there. Another consumer may win it, or it may prove
        unreadable, so `claim` can still find nothing: then wait again.
        """
        import asyncio  # here, since it takes 25 ms that `hoptell listen` does not need

        if (found := await asyncio.to_thread(self._anything)) or timeout == 0:
            return found
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        with Watch(self.folder, lambda: loop.call_soon_threadsafe(arrived.set)) as watch:
            for pause in watch.pauses(timeout):
                arrived.clear()
                if await asyncio.to_thread(self._anything):
                    return True
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await arrived.wait()
        return await asyncio.to_thread(self._anything)

    def wait_blocking(self, timeout: float | None = None) -> bool:
        """Wait as `wait` does, without an event loop."""
        if (found := self._anything()) or timeout == 0:
            return found
        arrived = threading.Event()
        with Watch(self.folder, arrived.set) as watch:
            for pause in watch.pauses(timeout):
                arrived.clear()
                if self._anything():
                    return True
                arrived.wait(pause)
        return self._anything()

    def _anything(self) -> bool:
        with self._explained():
            self._recover()
            return any(
                name.endswith(SUFFIX) and name not in self._immovable
                for name in files.names(self.folder)
            )

    # Coming back after a crash ------------------------------------------------------------

    def _recover(self) -> None:
        """Finish what dead processes began: their stores and their claims."""
        if any(True for _ in files.names(self._tmp)):
            try:
                with self._locked(wait=False) as held:  # else its holder does it
                    if held:
                        self._seen.refresh(self._largest_number)
                        self._finish_stores()
            except OSError as error:  # no reason to show nothing of what is there
                _log.warning("cannot finish what is in %s: %s", self._tmp, error.strerror)
        gone: dict[str, bool] = {str(processes.current()): False}
        for entry in list(files.names(self._claimed)):
            name, _, owner = entry.rpartition(".")
            if not name.endswith(SUFFIX) and name != departure.PREFIX:
                self._move_to_bad(self._claimed / entry, entry, "it is not a claimed message")
                continue
            if owner not in gone:
                gone[owner] = self._is_gone(owner, self._claimed / entry)
                if gone[owner]:
                    self._finish_departure(self._claimed / f"{departure.PREFIX}.{owner}")
            if gone[owner] and name != departure.PREFIX:
                self._put_back(self._claimed / entry, name)

    def _finish_departure(self, note: Path) -> None:
        for claimed, kept_as in departure.handed_over(note):
            if kept_as:
                self._put_back(self._claimed / claimed, kept_as)
            else:
                files.remove(self._claimed / claimed)
        files.remove(note)  # last: as long as it is there, whoever comes knows

    def _is_gone(self, owner: str, file: Path) -> bool:
        process = processes.parse(owner)
        alive = None if process is None else processes.is_alive(process)
        if alive is not None:
            return not alive
        try:
            claimed_at = os.lstat(file).st_ctime  # a rename sets it
        except FileNotFoundError:
            return False
        # Either way: a clock that was set back must not hide a message until it has caught up.
        return abs(time.time() - claimed_at) > UNKNOWN_CLAIM_TIMEOUT

    # Folders and the lock -----------------------------------------------------------------

    def _prepare(self, *, make: bool = True) -> None:
        """Make the folders, or check them again: somebody may have removed or replaced one.

        Without `make` an inbox that is not there is not made.
        """
        home, inboxes = self.folder.parent.parent, self.folder.parent.name
        files.private_folder(home, inboxes)
        if make or os.path.lexists(self.folder):
            for folder in (self.folder, self._tmp, self._claimed, self._bad):
                files.private_folder(folder)

    @contextlib.contextmanager
    def _locked(self, wait: bool = True) -> Iterator[bool]:
        """Hold the lock; True inside if it is held, False if it is not and `wait` is False.

        The kernel frees it when its holder dies, so no dead process can block another.
        """
        deadline = time.monotonic() + (LOCK_TIMEOUT if wait else 0)
        with self._storing_alone(LOCK_TIMEOUT if wait else 0) as alone:
            pause = 0.001
            while (handle := self._try_lock() if alone else None) is None:
                if time.monotonic() >= deadline:
                    if not wait:
                        yield False
                        return
                    raise InboxError(
                        f"another process has been storing into {self.folder} for"
                        f" {LOCK_TIMEOUT:.0f} s: if one of hoptell's processes is stopped,"
                        " continue or end it"
                    )
                time.sleep(pause)
                pause = min(pause * 2, 0.05)
            try:
                yield True
            finally:
                os.close(handle)

    @contextlib.contextmanager
    def _storing_alone(self, timeout: float) -> Iterator[bool]:
        # NFS takes two locks of one process for the same, and frees both with the first.
        alone = self._storing.acquire(timeout=timeout)
        try:
            yield alone
        finally:
            if alone:
                self._storing.release()

    def _try_lock(self) -> int | None:
        path = self.folder / "lock"
        handle = files.open_private(path, os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), os.lstat(path)):  # else it was replaced
                return handle
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        return None

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            problem = error.strerror or str(error)
            raise InboxError(f"cannot use the inbox {self.folder}: {problem}") from error


def settle(claims: Sequence[Claim], ends: Sequence[int]) -> None:
    """Say of the first claims up to which character their text was handed over, and put back
    the others (`render.Batch.ends`).

    Raises:
        InboxError: of one of them, after all the others were settled.
    """
    moves = [
        functools.partial(claim.keep_from, end) for claim, end in zip(claims, ends, strict=False)
    ]
    _do_all([*moves, *(claim.release for claim in claims[len(ends) :])])


def release(claims: Iterable[Claim]) -> None:
    """Put back every one of `claims` that was not settled.

    Raises:
        InboxError: of one of them, after all the others were put back.
    """
    _do_all(claim.release for claim in claims)


def restore(claims: Iterable[Claim]) -> None:
    """Put back every one of `claims` as it was claimed: it did not get to anybody.

    Raises:
        InboxError: of one of them, after all the others were put back.
    """
    _do_all(claim.restore for claim in claims)


def _do_all(steps: Iterable[Callable[[], None]]) -> None:
    problem = None
    for step in steps:
        try:
            step()
        except InboxError as error:
            problem = error
    if problem is not None:
        raise problem
