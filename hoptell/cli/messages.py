"""`list`, `send`, `ask` and `wait`: commands that talk to the relay for as long as they run.

What goes to standard output is the answer alone, flushed before anything is confirmed: a
message that could not be printed, because the pipe was closed or the disk is full, stays with
the relay, so nothing is lost. What remains: `wait` and `ask` keep nothing on disk, so one that
is killed, or loses the connection, in the moment between its last byte and the confirmation
shows the message once more the next time. Everything else (that a peer is offline, that the
connection was lost) is a line on standard error.

Options stand before TO, and all that follows it is the message, dashes included: agents send
command lines. A word of the message that is spelled like an option of the command is refused
instead of being sent or obeyed, since nobody can tell which was meant.
"""

import asyncio
import json
import secrets
import sys
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hoptell import frames
from hoptell.cli.options import NOTHING_ARRIVED, Duration, in_words
from hoptell.errors import HoptellError, RelayUnreachable
from hoptell.names import MAX_NAME_LENGTH
from hoptell.settings import PeerSettings, default_name, load_peer_settings

if TYPE_CHECKING:  # imported where it is used: it takes as long as all the rest
    from hoptell.client import Delivery, RelayClient

CONNECT_TIMEOUT = 5.0
"""Seconds that a relay may take to let a command in; one that restarts is back by then."""
SEND_TIMEOUT = 15.0
"""Seconds for the relay's answer, which comes within 5, and for one reconnect before it."""

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
to_argument = click.argument("to", metavar="TO")
message_argument = click.argument("words", metavar="MESSAGE...", nargs=-1, required=True)
OPTIONS_FIRST = {"allow_interspersed_args": False}


# list -------------------------------------------------------------------------------------


@click.command(
    "list",
    epilog="""\b
Examples:
  hoptell list
  hoptell list --json | jq -r '.[] | select(.online) | .name'""",
)
@as_json_option
def list_command(as_json: bool) -> None:
    """Show the peers that the relay knows: their roles, and whether they are online.

    "Queued" counts the messages that wait for a peer, "wake" is how it learns of a new one.
    Your own name ($HOPTELL_NAME) is left out.
    """
    peers = asyncio.run(_list())
    if as_json:
        _print(_json([_wire(peer) for peer in peers]))
    elif peers:
        _print(_table(peers))
    else:
        _print("The relay knows no other peer yet.")


async def _list() -> list[frames.PeerInfo]:
    async with _connected(load_peer_settings(), mode="send") as client:
        return await client.list_peers()


