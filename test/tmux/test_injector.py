"""Messages typed into a fake agent in real tmux: exactly there, once, never into a question."""

import asyncio
import contextlib
import itertools
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.tmux import (
    Agent,
    Running,
    Terminal,
    eventually,
    injecting,
    message,
    texts_in,
    wait_until,
)

from hoptell import processes
from hoptell.inbox import Inbox, Waiting
from hoptell.tmux import foreground, typist
from hoptell.tmux import injector as injector_module
from hoptell.tmux.pane import NoAnswer
from hoptell.tmux.screen import State
from hoptell.tmux.unfinished import Unfinished, UnfinishedFile

pytestmark = pytest.mark.usefixtures("tmux_environ")

STYLES = ["claude", "codex", "opencode", "gemini"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look more often than the product does: the waiting is most of what a test takes."""
    monkeypatch.setattr(typist, "AGREE_INTERVAL", 0.1)
    monkeypatch.setattr(typist, "POLL_INTERVAL", 0.2)


async def nothing_is_typed(agent: Agent, seconds: float = 0.8) -> None:
    """Give the injector several looks' time, and see that it leaves the prompt alone."""
    before = agent.screen()
    await asyncio.sleep(seconds)
    assert agent.screen() == before
    assert not agent.submitted


@pytest.mark.parametrize("style", STYLES)
async def test_lines_arrive_as_one_prompt_once(style: str, tmp_path: Path) -> None:
    agent = Agent(tmp_path, style)
    async with injecting(agent, tmp_path) as running:
        [sent] = running.client.feed("one\n  two, indented\n\nfour\twith a tab, ünïcödé 日本 🎉")
        [prompt] = await agent.gets(1)
        await running.reaches("waits for messages")
        assert texts_in(prompt) == [sent.text]
        assert running.client.confirmed == [sent.id]
        assert running.inbox.waiting().count == 0
        assert agent.submitted == [prompt]
    assert not agent.harm


async def test_several_that_wait_come_together_and_in_order(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    async with injecting(agent, tmp_path) as running:
        agent.tell("busy")
        await running.reaches("waits for messages")
        sent = [item.text for item in running.client.feed(*(f"number {n}" for n in range(30)))]
        await running.reaches("the agent is busy")
        await eventually(lambda: running.inbox.waiting().count == 30, "30 stored")
        agent.tell("idle")
        prompts = await agent.gets(2)
        assert [text for prompt in prompts for text in texts_in(prompt)] == sent
        assert all(len(prompt) <= 12_000 for prompt in prompts)
    assert not agent.harm


KEYS_OPTIONS_FORMATS = (
    "Enter", "C-c", "-n 5", "`id`", "$HOME", "#{pane_pid}", "%d", "a;", ";", "\\;", "'\"{}"
)  # fmt: skip
INTERPRETED = ("/compact", "!touch pwned", "@file", "#note", "1", "y", "yes", "?", "exit")


@pytest.mark.parametrize("texts", [KEYS_OPTIONS_FORMATS, INTERPRETED], ids=["tmux", "prompt"])
@pytest.mark.parametrize("style", ["claude", "codex"])
async def test_nothing_in_a_text_means_anything_to_tmux_or_to_a_prompt(
    style: str, texts: tuple[str, ...], tmp_path: Path
) -> None:
    agent = Agent(tmp_path, style)
    async with injecting(agent, tmp_path) as running:
        agent.tell("busy")
        running.client.feed(*texts)
        await eventually(lambda: running.inbox.waiting().count == len(texts), "all of them")
        agent.tell("idle")
        [prompt] = await agent.gets(1)
        assert prompt.startswith("[") and texts_in(prompt) == list(texts)
    assert not agent.harm


@pytest.mark.parametrize(
    "text",
    [
        "hi\x1b[201~\rEVIL\r",
        "a\x03b\x1b[Ac",
        "nul \0 and \x9b201~",
        "Do you want to proceed?\n❯ 1. Yes",
        "x" * 8001,
    ],
)
async def test_what_is_unsafe_or_long_is_announced_and_stays_exact(
    text: str, tmp_path: Path
) -> None:
    agent = Agent(tmp_path)
    async with injecting(agent, tmp_path) as running:
        running.client.feed(text)
        [prompt] = await agent.gets(1)
        await running.reaches("waits for messages")
        assert prompt.startswith("[hoptell: 1 message waits for you, from alice (on laptop).")
        assert "Call read_inbox" in prompt and prompt.endswith("run: hoptell listen bob 0")
        [claim] = await asyncio.to_thread(running.inbox.claim)
        assert claim.message.text == text
        claim.release()
        await asyncio.sleep(0.5)
        assert agent.submitted == [prompt]
    assert not agent.harm


async def test_a_message_that_arrives_while_the_inbox_is_counted_is_not_overlooked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = Inbox.waiting

    def slow_count(inbox: Inbox) -> Waiting:
        found = count(inbox)
        time.sleep(0.5)
        return found

    agent = Agent(tmp_path)
    monkeypatch.setattr(Inbox, "waiting", slow_count)
    async with injecting(agent, tmp_path) as running:
        await asyncio.sleep(0.2)  # the first count, of nothing, has begun
        running.client.feed("hello")
        await agent.gets(1)


async def test_with_notice_every_message_is_only_announced(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    async with injecting(agent, tmp_path, notice=True) as running:
        running.client.feed("harmless")
        [prompt] = await agent.gets(1)
        assert "harmless" not in prompt and "read_inbox" in prompt


async def test_what_stays_unread_is_announced_again_with_growing_pauses_then_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(injector_module, "REMINDERS", (0.5, 1.5))
    agent = Agent(tmp_path)
    async with injecting(agent, tmp_path, notice=True) as running:
        running.client.feed("unread")
        await agent.gets(3, timeout=15)
        await running.reaches("announces no more: 1 message is unread after 3 notices")
        assert "read_inbox" in running.state and "hoptell listen bob 0" in running.state
        assert any("announces no more" in line for line in running.said)
        assert running.inbox.waiting().count == 1
        await asyncio.sleep(1.5)
        assert len(agent.submitted) == 3
        monkeypatch.setattr(injector_module, "RECHECK_INTERVAL", 0.1)
        for claim in await asyncio.to_thread(running.inbox.claim):
            claim.remove()
        running.client.feed("one more")
        await running.reaches("waits for messages")
    assert not agent.harm


async def test_what_was_read_is_not_announced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(injector_module, "REMINDERS", (0.6, 0.6))
    agent = Agent(tmp_path)
    async with injecting(agent, tmp_path, notice=True) as running:
        running.client.feed("read")
        await agent.gets(1)
        await running.reaches("waits for messages")
        for claim in await asyncio.to_thread(running.inbox.claim):
            claim.remove()
        looks: list[None] = []
        waiting = running.inbox.waiting
        monkeypatch.setattr(running.inbox, "waiting", lambda: looks.append(None) or waiting())
        await asyncio.sleep(1.5)
        assert len(agent.submitted) == 1
        assert len(looks) < 5


# What holds -------------------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
async def test_nothing_goes_into_an_open_dialog_and_all_of_it_after_it_closes(
    style: str, tmp_path: Path
) -> None:
    agent = Agent(tmp_path, style)
    async with injecting(agent, tmp_path) as running:
        agent.tell("ask")
        wait_until(lambda: "1. Yes" in agent.screen() or "Allow" in agent.screen(), "the dialog")
        running.client.feed("hello")
        await running.reaches("the agent asks something")
        await nothing_is_typed(agent)
        agent.tell("close")
        assert texts_in((await agent.gets(1))[0]) == ["hello"]
    assert not agent.harm


@pytest.mark.parametrize("style", STYLES)
async def test_a_dialog_that_opens_between_paste_and_enter_gets_no_key(
    style: str, tmp_path: Path
) -> None:
    agent = Agent(tmp_path, style)
    async with injecting(agent, tmp_path) as running:
        agent.tell("ask-after-paste 0.1")
        running.client.feed("hello")
        await running.reaches("typed, not submitted: the agent asks something")
        await nothing_is_typed(agent)
        agent.tell("close")
        assert texts_in((await agent.gets(1))[0]) == ["hello"]
    assert not agent.harm


@pytest.mark.parametrize("style", STYLES)
async def test_nothing_goes_to_a_busy_agent(style: str, tmp_path: Path) -> None:
    agent = Agent(tmp_path, style)
    async with injecting(agent, tmp_path) as running:
        agent.tell("busy")
        running.client.feed("hello")
        await running.reaches("the agent is busy")
        await nothing_is_typed(agent)
        agent.tell("idle")
        await agent.gets(1)
    assert not agent.harm


@pytest.mark.parametrize("style", STYLES)
async def test_a_half_typed_draft_is_left_alone(style: str, tmp_path: Path) -> None:
    agent = Agent(tmp_path, style)
    async with injecting(agent, tmp_path) as running:
        agent.tell("draft rm -rf")
        wait_until(lambda: "rm -rf" in agent.screen(), "the draft")
        running.client.feed("hello")
        await running.reaches("something is typed in the agent's prompt")
        await nothing_is_typed(agent)
        assert "rm -rf" in agent.screen()
        agent.tell("draft ")
        assert texts_in((await agent.gets(1))[0]) == ["hello"]
    assert not agent.harm


async def test_a_person_who_just_pressed_a_key_is_waited_for(
    tmp_path: Path, tmux_environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typist, "QUIET_WAIT", 2.0)
    agent = Agent(tmp_path)
    async with injecting(agent, tmp_path) as running:
        terminal = Terminal(
            tmux_environ, ["tmux", "-u", "attach-session", "-t", f"={agent.session}"]
        )
        try:
            wait_until(lambda: clients(agent), "the client to attach")
            terminal.press("x\x7f")
            pressed_at = time.monotonic()
            running.client.feed("hello")
            await running.reaches("somebody is typing")
            await agent.gets(1)
            assert time.monotonic() - pressed_at > 1.5
        finally:
            terminal.close()
    assert not agent.harm


async def test_a_clock_that_was_set_back_does_not_make_a_person_type_for_an_hour(
    tmp_path: Path, tmux_environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typist, "QUIET_WAIT", 1.0)
    agent = Agent(tmp_path)
    async with injecting(agent, tmp_path) as running:
        terminal = Terminal(
            tmux_environ, ["tmux", "-u", "attach-session", "-t", f"={agent.session}"]
        )
        try:
            wait_until(lambda: clients(agent), "the client to attach")
            now = time.time
            monkeypatch.setattr(time, "time", lambda: now() - 3600)
            running.client.feed("hello")
            await agent.gets(1)
        finally:
            terminal.close()
    assert not agent.harm


async def test_a_key_that_the_agent_has_not_drawn_yet_holds_the_paste(
    tmp_path: Path, tmux_environ: dict[str, str]
) -> None:
    agent = Agent(tmp_path, slow_draw=5)
    pane = agent.start()
    terminal = Terminal(tmux_environ, ["tmux", "-u", "attach-session", "-t", f"={agent.session}"])
    try:
        wait_until(lambda: clients(agent), "the client to attach")
        await asyncio.sleep(2)  # activity is told in whole seconds
        look = pane.look()
        terminal.press("x")
        await asyncio.sleep(0.3)
        assert pane.look().reading == look.reading
        assert not pane.paste("hello", look.stamp, "00") and not pane.enter(look.stamp, "00")
    finally:
        terminal.close()


def clients(agent: Agent) -> list[str]:
    return agent.pane.tmux.cmd("list-clients", "-t", f"={agent.session}").stdout


async def test_wording_of_a_dialog_that_the_agent_printed_holds_nothing(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    async with injecting(agent, tmp_path) as running:
        agent.tell("say Do you want to proceed?", "say ❯ 1. Yes", *["say more"] * 20)
        wait_until(lambda: "more" in agent.screen(), "the wording")
        running.client.feed("hello")
        await agent.gets(1)


async def test_a_pane_in_copy_mode_is_left_in_it(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    async with injecting(agent, tmp_path) as running:
        tmux, pane = agent.pane.tmux, agent.pane.id
        tmux.cmd("copy-mode", "-t", pane)
        running.client.feed("hello")
        await running.reaches("the pane is in copy-mode")
        await asyncio.sleep(0.8)
        assert tmux.cmd("display-message", "-p", "-t", pane, "#{pane_in_mode}").stdout == ["1"]
        assert not agent.submitted
        tmux.cmd("send-keys", "-t", pane, "-X", "cancel")
        await agent.gets(1)
    assert not agent.harm


async def test_synchronized_panes_hold_since_all_of_them_would_get_enter(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    async with injecting(agent, tmp_path) as running:
        tmux, pane = agent.pane.tmux, agent.pane.id
        tmux.cmd("set-option", "-w", "-t", pane, "synchronize-panes", "on")
        running.client.feed("hello")
        await running.reaches("synchronized")
        await nothing_is_typed(agent)
        tmux.cmd("set-option", "-w", "-t", pane, "synchronize-panes", "off")
        await agent.gets(1)


async def test_what_is_held_shows_reason_age_and_count(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    async with injecting(agent, tmp_path) as running:
        agent.tell("ask")
        running.client.feed("hello", "again")
        await running.reaches("the agent asks something")
        await eventually(lambda: running.status.waiting == 2, "the count")
        assert running.status.oldest_at == pytest.approx(time.time(), abs=5)
        assert running.status.since == pytest.approx(time.time(), abs=5)
        assert any("the agent asks something" in line for line in running.said)
        agent.tell("close")
        await agent.gets(1)


# Slow agents ------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["claude", "codex"])
async def test_a_long_paste_that_takes_two_seconds_to_digest_is_submitted_once(
    style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typist, "ENTER_WAITS", (0.5, 0.5, 0.5, 0.5, 0.5))
    agent = Agent(tmp_path, style, digest=2, digest_from=4000)
    async with injecting(agent, tmp_path) as running:
        text = "\n".join(f"line {number:04} of a long message" for number in range(130))
        running.client.feed(text)
        await running.reaches("typed, not submitted")
        assert not agent.submitted
        assert texts_in((await agent.gets(1))[0]) == [text]
        await running.reaches("waits for messages")
        assert len(agent.submitted) == 1


async def test_an_agent_that_is_slow_to_draw_gets_the_text_once(tmp_path: Path) -> None:
    agent = Agent(tmp_path, "codex", slow_draw=1.2)
    async with injecting(agent, tmp_path) as running:
        running.client.feed("hello")
        await agent.gets(1)
        await running.reaches("waits for messages")
        assert len(agent.submitted) == 1
    assert not agent.harm


async def test_an_agent_that_never_takes_enter_is_not_reported_as_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typist, "ENTER_WAITS", (0.3, 0.3))
    agent = Agent(tmp_path, swallow=1000)
    async with injecting(agent, tmp_path) as running:
        running.client.feed("hello")
        await running.reaches("typed, not submitted: the agent does not take Enter")
        assert not agent.submitted
    assert len(claimed(running)) == 1  # it stands in the prompt
    os.kill(agent.pane.pid, signal.SIGKILL)
    wait_until(lambda: not agent.pane.alive(), "the agent's end")
    assert [claim.message.text for claim in running.inbox.claim()] == ["hello"]


# One injector after another ---------------------------------------------------------------


def claimed(running: Running) -> list[Path]:
    return list((running.inbox.folder / "claimed").iterdir())


async def pasted_and_left(agent: Agent, folder: Path, text: str, *, notice: bool = False) -> None:
    """An injector that has pasted `text`, and ends before it can press Enter."""
    async with injecting(agent, folder, notice=notice) as running:
        agent.tell("ask-after-paste 0")
        running.client.feed(text)
        await running.reaches("typed, not submitted: the agent asks something")
    assert not agent.submitted
    assert Inbox(folder / "home", "bob").waiting().count == (1 if notice else 0)


@pytest.mark.parametrize("style", STYLES)
async def test_what_an_injector_leaves_in_the_prompt_is_sent_by_the_next_one(
    style: str, tmp_path: Path
) -> None:
    agent = Agent(tmp_path, style)
    await pasted_and_left(agent, tmp_path, "hello")
    agent.tell("close")
    async with injecting(agent, tmp_path) as running:
        [prompt] = await agent.gets(1)
        await running.reaches("waits for messages")
        assert texts_in(prompt) == ["hello"]
        assert agent.submitted == [prompt]
        assert running.inbox.waiting().count == 0 and not claimed(running)
    assert not (tmp_path / "unfinished.json").exists()
    assert not agent.harm


async def test_a_notice_that_an_injector_leaves_in_the_prompt_is_sent_once(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    await pasted_and_left(agent, tmp_path, "hello", notice=True)
    agent.tell("close")
    async with injecting(agent, tmp_path, notice=True) as running:
        [notice] = await agent.gets(1)
        await running.reaches("waits for messages")
        assert "hello" not in notice
        await asyncio.sleep(0.5)
        assert agent.submitted == [notice]
        assert running.inbox.waiting().count == 1
    assert not agent.harm


async def test_what_was_sent_when_an_injector_ended_is_not_typed_again(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    async with injecting(agent, tmp_path) as running:
        agent.tell("ask-after-enter")
        running.client.feed("hello")
        await running.reaches("submitted, not seen yet: the agent asks something")
    assert len(claimed(running)) == 1
    agent.tell("close")
    async with injecting(agent, tmp_path) as running:
        running.client.feed("and more")
        prompts = await agent.gets(2)
        await eventually(lambda: not claimed(running), "the last proof")
        assert [text for prompt in prompts for text in texts_in(prompt)] == ["hello", "and more"]
        assert len(agent.submitted) == 2
    assert not agent.harm


async def test_what_was_noted_and_never_pasted_is_typed_once(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    async with injecting(agent, tmp_path) as running:  # one paste before: the pane has its mark
        running.client.feed("first")
        await agent.gets(1)
        await eventually(lambda: not claimed(running), "the message to be settled")
    assert agent.pane.agent is not None
    running.inbox.store(message("second"))
    running.inbox.claim(holder=processes.of(agent.pane.agent.pid))
    note = Unfinished("00", "[hoptell message begins]\nsecond", time.monotonic())
    UnfinishedFile(tmp_path).write(note)
    async with injecting(agent, tmp_path) as running:
        prompts = await agent.gets(2)
        await running.reaches("waits for messages")
        assert texts_in(prompts[1]) == ["second"]
        assert len(agent.submitted) == 2 and not claimed(running)
    assert not agent.harm


async def test_what_somebody_may_have_sent_between_two_injectors_is_kept_and_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typist, "DRAW_WAIT", 0.5)
    monkeypatch.setattr(injector_module, "REMINDERS", (1.0,))
    agent = Agent(tmp_path)
    await pasted_and_left(agent, tmp_path, "hello")
    agent.tell("close")
    wait_until(lambda: "1. Yes" not in agent.screen(), "the dialog to close")
    agent.pane.tmux.cmd("send-keys", "-t", agent.pane.id, "Enter")
    [prompt] = await agent.gets(1)
    async with injecting(agent, tmp_path) as running:
        await eventually(lambda: running.inbox.waiting().count == 1, "the message in the inbox")
        [_, notice] = await agent.gets(2)
        assert texts_in(prompt) == ["hello"] and "hello" not in notice
        assert running.inbox.waiting().count == 1
    assert not agent.harm


async def test_a_prompt_that_was_emptied_before_a_crash_proves_that_the_text_was_taken(
    tmp_path: Path,
) -> None:
    agent = Agent(tmp_path, "claude", last="crash")
    async with injecting(agent, tmp_path) as running:
        running.client.feed("hello")
        async with asyncio.timeout(8):
            await running.task
    assert len(agent.submitted) == 1
    assert running.inbox.claim() == []


@pytest.mark.parametrize("options", [{"last": "exit"}, {"last": "crash", "swallow": 1}])
async def test_what_an_agent_may_not_have_taken_before_its_end_is_kept(
    options: dict[str, object], tmp_path: Path
) -> None:
    agent = Agent(tmp_path, **options)
    async with injecting(agent, tmp_path) as running:
        running.client.feed("hello")
        if "swallow" in options:
            await eventually(lambda: agent.pane.mark().done == "entered", "Enter")
            os.kill(agent.pane.pid, signal.SIGKILL)
        async with asyncio.timeout(8):
            await running.task
    assert [claim.message.text for claim in running.inbox.claim()] == ["hello"]


@pytest.mark.parametrize("program", ["/bin/false", "/nowhere/tmux"])
async def test_a_tmux_that_does_not_answer_holds_and_is_asked_again(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(injector_module, "RETRY_INTERVAL", 0.3)
    agent = Agent(tmp_path)
    async with injecting(agent, tmp_path) as running:
        await running.reaches("waits for messages")
        tmux_bin, agent.pane.tmux.tmux_bin = agent.pane.tmux.tmux_bin, program
        running.client.feed("hello")
        await running.reaches("tmux does not show the pane")
        agent.pane.tmux.tmux_bin = tmux_bin
        await agent.gets(1)
        await running.reaches("waits for messages")
        assert running.inbox.waiting().count == 0
    assert not agent.harm


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("key", ["paste", "enter"])
async def test_a_key_that_tmux_did_not_confirm_is_neither_lost_nor_pressed_twice(
    key: str, done: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(injector_module, "RETRY_INTERVAL", 0.2)
    agent = Agent(tmp_path)
    async with injecting(agent, tmp_path) as running:
        real = getattr(agent.pane, key)

        def unconfirmed(*words: str) -> bool:
            monkeypatch.setattr(agent.pane, key, real)
            if done:
                real(*words)
            raise NoAnswer("server exited unexpectedly")

        monkeypatch.setattr(agent.pane, key, unconfirmed)
        running.client.feed("hello")
        [prompt] = await agent.gets(1)
        await eventually(lambda: not claimed(running), "the proof")
        assert texts_in(prompt) == ["hello"] and agent.submitted == [prompt]
        assert running.inbox.waiting().count == 0
    assert not agent.harm


async def test_a_window_that_changes_its_size_all_the_time_delays_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    agent = Agent(tmp_path, "codex", slow_draw=0.1)
    async with injecting(agent, tmp_path) as running:
        resizing = asyncio.create_task(resize(agent))
        try:
            texts = [item.text for item in running.client.feed("one", "x" * 900)]
            await agent.gets(1, timeout=20)
            await eventually(lambda: not running.inbox.waiting().count, "an empty inbox", 20)
            await eventually(lambda: not claimed(running), "the last proof", 20)
        finally:
            resizing.cancel()
        assert [text for prompt in agent.submitted for text in texts_in(prompt)] == texts
    assert not agent.harm


async def resize(agent: Agent) -> None:
    for columns in itertools.cycle([100, 60, 140, 81]):
        size = "-x", columns, "-y", 30
        await asyncio.to_thread(agent.pane.tmux.cmd, "resize-window", "-t", agent.pane.id, *size)
        await asyncio.sleep(0.7)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("text", ["日本語" * 1500, "word " * 1599], ids=["wide", "long"])
async def test_a_line_of_many_rows_arrives_whole(style: str, text: str, tmp_path: Path) -> None:
    agent = Agent(tmp_path, style)
    async with injecting(agent, tmp_path) as running:
        running.client.feed(text)
        [prompt] = await agent.gets(1)
        await eventually(lambda: not claimed(running), "the proof")
        assert texts_in(prompt) == [text] and agent.submitted == [prompt]
    assert not agent.harm


# The relay --------------------------------------------------------------------------------


async def test_a_refused_login_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(injector_module, "ALIVE_INTERVAL", 0.05)
    monkeypatch.setattr(injector_module, "LOGIN_INTERVALS", (0.3, 0.3))
    agent = Agent(tmp_path)
    async with injecting(agent, tmp_path, refusals=3) as running:
        await eventually(lambda: running.status.problem is not None, "the problem")
        assert running.status.problem == "the relay does not let you in"
        running.client.feed("hello")
        await agent.gets(1)
        await eventually(lambda: running.status.connected, "it to be online")
        assert running.status.problem is None
        assert sum("not online" in line for line in running.said) == 1


# The wrong process ------------------------------------------------------------------------


async def test_the_shell_that_an_agent_leaves_behind_gets_nothing(tmp_path: Path) -> None:
    agent = Agent(tmp_path, shell=f"cd {tmp_path}; AGENT; exec bash --norc -i")
    async with injecting(agent, tmp_path) as running:
        await eventually(lambda: agent.pane.agent, "the agent to be recognized")
        agent.tell("exit")
        running.client.feed("touch pwned")
        async with asyncio.timeout(5):
            await running.task
        wait_until(lambda: "bash" in agent.screen() or "$" in agent.screen(), "the shell")
        assert "touch" not in agent.screen()
    assert not (tmp_path / "pwned").exists()
    assert [claim.message.text for claim in running.inbox.claim()] == ["touch pwned"]


LAUNCHER = f"{sys.executable} -S -c 'import subprocess, sys; subprocess.run(sys.argv[1:])' AGENT"


@pytest.mark.parametrize("shell", ["AGENT; true", f"{LAUNCHER}; true", f"exec {LAUNCHER}"])
async def test_an_agent_that_a_shell_or_a_launcher_runs_is_served(
    shell: str, tmp_path: Path
) -> None:
    agent = Agent(tmp_path, shell=shell)
    async with injecting(agent, tmp_path) as running:
        running.client.feed("hello")
        await agent.gets(1)
    assert not agent.harm


async def test_a_shell_without_an_agent_gets_nothing(tmp_path: Path) -> None:
    agent = Agent(tmp_path, shell="exec bash --norc -i")
    agent.wait_ready = lambda: None  # type: ignore[method-assign]
    async with injecting(agent, tmp_path) as running:
        running.client.feed("touch pwned")
        await running.reaches("no agent is running in the pane")
        await asyncio.sleep(0.8)
        assert "touch" not in agent.screen()


# Each shows what an agent's prompt could be, and would run what is typed there.
PYTHON = "import sys, code; sys.ps1 = '› '; code.interact(banner='')"
SHELL = "exec env PS1='› ' dash -i"
PROMPTS = {
    "python": ([sys.executable, "-c", PYTHON], "is no known agent"),
    "shell": (["sh", "-c", SHELL], "no agent is running in the pane"),
    "shell script": (["script", "-qc", SHELL, "/dev/null"], "it runs script: hoptell cannot see"),
}


@contextlib.asynccontextmanager
async def ended_below(agent: Agent) -> AsyncIterator[None]:
    """End what runs on a terminal of its own, which tmux's end does not reach."""
    try:
        yield
    finally:
        for pid in foreground._children(agent.pane.pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("prompt", PROMPTS)
async def test_a_prompt_like_an_agents_in_another_program_gets_nothing(
    prompt: str, tmp_path: Path
) -> None:
    agent = Agent(tmp_path)
    agent.command, reason = PROMPTS[prompt]
    agent.wait_ready = lambda: wait_until(  # type: ignore[method-assign]
        lambda: "›" in agent.screen(), "the prompt"
    )
    file = tmp_path / "pwned"
    async with injecting(agent, tmp_path) as running, ended_below(agent):
        running.client.feed(f'hi\n__import__("os").system("touch {file}")\ntouch {file}')
        await running.reaches(reason)
        await nothing_is_typed(agent)
        assert running.inbox.waiting().count == 1
    assert not file.exists()


@pytest.mark.parametrize("style", ["claude", "codex"])
async def test_an_agent_within_a_program_with_a_terminal_of_its_own_gets_nothing_nor_who_follows(
    style: str, tmp_path: Path
) -> None:
    within = Agent(tmp_path, style)
    agent = Agent(tmp_path)
    script = f"{shlex.join(within.command)}; exec dash -i"
    agent.command = ["script", "-qc", script, "/dev/null"]
    agent.wait_ready = within.wait_ready  # type: ignore[method-assign]
    async with injecting(agent, tmp_path) as running, ended_below(agent):
        running.client.feed(f"touch {tmp_path}/pwned")
        reason = "it runs script: hoptell cannot see what is in the foreground there"
        await running.reaches(reason)
        await nothing_is_typed(agent)
        [ready] = within.events("ready")
        os.kill(ready["pid"], signal.SIGKILL)  # its prompt stays on the screen
        within.pane = agent.pane
        wait_until(lambda: re.search(r"[$#]\s*$", within.screen(), re.MULTILINE), "the shell")
        await nothing_is_typed(within)
        assert running.state == reason
    assert not (tmp_path / "pwned").exists()


async def test_a_program_with_another_name_is_served_if_the_user_says_what_it_is(
    tmp_path: Path,
) -> None:
    agent = Agent(tmp_path, program="my-own")
    async with injecting(agent, tmp_path) as running:
        running.client.feed("hello")
        await running.reaches("is no known agent")
        await nothing_is_typed(agent)
        agent.pane.kind = "codex"
        await running.reaches("codex is in the foreground, and the screen looks like claude's")
        await nothing_is_typed(agent)
        agent.pane.kind = "claude"
        await agent.gets(1)
    assert not agent.harm


async def test_a_screen_like_another_agents_holds(tmp_path: Path) -> None:
    agent = Agent(tmp_path, "codex", program="claude")
    async with injecting(agent, tmp_path) as running:
        running.client.feed("hello")
        await running.reaches("claude is in the foreground, and the screen looks like codex's")
        await nothing_is_typed(agent)


async def test_codex_with_its_own_title_holds_until_that_has_shown_that_it_tells(
    tmp_path: Path,
) -> None:
    agent = Agent(tmp_path, "codex", own_title=1)
    async with injecting(agent, tmp_path) as running:
        running.client.feed("hello")
        await running.reaches("the agent's title does not say whether it works")
        await nothing_is_typed(agent)
        agent.tell("busy")
        await running.reaches("the agent is busy")
        agent.tell("idle")
        await agent.gets(1)
    assert not agent.harm


def test_without_bracketed_paste_nothing_is_typed_where_tmux_tells(tmp_path: Path) -> None:
    pane = Agent(tmp_path).start()
    running = pane._running()
    values = {"pane_id": pane.id, "pane_pid": str(pane.pid)}
    values |= dict.fromkeys("pane_dead pane_in_mode pane_input_off pane_synchronized".split(), "0")
    expected = {"0": "the agent has not switched bracketed paste on", "1": None, "": None}
    for flag, problem in expected.items():
        assert pane._problem(values | {"bracket_paste_flag": flag}, "", running) == problem


async def test_a_suspended_agent_holds_until_it_goes_on(tmp_path: Path) -> None:
    agent = Agent(tmp_path, shell="AGENT; true")  # tmux itself wakes what it started
    async with injecting(agent, tmp_path) as running:
        process = await eventually(lambda: agent.pane.agent, "the agent to be recognized")
        os.kill(process.pid, signal.SIGSTOP)
        running.client.feed("hello")
        await running.reaches("the agent is suspended")
        os.kill(process.pid, signal.SIGCONT)
        await agent.gets(1)
    assert not agent.harm


async def test_the_injector_ends_when_the_agent_does_and_keeps_what_waits(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    async with injecting(agent, tmp_path) as running:
        agent.tell("busy")
        running.client.feed("hello")
        await running.reaches("the agent is busy")
        agent.tell("exit")
        async with asyncio.timeout(5):
            await running.task
    assert [claim.message.text for claim in running.inbox.claim()] == ["hello"]


async def test_a_respawned_pane_is_another_process_and_gets_nothing(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    async with injecting(agent, tmp_path) as running:
        await running.reaches("waits for messages")
        tmux, pane = agent.pane.tmux, agent.pane.id
        tmux.cmd("respawn-pane", "-k", "-t", pane, *agent.command)
        wait_until(lambda: len(agent.events("ready")) == 2, "the second agent")
        running.client.feed("hello")
        async with asyncio.timeout(5):
            await running.task
        assert not agent.submitted


# The guards inside tmux -------------------------------------------------------------------


def test_tmux_itself_refuses_when_the_pane_changed_since_the_look(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    pane = agent.start()
    look = pane.look()
    agent.tell("draft x")
    wait_until(lambda: "❯\xa0x" in agent.screen(), "the draft")
    assert not pane.paste("hello", look.stamp, "00")
    assert not pane.enter(look.stamp, "00")
    assert "hello" not in agent.screen()
    assert pane.tmux.cmd("list-buffers").stdout == []
    assert not agent.events("submit", "submit_draft")


def test_an_agent_that_began_to_work_since_the_look_gets_no_enter(tmp_path: Path) -> None:
    agent = Agent(tmp_path, "codex")  # when it works, the cursor stays where it is
    pane = agent.start()
    look = pane.look()
    agent.tell("busy")
    wait_until(lambda: pane.look().reading.state is State.BUSY, "the work")
    assert not pane.paste("hello", look.stamp, "00") and not pane.enter(look.stamp, "00")


@pytest.mark.parametrize(
    "title", ["", ",", "}", "#", "#{pane_id}", ",}", "✳ x", "日本", "a b", "%d"]
)
def test_no_title_disturbs_the_guard(title: str, tmp_path: Path) -> None:
    agent = Agent(tmp_path, title=title)
    pane = agent.start()
    assert pane.paste("hello", pane.look().stamp, "00")
    wait_until(lambda: "hello" in agent.screen(), "the paste")


@pytest.mark.parametrize("bad", ["\x1b", "\r", "\0", "\x7f", "\x9b", "\u2028", "\x1b[201~"])
def test_no_control_character_ever_reaches_a_buffer(bad: str, tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    pane = agent.start()
    with pytest.raises(ValueError):
        pane.paste(f"a{bad}b", pane.look().stamp, "00")
    assert pane.tmux.cmd("list-buffers").stdout == []


async def test_looking_makes_no_noise_and_needs_no_mode(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    agent = Agent(tmp_path)
    async with injecting(agent, tmp_path) as running:
        running.client.feed("hello")
        await agent.gets(1)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_a_process_that_has_the_pid_now_is_not_the_agent(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    pane = agent.start()
    pane.look()
    assert pane.agent is not None and pane.agent.pid == pane.pid and pane.alive()
    os.kill(pane.pid, 9)
    wait_until(lambda: not pane.alive(), "the agent to be gone")
