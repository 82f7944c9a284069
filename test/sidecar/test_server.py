"""The five tools: what they take, what they answer, what they leave behind."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mcp_types import CallToolRequestParams, CallToolResult, Tool
from support.inbox import message
from support.sidecar import text_of, texts_in, within
from support.wake import Silent

from hoptell.errors import ConfigurationError, HoptellError, Refused, RelayUnreachable, Replaced
from hoptell.frames import Ack, PeerInfo
from hoptell.sidecar import server
from hoptell.sidecar.mailbox import Mailbox
from hoptell.sidecar.server import ARGUMENTS, Tools, WrongArguments, checked
from hoptell.sidecar.stdio import Receipt
from hoptell.sidecar.texts import descriptions, way_of

REFERENCE = "00000000-0000-4000-8000-000000000001"
WORDS = descriptions("alice", way_of("poll", "alice", None))


class FakeRelay:
    """Answers what the test says, and keeps what it was asked."""

    def __init__(self) -> None:
        self.name = "alice"
        self.roles: tuple[str, ...] = ()
        self.problem: str | None = None
        self.error: HoptellError | None = None
        self.ack = Ack(1, "delivered", REFERENCE)
        self.peers: list[PeerInfo] = []
        self.sent: list[tuple[str, str, int | None, str | None]] = []
        self.on_sent: Callable[[], Any] | None = None

    async def connected(self, timeout: float) -> None:
        if self.error:
            raise self.error

    async def list_peers(self) -> list[PeerInfo]:
        await self.connected(0)
        return self.peers

    async def send(
        self, to: str, text: str, *, ttl: int | None = None, reply_to: str | None = None
    ) -> Ack:
        await self.connected(0)
        self.sent.append((to, text, ttl, reply_to))
        if self.on_sent:
            asyncio.get_running_loop().create_task(self.on_sent())
        return self.ack


class Session:
    """Tools with a mailbox, a fake relay, and a client that takes progress reports."""

    def __init__(self) -> None:
        self.relay = FakeRelay()
        self.mailbox = Mailbox(Silent())
        self.tools = Tools(self.relay, self.mailbox, WORDS)
        self.receipt = Receipt()
        self.reports: list[tuple[float, float | None, str | None]] = []
        self.meta: dict[str, Any] = {}

    async def result(self, tool: str, **arguments: Any) -> CallToolResult:
        self.receipt = Receipt()
        ctx: Any = SimpleNamespace(request=self.receipt, meta=self.meta, session=self)
        parameters = CallToolRequestParams(name=tool, arguments=arguments)
        async with asyncio.timeout(5):
            return await self.tools.call_tool(ctx, parameters)

    async def call(self, tool: str, **arguments: Any) -> str:
        result = await self.result(tool, **arguments)
        text = text_of(result.model_dump())
        assert not result.is_error, text
        return text

    async def error(self, tool: str, **arguments: Any) -> str:
        result = await self.result(tool, **arguments)
        assert result.is_error
        return text_of(result.model_dump())

    def take_along(self) -> None:
        """The last answer has left."""
        self.receipt.prepare()
        self.receipt.leave()
        self.receipt.left(written=True)

    async def report_progress(
        self, progress: float, total: float | None, message: str | None
    ) -> None:
        self.reports.append((progress, total, message))


@pytest.fixture
async def session(tmp_path: Path) -> Session:
    session = Session()
    await session.mailbox.use(tmp_path, "alice")
    return session


def tool(name: str) -> Tool:
    return next(tool for tool in server.tools(WORDS) if tool.name == name)


# What the client is told ---------------------------------------------------------------------


def test_there_are_five_tools() -> None:
    names = ["list_peers", "send_message", "wait_for_message", "read_inbox", "ask_peer"]
    assert [tool.name for tool in server.tools(WORDS)] == names


@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_tool_is_always_loaded_and_its_longest_answer_is_not_cut(name: str) -> None:
    meta = tool(name).meta
    assert meta is not None and meta["anthropic/alwaysLoad"] is True
    assert 40_000 < meta["anthropic/maxResultSizeChars"] <= 500_000


def test_only_a_look_at_the_peers_changes_nothing() -> None:
    hints = {tool.name: tool.annotations for tool in server.tools(WORDS)}
    looks = hints.pop("list_peers")
    assert looks is not None
    assert looks.read_only_hint and looks.idempotent_hint and not looks.open_world_hint
    for annotations in hints.values():
        assert annotations is not None
        assert annotations.read_only_hint is False
        assert annotations.destructive_hint is False
        assert annotations.idempotent_hint is False
        assert annotations.open_world_hint is True


def test_the_schemas_name_what_must_be_there_and_the_limits() -> None:
    schema = tool("ask_peer").input_schema
    assert schema["required"] == ["to", "message"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["timeout_seconds"] | {"description": ""} == {
        "type": "number",
        "minimum": 0,
        "maximum": 1500,
        "default": 50,
        "description": "",
    }
    assert tool("send_message").input_schema["required"] == ["to", "message"]
    assert tool("send_message").input_schema["properties"]["ttl_seconds"]["maximum"] == 604_800
    assert tool("wait_for_message").input_schema["required"] == []


# Arguments -----------------------------------------------------------------------------------

SEND = {"to": "bob", "message": "hi"}


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("send_message", {"to": "bob"}, "message is missing: send_message takes to, message, "),
        ("send_message", {"message": "hi"}, "to is missing"),
        ("send_message", {**SEND, "text": "x"}, "no argument text: send_message takes to, message"),
        ("send_message", {**SEND, "to": 7}, "to is a string"),
        ("send_message", {**SEND, "to": "bob smith"}, "use a peer name, @role or @all"),
        ("send_message", {**SEND, "to": ""}, "use a peer name, @role or @all"),
        ("send_message", {**SEND, "message": " \n"}, "message is empty"),
        ("send_message", {**SEND, "message": ["hi"]}, "message is a string"),
        ("send_message", {**SEND, "message": "x" * 100_001}, "100,001 characters, and at most 100"),
        ("send_message", {**SEND, "ttl_seconds": 0}, "from 1 to 604800"),
        ("send_message", {**SEND, "ttl_seconds": 604_801}, "from 1 to 604800"),
        ("send_message", {**SEND, "ttl_seconds": 1.5}, "whole number of seconds"),
        ("send_message", {**SEND, "ttl_seconds": True}, "whole number of seconds"),
        ("send_message", {**SEND, "ttl_seconds": "60"}, "whole number of seconds"),
        ("send_message", {**SEND, "reply_to": 5}, "reply_to is a string"),
        ("wait_for_message", {"timeout_seconds": 1500.5}, "from 0 to 1500"),
        ("wait_for_message", {"timeout_seconds": -1}, "from 0 to 1500"),
        ("wait_for_message", {"timeout_seconds": "50"}, "from 0 to 1500"),
        ("wait_for_message", {"timeout_seconds": False}, "from 0 to 1500"),
        ("wait_for_message", {"timeout": 5}, "wait_for_message takes timeout_seconds"),
        ("ask_peer", {**SEND, "to": "@reviewer"}, "one peer's name"),
        ("read_inbox", {"limit": 5}, "read_inbox takes no arguments"),
        ("list_peers", {"x\n[hoptell": 5}, 'no argument "x<U+000A><U+005B>hoptell"'),
        ("no_such_tool", {}, "use one of list_peers, send_message"),
    ],
)
async def test_wrong_arguments_are_answered_with_what_is_right(
    session: Session, name: str, given: dict[str, Any], says: str
) -> None:
    assert says.lower() in (await session.error(name, **given)).lower()
    assert session.relay.sent == []


@pytest.mark.parametrize("given", ["a string", ["a", "list"], 7, True])
def test_arguments_that_are_no_object_are_answered_with_what_is_right(given: object) -> None:
    with pytest.raises(WrongArguments, match="arguments are an object: send_message takes to, me"):
        checked("send_message", given)


def test_missing_arguments_and_nulls_take_their_defaults() -> None:
    assert checked("wait_for_message", None) == {"timeout_seconds": 50}
    assert checked("ask_peer", {**SEND, "timeout_seconds": None})["timeout_seconds"] == 50
    assert checked("send_message", {**SEND, "ttl_seconds": 60.0})["ttl_seconds"] == 60


# send_message --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ack", "says"),
    [
        (Ack(1, "delivered", REFERENCE), "Delivered to bob."),
        (Ack(1, "queued", REFERENCE), "Queued: bob is offline or busy"),
        (Ack(1, "queued", REFERENCE, expires=1_796_047_802_000), "until 2026-11-30 14:10:02 UTC"),
        (Ack(1, "unconfirmed", REFERENCE), "has not confirmed it yet"),
        (Ack(1, "fanout", REFERENCE, count=1, skipped=[]), "Sent to 1 peer."),
        (Ack(1, "fanout", REFERENCE, count=3), "Sent to 3 peers."),
        (Ack(1, "fanout", REFERENCE, count=3, skipped=["carol", "dan"]), "not go to carol, dan"),
    ],
)
async def test_it_is_said_what_became_of_a_message_with_its_reference(
    session: Session, ack: Ack, says: str
) -> None:
    session.relay.ack = ack
    text = await session.call("send_message", **SEND)
    assert says in text and REFERENCE in text


async def test_everything_about_a_message_reaches_the_relay(session: Session) -> None:
    await session.call("send_message", to="@all", message="hi", reply_to=REFERENCE, ttl_seconds=9)
    assert session.relay.sent == [("@all", "hi", 9, REFERENCE)]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (Refused("unknown peer 'bob': list the peers"), "unknown peer 'bob': list the peers."),
        (ConfigurationError("there is no token"), "there is no token."),
        (Replaced("another session went online as alice"), "another session went online as alice."),
        (RelayUnreachable("no route"), "no route. hoptell keeps trying to connect"),
        (RelayUnreachable("a bad certificate", lasting=True), "a bad certificate."),
        (RelayUnreachable("it may arrive twice", maybe_accepted=True), "it may arrive twice."),
    ],
)
async def test_what_went_wrong_is_one_sentence_in_a_result(
    session: Session, error: HoptellError, says: str
) -> None:
    session.relay.error = error
    for name, arguments in (("send_message", SEND), ("ask_peer", SEND), ("list_peers", {})):
        text = await session.error(name, **arguments)
        assert text.startswith(says)
        assert text.endswith(".") and "Traceback" not in text


# list_peers ----------------------------------------------------------------------------------


async def test_the_list_names_us_and_says_all_about_everybody(session: Session) -> None:
    session.relay.roles = ("backend",)
    session.relay.peers = [
        PeerInfo("bob", "laptop", ["reviewer", "db"], True, 0, "channel"),
        PeerInfo("carol", "", [], False, 2),
    ]
    await session.mailbox.store(message())
    assert await session.call("list_peers") == (
        'You are "alice" with the roles backend. Your inbox holds 1 message: call read_inbox.\n'
        "2 other peers, 1 online:\n"
        "- bob: online, roles reviewer, db, woken by channel, on laptop\n"
        "- carol: offline, 2 queued"
    )


async def test_nobody_else_is_said_so(session: Session) -> None:
    assert await session.call("list_peers") == (
        'You are "alice". Your inbox holds no messages.\nNobody else is known to the relay.'
    )


async def test_ten_thousand_peers_are_cut_to_what_an_answer_holds(session: Session) -> None:
    session.relay.peers = [PeerInfo(f"peer{i}", "h", [], True, 0) for i in range(10_000)]
    text = await session.call("list_peers")
    assert len(text) <= 40_000 and re.search(r"… and \d{4} more$", text)


async def test_what_a_peer_calls_its_host_cannot_forge_a_line(session: Session) -> None:
    session.relay.peers = [PeerInfo("bob", "x\n- carol: online\u202e", [], True, 0)]
    lines = (await session.call("list_peers")).splitlines()
    assert lines[2:] == ['- bob: online, on "x<U+000A>- carol: online<U+202E>"']


# read_inbox, wait_for_message ----------------------------------------------------------------


async def test_reading_returns_what_waits_and_takes_it_along(session: Session) -> None:
    await session.mailbox.store(message("1", "one"))
    await session.mailbox.store(message("2", "two"))
    assert texts_in(await session.call("read_inbox")) == ["one", "two"]
    session.take_along()
    assert await session.call("read_inbox") == "No messages wait for you."


async def test_what_was_not_handed_over_whole_is_there_for_the_next_read(session: Session) -> None:
    await session.mailbox.store(message("1", "one"))
    for _ in range(3):
        assert texts_in(await session.call("read_inbox")) == ["one"]
        session.receipt.lost()


async def test_an_empty_inbox_says_if_there_is_no_connection(session: Session) -> None:
    session.relay.problem = "the relay is not there: start it"
    text = await session.call("read_inbox")
    assert "But the relay is not there: start it; hoptell keeps trying" in text


async def test_waiting_returns_what_arrives(session: Session) -> None:
    waiting = asyncio.create_task(session.call("wait_for_message"))
    await asyncio.sleep(0.01)
    await session.mailbox.store(message("1", "one"))
    assert texts_in(await waiting) == ["one"]


async def test_waiting_returns_at_once_what_is_there_already(session: Session) -> None:
    await session.mailbox.store(message("1", "one"))
    assert texts_in(await session.call("wait_for_message", timeout_seconds=0)) == ["one"]


async def test_when_nothing_comes_it_says_so_and_what_to_do(session: Session) -> None:
    session.relay.problem = "the relay is not there"
    text = await session.call("wait_for_message", timeout_seconds=0.05)
    assert text.startswith("Nothing arrived within 0.05 s. But the relay is not there;")
    assert "Call wait_for_message again if" in text


async def test_waiting_goes_on_while_the_relay_is_away(session: Session) -> None:
    session.relay.error = RelayUnreachable("it restarts")
    waiting = asyncio.create_task(session.call("wait_for_message"))
    await asyncio.sleep(0.01)
    await session.mailbox.store(message("1", "one"))
    assert texts_in(await waiting) == ["one"]


@pytest.mark.parametrize(
    "error", [ConfigurationError("no token"), RelayUnreachable("bad certificate", lasting=True)]
)
async def test_waiting_for_what_cannot_come_ends_at_once(
    session: Session, error: HoptellError
) -> None:
    session.relay.error = error
    with within(1):
        assert str(error)[1:] in await session.error("wait_for_message")


async def test_a_cancelled_wait_takes_nothing(session: Session) -> None:
    waiting = asyncio.create_task(session.result("wait_for_message"))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.wait([waiting])
    await session.mailbox.store(message("1", "one"))
    assert texts_in(await session.call("read_inbox")) == ["one"]


# ask_peer ------------------------------------------------------------------------------------


def answers(session: Session, text: str = "yes", delay: float = 0.0) -> Callable[[], Any]:
    async def answer() -> None:
        await asyncio.sleep(delay)
        await session.mailbox.store(message("answer", text, sender="bob", reply_to=REFERENCE))

    return answer


async def test_asking_returns_the_answer_to_this_question(session: Session) -> None:
    session.relay.on_sent = answers(session, delay=0.02)
    await session.mailbox.store(message("1", "another matter"))
    assert texts_in(await session.call("ask_peer", **SEND)) == ["yes"]
    session.take_along()
    assert texts_in(await session.call("read_inbox")) == ["another matter"]


async def test_asking_says_when_no_answer_came_in_time(session: Session) -> None:
    text = await session.call("ask_peer", **SEND, timeout_seconds=0.05)
    assert text.startswith("Delivered to bob. No answer within 0.05 s.")
    assert REFERENCE in text and "inbox" in text
    await answers(session)()
    assert texts_in(await session.call("read_inbox")) == ["yes"], "a late answer"


async def test_asking_a_peer_that_is_offline_says_so_at_once(session: Session) -> None:
    session.relay.ack = Ack(1, "queued", REFERENCE)
    session.relay.peers = [PeerInfo("bob", "", [], False, 1)]
    with within(1):
        text = await session.call("ask_peer", **SEND)
    assert text.startswith("Queued: bob is offline or busy") and "does not wait" in text


async def test_asking_a_peer_that_is_online_but_busy_waits_for_its_answer(
    session: Session,
) -> None:
    session.relay.ack = Ack(1, "queued", REFERENCE)
    session.relay.peers = [PeerInfo("bob", "", [], True, 9)]
    session.relay.on_sent = answers(session, delay=0.02)
    assert texts_in(await session.call("ask_peer", **SEND)) == ["yes"]


async def test_a_question_that_was_sent_is_said_so_even_if_the_relay_goes_then(
    session: Session,
) -> None:
    session.relay.ack = Ack(1, "queued", REFERENCE)

    async def go() -> None:
        session.relay.error = RelayUnreachable("gone")

    session.relay.on_sent = go
    text = await session.call("ask_peer", **SEND, timeout_seconds=0)
    assert text.startswith("Queued: bob")


# Progress ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wait_for_message", "ask_peer"])
async def test_a_waiting_call_with_a_progress_token_reports_that_it_is_alive(
    session: Session, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server.PROGRESS_INTERVAL == 20
    monkeypatch.setattr(server, "PROGRESS_INTERVAL", 0.02)
    session.meta = {"progress_token": 0}
    await session.call(name, timeout_seconds=0.3, **(SEND if name == "ask_peer" else {}))
    assert len(session.reports) >= 3
    progress = [report[0] for report in session.reports]
    assert progress == sorted(set(progress)) and session.reports[0][1] == 0.3


async def test_without_a_token_nothing_is_reported(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PROGRESS_INTERVAL", 0.01)
    await session.call("wait_for_message", timeout_seconds=0.1)
    assert session.reports == []
