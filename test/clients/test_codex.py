"""Codex, configured by the example: woken through its queue, not disturbed when not idle."""

import re
import time
from collections.abc import Callable, Iterator

import pytest
from clients.conftest import Relay
from clients.lab import REPOSITORY, Pane, Site, eventually, hoptell_processes, write
from clients.model import Model
from clients.peer import Peer
from clients.waking import is_online, notices, was_told, woken_after

from hoptell.errors import HoptellError
from hoptell.sidecar.presence import Session, sessions

WAKE_LIMIT = 2.0
ALONE_LIMIT = 15.0
"""The same without Codex's daemon: a session then looks into its queue now and then."""


def configure(site: Site, name: str = "codex") -> None:
    """Put the example's lines into the configuration, and relay and token into a settings file."""
    example = (REPOSITORY / "examples" / "agents" / "codex.toml").read_text()
    example = example.replace("/path/to/hoptell", str(site.commands / "hoptell"))
    example = example.replace('HOPTELL_NAME = "codex"', f'HOPTELL_NAME = "{name}"')
    config = site.home / ".codex" / "config.toml"
    config.write_text(config.read_text() + "\n" + example)
    settings = f"HOPTELL_RELAY={site.relay_url}\nHOPTELL_TOKEN={site.token}\n"
    write(site.home / ".config" / "hoptell" / ".env", settings)


def start(site: Site, model: Model, peer: Peer, *options: str) -> Pane:
    """A session that has called one of hoptell's tools, as any that works with hoptell has."""
    pane = site.start("codex", *options)
    assert eventually(lambda: is_online(peer, "codex"), timeout=20), pane.screen()
    since = model.count()
    pane.submit("mock: call list_peers {}")
    assert eventually(lambda: any(map(was_told("tester"), model.seen(since))), timeout=20), (
        pane.screen()
    )
    time.sleep(1)
    return pane


@pytest.fixture
def codex(site: Site, model: Model, peer: Peer) -> Iterator[Pane]:
    configure(site)
    yield start(site, model, peer)


def test_an_idle_session_wakes_every_time_and_is_shown_each_text_once(
    codex: Pane, model: Model, peer: Peer, record_property: Callable[[str, object], None]
) -> None:
    waits = []
    for number in range(12):
        waits.append(woken_after(model, peer, f"text-number-{number:02d}", to="codex"))
        time.sleep(1)
    record_property("seconds", waits)
    print("seconds until the model saw the notice:", " ".join(f"{wait:.2f}" for wait in waits))
    assert max(waits) < WAKE_LIMIT
    last = model.seen()[-1]
    assert [last.shows(f"text-number-{number:02d}") for number in range(12)] == [1] * 12
    assert notices(last) == 12


def test_a_draft_is_kept(codex: Pane, model: Model, peer: Peer) -> None:
    codex.type("half a draft, not sent")
    assert codex.shows("half a draft, not sent")
    assert woken_after(model, peer, "while typing", to="codex") < WAKE_LIMIT
    assert codex.shows("› half a draft, not sent")
    assert all(request.shows("half a draft") == 0 for request in model.seen())


def test_a_busy_session_hears_of_it_at_the_end_of_its_turn(
    codex: Pane, model: Model, peer: Peer
) -> None:
    since = model.count()
    codex.submit("mock: stream 4")
    started = model.wait(lambda one: one.shows("mock: stream 4") > 0, since=since).at
    peer.send("codex", "while busy")
    notice = model.wait(lambda one: notices(one) == 1, since=since)
    assert notice.at - started > 3.9
    model.wait(was_told("while busy"), since=since)


def test_an_open_approval_is_not_answered(
    codex: Pane, model: Model, peer: Peer, site: Site
) -> None:
    file = site.work / "approved"
    codex.submit(f"mock: shell touch {file}")
    assert codex.shows("Would you like to run")
    since = model.count()
    peer.send("codex", "while asked")
    time.sleep(3)
    assert codex.shows("Would you like to run", timeout=1)
    assert not file.exists()
    assert model.count() == since
    codex.press("Escape")
    model.wait(was_told("while asked"), since=since, timeout=40)
    assert not file.exists()


def test_it_wakes_after_the_user_interrupted_a_turn(codex: Pane, model: Model, peer: Peer) -> None:
    since = model.count()
    codex.submit("mock: stream 60")
    model.wait(lambda one: one.shows("mock: stream 60") > 0, since=since)
    time.sleep(1)
    codex.press("Escape")
    time.sleep(1)
    sent_at = time.monotonic()
    peer.send("codex", "after the interruption")
    shown = model.wait(was_told("after the interruption"), since=since, timeout=40)
    print(f"read {shown.at - sent_at:.1f} s after it was sent")
    assert shown.at - sent_at < 5
    assert shown.shows("after the interruption") == 1
    time.sleep(2)
    assert woken_after(model, peer, "and once more", to="codex") < WAKE_LIMIT


@pytest.fixture
def alone(site: Site, model: Model, peer: Peer) -> Iterator[Pane]:
    configure(site)
    yield start(site, model, peer, "--no-daemon")


