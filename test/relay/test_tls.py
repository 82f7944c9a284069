"""The relay serves wss:// and https:// itself, and takes a new certificate without a stop."""

import asyncio
import shutil
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from support.relay import TOKEN, relay_process, running_relay

from hoptell.client import RelayClient
from hoptell.errors import ConfigurationError, RelayUnreachable
from hoptell.relay import tls
from hoptell.settings import PeerSettings

CERTIFICATES = Path(__file__).parent.parent / "support" / "certificates"
GOOD, EXPIRED = CERTIFICATES / "good.pem", CERTIFICATES / "expired.pem"


@pytest.fixture(autouse=True)
def trusted(monkeypatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "authority.pem"))


def peer(url: str, name: str) -> RelayClient:
    return RelayClient(PeerSettings(relay=url, token=TOKEN, name=name))


async def test_two_peers_talk_over_tls_and_health_is_served_by_https():
    async with asyncio.timeout(10), running_relay(tls=(GOOD, GOOD)) as relay:
        assert relay.url.startswith("wss://")
        url = relay.url.replace("wss", "https") + "/healthz"
        context = ssl.create_default_context()
        answer = await asyncio.to_thread(urllib.request.urlopen, url, context=context, timeout=5)
        with answer:
            assert answer.read() == b"ok\n"
        async with peer(relay.url, "alice") as alice, peer(relay.url, "bob") as bob:
            await alice.wait_connected(5)
            await bob.wait_connected(5)
            sending = asyncio.create_task(bob.send("alice", "x" * 100_000))
            delivery = await anext(alice)
            await delivery.confirm()
            assert delivery.message.text == "x" * 100_000
            assert (await sending).state == "delivered"


async def test_an_expired_certificate_is_one_clear_sentence():
    async with asyncio.timeout(10), running_relay(tls=(EXPIRED, EXPIRED)) as relay:
        async with peer(relay.url, "alice") as alice:
            with pytest.raises(RelayUnreachable, match="expired"):
                await alice.wait_connected(5)


async def test_a_client_that_does_not_speak_tls_disturbs_nobody():
    async with asyncio.timeout(10), running_relay(tls=(GOOD, GOOD)) as relay:
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await reader.read()
        writer.close()
        async with peer(relay.url, "alice") as alice:
            await alice.wait_connected(5)


def test_sighup_takes_a_new_certificate_and_keeps_the_old_one_when_it_is_broken(tmp_path):
    file = tmp_path / "both.pem"
    shutil.copy(EXPIRED, file)
    with relay_process(tmp_path, HOPTELL_TLS_CERT=str(file), HOPTELL_TLS_KEY=str(file)) as relay:
        expired = ssl.get_server_certificate(("127.0.0.1", relay.port), timeout=5)
        shutil.copy(GOOD, file)
        relay.signal(1)
        relay.wait_for("read ")
        assert ssl.get_server_certificate(("127.0.0.1", relay.port), timeout=5) != expired
        good = ssl.get_server_certificate(("127.0.0.1", relay.port), timeout=5)
        file.write_text("broken")
        relay.signal(1)
        assert "certificate is as before" in relay.wait_for("reload refused")
        assert ssl.get_server_certificate(("127.0.0.1", relay.port), timeout=5) == good
        assert relay.stop() == 0


@pytest.mark.parametrize(
    ("certificate", "key", "words"),
    [
        ("good.pem", "nowhere.pem", "cannot read"),
        ("authority.pem", "good.pem", "does not belong"),
        ("good.pem", "authority.pem", "not PEM"),
    ],
)
def test_files_that_cannot_be_used_are_one_sentence(certificate, key, words):
    with pytest.raises(ConfigurationError, match=words):
        tls.server_context(CERTIFICATES / certificate, CERTIFICATES / key)


def test_a_key_with_a_passphrase_is_refused_without_asking_for_it(tmp_path):
    key = tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "genrsa", "-aes128", "-passout", "pass:secret", "-out", str(key), "2048"],
        check=True,
        capture_output=True,
    )
    program = (
        "import sys; from pathlib import Path; from hoptell.relay import tls;"
        "tls.server_context(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(GOOD), str(key)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=10,
    )
    assert "passphrase" in ended.stderr.splitlines()[-1]
