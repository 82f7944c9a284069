"""`hoptell list`, `send`, `ask` and `wait`."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.relay import running_relay
from support.scripted_relay import ScriptedRelay, Session

from hoptell import cli, client, frames
from hoptell.cli import messages
from hoptell.names import is_name

pytestmark = pytest.mark.timeout(30)
BOB = frames.PeerInfo("bob", "desktop", ["dev", "reviewer"], True, 0, wake="hook")


@pytest.fixture
async def relay() -> AsyncIterator[ScriptedRelay]:
    async with ScriptedRelay() as relay:
        yield relay


def run(
    relay: ScriptedRelay, *args: str, name: str | None = "alice", stdin: bytes = b""
) -> "asyncio.Task[Result]":
    """Runs `hoptell` within this process, in a thread: the relay needs this one."""
    environ = relay.environ() | {"HOPTELL_NAME": name, "HOPTELL_ROLES": "dev"}
    return asyncio.create_task(
        asyncio.to_thread(
            CliRunner().invoke,
            cli.command_line,
            args,
            input=stdin,
            env=environ,
            prog_name="hoptell",
        )
    )


Start = Callable[..., Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
async def start(relay: ScriptedRelay) -> AsyncIterator[Start]:
    """Starts `hoptell` as a process of its own, which does not outlive the test."""
    started = []

    async def start(*args: str, **variables: str) -> asyncio.subprocess.Process:
        stdout = variables.pop("stdout", None)
        environ = {name: os.environ[name] for name in ("PATH", "HOME")} | relay.environ()
        command = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hoptell", *args),
            env=environ | variables,
            stdin=DEVNULL,
            stdout=PIPE if stdout is None else int(stdout),
            stderr=PIPE,
            # Tests that run in the background of a shell would pass on that SIGINT is ignored.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
        started.append(command)
        return command

    yield start
    for command in started:
        if command.returncode is None:
            command.kill()
        await command.communicate()


async def answer_list(session: Session, *peers: frames.PeerInfo) -> None:
    frame = await session.receive(frames.List)
    await session.send(frames.Peers(frame.id, list(peers)))


# list -------------------------------------------------------------------------------------


async def test_list_shows_who_is_there_as_a_table(relay: ScriptedRelay) -> None:
    running = run(relay, "list")
    session = await relay.accept()
    carl = frames.PeerInfo("carl", "evil\x1b[2J\nhost", [], False, 3)
    await answer_list(session, BOB, carl)
    result = await running
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "NAME  STATE    HOST                           ROLES         QUEUED  WAKE",
        "bob   online   desktop                        dev,reviewer  0       hook",
        'carl  offline  "evil<U+001B>[2J<U+000A>host"  -             3       -',
    ]
    assert (session.hello.name, session.hello.mode) == ("alice", "send")


async def test_list_prints_the_wires_fields_as_json(relay: ScriptedRelay) -> None:
    running = run(relay, "list", "--json")
    await answer_list(await relay.accept(), BOB)
    assert json.loads((await running).stdout) == [
        {
            "name": "bob",
            "host": "desktop",
            "roles": ["dev", "reviewer"],
            "online": True,
            "queued": 0,
            "wake": "hook",
        }
    ]


async def test_list_says_when_nobody_is_there(relay: ScriptedRelay) -> None:
    running = run(relay, "list")
    await answer_list(await relay.accept())
    assert (await running).stdout == "The relay knows no other peer yet.\n"


# send -------------------------------------------------------------------------------------


async def sent(relay: ScriptedRelay, *args: str, stdin: bytes = b"") -> frames.Send:
    """What `hoptell send ARGS` gives to the relay."""
    running = run(relay, "send", *args, stdin=stdin)
    frame = await (session := await relay.accept()).receive(frames.Send)
    await session.ack(frame)
    assert (await running).exit_code == 0
    assert session.hello.mode == "send"
    return frame


async def test_send_joins_the_words_and_passes_the_options(relay: ScriptedRelay) -> None:
    frame = await sent(relay, "--ttl", "10m", "--reply-to", "ref-1", "bob", "the", "tests pass")
    assert (frame.to, frame.text) == ("bob", "the tests pass")
    assert (frame.ttl, frame.reply_to) == (600, "ref-1")


@pytest.mark.parametrize(
    "words", [["-n", "5"], ["-"] * 2, ["--"], ["`id`", "$HOME"], ["ls", "-h"], ["use --json here"]]
)
async def test_send_takes_what_follows_the_address_literally(
    relay: ScriptedRelay, words: list[str]
) -> None:
    assert (await sent(relay, "bob", *words)).text == " ".join(words)


async def test_send_takes_even_its_options_literally_after_two_dashes(relay: ScriptedRelay) -> None:
    assert (await sent(relay, "bob", "--", "--json", "is", "on")).text == "--json is on"


@pytest.mark.parametrize("word", ["--json", "--ttl", "--ttl=10m", "--reply-to", "--help"])
async def test_send_refuses_an_option_in_the_message(relay: ScriptedRelay, word: str) -> None:
    result = await run(relay, "send", "bob", "done", word)
    assert result.exit_code == 2
    assert f"{word} stands within the message: put options before TO" in result.stderr


async def test_send_reads_standard_input_exactly(relay: ScriptedRelay) -> None:
    text = "line\r\n\tß€\U0001f600\n\n"
    assert (await sent(relay, "bob", "-", stdin=text.encode())).text == text
    longest = "\U0001f600" * 100_000
    assert (await sent(relay, "bob", "-", stdin=longest.encode())).text == longest


@pytest.mark.parametrize(
    ("stdin", "sentence"),
    [
        (b"x" * 100_001, "the text has 100,001 characters; at most 100,000 are allowed"),
        (b"x" * 500_000, "the text is too long; at most 100,000 are allowed"),
        ("ä".encode() * 150_000, "150,000 characters; at most 100,000 are allowed"),
        ("ä".encode() * 250_000, "the text is too long; at most 100,000 are allowed"),
        (b"ok \xff", "standard input is not UTF-8 text (byte 3): convert it first"),
    ],
)
async def test_send_says_what_is_wrong_with_standard_input(
    relay: ScriptedRelay, stdin: bytes, sentence: str
) -> None:
    result = await run(relay, "send", "bob", "-", stdin=stdin)
    assert (result.exit_code, result.stdout) == (1, "")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("ack", "said"),
    [
        (("delivered", "r1"), "delivered to bob (reference r1)"),
        (("queued", "r1"), "queued for bob, who is offline or busy (reference r1)"),
        (("unconfirmed", "r1"), "sent to bob, who has not confirmed it yet (reference r1)"),
        (("fanout", "r1", None, 1, []), "sent to 1 peer as bob (reference r1)"),
        (
            ("fanout", "r1", None, 3, ["x", "y"]),
            "sent to 3 peers as bob, but not to x, y: too many messages wait there already"
            " (reference r1)",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
async def test_send_says_what_became_of_the_message(
    relay: ScriptedRelay, ack: tuple[Any, ...], said: str
) -> None:
    running = run(relay, "send", "bob", "hi")
    session = await relay.accept()
    frame = await session.receive(frames.Send)
    await session.send(frames.Ack(frame.id, *ack))
    result = await running
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{said}\n", "")


async def test_send_says_until_when_a_message_waits(relay: ScriptedRelay) -> None:
    running = run(relay, "send", "--ttl", "1h", "bob", "hi")
    session = await relay.accept()
    frame = await session.receive(frames.Send)
    await session.send(frames.Ack(frame.id, "queued", "r1", expires=1_700_000_000_000))
    assert "or busy, until 2023-11-1" in (await running).stdout


async def test_send_prints_the_acknowledgement_as_json(relay: ScriptedRelay) -> None:
    running = run(relay, "send", "--json", "@all", "hi")
    session = await relay.accept()
    frame = await session.receive(frames.Send)
    await session.send(frames.Ack(frame.id, "fanout", "r1", None, 2, ["x"]))
    assert json.loads((await running).stdout) == {
        "state": "fanout",
        "message_id": "r1",
        "count": 2,
        "skipped": ["x"],
    }


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
async def test_send_that_cannot_say_so_says_that_the_message_was_accepted(
    relay: ScriptedRelay, start: Start
) -> None:
    with open("/dev/full", "wb") as full:
        command = await start("send", "bob", "hi", stdout=str(full.fileno()))
    session = await relay.accept()
    frame = await session.receive(frames.Send)
    await session.send(frames.Ack(frame.id, "delivered", "r1"))
    _, errors = await command.communicate()
    assert command.returncode == 1
    assert errors.decode() == (
        "hoptell: standard output cannot be written (No space left on device), but the message was"
        " accepted (reference r1)\n"
    )


async def test_send_passes_on_why_the_relay_refused(relay: ScriptedRelay) -> None:
    running = run(relay, "send", "bob", "hi")
    session = await relay.accept()
    frame = await session.receive(frames.Send)
    await session.send(frames.Error("no peer named bob", id=frame.id))
    result = await running
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "hoptell: no peer named bob\n"


async def test_send_without_a_relay_fails_within_seconds(
    relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert messages.CONNECT_TIMEOUT <= 5
    monkeypatch.setattr(messages, "CONNECT_TIMEOUT", 0.1)
    await relay.stop()
    result = await run(relay, "send", "bob", "hi")
    await relay.start()
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"hoptell: no relay answers at {relay.url}: start one with `hoptell relay`, or set"
        " HOPTELL_RELAY\n"
    )


async def test_send_gives_a_relay_that_restarts_the_time_to_come_back(
    relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RECONNECT_DELAYS", (0.01, 0.02))
    running = run(relay, "send", "bob", "hi")
    (await relay.connect()).abort()
    session = await relay.accept()
    await session.ack(await session.receive(frames.Send))
    assert (await running).exit_code == 0


async def test_send_says_at_once_that_the_login_was_refused(relay: ScriptedRelay) -> None:
    running = run(relay, "send", "bob", "hi")
    await (await relay.connect()).close(4003, "the relay does not know this token")
    result = await running
    assert result.exit_code == 1
    assert result.stderr == (
        f"hoptell: {relay.url} does not let alice in: the relay does not know this token\n"
    )


@pytest.mark.parametrize("ttl", ["0", "8d", "ten", "1.5h", "-1", "10 m", "٣"])
async def test_a_wrong_duration_is_wrong_usage(relay: ScriptedRelay, ttl: str) -> None:
    result = await run(relay, "send", "--ttl", ttl, "bob", "hi")
    assert result.exit_code == 2
    assert "is not a duration: use 30s, 10m, 2h, 7d" in result.stderr or (
        "is not from 1s to 7d" in result.stderr
    )


@pytest.mark.parametrize(
    ("text", "seconds"), [("45", 45), ("30s", 30), ("10m", 600), ("2h", 7200), ("7d", 604_800)]
)
def test_durations(text: str, seconds: int) -> None:
    assert messages.Duration().convert(text, None, None) == seconds
    assert messages.Duration().convert(messages.in_words(seconds), None, None) == seconds


# ask --------------------------------------------------------------------------------------


async def asked(session: Session, state: str = "delivered") -> frames.Send:
    frame = await session.receive(frames.Send)
    await session.ack(frame, "the-question", state)
    return frame


async def test_ask_prints_the_answer_to_exactly_its_message(relay: ScriptedRelay) -> None:
    running = run(relay, "ask", "bob", "which", "port?")
    session = await relay.accept()
    frame = await session.receive(frames.Send)
    # A quick answer overtakes the acknowledgement.
    await session.deliver("d1", "not it", sender="bob")
    await session.deliver("d2", "an impostor's", sender="carl", reply_to="the-question")
    await session.deliver("d3", "to another question", sender="bob", reply_to="another-question")
    await session.deliver("d4", "port 7777", sender="bob", reply_to="the-question")
    await session.ack(frame, "the-question", "delivered")
    assert [(await session.receive(frames.Got)).id for _ in range(4)] == ["d1", "d2", "d3", "d4"]
    result = await running
    assert result.exit_code == 0
    assert "port 7777" in result.stdout
    assert result.stdout.startswith("[hoptell message ")
    # Not under the made-up name, which nobody has any more.
    assert "(in a shell: HOPTELL_NAME=alice hoptell send --reply-to ref-d4 bob" in result.stdout
    for other in ("not it", "an impostor's", "to another question"):
        assert other in result.stderr
        assert other not in result.stdout
    assert (frame.to, frame.text, frame.reply_to) == ("bob", "which port?", None)


async def test_ask_does_not_ask_the_session_of_its_own_name(relay: ScriptedRelay) -> None:
    result = await run(relay, "ask", "bob", "hi", name="bob")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "hoptell: bob is your own name: ask another peer\n"


async def test_ask_goes_online_under_a_name_of_its_own(relay: ScriptedRelay) -> None:
    longest = "a" * 64
    names = set()
    for name in ("alice", "alice", longest):
        running = run(relay, "ask", "bob", "hi", name=name)
        session = await relay.accept()
        await asked(session)
        await session.deliver("d1", sender="bob", reply_to="the-question")
        assert (await running).exit_code == 0
        assert (session.hello.mode, session.hello.roles) == ("peer", [])
        assert session.hello.transient  # the relay need not remember it
        assert is_name(session.hello.name)
        assert session.hello.name.startswith(f"{name[:53]}-ask-")
        names.add(session.hello.name)
    assert len(names) == 3


async def test_ask_prints_the_wires_fields_as_json_that_no_terminal_obeys(
    relay: ScriptedRelay,
) -> None:
    text = "\x1b[2J\x9b2J\x7f\u202eß"
    running = run(relay, "ask", "--json", "bob", "hi")
    session = await relay.accept()
    await asked(session)
    await session.deliver("d1", text, sender="bob", reply_to="the-question", member="bob")
    result = await running
    fields = json.loads(result.stdout)
    assert (fields["text"], fields["from"], fields["fromMember"]) == (text, "bob", "bob")
    assert result.stdout.isascii() and result.stdout.removesuffix("\n").isprintable()


async def test_ask_takes_the_first_answer_of_a_role(relay: ScriptedRelay) -> None:
    running = run(relay, "ask", "@dev", "hi")
    session = await relay.accept()
    frame = await session.receive(frames.Send)
    await session.send(frames.Ack(frame.id, "fanout", "the-question", None, 2, ["dora"]))
    await session.deliver("d1", "it was carl", sender="carl", reply_to="the-question")
    result = await running
    assert result.exit_code == 0
    assert "it was carl" in result.stdout
    assert "not to dora" in result.stderr


@pytest.mark.parametrize(("online", "said"), [(False, "is offline"), (True, "has other messages")])
async def test_ask_says_at_once_that_the_question_is_queued(
    relay: ScriptedRelay, start: Start, online: bool, said: str
) -> None:
    # Never waited for in silence.
    command = await start("ask", "carol", "hi")
    session = await relay.accept()
    await asked(session, "queued")
    await answer_list(session, frames.PeerInfo("carol", "", [], online, 1))
    assert command.stderr is not None
    line = (await command.stderr.readline()).decode()
    assert line.startswith(f"hoptell: carol {said}")
    assert "the message is queued" in line
    await session.deliver("d1", "late but here", sender="carol", reply_to="the-question")
    out, err = await command.communicate()
    assert (command.returncode, err) == (0, b"")
    assert b"late but here" in out


async def test_ask_fails_at_once_for_a_peer_that_nobody_knows(relay: ScriptedRelay) -> None:
    running = run(relay, "ask", "nobody", "hi")
    session = await relay.accept()
    frame = await session.receive(frames.Send)
    await session.send(frames.Error("the relay knows no peer named nobody", id=frame.id))
    result = await running
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "hoptell: the relay knows no peer named nobody\n"


async def test_ask_without_an_answer_in_time_is_exit_code_3(relay: ScriptedRelay) -> None:
    running = run(relay, "ask", "--timeout", "1", "bob", "hi")
    await asked(await relay.accept(), "unconfirmed")
    result = await running
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.splitlines() == [
        "hoptell: bob has not confirmed the message yet: this waits for the answer",
        "hoptell: no answer from bob within 1s",
    ]


async def test_ask_goes_on_after_a_lost_connection_and_shows_nothing_twice(
    relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RECONNECT_DELAYS", (0.01, 0.02))
    running = run(relay, "ask", "bob", "hi")
    session = await relay.accept()
    name = session.hello.name
    await asked(session)
    await session.deliver("d1", "something else", sender="carl")
    await session.receive(frames.Got)
    session.abort()
    session = await relay.accept()
    assert session.hello.name == name
    await session.deliver("d1", "something else", sender="carl")
    await session.deliver("d2", "the answer", sender="bob", reply_to="the-question")
    result = await running
    assert result.exit_code == 0
    assert result.stderr.count("something else") == 1
    assert "was lost; waiting goes on" in result.stderr


# wait -------------------------------------------------------------------------------------


async def test_wait_prints_the_next_message_and_confirms_it(relay: ScriptedRelay) -> None:
    running = run(relay, "wait", name="bob")
    session = await relay.accept()
    await session.deliver("d1", "first")
    await session.deliver("d2", "second")
    assert (await session.receive(frames.Got)).id == "d1"
    assert await session.wait_closed() == 1000  # d2 is not confirmed
    result = await running
    assert (result.exit_code, result.stderr) == (0, "")
    assert "first" in result.stdout and "second" not in result.stdout
    assert "HOPTELL_NAME=bob hoptell send --reply-to ref-d1 alice" in result.stdout
    assert (session.hello.name, session.hello.mode) == ("bob", "peer")


async def test_wait_prints_the_wires_fields_as_json(relay: ScriptedRelay) -> None:
    running = run(relay, "wait", "--json", "1m", name="bob")
    session = await relay.accept()
    message = await session.deliver("d1", "hi", reply_to="ref-0", no_reply=True)
    assert json.loads((await running).stdout) == json.loads(frames.encode(message))


async def test_wait_says_the_name_that_it_made_up(relay: ScriptedRelay) -> None:
    running = run(relay, "wait", name=None)
    session = await relay.accept()
    await session.deliver("d1")
    assert f"hoptell: online as {session.hello.name} (set HOPTELL_NAME" in (await running).stderr
    assert session.hello.transient  # nobody will have this process id again


async def test_the_name_of_a_wait_stays_known(relay: ScriptedRelay) -> None:
    running = run(relay, "wait", name="bob")
    session = await relay.accept()
    await session.deliver("d1")
    await running
    assert not session.hello.transient


async def test_wait_without_a_message_in_time_is_exit_code_3(relay: ScriptedRelay) -> None:
    running = run(relay, "wait", "1", name="bob")
    await relay.accept()
    result = await running
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "hoptell: nothing arrived within 1s\n"


async def test_wait_0_takes_what_is_there_already(relay: ScriptedRelay) -> None:
    for there, code in ((True, 0), (False, 3)):
        running = run(relay, "wait", "0", name="bob")
        session = await relay.accept()
        if there:
            await session.deliver("d1", "was there")
        await answer_list(session)
        result = await running
        assert result.exit_code == code
        assert ("was there" in result.stdout) == there


async def test_wait_tells_when_the_relay_is_gone_at_the_end(relay: ScriptedRelay) -> None:
    running = run(relay, "wait", "1", name="bob")
    await relay.accept()
    await relay.stop()
    result = await running
    await relay.start()
    assert result.exit_code == 1
    assert "waiting goes on" in result.stderr
    assert "nothing arrived within 1s: " in result.stderr


async def test_wait_says_when_another_session_takes_the_name(
    relay: ScriptedRelay, start: Start
) -> None:
    command = await start("wait")
    session = await relay.accept()
    await session.close(4004)
    assert command.stderr is not None
    line = (await command.stderr.readline()).decode()
    assert line.startswith("hoptell: another session went online as bob: stop it")


async def test_wait_leaves_a_message_that_it_could_not_print_with_the_relay(
    relay: ScriptedRelay,
    start: Start,
) -> None:
    for target, words in (("pipe", b""), ("/dev/full", b"hoptell: No space left on device\n")):
        if target == "pipe":
            read, write = os.pipe()
            os.close(read)
        elif not Path(target).exists():
            continue
        else:
            write = os.open(target, os.O_WRONLY)
        command = await start("wait", stdout=str(write))
        os.close(write)
        session = await relay.accept()
        await session.deliver("d1")
        with pytest.raises(Exception, match="received 1000"):
            await session.receive(frames.Got)
        assert await command.communicate() == (None, words)
        assert command.returncode == 1


async def test_wait_prints_every_character_in_any_locale(
    relay: ScriptedRelay, start: Start
) -> None:
    command = await start("wait", PYTHONIOENCODING="ascii")
    session = await relay.accept()
    await session.deliver("d1", "größer \U0001f600")
    out, err = await command.communicate()
    assert (command.returncode, err) == (0, b"")
    assert rb"gr\xf6\xdfer \U0001f600" in out


@pytest.mark.parametrize("command", ["wait", "ask"])
async def test_ctrl_c_ends_quietly_and_confirms_nothing(
    relay: ScriptedRelay, start: Start, command: str
) -> None:
    running = await start(command, *(["carol", "hi"] if command == "ask" else []))
    session = await relay.accept()
    if command == "ask":
        await asked(session)
    await session.ping()
    running.send_signal(signal.SIGINT)
    assert await running.communicate() == (b"", b"")
    assert running.returncode == 130
    assert await session.wait_closed() == 1000


# With a real relay ------------------------------------------------------------------------


@pytest.fixture
async def shells() -> AsyncIterator[Start]:
    """Starts `hoptell` as `name` with a real relay; nothing outlives the test."""
    started = []
    async with running_relay() as relay:
        environ = {name: os.environ[name] for name in ("PATH", "HOME")}
        environ |= {"HOPTELL_RELAY": relay.url, "HOPTELL_TOKEN": relay.token}

        async def start(name: str, *args: str) -> asyncio.subprocess.Process:
            command = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "hoptell", *args),
                env=environ | ({"HOPTELL_NAME": name} if name else {}),
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
            )
            started.append(command)
            if args[0] == "wait":  # the others would not know the name before
                while not any(line.get("name") == name for line in relay.events("connected")):
                    await asyncio.sleep(0.01)
            return command

        yield start
        for command in started:
            if command.returncode is None:
                command.kill()
            await command.communicate()


async def result_of(command: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    out, err = await command.communicate()
    return command.returncode, out.decode(), err.decode()


async def test_two_shells_ask_and_answer(shells: Start) -> None:
    waiting = await shells("bob", "wait", "--json")
    asking = await shells("alice", "ask", "bob", "which port?")
    code, out, _ = await result_of(waiting)
    question = json.loads(out)
    assert (code, question["text"], question.get("noReply")) == (0, "which port?", None)
    assert question["from"].startswith("alice-ask-")
    reply = ("send", "--reply-to", question["message_id"], question["from"], "port 7777")
    code, out, err = await result_of(await shells("bob", *reply))
    assert (code, err) == (0, "")
    assert out.startswith(f"delivered to {question['from']} (reference ")
    code, out, err = await result_of(asking)
    assert (code, err) == (0, "")
    assert "port 7777" in out


async def test_a_script_without_a_name_is_told_apart_and_cannot_be_answered(shells: Start) -> None:
    waiting = await shells("bob", "wait", "--json")
    assert (await result_of(await shells("", "send", "bob", "done")))[0] == 0
    message = json.loads((await result_of(waiting))[1])
    assert message["noReply"] is True
    code, out, err = await result_of(await shells("bob", "send", message["from"], "thanks"))
    assert (code, out) == (1, "")
    assert f"knows no peer named {message['from']}" in err


async def test_asking_an_offline_peer_says_so_and_asking_nobody_ends_at_once(shells: Start) -> None:
    await result_of(await shells("bob", "wait", "0"))
    code, out, err = await result_of(await shells("alice", "ask", "--timeout", "1", "bob", "hi"))
    assert (code, out) == (3, "")
    assert err.startswith("hoptell: bob is offline: the message is queued")
    for address in ("carl", "@dev", "no name"):
        code, out, err = await result_of(await shells("alice", "ask", address, "hi"))
        assert (code, out, err.count("\n")) == (1, "", 1)
    code, out, err = await result_of(await shells("bob", "send", "bob", "hi"))
    assert (code, out) == (1, "")
    assert "your own name" in err


# All of them ------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["list", "send", "ask", "wait"])
def test_help_has_examples(command: str) -> None:
    result = CliRunner().invoke(cli.command_line, [command, "--help"], prog_name="hoptell")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert f"hoptell {command}" in result.stdout


@pytest.mark.parametrize("args", [("send",), ("send", "bob"), ("ask", "bob"), ("wait", "x")])
async def test_wrong_usage_is_exit_code_2(relay: ScriptedRelay, args: tuple[str, ...]) -> None:
    assert (await run(relay, *args)).exit_code == 2


async def test_send_loads_neither_mcp_nor_the_relay(relay: ScriptedRelay) -> None:
    program = (
        "import sys, hoptell.cli\n"
        "try: hoptell.cli.main()\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    environ = {name: os.environ[name] for name in ("PATH", "HOME")} | relay.environ()
    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, "send", "bob", "hi"), env=environ, stdout=PIPE, stderr=PIPE
    )
    session = await relay.accept()
    await session.ack(await session.receive(frames.Send))
    out, err = await command.communicate()
    loaded = set(err.decode().split())
    assert out.startswith(b"queued for bob")
    assert "hoptell.client" in loaded
    assert not loaded & {"mcp", "pydantic", "hoptell.relay.core", "hoptell.inbox", "uvloop"}
