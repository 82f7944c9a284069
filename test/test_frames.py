"""The wire: what a frame looks like, and what is not one."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoptell import frames
from hoptell.errors import ProtocolError
from hoptell.frames import (
    Ack,
    Error,
    Got,
    Hello,
    List,
    Message,
    PeerInfo,
    Peers,
    Send,
    Welcome,
    decode_client_frame,
    decode_relay_frame,
    encode,
    encode_after_id,
    encode_copy,
    salvage_id,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=10
)


def wire(frame: msgspec.Struct) -> Any:
    """The frame as another implementation reads it."""
    return json.loads(encode(frame))


# What goes over the wire ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (Hello("bob", "secret"), {"type": "hello", "name": "bob", "token": "secret"}),
        (
            Hello("bob", "secret", host="box", mode="send", roles=["dev"], wake="poll"),
            {
                "type": "hello",
                "name": "bob",
                "token": "secret",
                "host": "box",
                "mode": "send",
                "roles": ["dev"],
                "wake": "poll",
            },
        ),
        (
            Send(1, "bob", "hi", ttl=60, reply_to="r", key="k"),
            {
                "type": "send",
                "id": 1,
                "to": "bob",
                "text": "hi",
                "ttl": 60,
                "reply_to": "r",
                "key": "k",
            },
        ),
        (Send(None, "bob", "hi"), {"type": "send", "id": None, "to": "bob", "text": "hi"}),
        (List("x"), {"type": "list", "id": "x"}),
        (Got("d"), {"type": "got", "id": "d"}),
        (Welcome("bob"), {"type": "welcome", "name": "bob"}),
        (
            Ack(1, "queued", "m", expires=5),
            {"type": "ack", "id": 1, "state": "queued", "message_id": "m", "expires": 5},
        ),
        (
            Ack(1, "fanout", "m", count=0, skipped=[]),
            {
                "type": "ack",
                "id": 1,
                "state": "fanout",
                "message_id": "m",
                "count": 0,
                "skipped": [],
            },
        ),
        (Error("no", 7), {"type": "error", "id": 7, "error": "no"}),
        (Error("no", None), {"type": "error", "id": None, "error": "no"}),
        (Error("no"), {"type": "error", "error": "no"}),
        (
            Peers(1, [PeerInfo("bob", "box", ["dev"], True, 0, "hook")]),
            {
                "type": "peers",
                "id": 1,
                "peers": [
                    {
                        "name": "bob",
                        "host": "box",
                        "roles": ["dev"],
                        "online": True,
                        "queued": 0,
                        "wake": "hook",
                    }
                ],
            },
        ),
        (
            Message("d", "m", "al", "box", "bob", "hi", 5, "r", "team", 6, True),
            {
                "type": "message",
                "id": "d",
                "message_id": "m",
                "from": "al",
                "fromHost": "box",
                "fromMember": "team",
                "to": "bob",
                "text": "hi",
                "ts": 5,
                "reply_to": "r",
                "expires": 6,
                "noReply": True,
            },
        ),
        (
            Message("d", "m", "al", "", "@all", "hi", 5),
            {
                "type": "message",
                "id": "d",
                "message_id": "m",
                "from": "al",
                "fromHost": "",
                "to": "@all",
                "text": "hi",
                "ts": 5,
            },
        ),
    ],
)
def test_every_frame_has_the_names_of_the_protocol_and_leaves_out_what_is_not_set(
    frame: msgspec.Struct, expected: dict[str, Any]
) -> None:
    assert wire(frame) == expected


@given(st.tuples(TEXT, TEXT), TEXT, st.none() | st.just("team"), st.booleans())
def test_a_copy_is_the_message_with_another_id(
    ids: tuple[str, str], text: str, member: str | None, no_reply: bool
) -> None:
    first, second = (
        Message(id, "m", "al", "box", "@all", text, 5, None, member, 6, no_reply) for id in ids
    )
    assert encode_copy(second.id, encode_after_id(first)) == encode(second)


@given(SCALARS, TEXT)
def test_the_id_of_a_request_comes_back_as_it_was(id: Any, text: str) -> None:
    frame = decode_client_frame(json.dumps({"type": "list", "id": id, "other": text}))
    assert isinstance(frame, List)
    assert wire(Error("no", frame.id))["id"] == id
    assert type(wire(Error("no", frame.id))["id"]) is type(id)


@given(st.text(), st.booleans())
def test_any_text_survives_both_directions(text: str, ascii: bool) -> None:
    sent = decode_client_frame(
        json.dumps({"type": "send", "id": 1, "to": "b", "text": text}, ensure_ascii=ascii).encode()
    )
    assert isinstance(sent, Send) and sent.text == text
    received = decode_relay_frame(encode(Message("d", "m", "a", "", "b", sent.text, 1)))
    assert isinstance(received, Message) and received.text == text


def test_the_largest_text_fits_a_frame_however_it_is_escaped() -> None:
    text = "\N{GRINNING FACE}" * frames.MAX_TEXT_LENGTH
    send = {"type": "send", "id": "x" * 36, "to": "b" * 64, "text": text, "key": "k" * 64}
    escaped = json.dumps(send).encode()
    assert len(escaped) > 12 * frames.MAX_TEXT_LENGTH
    assert len(escaped) <= frames.MAX_FRAME_BYTES
    sent = decode_client_frame(escaped)
    assert isinstance(sent, Send) and sent.text == text


def test_unknown_fields_are_ignored_in_both_directions() -> None:
    assert decode_client_frame('{"type": "got", "id": "d", "new": {"a": [1]}}') == Got("d")
    assert decode_relay_frame('{"type": "welcome", "name": "b", "new": 1}') == Welcome("b")


def test_a_missing_mode_means_peer_and_a_missing_version_means_1() -> None:
    hello = decode_client_frame('{"type": "hello", "name": "b", "token": "t"}')
    assert hello == Hello("b", "t", v=1, host="", mode="peer", roles=[], wake=None)


def test_the_order_of_the_fields_does_not_matter() -> None:
    assert decode_client_frame('{"id": "d", "type": "got"}') == Got("d")


# What is not a frame ----------------------------------------------------------------------

NOT_FRAMES = [
    b"",
    b" ",
    b"null",
    b"1",
    b'"hello"',
    b"[]",
    b'[{"type": "got", "id": "d"}]',
    b"{}",
    b"{",
    b'{"type": "got", "id": "d"} {}',
    b"\xef\xbb\xbf{}",
    b'{"type": "got", "id": "\xff"}',
    b'{"type": "list", "id": NaN}',
    b'{"type": "list", "id": 1e999}',
    b'{"type": "list", "id": %s}' % (b"9" * 5000),
    b"[" * 200_000,
    b'{"type": "list", "id": ' + b"[" * 200_000,
    b'{"type": "list", "id": 1, "x": ' + b'{"a":' * 200_000,
    b'{"type": "list", "id": "\\ud83d", "x": ' + b"[" * 200_000,
]


@pytest.mark.parametrize("data", NOT_FRAMES, ids=range(len(NOT_FRAMES)))
def test_what_is_not_one_json_object_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_client_frame(data)
    with pytest.raises(ProtocolError):
        decode_relay_frame(data)
    assert salvage_id(data) is msgspec.UNSET


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "send", "to": "b", "text": "x"},
        {"type": "send", "id": 1, "to": "b"},
        {"type": "send", "id": 1, "text": "x"},
        {"type": "send", "id": [1], "to": "b", "text": "x"},
        {"type": "send", "id": 1, "to": ["b"], "text": "x"},
        {"type": "send", "id": 1, "to": "b", "text": 5},
        {"type": "send", "id": 1, "to": "b", "text": None},
        {"type": "send", "id": 1, "to": "b", "text": "x", "ttl": "60"},
        {"type": "send", "id": 1, "to": "b", "text": "x", "ttl": True},
        {"type": "send", "id": 1, "to": "b", "text": "x", "ttl": 1.5},
        {"type": "send", "id": 1, "to": "b", "text": "x", "reply_to": 5},
        {"type": "send", "id": 1, "to": "b", "text": "x", "key": 5},
        {"type": "list"},
        {"type": "list", "id": {"a": 1}},
        {"type": "got"},
        {"type": "got", "id": 5},
        {"type": "hello", "token": "t"},
        {"type": "hello", "name": "b"},
        {"type": "hello", "name": "b", "token": 5},
        {"type": "hello", "name": "b", "token": "t", "v": "1"},
        {"type": "hello", "name": "b", "token": "t", "mode": "admin"},
        {"type": "hello", "name": "b", "token": "t", "roles": "dev"},
        {"type": "hello", "name": "b", "token": "t", "roles": [1]},
        {"type": "hello", "name": "b", "token": "t", "host": {}},
        {"type": "hello", "name": "b", "token": "t", "wake": 1},
        {"type": "welcome", "name": "b"},
        {"type": "message", "id": "d"},
        {"type": 5},
        {"type": None},
        {"type": ["got"]},
        {"id": 1},
    ],
)
def test_a_frame_with_a_missing_field_or_a_wrong_type_is_a_protocol_error(
    frame: dict[str, Any],
) -> None:
    with pytest.raises(ProtocolError, match="not a frame of hoptell's protocol"):
        decode_client_frame(json.dumps(frame))


@given(JSON)
def test_any_json_is_a_frame_or_a_protocol_error_and_nothing_else(value: Any) -> None:
    for decode in (decode_client_frame, decode_relay_frame):
        try:
            decode(json.dumps(value))
        except ProtocolError as error:
            assert str(error).isprintable() and len(str(error)) <= 200


@given(st.binary())
def test_any_bytes_are_a_frame_or_a_protocol_error_and_nothing_else(data: bytes) -> None:
    salvage_id(data)
    for decode in (decode_client_frame, decode_relay_frame):
        with pytest.raises(ProtocolError):
            decode(data)


@given(TEXT.filter(lambda type: type not in ("hello", "send", "list", "got")))
def test_an_unknown_type_is_named_so_that_a_terminal_can_show_it(type: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_client_frame(json.dumps({"type": type, "id": 1}))
    sentence = str(caught.value)
    assert sentence.isascii() and sentence.isprintable() and len(sentence) <= 200


def test_a_protocol_error_never_quotes_a_token_or_a_text() -> None:
    for frame in (
        {"type": "hello", "name": 5, "token": "s3cret"},
        {"type": "hello", "name": "b", "token": ["s3cret"]},
        {"type": "send", "id": 1, "to": 5, "text": "s3cret"},
    ):
        with pytest.raises(ProtocolError) as caught:
            decode_client_frame(json.dumps(frame))
        assert "s3cret" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_a_hello_can_be_printed_without_its_token() -> None:
    hello = Hello("bob", "s3cret-token", roles=["dev"])
    assert "s3cret" not in repr(hello) and "s3cret" not in str([hello])
    assert "'bob'" in repr(hello)


# Half a surrogate pair: valid JSON that no UTF-8 text can hold ------------------------------


@pytest.mark.parametrize(
    ("escaped", "expected"),
    [
        (r"cut \ud83d", "cut \ufffd"),
        (r"\ud83d cut", "\ufffd cut"),
        (r"\ude00", "\ufffd"),
        (r"\uDE00\uD83D", "\ufffd\ufffd"),
        (r"\ud83d\ud83d\ude00", "\ufffd\N{GRINNING FACE}"),
        (r"\ud83d\ude00\ude00", "\N{GRINNING FACE}\ufffd"),
        (r"\ud83d \\ud83d \\\ud83d", "\ufffd \\ud83d \\\ufffd"),
        (r"\ud83d\"\\\"\u00e4", '\ufffd"\\"ä'),
    ],
)
def test_half_an_emoji_is_replaced_and_the_rest_of_the_text_stays(
    escaped: str, expected: str
) -> None:
    send = decode_client_frame(f'{{"type":"send","id":1,"to":"b","text":"{escaped}"}}'.encode())
    assert isinstance(send, Send) and send.text == expected
    message = f'{{"type":"message","id":"d","message_id":"m","from":"a","fromHost":"","to":"b"\
,"ts":1,"text":"{escaped}"}}'
    received = decode_relay_frame(message.encode())
    assert isinstance(received, Message) and received.text == expected


def test_an_id_with_half_an_emoji_can_be_answered() -> None:
    assert salvage_id(rb'{"type":"?","id":"\ud83d"}') == "\ufffd"
    assert wire(Error("no", salvage_id(rb'{"type":"?","id":"\ud83d"}')))["id"] == "\ufffd"


@given(st.text(st.characters(categories=["Cs", "L"]) | st.sampled_from('\\"u\N{GRINNING FACE}')))
def test_any_text_of_javascript_is_read_as_javascript_would_write_it_as_utf8(text: str) -> None:
    expected = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    send = decode_client_frame(
        json.dumps({"type": "send", "id": 1, "to": "b", "text": text}).encode()
    )
    assert isinstance(send, Send) and send.text == expected


# Errors that find their request -----------------------------------------------------------


@pytest.mark.parametrize("id", ["7", 7, -1.5, True, None, ""])
def test_the_id_of_a_refused_frame_is_found(id: Any) -> None:
    assert salvage_id(json.dumps({"type": "send", "id": id, "to": 5})) == id


@pytest.mark.parametrize("data", ['{"type": "send"}', '{"id": [1]}', '{"id": {}}', "[1]", "x"])
def test_where_there_is_no_usable_id_the_error_has_none(data: str) -> None:
    assert salvage_id(data) is msgspec.UNSET
    assert "id" not in wire(Error("no", salvage_id(data)))


# Newer relays -----------------------------------------------------------------------------


def test_a_frame_type_that_only_a_newer_relay_knows_is_skipped() -> None:
    assert decode_relay_frame('{"type": "receipt", "id": "d", "state": "read"}') is None


@pytest.mark.parametrize(
    "data",
    [
        '{"type": "message", "id": "d"}',
        '{"type": "ack", "id": 1, "state": "lost", "message_id": "m"}',
        '{"type": 5}',
        "{}",
        "no",
    ],
)
def test_a_broken_frame_of_a_known_type_is_a_protocol_error(data: str) -> None:
    with pytest.raises(ProtocolError):
        decode_relay_frame(data)


def test_a_client_cannot_be_sent_a_client_frame() -> None:
    assert decode_relay_frame('{"type": "send", "id": 1, "to": "b", "text": "x"}') is None


# The numbers of the contract --------------------------------------------------------------


def test_the_limits_are_those_of_the_protocol() -> None:
    assert frames.PROTOCOL_VERSION == 1
    assert frames.MAX_HELLO_BYTES == 16 * 1024
    assert frames.MAX_FRAME_BYTES == 2 * 1024 * 1024
    assert frames.MAX_TEXT_LENGTH == 100_000
    assert frames.MAX_TTL == 604_800
    assert frames.MAX_KEY_LENGTH == 64


def test_the_close_codes_are_those_of_the_protocol() -> None:
    assert frames.CLOSE_BAD_HELLO == 4001
    assert frames.CLOSE_NAME_REFUSED == 4002
    assert frames.CLOSE_BAD_TOKEN == 4003
    assert frames.CLOSE_REPLACED == 4004
    assert frames.CLOSE_BAD_VERSION == 4005
    assert frames.CLOSES_FOR_GOOD == {4001, 4002, 4003, 4005}
