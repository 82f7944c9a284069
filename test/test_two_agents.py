"""Two agents talk: two sidecars, driven by the mcp package's own client, over a real relay."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.relay import RelayProcess, relay_process
from support.sidecar import Agent, agent, text_of, texts_in, within


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RelayProcess]:
    with relay_process(tmp_path, HOPTELL_RATE="0") as relay:
        yield relay


def as_peer(relay: RelayProcess, name: str) -> dict[str, str]:
    """The environment of a peer; each has a home of its own, as on another machine."""
    home = Path(relay.environment["HOME"]).parent / f"machine of {name}"
    return relay.for_peers(HOPTELL_NAME=name, HOPTELL_HOME=str(home))


async def told(agent: Agent, tool: str, **arguments: str) -> str:
    """What a tool says, be it an error or not."""
    result = await agent.session.call_tool(tool, arguments)
    return text_of(result.model_dump())


def reference_in(answer: str) -> str:
    found = re.search(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", answer)
    assert found, answer
    return found[0]


async def test_they_send_wait_ask_and_answer(relay: RelayProcess) -> None:
    async with agent(as_peer(relay, "alice")) as alice, agent(as_peer(relay, "bob")) as bob:
        waiting = asyncio.create_task(bob.call("wait_for_message", timeout_seconds=8))
        while "bob: online" not in await alice.call("list_peers"):
            await asyncio.sleep(0.02)
        assert "Delivered to bob" in await alice.call("send_message", to="bob", message="hello")
        assert texts_in(await waiting) == ["hello"]

        asking = asyncio.create_task(alice.call("ask_peer", to="bob", message="how many?"))
        question = await bob.call("wait_for_message", timeout_seconds=8)
        assert texts_in(question) == ["how many?"]
        reference = reference_in(question)
        await bob.call("send_message", to="alice", message="something else")
        await bob.call("send_message", to="alice", message="42", reply_to=reference)
        answer = await asking
        assert texts_in(answer) == ["42"] and f"In answer to: {reference}" in answer
        assert texts_in(await alice.call("read_inbox")) == ["something else"]
        assert texts_in(await alice.call("read_inbox")) == []


async def test_asking_whom_nobody_knows_or_oneself_or_who_is_offline_is_answered_at_once(
    relay: RelayProcess,
) -> None:
    async with agent(as_peer(relay, "alice")) as alice:
        await alice.call("list_peers")
        with within(2):
            assert "nobody" in (await told(alice, "ask_peer", to="nobody", message="?"))
            assert "your own name" in (await told(alice, "ask_peer", to="alice", message="?"))
        async with agent(as_peer(relay, "bob")) as bob:
            await bob.call("list_peers")
        while "bob: offline" not in await alice.call("list_peers"):
            await asyncio.sleep(0.02)
        with within(2):
            answer = await alice.call("ask_peer", to="bob", message="anybody?")
        assert answer.startswith("Queued: bob is offline")
        assert "No messages" in await alice.call("read_inbox")


async def test_the_command_in_the_instructions_wakes_by_its_end_and_shows_the_message_once(
    relay: RelayProcess,
) -> None:
    async with agent(as_peer(relay, "alice")) as alice, agent(as_peer(relay, "bob")) as bob:
        instructions = bob.session.instructions or ""
        (command,) = [line for line in instructions.splitlines() if " listen bob" in line]
        listening = await asyncio.create_subprocess_shell(
            command.partition("shell tool: ")[2],
            env={},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await bob.call("list_peers")
            await alice.call("send_message", to="bob", message="wake up")
            async with asyncio.timeout(10):
                output, _ = await listening.communicate()
        finally:
            if listening.returncode is None:
                listening.kill()
                await listening.wait()
        assert texts_in(output.decode()) == ["wake up"]
        assert "No messages" in await bob.call("read_inbox")


async def test_a_restart_of_the_relay_in_the_middle_loses_and_doubles_nothing(
    relay: RelayProcess,
) -> None:
    async with agent(as_peer(relay, "alice")) as alice, agent(as_peer(relay, "bob")) as bob:
        await bob.call("list_peers")
        await alice.call("send_message", to="bob", message="stored before")
        relay.kill()
        sending = asyncio.create_task(told(alice, "send_message", to="bob", message="meanwhile"))
        assert texts_in(await bob.call("read_inbox")) == ["stored before"]
        waiting = asyncio.create_task(bob.call("wait_for_message", timeout_seconds=9))
        relay.start()
        while "bob: online" not in await told(alice, "list_peers"):
            await asyncio.sleep(0.05)
        await alice.call("send_message", to="bob", message="after")
        # A relay that has just started may not know bob yet; then the sender was told so.
        expected = ["meanwhile", "after"] if "Delivered" in await sending else ["after"]
        seen = texts_in(await waiting)
        while len(seen) < len(expected):
            seen += texts_in(await bob.call("wait_for_message", timeout_seconds=5))
        assert seen == expected
        assert "No messages" in await bob.call("read_inbox")


async def test_what_a_killed_sidecar_stored_or_left_unconfirmed_is_there_for_the_next(
    relay: RelayProcess,
) -> None:
    async with agent(as_peer(relay, "alice")) as alice:
        async with agent(as_peer(relay, "bob")) as bob:
            await bob.call("list_peers")
            assert "Delivered" in await alice.call("send_message", to="bob", message="one")
            bob.kill()
        assert "Queued" in await alice.call("send_message", to="bob", message="two")
        async with agent(as_peer(relay, "bob")) as bob:
            seen = texts_in(await bob.call("wait_for_message", timeout_seconds=5))
            if seen == ["one"]:
                seen += texts_in(await bob.call("wait_for_message", timeout_seconds=5))
            assert seen == ["one", "two"]
            bob.kill()
        async with agent(as_peer(relay, "bob")) as bob:
            assert "No messages" in await bob.call("read_inbox")


async def test_kills_at_any_moment_lose_nothing_and_show_nothing_twice(
    relay: RelayProcess,
) -> None:
    total = 24
    seen: list[str] = []

    async def keep_sending() -> None:
        async with agent(as_peer(relay, "alice")) as alice:
            for number in range(total):
                await alice.call("send_message", to="bob", message=f"message {number}")
                await asyncio.sleep(0.03)

    async with agent(as_peer(relay, "bob")) as bob:
        await bob.call("list_peers")
        sending = asyncio.create_task(keep_sending())
        seen += texts_in(await bob.call("wait_for_message", timeout_seconds=8))
        bob.kill()  # right after an answer
    async with agent(as_peer(relay, "bob")) as bob:
        seen += texts_in(await bob.call("wait_for_message", timeout_seconds=8))
        waiting = asyncio.create_task(bob.call("wait_for_message", timeout_seconds=8))
        await asyncio.sleep(0.05)
        bob.kill()  # in the middle of a call
        (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
        seen += texts_in(outcome) if isinstance(outcome, str) else []
    await sending
    async with agent(as_peer(relay, "bob")) as bob:
        while len(seen) < total:
            seen += texts_in(await bob.call("wait_for_message", timeout_seconds=5))
        assert seen == [f"message {number}" for number in range(total)]
        assert "Nothing arrived" in await bob.call("wait_for_message", timeout_seconds=0.3)


async def test_the_answer_to_a_killed_session_waits_for_the_next(relay: RelayProcess) -> None:
    async with agent(as_peer(relay, "bob")) as bob:
        await bob.call("list_peers")
        async with agent(as_peer(relay, "alice")) as alice:
            asking = asyncio.create_task(alice.call("ask_peer", to="bob", message="ready?"))
            reference = reference_in(await bob.call("wait_for_message", timeout_seconds=8))
            alice.kill()
            await asyncio.gather(asking, return_exceptions=True)
        await bob.call("send_message", to="alice", message="yes", reply_to=reference)
        async with agent(as_peer(relay, "alice")) as alice:
            answer = await alice.call("wait_for_message", timeout_seconds=8)
            assert texts_in(answer) == ["yes"] and reference in answer


async def test_a_cancelled_wait_loses_nothing(relay: RelayProcess) -> None:
    async with agent(as_peer(relay, "alice")) as alice, agent(as_peer(relay, "bob")) as bob:
        await bob.call("list_peers")
        waiting = asyncio.create_task(bob.call("wait_for_message", timeout_seconds=9))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await alice.call("send_message", to="bob", message="to nobody in particular")
        assert texts_in(await bob.call("read_inbox")) == ["to nobody in particular"]


async def test_cancellations_that_cross_with_messages_lose_and_double_nothing(
    relay: RelayProcess,
) -> None:
    seen: list[str] = []
    async with agent(as_peer(relay, "alice")) as alice, agent(as_peer(relay, "bob")) as bob:
        await bob.call("list_peers")
        for number in range(20):
            waiting = asyncio.create_task(bob.call("wait_for_message", timeout_seconds=9))
            sending = asyncio.create_task(alice.call("send_message", to="bob", message=f"{number}"))
            await asyncio.sleep(number * 0.0007)
            waiting.cancel()
            outcome, _ = await asyncio.gather(waiting, sending, return_exceptions=True)
            seen += texts_in(outcome) if isinstance(outcome, str) else []
        while len(seen) < 20 and "No messages" not in (rest := await bob.call("read_inbox")):
            seen += texts_in(rest)
        assert sorted(seen, key=int) == [f"{number}" for number in range(20)]
        assert "No messages" in await bob.call("read_inbox")
