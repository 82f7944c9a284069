"""The relay behind a real nginx with TLS, set up as examples/proxy/nginx.conf says."""

import asyncio

import pytest
from support.nginx import AUTHORITY, NGINX, running_nginx
from support.relay import TOKEN, running_relay

from hoptell.client import RelayClient
from hoptell.relay.server import Timing
from hoptell.settings import PeerSettings

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


@pytest.fixture(autouse=True)
def trusted(monkeypatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(AUTHORITY))


def peer(url: str, name: str) -> RelayClient:
    return RelayClient(PeerSettings(relay=url, token=TOKEN, name=name))


async def test_pings_keep_an_idle_peer_connected_past_the_proxys_time_out(tmp_path):
    async with (
        asyncio.timeout(15),
        running_relay(timing=Timing(ping_interval=0.25, silent_rounds=20)) as relay,
    ):
        with running_nginx(tmp_path, relay.port, idle="1s") as url:
            async with peer(url, "alice") as alice:
                await alice.wait_connected(5)
                disconnected = asyncio.ensure_future(alice.wait_disconnected())
                # The time-out, twice over.
                done, _ = await asyncio.wait({disconnected}, timeout=2.5)
                assert not done
                disconnected.cancel()
