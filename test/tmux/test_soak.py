"""Two hundred messages to an agent that works, asks, is typed into and scrolled, at random."""

import asyncio
import random
from pathlib import Path

import pytest
from support.tmux import Agent, Running, eventually, injecting, texts_in

from hoptell.tmux import typist

pytestmark = pytest.mark.usefixtures("tmux_environ")

MESSAGES = 200
HANDOVERS = 40


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("seed", "style"), [(1, "claude"), (2, "codex")])
async def test_all_messages_arrive_once_and_in_order_and_nothing_else_happens(
    seed: int, style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paces = {"AGREE_INTERVAL": 0.05, "POLL_INTERVAL": 0.05, "GONE_WAIT": 0.5, "DRAW_WAIT": 5.0}
    for name, seconds in paces.items():
        monkeypatch.setattr(typist, name, seconds)
    monkeypatch.setattr(typist, "ENTER_WAITS", (0.5,) * 6)
    chance = random.Random(seed)
    agent = Agent(tmp_path, style, work=0.1, grace=0.05)
    async with injecting(agent, tmp_path) as running:
        disturbing = asyncio.create_task(disturb(agent, chance))
        sent = []
        for number in range(MESSAGES):
            text = f"number {number}" + chance.choice(["", "\nwith a second line", " " + "x" * 300])
            sent += [item.text for item in running.client.feed(text, sender=f"peer-{number % 3}")]
            await asyncio.sleep(chance.uniform(0, 0.12))
        await eventually(lambda: len(received(agent)) >= MESSAGES or agent.harm, "all of them", 60)
        disturbing.cancel()
        assert not agent.harm
        agent.tell("close", "draft ", "idle")  # it may have been in the midst of something
        agent.pane.tmux.cmd("copy-mode", "-q", "-t", agent.pane.id)
        await eventually(lambda: running.inbox.waiting().count == 0, "an empty inbox")
        await running.reaches("waits for messages", 15)
    assert received(agent) == sent
    assert len(agent.submitted) > 5
    assert not agent.harm
    assert not [entry for entry in agent.events("submit") if entry["busy"]]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("seed", "style"), [(3, "claude"), (4, "codex")])
async def test_injectors_that_follow_each_other_at_any_moment_lose_and_double_nothing(
    seed: int, style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paces = {"AGREE_INTERVAL": 0.05, "POLL_INTERVAL": 0.05, "GONE_WAIT": 0.5}
    for name, seconds in paces.items():
        monkeypatch.setattr(typist, name, seconds)
    chance = random.Random(seed)
    agent = Agent(tmp_path, style, work=0.05, slow_draw=0.05)
    await asyncio.to_thread(agent.start)
    sent: list[str] = []
    while len(sent) < HANDOVERS or len(received(agent)) < len(sent):
        async with injecting(agent, tmp_path) as running:
            if len(sent) < HANDOVERS:
                [item] = running.client.feed(
                    f"number {len(sent)}" + "\nand more" * chance.randrange(3)
                )
                sent.append(item.text)
                await eventually(lambda running=running: running.client.confirmed, "it is stored")
                await asyncio.sleep(chance.uniform(0, 0.5))
            else:
                await eventually(lambda: len(received(agent)) >= len(sent), "all of them", 10)
                await eventually(lambda running=running: not files_of(running), "the last proof")
        await asyncio.sleep(0.05)  # a process that takes over needs longer to begin
    assert received(agent) == sent
    assert len(agent.submitted) > 5
    assert not agent.harm


def files_of(running: Running) -> list[Path]:
    return list(running.inbox.folder.rglob("*.json*"))


def received(agent: Agent) -> list[str]:
    return [text for prompt in agent.submitted for text in texts_in(prompt)]


async def disturb(agent: Agent, chance: random.Random) -> None:
    """Be an agent at work, and a person who scrolls and types."""
    tmux, pane = agent.pane.tmux, agent.pane.id
    while True:
        match chance.choice(["busy", "ask", "ask-after-paste", "draft", "scroll", "say", "quiet"]):
            case "busy":
                agent.tell(f"busy {chance.uniform(0.1, 0.5):.2f}")
            case "ask":
                agent.tell(f"ask-for {chance.uniform(0.1, 0.5):.2f}")
            case "ask-after-paste":
                agent.tell(f"ask-after-paste {chance.uniform(0, 0.15):.2f}")
                await asyncio.sleep(0.6)
                agent.tell("close")
            case "draft":
                agent.tell("draft rm -rf")
                await asyncio.sleep(chance.uniform(0.1, 0.4))
                agent.tell("draft ")
            case "scroll":
                await asyncio.to_thread(tmux.cmd, "copy-mode", "-t", pane)
                await asyncio.sleep(chance.uniform(0.1, 0.4))
                await asyncio.to_thread(tmux.cmd, "send-keys", "-t", pane, "-X", "cancel")
            case "say":
                agent.tell("say Do you want to proceed?", "say ❯ 1. Yes", "say › 1. Yes")
            case _:
                pass
        await asyncio.sleep(chance.uniform(0.1, 0.8))
