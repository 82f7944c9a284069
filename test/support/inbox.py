"""Messages for inbox tests, and processes that store, claim and die at a chosen step.

Run as a script it is such a process:

    python inbox.py store HOME NAME ID…            stores; prints `stored` or `seen` for each
    python inbox.py claim HOME NAME                claims one by one, prints the ids, removes
    python inbox.py hold HOME NAME COUNT           claims, prints the ids, holds them
    python inbox.py lock HOME NAME                 holds the lock
    python inbox.py crash HOME NAME WORK      see `_crash_at_every_step`
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hoptell import departure, files, inbox_files, seen
from hoptell import inbox as inbox_module
from hoptell.frames import Message
from hoptell.inbox import Claim, Inbox, release, restore, settle

NAME = "alice"
NOW = 1_796_000_000_000


def message(identity: str = "delivery-1", text: str = "hello", **fields: Any) -> Message:
    """A delivery as a relay sends it, with `identity` as its id."""
    given: dict[str, Any] = {
        "id": identity,
        "message_id": f"reference-of-{identity}",
        "sender": "bob",
        "host": "laptop",
        "to": NAME,
        "text": text,
        "ts": NOW,
    }
    return Message(**{**given, **fields})


def made(home: Path) -> Inbox:
    """An inbox whose folder is there, as after a first message."""
    inbox = Inbox(home, NAME)
    inbox._prepare()
    return inbox


def ids(inbox: Inbox, *, remove: bool = False) -> list[str]:
    """The ids of all messages that wait, oldest first; they stay unless `remove`."""
    claims = inbox.claim()
    found = [claim.message.id for claim in claims]
    if remove:
        for claim in claims:
            claim.remove()
    release(claims)
    return found


@contextlib.contextmanager
def process(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """One of the processes above, killed at the end if it still runs."""
    child = subprocess.Popen(
        [sys.executable, __file__, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with child:
            yield child
            child.kill()
    finally:
        child.kill()


def run(*arguments: object) -> list[str]:
    """Run one of the processes above to its end; the lines that it printed."""
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    return done.stdout.split()


class DyingOs:
    """`os`, but the process is killed with SIGKILL in the middle of the step-th call.

    Of a write half is done; every other call is not done at all.
    """

    COUNTED = frozenset(
        {"open", "write", "pwrite", "fsync", "rename", "unlink", "mkdir", "ftruncate", "close"}
    )

    def __init__(self, last_step: int) -> None:
        self.steps = 0
        self._last_step = last_step

    def __getattr__(self, name: str) -> Any:
        call = getattr(os, name)
        if name not in self.COUNTED:
            return call

        def step(*arguments: Any, **options: Any) -> Any:
            self.steps += 1
            if self.steps == self._last_step:
                if name in ("write", "pwrite"):
                    handle, data, *rest = arguments
                    call(handle, data[: len(data) // 2], *rest)
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return step


def _crash_at_every_step(home: Path, name: str, work: str) -> None:
    """Do the same work in HOME/1, HOME/2 …, killed at the first, second … step, till it is done.

    STORE stores `delivery-2` beside `delivery-1`. SETTLE claims both, writes the file `shown`,
    removes the first and keeps the second from its second character. RESTORE does so, and then
    takes both back. LEAVE does as SETTLE, but notes what it hands over, and with the file `left`
    has done so.
    """
    for step in range(1, 1_000):
        folder = home / str(step)
        Inbox(folder, name).store(message("delivery-1"))
        if work != "STORE":
            Inbox(folder, name).store(message("delivery-2"))
        child = os.fork()
        if child == 0:
            dying = DyingOs(step)
            for module in (inbox_module, files, seen, inbox_files, departure):
                module.os = dying  # type: ignore[attr-defined]
            inbox = Inbox(folder, name)
            if work == "STORE":
                inbox.store(message("delivery-2"))
            else:
                claims = inbox.claim()
                note = inbox.departure()
                ends = [len(claims[0].message.text), 1]
                if work == "LEAVE":
                    note.prepare(map(Claim.move, claims, ends))
                (folder / "shown").touch()
                if work == "LEAVE":
                    note.begin()
                    (folder / "left").touch()
                settle(claims, ends)
                if work == "LEAVE":
                    note.end()
                if work == "RESTORE":
                    restore(claims)
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            print(step - 1)
            return
    raise SystemExit("it never ended")


def main() -> None:
    action, home, name, *rest = sys.argv[1:]
    if action == "crash":
        _crash_at_every_step(Path(home), name, rest[0])
        return
    inbox = Inbox(Path(home), name)
    if action == "store":
        for identity in rest:
            print("stored" if inbox.store(message(identity)) else "seen", flush=True)
    elif action == "claim":
        while claims := inbox.claim(1):
            print(claims[0].message.id, flush=True)
            claims[0].remove()
    elif action == "hold":
        print(*[claim.message.id for claim in inbox.claim(int(rest[0]))], flush=True)
        signal.pause()
    elif action == "lock":
        with inbox._locked():
            print("locked", flush=True)
            signal.pause()


if __name__ == "__main__":
    main()
