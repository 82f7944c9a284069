"""The MCP server: five tools, what each promises, and what it answers.

Arguments are checked here, from the same table that makes the JSON schemas, so that a wrong
one is answered with what would be right, as a tool result that the model sees. Everything
that goes wrong on purpose (`HoptellError`) becomes such a result too.

A result says what became of the call, then what to do next.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from hoptell import __version__
from hoptell.errors import HoptellError, RelayUnreachable
from hoptell.frames import MAX_TEXT_LENGTH, MAX_TTL, Ack, PeerInfo
from hoptell.names import address_problem
from hoptell.render import MAX_ANSWER_LENGTH
from hoptell.render import field as shown
from hoptell.sidecar.mailbox import Mailbox, Parcel
from hoptell.sidecar.stdio import Receipt

DEFAULT_WAIT = 50
"""Seconds: just under the 60 after which several clients give up on a call."""
MAX_WAIT = 1500
"""Seconds: within the half hour after which Claude Code gives up on a silent call."""
PROGRESS_INTERVAL = 20.0
MAX_SHOWN_LENGTH = MAX_ANSWER_LENGTH + 10_000
"""Characters: what clients are told that a result may hold, uncut."""

Context = ServerRequestContext[Any, Receipt]


class Relay(Protocol):
    """What the tools need of `delivery.RelaySide`."""

    @property
    def name(self) -> str: ...
    @property
    def roles(self) -> tuple[str, ...]: ...
    @property
    def problem(self) -> str | None: ...
    async def connected(self, timeout: float) -> object: ...
    async def list_peers(self) -> list[PeerInfo]: ...
    async def send(
        self, to: str, text: str, *, ttl: int | None = None, reply_to: str | None = None
    ) -> Ack: ...


class Woken(Protocol):
    """What the tools need of `waking.Waking`."""

    def learn(self, meta: object) -> None: ...
    def sentence(self) -> str: ...
    def hint(self) -> str | None: ...


class WrongArguments(HoptellError):
    """The sentence says what is right."""


# What can be asked for -----------------------------------------------------------------------


@dataclass(frozen=True)
class Argument:
    """One argument of a tool: its schema, and the check of what came."""

    description: str
    check: Callable[[str, Any], Any]
    schema: dict[str, Any]
    required: bool = False
    default: Any = None


def _string(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise WrongArguments(f"{name} is a string")
    return value


def _address(name: str, value: Any) -> str:
    if problem := address_problem(_string(name, value)):
        raise WrongArguments(f"{name}: {problem}")
    return str(value)


def _peer(name: str, value: Any) -> str:
    if _string(name, value).startswith("@"):
        raise WrongArguments(
            f"{name} is one peer's name, since its answer is waited for: use send_message for"
            " several, then wait_for_message"
        )
    return _address(name, value)


def _text(name: str, value: Any) -> str:
    if not _string(name, value).strip():
        raise WrongArguments(f"{name} is empty: write what the other agent should read")
    if len(value) > MAX_TEXT_LENGTH:
        raise WrongArguments(
            f"{name} has {len(value):,} characters, and at most {MAX_TEXT_LENGTH:,} are allowed:"
            " shorten it, or name a file or commit instead"
        )
    return str(value)


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_WAIT:
        raise WrongArguments(f"{name} is a number of seconds from 0 to {MAX_WAIT}")
    return float(value)


def _ttl(name: str, value: Any) -> int:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or not 1 <= value <= MAX_TTL:
        raise WrongArguments(f"{name} is a whole number of seconds from 1 to {MAX_TTL} (a week)")
    return int(value)


MESSAGE = Argument(
    "What the other agent reads: plain text that says what you want, since it sees nothing else"
    " of your work.",
    _text,
    {"type": "string", "minLength": 1, "maxLength": MAX_TEXT_LENGTH},
    required=True,
)
TIMEOUT = Argument(
    "How long to wait. Longer waits than the default need a client that allows them.",
    _seconds,
    {"type": "number", "minimum": 0, "maximum": MAX_WAIT, "default": DEFAULT_WAIT},
    default=DEFAULT_WAIT,
)
ARGUMENTS: dict[str, dict[str, Argument]] = {
    "list_peers": {},
    "send_message": {
        "to": Argument(
            "A peer's name, @role for every online peer with that role, or @all.",
            _address,
            {"type": "string"},
            required=True,
        ),
        "message": MESSAGE,
        "reply_to": Argument(
            "The reference of the message that this one answers.", _string, {"type": "string"}
        ),
        "ttl_seconds": Argument(
            "Drop it if it could not be delivered after so long; without it, it is kept.",
            _ttl,
            {"type": "integer", "minimum": 1, "maximum": MAX_TTL},
        ),
    },
    "wait_for_message": {"timeout_seconds": TIMEOUT},
    "read_inbox": {},
    "ask_peer": {
        "to": Argument("The name of one peer.", _peer, {"type": "string"}, required=True),
        "message": MESSAGE,
        "timeout_seconds": TIMEOUT,
    },
}

_LOOKS = ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
_SENDS = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=True
)
# What was returned is gone from the inbox, so these change something; and other agents wrote it.
_TAKES = _SENDS
ANNOTATIONS = {
    "list_peers": _LOOKS,
    "send_message": _SENDS,
    "wait_for_message": _TAKES,
    "read_inbox": _TAKES,
    "ask_peer": _SENDS,
}


def tools(descriptions: dict[str, str]) -> list[Tool]:
    """All tools, as the client is told of them."""
    return [
        Tool(
            name=name,
            description=descriptions[name],
            input_schema={
                "type": "object",
                "properties": {
                    key: argument.schema | {"description": argument.description}
                    for key, argument in arguments.items()
                },
                "required": [key for key, argument in arguments.items() if argument.required],
                "additionalProperties": False,
            },
            annotations=ANNOTATIONS[name],
            # Claude Code would show names only, until the model searches for them; and would
            # cut a long answer, of which the rest would be lost.
            _meta={
                "anthropic/alwaysLoad": True,
                "anthropic/maxResultSizeChars": MAX_SHOWN_LENGTH,
            },
        )
        for name, arguments in ARGUMENTS.items()
    ]


def checked(tool: str, given: Any) -> dict[str, Any]:
    """The arguments of a call, all of them and of the right types.

    Raises:
        WrongArguments: with what is right.
    """
    if tool not in ARGUMENTS:
        raise WrongArguments(f"there is no such tool: use one of {', '.join(ARGUMENTS)}")
    known = ARGUMENTS[tool]
    takes = f"{tool} takes {', '.join(known) or 'no arguments'}"
    if not isinstance(given, dict | None):
        raise WrongArguments(f"arguments are an object: {takes}")
    given = {key: value for key, value in (given or {}).items() if value is not None}
    if unknown := given.keys() - known.keys():
        raise WrongArguments(f"there is no argument {shown(min(unknown))}: {takes}")
    for key, argument in known.items():
        if argument.required and key not in given:
            raise WrongArguments(f"{key} is missing: {takes}")
    return {
        key: argument.check(key, given[key]) if key in given else argument.default
        for key, argument in known.items()
    }


# What is answered ----------------------------------------------------------------------------


def result(text: str, *, is_error: bool = False) -> CallToolResult:
    """A tool result of one text."""
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=is_error)


def sentence(error: HoptellError) -> str:
    """An error as the model reads it, with what to do about it."""
    text = str(error)
    text += "" if text.endswith((".", "!")) else "."
    if isinstance(error, RelayUnreachable) and not error.lasting and not error.maybe_accepted:
        text += " hoptell keeps trying to connect; try again later."
    return text


class Tools:
    """What the tools do, for one session."""

    def __init__(
        self,
        relay: Relay,
        mailbox: Mailbox,
        descriptions: dict[str, str],
        woken: Woken | None = None,
    ) -> None:
        self._woken = woken
        self._relay = relay
        self._mailbox = mailbox
        self._tools = tools(descriptions)

    async def list_tools(
        self, ctx: Context, params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=self._tools)

    async def call_tool(self, ctx: Context, params: CallToolRequestParams) -> CallToolResult:
        if self._woken is not None:
            self._woken.learn(ctx.meta)
        try:
            arguments = checked(params.name, params.arguments)
            tool: Callable[..., Awaitable[CallToolResult]] = getattr(self, params.name)
            answer = await tool(ctx, **arguments)
        except HoptellError as error:
            answer = result(sentence(error), is_error=True)
        if self._woken is not None and (hint := self._woken.hint()):
            answer.content.append(TextContent(type="text", text=hint))
        return answer

    async def list_peers(self, ctx: Context) -> CallToolResult:
        peers = await self._relay.list_peers()
        waiting = (await self._mailbox.notice()).count
        lines = [
            f'You are "{self._relay.name}"'
            + (f" with the roles {', '.join(self._relay.roles)}" if self._relay.roles else "")
            + f". Your inbox holds {_count(waiting, 'message')}"
            + (": call read_inbox." if waiting else ".")
        ]
        if self._woken is not None:
            lines.append(self._woken.sentence())
        if not peers:
            lines.append("Nobody else is known to the relay.")
        else:
            online = sum(peer.online for peer in peers)
            lines.append(f"{_count(len(peers), 'other peer')}, {online} online:")
        return result(_cut([*lines, *map(_peer_line, peers)]))

    async def send_message(
        self, ctx: Context, to: str, message: str, reply_to: str | None, ttl_seconds: int | None
    ) -> CallToolResult:
        ack = await self._relay.send(to, message, ttl=ttl_seconds, reply_to=reply_to)
        return result(f"{_became(ack, to)} Its reference is {ack.message_id}.")

    async def wait_for_message(self, ctx: Context, timeout_seconds: float) -> CallToolResult:
        now = asyncio.get_running_loop().time
        deadline = now() + timeout_seconds
        if (parcel := await self._mailbox.take()) is None:
            await self._unless_lasting(timeout_seconds)
            async with _progress(ctx, timeout_seconds, "waiting for a message"):
                parcel = await self._mailbox.wait(deadline - now())
        if parcel is not None:
            return _handed(ctx, parcel)
        return result(
            f"Nothing arrived within {timeout_seconds:g} s.{self._but()} Call wait_for_message"
            " again if you cannot go on without an answer; otherwise go on with your work."
        )

    async def read_inbox(self, ctx: Context) -> CallToolResult:
        if (parcel := await self._mailbox.take()) is not None:
            return _handed(ctx, parcel)
        return result(f"No messages wait for you.{self._but()}")

    async def ask_peer(
        self, ctx: Context, to: str, message: str, timeout_seconds: float
    ) -> CallToolResult:
        ack = await self._relay.send(to, message)
        reference = ack.message_id
        later = (
            f"The reference of your question is {reference}; an answer will come to your inbox"
            " like any other message. Go on with your work meanwhile."
        )
        if ack.state == "queued" and not await self._is_online(to):
            return result(f"{_became(ack, to)} So this call does not wait. {later}")
        async with _progress(ctx, timeout_seconds, f"waiting for {to}"):
            parcel = await self._mailbox.answer(to, reference, timeout_seconds)
        if parcel is not None:
            return _handed(ctx, parcel)
        return result(
            f"{_became(ack, to)} No answer within {timeout_seconds:g} s.{self._but()} {later}"
        )

    async def _is_online(self, name: str) -> bool:
        # `queued` is also said of a peer that is busy, or that left this very moment.
        try:
            peers = await self._relay.list_peers()
        except HoptellError:
            return False
        return any(peer.name == name and peer.online for peer in peers)

    async def _unless_lasting(self, timeout: float) -> None:
        """Raise at once what no waiting would change."""
        try:
            await self._relay.connected(timeout)
        except RelayUnreachable as error:
            if error.lasting:
                raise

    def _but(self) -> str:
        problem = self._relay.problem
        return f" But {problem}; hoptell keeps trying to connect." if problem else ""


def _handed(ctx: Context, parcel: Parcel) -> CallToolResult:
    if isinstance(ctx.request, Receipt):
        ctx.request.carry(parcel)
    return result(parcel.text)


@contextlib.asynccontextmanager
async def _progress(ctx: Context, timeout: float, doing: str) -> AsyncIterator[None]:
    """Tell a client that asked for it (with a progress token) that the call is alive."""
    if (ctx.meta or {}).get("progress_token") is None:
        yield
        return

    async def report() -> None:
        waited = 0.0
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL)
            waited += PROGRESS_INTERVAL
            await ctx.session.report_progress(waited, timeout, doing)

    reporter = asyncio.create_task(report())
    try:
        yield
    finally:
        reporter.cancel()


def _became(ack: Ack, to: str) -> str:
    """What became of a message that the relay took, and what follows from it."""
    match ack.state:
        case "delivered":
            return f"Delivered to {to}."
        case "unconfirmed":
            return (
                f"Sent to {to}, which has not confirmed it yet. It is kept until it does: do not"
                " send it again."
            )
        case "queued":
            until = f" until {_clock_time(ack.expires)}" if ack.expires else ""
            return (
                f"Queued: {to} is offline or busy, and gets it when it can{until}. Do not send it"
                " again."
            )
        case _:
            skipped = ack.skipped or []
            missed = f" It did not go to {', '.join(skipped)}: too much is queued there."
            return f"Sent to {_count(ack.count or 0, 'peer')}." + (missed if skipped else "")


def _peer_line(peer: PeerInfo) -> str:
    facts = ["online" if peer.online else "offline"]
    if peer.roles:
        facts.append(f"roles {', '.join(peer.roles)}")
    if peer.queued:
        facts.append(f"{peer.queued} queued")
    if peer.wake:
        facts.append(f"woken by {shown(peer.wake)}")
    if peer.host:
        facts.append(f"on {shown(peer.host)}")
    return f"- {peer.name}: {', '.join(facts)}"


def _cut(lines: Iterable[str]) -> str:
    kept: list[str] = []
    room = MAX_ANSWER_LENGTH - 100
    lines = list(lines)
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            kept.append(f"… and {len(lines) - len(kept)} more")
            break
        kept.append(line)
    return "\n".join(kept)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number or 'no'} {noun}s"


def _clock_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


# The server ----------------------------------------------------------------------------------


def server(tools: Tools, instructions: str) -> Server[Any]:
    """The SDK's server with these tools, for `mcp.server.runner.serve_loop`.

    That loop knows the handshake only: `server/discover` is answered with -32601, and clients
    of the newest protocol fall back to `initialize`. With a later protocol Claude Code would not
    take the server for a channel.
    """
    made: Server[Any] = Server(
        "hoptell",
        version=__version__,
        instructions=instructions,
        on_list_tools=tools.list_tools,
        on_call_tool=tools.call_tool,
    )
    made.middleware[:] = [_arguments_as_object]
    return made


async def _arguments_as_object(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Answer a call whose arguments are no object before the SDK does, in words that help."""
    given = (ctx.params or {}).get("arguments")
    if ctx.method == "tools/call" and not isinstance(given, dict | None):
        try:
            checked(str((ctx.params or {}).get("name")), given)
        except WrongArguments as error:
            return {"content": [{"type": "text", "text": sentence(error)}], "isError": True}
    return await call_next(ctx)
