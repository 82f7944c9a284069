"""The way to the relay: whatever is broken, the line of that link fails, and in time."""

import asyncio
import contextlib
import email.utils
import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.agents import Computer
from support.doctor import Findings
from support.relay import TOKEN, RelayProcess, relay_process, running_relay
from websockets.exceptions import ConnectionClosedError
from websockets.frames import Close

from hoptell import cli, explain, frames
from hoptell.doctor import network
from hoptell.doctor.network import LINKS
from hoptell.errors import LoginRefused, RelayUnreachable
from hoptell.relay.credentials import add_member
from hoptell.settings import load_peer_settings

CERTIFICATES = Path(__file__).parent.parent / "support" / "certificates"


@pytest.fixture
def computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Computer:
    monkeypatch.setattr("hoptell.setup.machine.USUAL_FOLDERS", ())
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    return Computer(tmp_path)


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    folder = tmp_path_factory.mktemp("relay")
    token = add_member(folder / "members.json", "alice")
    with relay_process(folder, "--members", str(folder / "members.json")) as relay:
        relay.environment["ALICE"] = token
        yield relay


def to(computer: Computer, relay: str, token: str = TOKEN, **settings: str) -> Findings:
    """What the doctor finds with these settings in the file."""
    computer.write_settings(relay=relay, token=token, **settings)
    return Findings(computer.environ, secrets=(token,))


def skipped_after(findings: Findings, broken: str) -> None:
    """Everything behind `broken` was not tried, which is said."""
    for check in LINKS[LINKS.index(broken) + 1 :]:
        assert findings[check]["status"] == "info"
        assert findings[check]["message"] == f"not tried, since {broken} failed"


