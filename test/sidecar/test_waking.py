"""Which way a session is woken: found out, proven, said; and what is announced through it."""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from support.fake_claude import FakeClaude

from hoptell.errors import HoptellError
from hoptell.sidecar import registry as registry_module
from hoptell.sidecar import waking as waking_module
from hoptell.sidecar.claude import NotListening
from hoptell.sidecar.codex import NotWoken
from hoptell.sidecar.wake import Announcer, Notice, Sender
from hoptell.sidecar.waking import Waking

NOTICE = Notice(1, (Sender("alice", "laptop"),))
LISTEN = "/abs/python -m hoptell listen me"
THREAD = {"threadId": "01a22cb7-cd7a-7be0-a49d-b8c225fbee9c"}
linux = pytest.mark.skipif(sys.platform != "linux", reason="the fake parent renames itself")


class Recorder:
    """Stands for the channel, which needs the client's wire."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []

    async def announce(self, notice: Notice) -> None:
        self.notices.append(notice)


class Around:
    """What a session finds around it: nothing, unless a test says otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
        self.home = home
        self.channel = Recorder()
        self.unread = True
        self.changes = 0
        self._monkeypatch = monkeypatch
        self.has(channel=False, codex=False)
        monkeypatch.setattr(registry_module, "claude_code", lambda: None)
        monkeypatch.setattr(waking_module, "HOOK_WAIT", 0.02)

    def has(self, *, channel: bool = False, codex: bool = False) -> None:
        self._monkeypatch.setattr(waking_module, "_has_channel", lambda: channel)
        self._monkeypatch.setattr(waking_module, "_is_codex", lambda: codex)

    def is_run_by(self, claude: FakeClaude) -> None:
        process = claude.process
        self._monkeypatch.setattr(registry_module, "claude_code", lambda: process)

    def waking(self, push: str | None = None) -> Waking:
        return Waking(
            push, self.home, self.channel, name="me",
            listen_command=LISTEN, unread=lambda: self.unread, on_change=self._changed,
        )  # fmt: skip

    def _changed(self) -> None:
        self.changes += 1


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch) -> Iterator[Around]:
    with tempfile.TemporaryDirectory(prefix="ht-") as folder:
        yield Around(monkeypatch, Path(folder))


@pytest.fixture
async def claude(around: Around) -> AsyncIterator[FakeClaude]:
    async with FakeClaude(around.home) as claude:
        around.is_run_by(claude)
        yield claude


async def test_where_nothing_is_found_the_listener_is_asked_for(around: Around) -> None:
    async with around.waking() as waking:
        assert (waking.mode, waking.proven, waking.shown) == ("listener", False, "listener")
        assert waking.sentence().endswith(LISTEN)
        await waking.announce(NOTICE)


@linux
async def test_a_hook_that_came_in_time_is_the_way_before_all_others(
    around: Around, claude: FakeClaude
) -> None:
    around.has(channel=True, codex=True)
    hook = await claude.hook("SessionStart")
    waking_module.HOOK_WAIT = 5.0
    async with around.waking() as waking, asyncio.timeout(5):
        assert (waking.mode, waking.proven, waking.shown) == ("hook", True, "hook")
        assert not waking.has_channel
        assert "proven" in waking.sentence() and "not proven" not in waking.sentence()
        await waking.announce(NOTICE)
        assert await claude.end_of(hook) == (2, f"{NOTICE}\n")
    assert around.channel.notices == []


@linux
async def test_claude_code_without_a_hook_gets_the_listener_until_a_hook_comes(
    around: Around, claude: FakeClaude
) -> None:
    async with around.waking() as waking, asyncio.timeout(5):
        assert (waking.mode, waking.shown) == ("listener", "listener")
        with pytest.raises(NotListening):
            await waking.announce(NOTICE)
        hook = await claude.hook()
        while not around.changes:
            await asyncio.sleep(0.01)
        assert (waking.mode, waking.proven, waking.shown) == ("hook", True, "hook")
        await waking.announce(NOTICE)
        assert (await claude.end_of(hook))[0] == 2


