"""GET /metrics: what a Prometheus reads, without names and texts."""

import asyncio
import urllib.request

from prometheus_client.parser import text_string_to_metric_families
from support.relay import RunningRelay, running_relay

from hoptell.relay.metrics import Metrics
from hoptell.relay.model import Gauges
from hoptell.settings import Rate


async def scrape(relay: RunningRelay) -> tuple[dict[str, float], str]:
    """Each sample's value by its name and labels, and the text."""
    url = relay.url.replace("ws", "http") + "/metrics"

    def fetch() -> str:
        with urllib.request.urlopen(url, timeout=5) as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"].startswith("text/plain; version=")
            return answer.read().decode()

    text = await asyncio.to_thread(fetch)
    samples = {
        "".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return samples, text


async def test_metrics_count_messages_peers_and_refusals(tmp_path):
    async with running_relay(rate=Rate(4, 60)) as relay:
        alice, bob = await relay.login("alice"), await relay.login("bob")
        (await relay.login("carol")).abort()
        await relay.event("disconnected")
        await bob.send(type="send", id=1, to="alice", text="äöü")
        lost = await alice.receive()
        alice.abort()
        assert (await bob.receive())["state"] == "queued"
        alice = await relay.login("alice")
        await alice.got(await alice.receive())
        await bob.send(type="send", id=2, to="alice", text="in flight")
        await alice.receive()
        assert (await bob.ask(type="send", id=3, to="carol", text="hello"))["state"] == "queued"
        assert (await bob.ask(type="send", id=4, to="nobody", text="hello"))["type"] == "error"
        assert (await bob.ask(type="send", id=5, to="carol", text="hello"))["type"] == "error"
        stranger = await relay.open()
        await stranger.send(type="hello", name="eve", token="a wrong token")
        assert await stranger.close_code() == 4003

        samples, text = await scrape(relay)
        journal = {name for name in samples if name.startswith("hoptell_journal_")}
        assert {samples.pop(name) for name in journal} == {0}
        assert samples == {
            "hoptell_connections": 2,
            "hoptell_peers_online": 2,
            "hoptell_peers_known": 3,
            "hoptell_queued": 1,
            "hoptell_queued_bytes": 5,
            "hoptell_in_flight": 1,
            "hoptell_accepted_total": 3,
            "hoptell_accepted_bytes_total": 6 + 9 + 5,
            "hoptell_copies_total": 3,
            "hoptell_delivered_total": 1,
            "hoptell_redelivered_total": 1,
            "hoptell_expired_total": 0,
            "hoptell_withdrawn_total": 0,
            "hoptell_refused_totalunknown": 1,
            "hoptell_refused_totalrate": 1,
            "hoptell_logins_refused_total4003": 1,
        }
        for secret in ("alice", "carol", "äöü", lost["message_id"], relay.token):
            assert secret not in text


async def test_metrics_tell_of_expired_deliveries(tmp_path):
    async with running_relay() as relay:
        (await relay.login("alice")).abort()
        bob = await relay.login("bob")
        await bob.ask(type="send", id=1, to="alice", text="brief", ttl=1)
        await relay.event("expired")
        samples, _ = await scrape(relay)
        assert (samples["hoptell_expired_total"], samples["hoptell_queued"]) == (1, 0)


async def test_metrics_tell_how_long_the_journal_takes(tmp_path):
    async with running_relay(journal=tmp_path / "journal") as relay:
        alice, bob = await relay.login("alice"), await relay.login("bob")
        await bob.send(type="send", id=1, to="alice", text="hello")
        await alice.got(await alice.receive())
        samples, _ = await scrape(relay)
        commits = samples["hoptell_journal_commit_seconds_count"]
        assert commits >= 1 and samples["hoptell_journal_commit_seconds_sum"] > 0
        assert samples["hoptell_journal_commit_seconds_bucket+Inf"] == commits


def test_a_commit_counts_for_every_end_that_it_did_not_pass():
    metrics = Metrics()
    for seconds in (0.0004, 0.001, 0.03, 60.0):
        metrics.committed(seconds)
    _, text = metrics.text(Gauges(0, 0, 0, 0, 0, 0))
    counted = {
        sample.labels["le"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "hoptell_journal_commit_seconds_bucket"
    }
    ends = ("0.001", "0.02", "0.05", "2.0", "+Inf")
    assert [counted[end] for end in ends] == [2, 2, 3, 3, 4]
