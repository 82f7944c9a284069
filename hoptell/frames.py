"""The wire: frames, limits and close codes of protocol v1, decoded and encoded (docs/protocol.md).

A frame is one JSON object in one WebSocket text frame; `type` says which. Field names here
are Python's, the wire's are camelCase where docs/protocol.md has it so (`fromMember`, `fromHost`,
`noReply`). Decoding is strict about types and ignores fields that it does not know, so
that newer clients and relays can add some. msgspec does both in C: decoding and checking
a frame takes less time than `json.loads` alone.
"""

import re
from typing import Any, Literal, TypeVar, get_args

import msgspec

from hoptell.errors import ProtocolError

PROTOCOL_VERSION = 1

# Close codes of our own (RFC 6455 leaves 4000 to 4999 to applications).
CLOSE_BAD_HELLO = 4001
CLOSE_NAME_REFUSED = 4002
CLOSE_BAD_TOKEN = 4003
CLOSE_REPLACED = 4004
CLOSE_BAD_VERSION = 4005
CLOSES_FOR_GOOD = frozenset(
    {CLOSE_BAD_HELLO, CLOSE_NAME_REFUSED, CLOSE_BAD_TOKEN, CLOSE_BAD_VERSION}
)
"""After these a client does not try again: nothing would change."""

MAX_HELLO_BYTES = 16 * 1024
MAX_FRAME_BYTES = 2 * 1024 * 1024
MAX_TEXT_LENGTH = 100_000
"""Characters (Unicode code points). Escaped in the worst way, 12 bytes each, they fit a frame."""
MAX_TTL = 604_800
"""Seconds: one week."""
MAX_KEY_LENGTH = 64

FrameId = str | int | float | bool | None
"""What a client numbers its requests with: any JSON scalar, echoed as it came."""

Mode = Literal["peer", "send"]
AckState = Literal["delivered", "queued", "unconfirmed", "fanout"]


class Frame(msgspec.Struct, tag_field="type", omit_defaults=True, gc=False):
    """Base of all frames. Optional fields at their default are left out on the wire.

    Made of JSON, a frame is in no cycle that the garbage collector would have to find.
    """


# From client to relay ---------------------------------------------------------------------


class Hello(Frame, tag="hello"):
    """The first frame of every connection: who it is and what it may do."""

    name: str
    token: str
    v: int = PROTOCOL_VERSION
    host: str = ""
    """Display only: the machine that the peer runs on."""
    mode: Mode = "peer"
    roles: list[str] = []
    wake: str | None = None
    """Display only: how this peer is woken, one of the wake modes."""
    transient: bool = False
    """Nobody will come back under this name: soon after it leaves, the relay forgets it, with
    what waits for it."""

    def __repr__(self) -> str:
        return f"Hello(name={self.name!r}, mode={self.mode!r}, roles={self.roles!r}, token=***)"


class Send(Frame, tag="send"):
    """Take this text to an address. Answered by one `ack` or `error` with the same id."""

    id: FrameId
    to: str
    text: str
    ttl: int | None = None
    """Seconds, 1 to MAX_TTL, that the message may wait in a queue."""
    reply_to: str | None = None
    """The reference of the message that this one answers."""
    key: str | None = None
    """Idempotency key: a repeat with the same key is not accepted twice."""


class List(Frame, tag="list"):
    """Who is there? Answered by `peers`."""

    id: FrameId


class Got(Frame, tag="got"):
    """The delivery `id` is stored safely; the relay may forget it."""

    id: str


ClientFrame = Hello | Send | List | Got


# From relay to client ---------------------------------------------------------------------


class Welcome(Frame, tag="welcome"):
    """The login succeeded."""

    name: str


class Ack(Frame, tag="ack"):
    """The one answer to an accepted `send`."""

    id: FrameId
    state: AckState
    message_id: str
    expires: int | None = None
    """Unix time in ms after which a queued copy is dropped."""
    count: int | None = None
    """For `fanout`: how many peers it went to or is queued for."""
    skipped: list[str] | None = None
    """For `fanout`: the peers whose queue was full."""


class Error(Frame, tag="error"):
    """The request `id` (or, without one, a frame that could not be read) was turned down."""

    error: str
    id: FrameId | msgspec.UnsetType = msgspec.UNSET


class PeerInfo(msgspec.Struct, omit_defaults=True):
    """One line of `peers`."""

    name: str
    host: str
    roles: list[str]
    online: bool
    queued: int
    wake: str | None = None


class Peers(Frame, tag="peers"):
    """The answer to `list`: everyone known but the one who asks, sorted by name."""

    id: FrameId
    peers: list[PeerInfo]


_WIRE_NAMES = {"sender": "from", "member": "fromMember", "host": "fromHost", "no_reply": "noReply"}