@contextlib.contextmanager
def server(answer: bytes | None) -> Iterator[str]:
    """Something that accepts connections and says `answer`, or nothing; its ws:// address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    held.append(connection)
                    if answer is not None:
                        with contextlib.suppress(OSError):  # it only looked whether we accept
                            connection.sendall(answer)
                            connection.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in held:
                connection.close()


def test_a_whole_way_is_ok_and_takes_nobodys_name(computer: Computer, relay: RelayProcess) -> None:
    findings = to(computer, relay.url, name="bob")
    assert findings.failed == set()
    for check in ("settings", "token", "relay", "dns", "tcp", "health", "clock", "login"):
        assert findings[check]["status"] == "ok", findings[check]
    assert findings["tls"]["status"] == "info"
    assert "bob-check" in relay.wait_for("bob")


async def test_a_session_that_is_online_stays_so_and_is_named(computer: Computer) -> None:
    async with asyncio.timeout(20), running_relay() as relay:
        alice = await relay.login("alice", host="laptop", wake="hook")
        findings = await asyncio.to_thread(to, computer, relay.url, name="alice")
        assert "online on laptop, woken by hook" in findings.all("name")[0]["message"]
        assert await alice.ask(type="list", id=1) == {"type": "peers", "id": 1, "peers": []}


def test_a_wrong_token_fails_at_the_login_with_a_fix_that_works_as_it_stands(
    computer: Computer, relay: RelayProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = to(computer, relay.url, "not-the-token-at-all")
    assert findings.failed == {"login"} and findings.exit_code == 1
    file = computer.home / ".config" / "hoptell" / ".env"
    assert findings["login"]["message"] == f"the relay does not know the token from {file}"
    words = findings["login"]["fix"].split("`")[1].split()
    assert words[0] == "hoptell"
    monkeypatch.setattr("hoptell.setup.machine.USUAL_FOLDERS", ())
    runner = CliRunner(env=computer.environ)
    done = runner.invoke(cli.command_line, words[1:], input=TOKEN)
    assert done.exit_code == 0, done.output
    assert Findings(computer.environ, secrets=(TOKEN,)).exit_code == 0


def test_a_wrong_token_in_the_environment_is_to_be_set_there(
    computer: Computer, relay: RelayProcess
) -> None:
    computer.environ["HOPTELL_TOKEN"] = "not-the-token-at-all"
    findings = to(computer, relay.url)
    assert findings["login"]["message"].endswith("the token from the environment")
    assert "set HOPTELL_TOKEN there" in findings["login"]["fix"]


def test_an_address_without_a_port_fails_at_tcp_and_names_the_port(
    computer: Computer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")

    monkeypatch.setattr("asyncio.open_connection", refuse)
    findings = to(computer, "ws://127.0.0.1")
    assert findings.failed == {"tcp"}
    assert findings["tcp"]["message"].endswith("ws://127.0.0.1, which means port 80")
    assert "usually :7777" in findings["tcp"]["fix"]


def test_a_name_that_a_members_token_may_not_use_fails_at_the_login(
    computer: Computer, relay: RelayProcess
) -> None:
    findings = to(computer, relay.url, relay.environment["ALICE"], name="bob")
    assert findings.failed == {"login"}
    assert "this is alice's token" in findings["login"]["message"]
    assert to(computer, relay.url, relay.environment["ALICE"], name="alice-2").exit_code == 0


@pytest.mark.parametrize("reason", ["the relay speaks version 9: get in: it's late", ""])
def test_a_relay_of_another_version_is_told_with_its_own_words(
    computer: Computer, reason: str
) -> None:
    computer.write_settings(relay="ws://127.0.0.1:9", token=TOKEN)
    way = network.Way(load_peer_settings(computer.environ), computer.environ, network.Found())
    close = ConnectionClosedError(Close(frames.CLOSE_BAD_VERSION, reason), None)
    refused = explain.close(close, "ws://relay in: a place", "bob")
    assert isinstance(refused, LoginRefused)
    line = way._refused(refused)
    said = f" ({reason})" if reason else ""
    assert line.message == f"the relay does not understand this hoptell{said}"
    assert line.fix == "use the same version of hoptell here and on the relay"


def test_what_to_do_about_a_login_is_apart_from_what_is_wrong(
    computer: Computer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unreachable:
        def __init__(self, *_: object, **__: object) -> None:
            raise RelayUnreachable("it is gone: for good", "ask: nicely")

    monkeypatch.setattr(network, "RelayClient", Unreachable)
    monkeypatch.setattr(network, "LINKS", ("login",))
    login = to(computer, "ws://127.0.0.1:9")["login"]
    assert (login["message"], login["fix"]) == ("it is gone: for good", "ask: nicely")


def test_a_dead_relay_fails_at_tcp(computer: Computer) -> None:
    findings = to(computer, "ws://127.0.0.1:9")
    assert findings.failed == {"tcp"}
    assert findings["tcp"]["message"] == "no relay answers at ws://127.0.0.1:9"
    assert "hoptell relay" in findings["tcp"]["fix"]
    skipped_after(findings, "tcp")


def test_a_host_that_does_not_exist_fails_at_dns(
    computer: Computer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    findings = to(computer, "wss://relay.example")
    assert findings.failed == {"dns"}
    assert findings["dns"]["message"] == "the host name relay.example cannot be found"
    skipped_after(findings, "dns")


def test_a_name_server_that_does_not_answer_ends_in_a_line(
    computer: Computer, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(network, "LINK_TIMEOUT", 0.2)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(30))
    began_at = time.monotonic()
    try:
        findings = to(computer, "ws://relay.example:7777")
    finally:
        over.set()
    assert findings.failed == {"dns"} and time.monotonic() - began_at < 10
    skipped_after(findings, "dns")


HANGING = """
import socket, time
from hoptell import cli
from hoptell.doctor import network
network.LINK_TIMEOUT = 0.2
socket.getaddrinfo = lambda *_, **__: time.sleep(60)
import hoptell.cli
hoptell.cli.main()
"""


def test_a_process_ends_although_the_name_server_never_answers(computer: Computer) -> None:
    environ = computer.environ | {"HOPTELL_RELAY": "ws://relay.example", "HOPTELL_TOKEN": TOKEN}
    command = [sys.executable, "-c", HANGING, "doctor"]
    environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and done.stderr == ""
    assert "FAIL  dns: ws://relay.example did not answer within 0.2 s" in done.stdout


def test_what_does_not_answer_at_all_fails_at_health_in_time(
    computer: Computer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "LINK_TIMEOUT", 0.2)
    with server(None) as url:
        findings = to(computer, url)
    assert findings.failed == {"health"}
    assert "did not answer within 0.2 s" in findings["health"]["message"]
    skipped_after(findings, "health")


HEAD = b"HTTP/1.1 %d X\r\nContent-Length: 3\r\n\r\nok\n"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"SSH-2.0-OpenSSH_9\r\n", "does not speak HTTP"),
        (b"garbage\r\n\r\n", "does not speak HTTP"),
        (b"", "does not speak HTTP"),
        (HEAD % 404, "is not a hoptell relay (HTTP 404)"),
        (HEAD % 503, "a proxy answers with HTTP 503"),
        (b"HTTP/1.1 200 X\r\nContent-Length: many\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\nhi", "is not a hoptell relay (HTTP 200)"),
        (b"x" * 100_000, "does not speak HTTP"),
    ],
    ids=range(8),
)
def test_something_else_at_the_address_fails_at_health(
    computer: Computer, answer: bytes, message: str
) -> None:
    with server(answer) as url:
        findings = to(computer, url)
    assert findings.failed == {"health"}
    assert message in findings["health"]["message"]
    skipped_after(findings, "health")


def test_an_address_that_is_none_fails_at_the_settings(computer: Computer) -> None:
    findings = to(computer, "http://127.0.0.1:7777")
    assert findings.failed == {"settings"}
    file = computer.home / ".config" / "hoptell" / ".env"
    expected = f"HOPTELL_RELAY in {file}: a relay is ws://host:port or wss://host"
    assert findings["settings"]["message"] == expected and findings["settings"]["fix"] is None
    assert findings["login"]["message"] == "not tried, since settings failed"


async def test_a_certificate_that_is_trusted_is_ok(
    computer: Computer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "authority.pem"))
    good = CERTIFICATES / "good.pem"
    async with asyncio.timeout(20), running_relay(tls=(good, good)) as relay:
        findings = await asyncio.to_thread(to, computer, relay.url)
        assert findings.failed == set()
        assert "is accepted, for another" in findings["tls"]["message"]
        assert findings["login"]["status"] == "ok"
        monkeypatch.setattr(network, "EXPIRY_WARNING", 1e12)
        soon = await asyncio.to_thread(to, computer, relay.url)
        assert soon["tls"]["status"] == "warn" and "renew" in soon["tls"]["fix"]


@pytest.mark.parametrize(
    ("file", "trusted", "message"),
    [
        ("expired.pem", True, "has expired"),
        ("other-host.pem", True, "the certificate is not for 127.0.0.1"),
        ("good.pem", False, "does not know who signed"),
    ],
)
async def test_a_certificate_that_is_not_accepted_fails_at_tls(
    computer: Computer, monkeypatch: pytest.MonkeyPatch, file: str, trusted: bool, message: str
) -> None:
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "authority.pem"))
    path = CERTIFICATES / file
    async with asyncio.timeout(20), running_relay(tls=(path, path)) as relay:
        findings = await asyncio.to_thread(to, computer, relay.url)
    assert findings.failed == {"tls"} and message in findings["tls"]["message"]
    skipped_after(findings, "tls")


async def test_the_wrong_one_of_ws_and_wss_fails_before_the_login(computer: Computer) -> None:
    good = CERTIFICATES / "good.pem"
    async with asyncio.timeout(20), running_relay(tls=(good, good)) as secure:
        plain_url = secure.url.replace("wss:", "ws:")
        findings = await asyncio.to_thread(to, computer, plain_url)
        assert findings.failed == {"health"} and "wss://" in findings["health"]["fix"]
    async with asyncio.timeout(20), running_relay() as plain:
        secure_url = plain.url.replace("ws:", "wss:")
        findings = await asyncio.to_thread(to, computer, secure_url)
        assert findings.failed == {"tls"}
        assert "does not speak TLS" in findings["tls"]["message"]


def test_behind_a_proxy_of_this_machine_only_the_login_is_tried(
    computer: Computer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    findings = to(computer, "ws://relay.example:7777")
    assert findings.failed == {"login"} and "HTTPS_PROXY" in findings["login"]["fix"]
    assert findings["tcp"]["message"].startswith("not tried: the proxy in HTTP_PROXY leads to")


def test_a_secret_in_the_address_is_not_shown(computer: Computer) -> None:
    findings = to(computer, "ws://127.0.0.1:9/?key=hidden-in-the-query")
    assert "hidden" not in str(findings.value)


@pytest.mark.parametrize(
    ("offset", "status", "words"),
    [(0, "ok", "within"), (300, "warn", "5 min ahead of"), (-7200, "warn", "2 h behind")],
)
def test_a_clock_that_is_wrong_is_a_warning(offset: float, status: str, words: str) -> None:
    line = network._clock(email.utils.formatdate(1e9, usegmt=True), 1e9 + 0.5 + offset)
    assert line.status == status and words in line.message


@pytest.mark.parametrize("date", [None, "", "yesterday"])
def test_a_relay_that_does_not_tell_its_time_is_no_problem(date: str | None) -> None:
    assert network._clock(date, time.time()).status == "info"


def test_names_and_roles_are_told(computer: Computer) -> None:
    computer.write_settings(token=TOKEN, relay="ws://127.0.0.1:9", roles="a,b")
    (entry,) = Findings(computer.environ).all("name")
    assert entry["message"].endswith("<its process id>; roles a, b")
    named = Findings(computer.environ | {"HOPTELL_NAME": "bob"}).all("name")
    assert [e["message"] for e in named] == ["bob, from the environment; roles a, b"]
    in_file = to(computer, "ws://127.0.0.1:9", name="bob").all("name")
    assert "every session here that has no other name is bob" in in_file[1]["message"]
