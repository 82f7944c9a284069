"""The relay behind a real nginx with TLS, set up as examples/proxy/nginx.conf says."""

import asyncio
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from support.relay import TOKEN, running_relay

from hoptell.client import RelayClient
from hoptell.settings import PeerSettings

ROOT = Path(__file__).resolve().parents[2]
CERTIFICATE = ROOT / "test" / "support" / "certificates" / "good.pem"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


@pytest.fixture
def nginx(tmp_path):
    """Starts nginx with the example's server block; returns its port."""
    processes = []

    def start(relay_port: int, *, idle: str = "75s") -> int:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        block = (ROOT / "examples" / "proxy" / "nginx.conf").read_text()
        for pattern, replacement in (
            (r"listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
            (r"(ssl_certificate) .*;", rf"\1 {CERTIFICATE};"),
            (r"(ssl_certificate_key) .*;", rf"\1 {CERTIFICATE};"),
            (r"127\.0\.0\.1:7777", f"127.0.0.1:{relay_port}"),
            (r"75s", idle),
        ):
            block, count = re.subn(pattern, replacement, block)
            assert count
        (tmp_path / "nginx.conf").write_text(
            f"daemon off; pid {tmp_path}/pid; error_log stderr; worker_processes 1;\n"
            "events {}\n"
            f"http {{ access_log off; client_body_temp_path {tmp_path}/body;"
            f" proxy_temp_path {tmp_path}/proxy; fastcgi_temp_path {tmp_path}/fastcgi;"
            f" uwsgi_temp_path {tmp_path}/uwsgi; scgi_temp_path {tmp_path}/scgi;\n{block}\n}}\n"
        )
        process = subprocess.Popen(
            [NGINX, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")],
            stderr=subprocess.DEVNULL,
        )
        processes.append(process)
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return port
            except ConnectionRefusedError:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.01)

    yield start
    for process in processes:
        process.terminate()
        process.wait(10)


@pytest.fixture(autouse=True)
def trusted(monkeypatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE.with_name("authority.pem")))


def peer(port: int, name: str) -> RelayClient:
    url = f"wss://127.0.0.1:{port}/hoptell"
    return RelayClient(PeerSettings(relay=url, token=TOKEN, name=name))


async def test_peers_talk_through_a_proxy_with_tls_and_a_path(nginx):
    async with asyncio.timeout(15), running_relay() as relay:
        port = await asyncio.to_thread(nginx, relay.port)
        async with peer(port, "alice") as alice, peer(port, "bob") as bob:
            await alice.wait_connected(5)
            await bob.wait_connected(5)
            for text in ("hi", "x" * 100_000):
                sending = asyncio.create_task(bob.send("alice", text))
                delivery = await anext(alice)
                assert delivery.message.text == text
                await delivery.confirm()
                assert (await sending).state == "delivered"
            assert [info.name for info in await bob.list_peers()] == ["alice"]


async def test_pings_keep_an_idle_peer_connected_past_the_proxys_time_out(nginx):
    from hoptell.relay.server import Timing

    async with (
        asyncio.timeout(15),
        running_relay(timing=Timing(ping_interval=0.25, silent_rounds=20)) as relay,
    ):
        port = await asyncio.to_thread(nginx, relay.port, idle="1s")
        async with peer(port, "alice") as alice:
            await alice.wait_connected(5)
            disconnected = asyncio.ensure_future(alice.wait_disconnected())
            done, _ = await asyncio.wait({disconnected}, timeout=2.5)  # the time-out, twice over
            assert not done
            disconnected.cancel()