def test_without_its_daemon_an_idle_session_wakes_later(
    alone: Pane, model: Model, peer: Peer
) -> None:
    waits = []
    for number in range(3):
        waits.append(woken_after(model, peer, f"text-number-{number}", to="codex"))
        time.sleep(1)
    print("seconds until the model saw the notice:", " ".join(f"{wait:.2f}" for wait in waits))
    assert max(waits) < ALONE_LIMIT
    assert [model.seen()[-1].shows(f"text-number-{number}") for number in range(3)] == [1] * 3


def test_without_its_daemon_an_interrupted_session_is_told_that_nothing_wakes_it(
    alone: Pane, model: Model, peer: Peer
) -> None:
    since = model.count()
    alone.submit("mock: stream 60")
    model.wait(lambda one: one.shows("mock: stream 60") > 0, since=since)
    time.sleep(1)
    alone.press("Escape")
    time.sleep(1)
    peer.send("codex", "after the interruption")
    # The queue stands still until the user goes on, and nothing can start it: peers are told.
    assert eventually(lambda: peer.peers()["codex"].wake == "poll", timeout=90)
    alone.submit("mock: call list_peers {}")
    model.wait(was_told("did not wake you"), since=since)
    shown = model.wait(was_told("after the interruption"), since=since, timeout=40)
    assert shown.shows("after the interruption") == 1
    assert eventually(lambda: peer.peers()["codex"].wake == "codex")


def test_peers_see_how_it_is_woken_and_the_session_knows_that_it_is_proven(
    codex: Pane, model: Model, peer: Peer
) -> None:
    assert eventually(lambda: peer.peers()["codex"].wake == "codex")
    since = model.count()
    codex.submit("mock: call list_peers {}")
    model.wait(was_told("proven"), since=since)


def test_before_any_tool_call_it_wakes_already(site: Site, model: Model, peer: Peer) -> None:
    configure(site)
    site.start("codex")
    assert eventually(lambda: is_online(peer, "codex"), timeout=20)
    assert eventually(lambda: peer.peers()["codex"].wake == "codex")
    assert woken_after(model, peer, "the first of all", to="codex") < WAKE_LIMIT


def clear(pane: Pane, site: Site, peer: Peer) -> None:
    """Begin a new conversation, and wait until it can be woken. The old one's sidecar stays."""
    before = len(sidecars(site))
    pane.submit("/clear")
    assert eventually(lambda: len(sidecars(site)) == before + 1, timeout=20), pane.screen()
    assert eventually(lambda: sidecars(site)[-1].proven, timeout=20), sidecars(site)
    assert eventually(lambda: shown_twice(peer), timeout=20), pane.screen()


def sidecars(site: Site) -> list[Session]:
    """What the running ones say of themselves, the newest last."""
    found = sessions(site.home / ".hoptell")
    return [session for _, session in sorted(found, key=lambda one: one[0].started)]


def shown_twice(peer: Peer) -> bool:
    for _ in range(2):
        codex = peer.peers().get("codex")  # a relay that has just started knows nobody
        if codex is None or not (codex.online and codex.wake == "codex"):
            return False
        time.sleep(1)
    return True


def test_after_clear_the_new_conversation_wakes_and_the_old_one_does_not(
    codex: Pane, model: Model, peer: Peer, site: Site
) -> None:
    for number in range(3):
        clear(codex, site, peer)
        for part in "ab":
            since = model.count()
            woken_after(model, peer, f"text {number}{part}", to="codex")
            asked = [one for one in model.seen(since) if notices(one)]
            assert asked and not any(one.shows("mock: call list_peers") for one in asked)
            assert codex.shows("hoptell.read_inbox")
        time.sleep(1)


def test_after_a_relay_restart_the_new_conversation_wakes(
    codex: Pane, model: Model, peer: Peer, site: Site, relay: Relay
) -> None:
    clear(codex, site, peer)
    relay.restart()
    assert eventually(lambda: back_online(peer), timeout=40)
    since = model.count()
    woken_after(model, peer, "after the restart", to="codex")
    asked = [one for one in model.seen(since) if notices(one)]
    assert asked and not any(one.shows("mock: call list_peers") for one in asked)


def back_online(peer: Peer) -> bool:
    try:
        return shown_twice(peer)
    except HoptellError:
        return False


def test_nothing_is_left_when_codex_ends_and_a_message_waits_until_it_is_resumed(
    codex: Pane, model: Model, peer: Peer, site: Site
) -> None:
    """Codex's daemon goes on."""
    assert hoptell_processes(site.home)
    codex.exit()
    assert eventually(lambda: not hoptell_processes(site.home), timeout=30)
    assert not is_online(peer, "codex")
    since = model.count()
    assert peer.send("codex", "while nobody was there").state == "queued"
    found = re.search(r"codex resume (\S+)", codex.screen())
    assert found, codex.screen()
    assert model.count() == since
    site.start("codex", "resume", found[1])
    model.wait(was_told("while nobody was there"), since=since)
    assert is_online(peer, "codex")


def test_a_turn_that_goes_on_without_its_terminal_keeps_hoptell(
    codex: Pane, model: Model, site: Site
) -> None:
    since = model.count()
    codex.submit("mock: stream 15")
    model.wait(lambda one: one.shows("mock: stream 15") > 0, since=since)
    time.sleep(1)
    codex.close()
    time.sleep(8)
    assert hoptell_processes(site.home)
    assert eventually(lambda: not hoptell_processes(site.home), timeout=40)