def _table(peers: list[frames.PeerInfo]) -> str:
    from hoptell.render import field

    rows = [("NAME", "STATE", "HOST", "ROLES", "QUEUED", "WAKE")] + [
        (
            peer.name,
            "online" if peer.online else "offline",
            field(peer.host) if peer.host else "-",
            ",".join(map(field, peer.roles)) or "-",
            str(peer.queued),
            field(peer.wake) if peer.wake else "-",
        )
        for peer in peers
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


# send -------------------------------------------------------------------------------------


@click.command(
    "send",
    context_settings=OPTIONS_FIRST,
    epilog="""\b
Examples:
  hoptell send bob "the tests pass"
  hoptell send --ttl 10m @reviewer "who has time for a review?"
  hoptell send --reply-to 0b54… bob "yes, go on"
  git diff | hoptell send bob -""",
)
@click.option(
    "--ttl",
    type=Duration(1, frames.MAX_TTL),
    help="Drop the message if it still waits for the recipient after this (30s, 10m, 2h, 7d).",
)
@click.option("--reply-to", metavar="REF", help="Reference of the message that this one answers.")
@as_json_option
@to_argument
@message_argument
@click.pass_context
def send_command(
    ctx: click.Context,
    ttl: int | None,
    reply_to: str | None,
    as_json: bool,
    to: str,
    words: tuple[str, ...],
) -> None:
    """Send a message to a peer, a role (@reviewer) or everyone who is online (@all).

    Options come before TO. MESSAGE "-" reads it from standard input. Says what became of the
    message: delivered, queued, or not confirmed yet; and its reference.
    """
    ack = asyncio.run(_send(to, _text(ctx, words), ttl, reply_to))
    try:
        _print(_json(_fields(ack)) if as_json else _outcome(ack, to))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise HoptellError(
            f"standard output cannot be written ({error.strerror}), but the message was accepted"
            f" (reference {ack.message_id})"
        ) from error


async def _send(to: str, text: str, ttl: int | None, reply_to: str | None) -> frames.Ack:
    async with _connected(load_peer_settings(), mode="send") as client:
        return await client.send(to, text, ttl=ttl, reply_to=reply_to)


def _fields(ack: frames.Ack) -> dict[str, Any]:
    """The wire's fields, without those that only mean something on the connection."""
    return {key: value for key, value in _wire(ack).items() if key not in ("type", "id")}


def _outcome(ack: frames.Ack, to: str) -> str:
    match ack.state:
        case "delivered":
            said = f"delivered to {to}"
        case "queued":
            said = f"queued for {to}, who is offline or busy"
            if ack.expires is not None:
                until = datetime.fromtimestamp(ack.expires / 1000).astimezone()
                said += f", until {until.isoformat(' ', 'seconds')}"
        case "unconfirmed":
            said = f"sent to {to}, who has not confirmed it yet"
        case "fanout":
            said = f"sent to {ack.count} peer{'' if ack.count == 1 else 's'} as {to}"
            if ack.skipped:
                said += f", but {_skipped(ack)}"
    return f"{said} (reference {ack.message_id})"


def _skipped(ack: frames.Ack) -> str:
    return f"not to {', '.join(ack.skipped or [])}: too many messages wait there already"


# ask --------------------------------------------------------------------------------------


@click.command(
    "ask",
    context_settings=OPTIONS_FIRST,
    epilog="""\b
Examples:
  hoptell ask bob "which port does the test server use?"
  hoptell ask --timeout 30m --json @reviewer "is 4f2c91a safe?" | jq -r .text

Exit code 3: no answer came in time.""",
)
@click.option(
    "--timeout",
    type=Duration(),
    default="10m",
    show_default=True,
    help="How long to wait for the answer (30s, 10m, 2h or plain seconds).",
)
@as_json_option
@to_argument
@message_argument
@click.pass_context
def ask_command(
    ctx: click.Context, timeout: int, as_json: bool, to: str, words: tuple[str, ...]
) -> None:
    """Send a message, wait for the answer to exactly this message, and print it.

    Options come before TO. MESSAGE "-" reads it from standard input. While it waits, the
    command is online as <your name>-ask-<random>. Of several answers, as from a role, the
    first counts. Whatever else arrives for that name is printed to standard error.
    """
    if not asyncio.run(_ask(to, _text(ctx, words), timeout, as_json)):
        ctx.exit(NOTHING_ARRIVED)


async def _ask(to: str, text: str, timeout: int, as_json: bool) -> bool:
    settings = load_peer_settings()
    if to == settings.name:
        raise HoptellError(f"{to} is your own name: ask another peer")
    async with _connected(settings, mode="peer", name=_asking_name(settings)) as client:
        ack = await client.send(to, text)
        await _say_who_heard(client, to, ack)
        async with _told_of_problems(client):
            answer = await _before(timeout, _first_answer(client, to, ack.message_id))
        if answer is None:
            _say_in_vain(client, f"no answer from {to} within {in_words(timeout)}")
            return False
        await _show(answer, settings.name, as_json)
        return True


def _asking_name(settings: PeerSettings) -> str:
    suffix = f"-ask-{secrets.token_hex(3)}"
    return (settings.name or default_name())[: MAX_NAME_LENGTH - len(suffix)] + suffix


async def _say_who_heard(client: "RelayClient", to: str, ack: frames.Ack) -> None:
    match ack.state:
        case "queued":
            online = any(peer.name == to and peer.online for peer in await client.list_peers())
            why = "has other messages to read first" if online else "is offline"
            _note(f"{to} {why}: the message is queued, and this waits for the answer")
        case "unconfirmed":
            _note(f"{to} has not confirmed the message yet: this waits for the answer")
        case "fanout" if ack.skipped:
            _note(f"the message went {_skipped(ack)}")


async def _first_answer(client: "RelayClient", to: str, reference: str) -> "Delivery":
    from_one = not to.startswith("@")
    seen = set()
    while True:
        delivery = await anext(client)
        message = delivery.message
        if message.reply_to == reference and (message.sender == to or not from_one):
            return delivery
        if message.id not in seen:  # else its confirmation was lost with a connection
            seen.add(message.id)
            _print(f"Not the answer, but it arrived meanwhile:\n{_framed(message)}", err=True)
        await delivery.confirm()


# wait -------------------------------------------------------------------------------------


@click.command(
    "wait",
    epilog="""\b
Examples:
  HOPTELL_NAME=bob hoptell wait
  HOPTELL_NAME=bob hoptell wait 10m || echo "nothing in ten minutes"
  HOPTELL_NAME=bob hoptell wait 0 --json       take what is there already

Exit code 3: nothing arrived in time.""",
)
@click.argument("seconds", type=Duration(0), required=False)
@as_json_option
@click.pass_context
def wait_command(ctx: click.Context, seconds: int | None, as_json: bool) -> None:
    """Go online as $HOPTELL_NAME, print the next message, and leave.

    SECONDS (or 30s, 10m, 2h) bounds the waiting. The message is confirmed once it is printed:
    if that fails, or the command is interrupted, the relay keeps it for the next time.
    """
    if not asyncio.run(_wait(seconds, as_json)):
        ctx.exit(NOTHING_ARRIVED)


async def _wait(seconds: int | None, as_json: bool) -> bool:
    settings = load_peer_settings()
    async with _connected(settings, mode="peer") as client:
        if settings.name is None:
            _note(f"online as {client.name} (set HOPTELL_NAME to choose the name)")
        if seconds == 0:
            # What waited for this peer comes before the answer to anything it asks.
            await client.list_peers()
        async with _told_of_problems(client):
            delivery = await _before(seconds, anext(client))
        if delivery is None:
            assert seconds is not None
            _say_in_vain(client, f"nothing arrived within {in_words(seconds)}")
            return False
        await _show(delivery, client.name, as_json)
        return True


# What they share --------------------------------------------------------------------------


@asynccontextmanager
async def _connected(
    settings: PeerSettings, *, mode: frames.Mode, name: str | None = None
) -> AsyncIterator["RelayClient"]:
    """A client that is logged in. One under a `name` that is made up for it takes on none of the
    roles. Nobody comes back under such a name, nor under one made of our process id: the relay
    need not remember either."""
    from hoptell.client import RelayClient

    roles: list[str] | None = None if name is None else []
    async with RelayClient(
        settings,
        name=name,
        mode=mode,
        roles=roles,
        transient=name is not None or settings.name is None,
        send_timeout=SEND_TIMEOUT,
    ) as client:
        await client.wait_connected(CONNECT_TIMEOUT)
        yield client


async def _before(seconds: float | None, arriving: "Awaitable[Delivery]") -> "Delivery | None":
    try:
        async with asyncio.timeout(seconds):
            return await arriving
    except TimeoutError:
        return None


async def _show(delivery: "Delivery", name: str | None, as_json: bool) -> None:
    """Print it for the peer of this name, and only then let the relay forget it."""
    message = delivery.message
    _print(_json(_wire(message)) if as_json else _framed(message, name))
    await delivery.confirm()


@asynccontextmanager
async def _told_of_problems(client: "RelayClient") -> AsyncIterator[None]:
    """Meanwhile, say on standard error when the connection goes."""

    async def tell() -> None:
        while True:
            _note(f"{await client.wait_disconnected()}; waiting goes on")
            await client.wait_connected()

    telling = asyncio.create_task(tell())
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.wait([telling])
        if not telling.cancelled():
            telling.exception()  # what ends the client ends both, and is told by the other


def _say_in_vain(client: "RelayClient", sentence: str) -> None:
    """Say that nothing came in time.

    Raises:
        RelayUnreachable: nothing could have come.
    """
    if client.problem is not None:
        raise RelayUnreachable(f"{sentence}: {client.problem}")
    _note(sentence)


def _text(ctx: click.Context, words: tuple[str, ...]) -> str:
    """The message from the command line.

    Raises:
        click.UsageError: one of its words might be an option in the wrong place.
    """
    if words[0] == "--" and len(words) > 1:
        words = words[1:]
    else:
        options = {option for parameter in ctx.command.params for option in parameter.opts}
        for word in words:
            if word.partition("=")[0] in (options | {"--help"}):
                raise click.UsageError(
                    f"{word} stands within the message: put options before TO, or quote the"
                    " message if that is part of it",
                    ctx,
                )
        if words == ("-",):
            return _standard_input()
    return " ".join(words)


def _standard_input() -> str:
    if sys.stdin is None:
        raise HoptellError("standard input is closed: there is no message to read")
    most = 4 * frames.MAX_TEXT_LENGTH  # in UTF-8
    data = sys.stdin.buffer.read(most + 1)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if len(data) <= most:
            raise HoptellError(
                f"standard input is not UTF-8 text (byte {error.start}): convert it first"
            ) from None
        text = data.decode(errors="replace")
    if len(data) > most:
        raise HoptellError(frames.text_too_long(None))
    if len(text) > frames.MAX_TEXT_LENGTH:
        raise HoptellError(frames.text_too_long(len(text)))
    return text


def _framed(message: frames.Message, name: str | None = None) -> str:
    from hoptell.render import render, send_command

    answering = "hoptell send" if name is None else send_command(name)
    shown = render(message, now_ms=int(time.time() * 1000), send_command=answering)
    return shown.removesuffix("\n")


def _wire(frame: msgspec.Struct) -> dict[str, Any]:
    """The fields under their names on the wire."""
    fields: dict[str, Any] = json.loads(msgspec.json.encode(frame))
    return fields


def _json(value: Any) -> str:
    """JSON in ASCII alone: a terminal that shows it obeys nothing in it."""
    return json.dumps(value)


def _print(text: str, *, err: bool = False) -> None:
    """Write a line, flushed: when this returns it has left the process."""
    stream = sys.stderr if err else sys.stdout
    # Whatever the locale, a character that it does not have must not lose the message.
    click.echo(text.encode(stream.encoding or "utf-8", "backslashreplace"), file=stream)


def _note(sentence: str) -> None:
    click.echo(f"hoptell: {sentence}", err=True)