@linux
async def test_what_could_not_be_announced_is_announced_as_soon_as_a_hook_comes(
    around: Around, claude: FakeClaude
) -> None:
    async def waiting() -> Notice:
        return NOTICE

    async with asyncio.timeout(5):
        waking = Waking(
            None, around.home, around.channel, name="me",
            listen_command=LISTEN, unread=lambda: True, on_change=lambda: announcer.retry(),
        )  # fmt: skip
        announcer = Announcer(waking, waiting)
        async with waking:
            running = asyncio.create_task(announcer.run())
            announcer.arrived("one")
            await asyncio.sleep(0.3)  # long enough for the first attempt, which fails
            assert await claude.end_of(await claude.hook()) == (2, f"{NOTICE}\n")
            running.cancel()


async def test_channels_are_the_way_where_claude_code_has_them_and_no_hook(around: Around) -> None:
    around.has(channel=True, codex=True)
    async with around.waking() as waking:
        assert (waking.mode, waking.proven, waking.shown) == ("channel", True, "channel")
        assert waking.has_channel
        await waking.announce(NOTICE)
    assert around.channel.notices == [NOTICE]


async def test_beside_codex_the_first_tool_call_proves_the_way(around: Around) -> None:
    around.has(codex=True)
    async with around.waking() as waking:
        assert (waking.mode, waking.proven, waking.shown) == ("codex", False, "poll")
        assert "not proven" in waking.sentence()
        with pytest.raises(NotWoken):
            await waking.announce(NOTICE)
        waking.learn(THREAD)
        assert (waking.mode, waking.proven, waking.shown) == ("codex", True, "codex")
        assert around.changes == 1
        assert waking.hint() is None


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"connected": True, "problem": None}, "typed into this terminal"),
        ({"connected": False, "problem": "no relay answers"}, "not online: no relay answers"),
        ({"pid": 0x7FFFFFFF, "connected": True}, "no 'hoptell tmux' runs for you"),
        ({"ended_at": 1.0, "connected": True}, "no 'hoptell tmux' runs for you"),
        (None, "'hoptell tmux me -- COMMAND'"),
        ("broken", "no 'hoptell tmux' runs for you"),
    ],
)
async def test_in_tmux_it_says_whether_somebody_types(
    around: Around, status: object, said: str
) -> None:
    folder = around.home / "tmux" / "me"
    folder.mkdir(parents=True)
    if isinstance(status, dict):
        status = {"pid": os.getpid(), "ended_at": None} | status
    if status is not None:
        (folder / "status.json").write_text(json.dumps(status))
    async with around.waking("tmux") as waking:
        assert said in waking.sentence()


async def test_a_thread_id_beside_another_agent_proves_nothing(around: Around) -> None:
    async with around.waking() as waking:
        waking.learn(THREAD)
        assert waking.mode == "listener"


async def test_a_codex_that_did_not_wake_is_told_of_the_listener_at_its_next_call(
    around: Around, monkeypatch: pytest.MonkeyPatch
) -> None:
    around.has(codex=True)
    async with around.waking() as waking:
        waking.learn(THREAD)
        assert waking._codex is not None
        monkeypatch.setattr(waking._codex, "_stalled", True)
        hint = waking.hint()
        assert hint is not None and "read_inbox" in hint and LISTEN in hint
        assert (waking.proven, waking.shown, waking.sentence()) == (False, "poll", hint)
        around.unread = False
        assert waking.hint() is None and waking.shown == "codex"


@pytest.mark.parametrize(
    ("push", "shown"),
    [("hook", "poll"), ("channel", "channel"), ("codex", "poll"), ("tmux", "tmux"),
     ("listener", "listener"), ("poll", "poll")],
)  # fmt: skip
async def test_a_way_that_was_set_is_used_whatever_is_found_but_shown_only_if_it_works(
    around: Around, push: str, shown: str
) -> None:
    around.has(channel=push != "channel", codex=push != "codex")
    async with around.waking(push) as waking:
        assert (waking.mode, waking.proven, waking.shown) == (push, False, shown)
        assert waking.has_channel is (push == "channel")
        assert waking.sentence()


async def test_a_hook_that_was_set_where_there_is_no_claude_code_was_not_announced(
    around: Around,
) -> None:
    async with around.waking("hook") as waking:
        with pytest.raises(HoptellError, match="no Claude Code runs it"):
            await waking.announce(NOTICE)


@linux
async def test_a_state_folder_that_cannot_be_used_costs_the_hook_and_nothing_else(
    around: Around, claude: FakeClaude
) -> None:
    around.home = around.home / "file"
    around.home.write_text("")
    async with around.waking() as waking:
        assert waking.mode == "listener"
        await waking.announce(NOTICE)