class Message(Frame, tag="message", rename=_WIRE_NAMES):
    """One delivery. The recipient stores it, then confirms it with `got`."""

    id: str
    """The delivery's id: this copy for this recipient."""
    message_id: str
    """The message reference: the same in all copies."""
    sender: str
    host: str
    to: str
    text: str
    ts: int
    """Unix time in ms at which the relay accepted it."""
    reply_to: str | None = None
    member: str | None = None
    """The member whose token sent it; None for the shared token."""
    expires: int | None = None
    no_reply: bool = False
    """An answer could not reach the sender: no peer holds that name."""


RelayFrame = Welcome | Ack | Error | Peers | Message


_T = TypeVar("_T")
_encoder = msgspec.json.Encoder()
_client_frames = msgspec.json.Decoder(ClientFrame)
_relay_frames = msgspec.json.Decoder(RelayFrame)
_anything = msgspec.json.Decoder()
_RELAY_FRAME_TYPES = {frame.__struct_config__.tag for frame in get_args(RelayFrame)}

encode = _encoder.encode
"""Turn a frame into the UTF-8 bytes of a text frame."""


_BEFORE_ID = b'{"type":"message","id":'


def encode_after_id(message: Message) -> bytes:
    """Encode what all copies of a message have in common: everything behind the id's value."""
    return encode(message)[len(_BEFORE_ID) + len(encode(message.id)) :]


def encode_copy(id: str, after_id: bytes) -> bytes:
    """Encode one copy of a message. Of hundreds of copies this is a quarter of the work."""
    return _BEFORE_ID + encode(id) + after_id


def decode_client_frame(data: bytes | bytearray | str) -> ClientFrame:
    """Read a frame that a client sent.

    Raises:
        ProtocolError: it is not a JSON object of a known type with fields of the right types.
    """
    try:
        return _client_frames.decode(data)
    except (msgspec.DecodeError, RecursionError):
        pass  # not `_decode` at once: the call is 1% of the relay's time
    try:
        return _decode(_client_frames, data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _protocol_error(error) from None


def decode_relay_frame(data: bytes | bytearray | str) -> RelayFrame | None:
    """Read a frame that the relay sent; None for a type that only a newer relay knows.

    Raises:
        ProtocolError: as `decode_client_frame`.
    """
    try:
        return _decode(_relay_frames, data)
    except (msgspec.DecodeError, RecursionError) as error:
        if _type_of(data) not in _RELAY_FRAME_TYPES:
            return None
        raise _protocol_error(error) from None


def text_too_long(length: int | None) -> str:
    """The sentence for a text of more than MAX_TEXT_LENGTH characters, on whichever side.

    `length` is None where nobody counted to the end.
    """
    found = "is too long" if length is None else f"has {length:,} characters"
    return (
        f"the text {found}; at most {MAX_TEXT_LENGTH:,} are allowed: shorten it, or name a file or"
        " commit instead"
    )


def salvage_id(data: bytes | bytearray | str) -> FrameId | msgspec.UnsetType:
    """Find the request's `id` in a frame that `decode_client_frame` refused, so that the error
    names it. That of a `got` is a delivery's."""
    frame = _object(data)
    found = frame.get("id", msgspec.UNSET)
    is_no_request = frame.get("type") == "got" or isinstance(found, dict | list)
    return msgspec.UNSET if is_no_request else found


def _decode(decoder: msgspec.json.Decoder[_T], data: bytes | bytearray | str) -> _T:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # Valid JSON may hold half of a surrogate pair: JavaScript writes one when a text was
        # cut within an emoji. msgspec refuses the frame, and UTF-8 could not hold it.
        mended = _without_lone_surrogates(data)
        if mended is None:
            raise
        return decoder.decode(mended)


_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


def _without_lone_surrogates(data: bytes | bytearray | str) -> bytes | None:
    """The same JSON with U+FFFD for them, or None: they are not what is wrong with it."""
    if isinstance(data, str):
        return None
    # An escaped backslash must not look like the start of an escape.
    plain = bytes(data).replace(rb"\\", rb"\u005c")
    mended = _LONE_SURROGATE.sub(rb"\\ufffd", plain)
    return None if mended == plain else mended


def _type_of(data: bytes | bytearray | str) -> str:
    """The `type` of any JSON object; that of a broken one counts as `message`, a known type."""
    found = _object(data).get("type", "message")
    return found if isinstance(found, str) else "message"


def _object(data: bytes | bytearray | str) -> dict[str, Any]:
    try:
        frame = _decode(_anything, data)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return frame if isinstance(frame, dict) else {}


def _protocol_error(error: Exception) -> ProtocolError:
    # msgspec's sentences name the field and the types, never the value of a secret: the only
    # value that they quote is an unknown `type` or `mode`, which may hold control characters.
    if isinstance(error, msgspec.ValidationError):
        shown = str(error)[:150].encode("unicode_escape").decode("ascii")
        return ProtocolError(f"this is not a frame of hoptell's protocol: {shown}"[:200])
    return ProtocolError("a frame is one JSON object in a text frame, and this is not JSON")
