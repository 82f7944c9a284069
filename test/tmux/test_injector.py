"""Messages typed into a fake agent in real tmux: exactly there, once, never into a question."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from support.tmux import Agent, Terminal, eventually, injecting, texts_in, wait_until

from hoptell.inbox import Inbox, Waiting
from hoptell.tmux import injector as injector_module
from hoptell.tmux import typist
from hoptell.tmux.screen import State

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
        await running.reaches("waits for messages")
        assert running.inbox.waiting().count == 1
        await asyncio.sleep(1.5)
        assert len(agent.submitted) == 3
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
        assert not pane.paste("hello", look.stamp) and not pane.enter(look.stamp)
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
    assert [claim.message.text for claim in running.inbox.claim()] == ["hello"]


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


async def test_an_agent_that_a_shell_runs_is_served(tmp_path: Path) -> None:
    agent = Agent(tmp_path, shell="AGENT; true")
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
    assert not pane.paste("hello", look.stamp)
    assert not pane.enter(look.stamp)
    assert "hello" not in agent.screen()
    assert pane.tmux.cmd("list-buffers").stdout == []
    assert not agent.events("submit", "submit_draft")


def test_an_agent_that_began_to_work_since_the_look_gets_no_enter(tmp_path: Path) -> None:
    agent = Agent(tmp_path, "codex")  # when it works, the cursor stays where it is
    pane = agent.start()
    look = pane.look()
    agent.tell("busy")
    wait_until(lambda: pane.look().reading.state is State.BUSY, "the work")
    assert not pane.paste("hello", look.stamp) and not pane.enter(look.stamp)


@pytest.mark.parametrize(
    "title", ["", ",", "}", "#", "#{pane_id}", ",}", "✳ x", "日本", "a b", "%d"]
)
def test_no_title_disturbs_the_guard(title: str, tmp_path: Path) -> None:
    agent = Agent(tmp_path, title=title)
    pane = agent.start()
    assert pane.paste("hello", pane.look().stamp)
    wait_until(lambda: "hello" in agent.screen(), "the paste")


@pytest.mark.parametrize("bad", ["\x1b", "\r", "\0", "\x7f", "\x9b", "\u2028", "\x1b[201~"])
def test_no_control_character_ever_reaches_a_buffer(bad: str, tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    pane = agent.start()
    with pytest.raises(ValueError):
        pane.paste(f"a{bad}b", pane.look().stamp)
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
