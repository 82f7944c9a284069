"""The moment in which messages leave a process, known even if the process dies in it.

Run as a script it is such a process: `python test_departure.py HOME STEP` hands messages over
as far as STEP, and kills itself.
"""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.inbox import ids, message

from hoptell.inbox import Claim, Inbox, settle

NAME = "alice"


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    inbox = Inbox(tmp_path, NAME)
    inbox.store(message("1", "short"))
    inbox.store(message("2", "long"))
    inbox.store(message("3", "unread"))
    return inbox


ENDS = [5, 2]


def hand_over(home: Path, until: str) -> None:
    """Hand the first message over, and half of the second, as far as `until`."""
    inbox = Inbox(home, NAME)
    departure = inbox.departure()
    if until == "nonsense":
        outside = f"{home}/precious"
        departure.prepare([("../../../precious", ""), (outside, ""), ("no such file", "")])
        departure.begin()
    if until in ("opened", "nonsense"):
        return
    claims = inbox.claim(2)
    departure.prepare(map(Claim.move, claims, ENDS))
    if until == "prepared":
        return
    departure.begin()
    if until == "half settled":
        claims[0].keep_from(ENDS[0])
    elif until == "settled":
        settle(claims, ENDS)
    elif until == "not written":
        departure.end()
    else:
        assert until == "begun"


def killed(home: Path, until: str) -> None:
    """Do so in a process that is killed then."""
    done = subprocess.run([sys.executable, __file__, str(home), until])
    assert done.returncode == -signal.SIGKILL


def left(inbox: Inbox) -> list[tuple[str, int, int]]:
    claims = inbox.claim()
    found = [(claim.message.id, claim.offset, claim.parts) for claim in claims]
    for claim in claims:
        claim.release()
    return found


@pytest.mark.parametrize("until", ["prepared", "not written"])
def test_before_the_last_byte_everything_returns(inbox: Inbox, tmp_path: Path, until: str) -> None:
    killed(tmp_path, until)
    assert left(inbox) == [("1", 0, 0), ("2", 0, 0), ("3", 0, 0)]


@pytest.mark.parametrize("until", ["begun", "half settled", "settled"])
def test_from_the_last_byte_on_it_counts_as_handed_over(
    inbox: Inbox, tmp_path: Path, until: str
) -> None:
    killed(tmp_path, until)
    assert left(inbox) == [("2", 2, 1), ("3", 0, 0)]


def test_the_note_of_a_dead_process_goes_and_that_of_a_live_one_stays(
    inbox: Inbox, tmp_path: Path
) -> None:
    killed(tmp_path, "begun")
    mine = inbox.departure()
    mine.prepare([])
    assert ids(inbox) == ["2", "3"]
    assert len(list((inbox.folder / "claimed").iterdir())) == 1
    mine.end()


def test_a_note_without_claims_goes_too(inbox: Inbox, tmp_path: Path) -> None:
    killed(tmp_path, "opened")
    assert ids(inbox) == ["1", "2", "3"]
    assert list((inbox.folder / "claimed").iterdir()) == []


def test_a_process_hands_over_one_batch_after_the_other(inbox: Inbox) -> None:
    departure = inbox.departure()
    for identity in ("1", "2", "3"):
        claims = inbox.claim(1)
        ends = [len(claim.message.text) for claim in claims]
        assert claims[0].message.id == identity
        departure.prepare(map(Claim.move, claims, ends))
        departure.begin()
        settle(claims, ends)
        departure.end()
    assert inbox.waiting().count == 0


def test_a_note_is_there_only_while_something_is_handed_over(inbox: Inbox) -> None:
    departure = inbox.departure()
    assert list((inbox.folder / "claimed").iterdir()) == []
    departure.prepare([])
    departure.begin()
    assert len(list((inbox.folder / "claimed").iterdir())) == 1
    departure.end()
    assert list((inbox.folder / "claimed").iterdir()) == []


@pytest.mark.parametrize("call", ["open", "write"])
def test_on_a_full_disk_messages_are_handed_over_without_a_note(
    inbox: Inbox, call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    claims = inbox.claim(2)
    departure = inbox.departure()
    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        departure.prepare(map(Claim.move, claims, ENDS))
    assert "No space left" in caplog.text
    departure.begin()
    settle(claims, ENDS)
    departure.end()
    assert left(inbox) == [("2", 2, 1), ("3", 0, 0)]
    assert list((inbox.folder / "claimed").iterdir()) == []


def test_a_note_that_makes_no_sense_touches_nothing(inbox: Inbox, tmp_path: Path) -> None:
    outside = tmp_path / "precious"
    outside.touch()

    killed(tmp_path, "nonsense")
    assert ids(inbox) == ["1", "2", "3"]
    assert outside.exists()


if __name__ == "__main__":
    hand_over(Path(sys.argv[1]), sys.argv[2])
    os.kill(os.getpid(), signal.SIGKILL)
