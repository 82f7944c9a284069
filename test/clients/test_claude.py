"""Claude Code with the installed plugin: woken when idle, not disturbed when not."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clients.conftest import Relay
from clients.lab import Pane, Site, descendants, eventually, export_checkout, hoptell_processes
from clients.model import NOTICE, Call, Model, Request, Say, read_if_told
from clients.peer import Peer
from clients.waking import is_online, notices, was_told, woken_after

WAKE_LIMIT = 2.0
TOOLS = "mcp__plugin_hoptell_hoptell"


@pytest.fixture
def plugin(site: Site) -> None:
    """The plugin as a user gets it: marketplace from a folder, install, configure."""
    checkout = export_checkout(site.root / "checkout")
    site.run("claude", "plugin", "marketplace", "add", str(checkout))
    site.run("claude", "plugin", "install", "hoptell@hoptell")
    options = {"relay_url": site.relay_url, "relay_token": site.token, "name": "reader"}
    configure = ["plugin", "configure", "hoptell@hoptell", "--values-stdin"]
    site.run("claude", *configure, input=json.dumps(options))


def start(site: Site, peer: Peer, name: str = "reader", **more: str) -> Pane:
    pane = site.start("claude", "--permission-mode", "manual", "--allowedTools", TOOLS, **more)
    assert eventually(lambda: is_online(peer, name)), hoptell_processes(site.home)
    return pane


@pytest.fixture
def claude(site: Site, plugin: None, peer: Peer) -> Iterator[Pane]:
    yield start(site, peer)


def test_the_plugin_is_valid_and_brings_one_server(site: Site, plugin: None) -> None:
    checkout = str(site.root / "checkout")
    assert "Validation passed" in site.run("claude", "plugin", "validate", checkout)
    servers = [line for line in site.run("claude", "mcp", "list").splitlines() if "hoptell" in line]
    assert len(servers) == 1 and servers[0].startswith("plugin:hoptell:hoptell: "), servers
    assert "Connected" in servers[0]


def test_the_plugin_installs_from_a_git_repository_too(site: Site) -> None:
    checkout = export_checkout(site.root / "checkout")
    git = ["git", "-C", str(checkout), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all of it"]):
        subprocess.run([*git, *command], check=True)
    # Claude Code takes https only; git takes the place that we say for it.
    place = "https://git.example/hoptell.git"
    rewrite = f'[url "file://{checkout}/.git"]\n  insteadOf = {place}\n'
    (site.home / ".gitconfig").write_text(rewrite)
    site.run("claude", "plugin", "marketplace", "add", place)
    site.run("claude", "plugin", "install", "hoptell@hoptell")
    shutil.rmtree(checkout)
    (server,) = [
        line for line in site.run("claude", "mcp", "list").splitlines() if "hoptell" in line
    ]
    assert "Connected" in server, server


def test_an_idle_session_wakes_every_time_and_is_shown_each_text_once(
    claude: Pane, model: Model, peer: Peer, record_property: Callable[[str, object], None]
) -> None:
    waits = []
    for number in range(12):
        waits.append(woken_after(model, peer, f"text-number-{number:02d}"))
        time.sleep(1)
    record_property("seconds", waits)
    print("seconds until the model saw the notice:", " ".join(f"{wait:.2f}" for wait in waits))
    assert max(waits) < WAKE_LIMIT
    last = model.seen()[-1]
    assert [last.shows(f"text-number-{number:02d}") for number in range(12)] == [1] * 12
    assert notices(last) == 12


def test_a_draft_is_kept(claude: Pane, model: Model, peer: Peer) -> None:
    claude.type("half a draft, not sent")
    assert claude.shows("half a draft, not sent")
    assert woken_after(model, peer, "while typing") < WAKE_LIMIT
    assert claude.shows("❯ half a draft, not sent")
    assert all(request.shows("half a draft") == 0 for request in model.seen())


def test_a_busy_session_hears_of_it_at_the_end_of_its_turn(
    claude: Pane, model: Model, peer: Peer
) -> None:
    since = model.count()
    claude.submit("mock: stream 4")
    started = model.wait(lambda one: one.shows("mock: stream 4") > 0, since=since).at
    peer.send("reader", "while busy")
    notice = model.wait(lambda one: notices(one) == 1, since=since)
    assert notice.at - started > 3.9
    assert notice.shows("streamed") == 1
    model.wait(was_told("while busy"), since=since)


def test_an_open_approval_dialog_is_not_answered(
    claude: Pane, model: Model, peer: Peer, site: Site
) -> None:
    file = site.work / "approved"
    claude.submit(f"mock: shell touch {file}")
    assert claude.shows("Do you want to proceed?")
    since = model.count()
    peer.send("reader", "while asked")
    time.sleep(3)
    assert claude.shows("Do you want to proceed?", timeout=1)
    assert not file.exists()
    assert model.count() == since
    claude.press("Escape")
    model.wait(was_told("while asked"), since=since)
    assert not file.exists()


def test_interrupting_the_turn_that_a_message_began_leaves_the_session_awake(
    claude: Pane, model: Model, peer: Peer
) -> None:
    # The listener has ended to wake the session, and no Stop comes to start the next.
    model.rules.append(lambda request: Say("slowly", seconds=60))
    since = model.count()
    peer.send("reader", "the first")
    model.wait(lambda one: notices(one) == 1, since=since)
    time.sleep(1)
    claude.press("Escape")
    assert claude.shows("Interrupted")
    model.rules.clear()
    assert woken_after(model, peer, "after the interruption") < WAKE_LIMIT


def test_it_still_wakes_after_clear(claude: Pane, model: Model, peer: Peer) -> None:
    woken_after(model, peer, "before clear")
    time.sleep(1)
    claude.submit("/clear")
    assert eventually(lambda: "before clear" not in claude.screen())
    time.sleep(1)
    for text in ("after clear", "and once more"):
        assert woken_after(model, peer, text) < WAKE_LIMIT
        time.sleep(1)
    assert model.seen()[-1].shows("before clear") == 0


def test_it_still_wakes_after_a_relay_restart(
    claude: Pane, model: Model, peer: Peer, relay: Relay
) -> None:
    woken_after(model, peer, "before the restart")
    relay.restart()
    assert eventually(lambda: is_online(peer, "reader"), timeout=60)
    assert woken_after(model, peer, "after the restart") < WAKE_LIMIT


def test_each_of_two_sessions_wakes_for_its_own_messages(
    claude: Pane, site: Site, model: Model, peer: Peer
) -> None:
    start(site, peer, "second", HOPTELL_NAME="second")
    assert woken_after(model, peer, "for the second", to="second") < WAKE_LIMIT
    assert woken_after(model, peer, "for the first") < WAKE_LIMIT
    both = [one.shows("for the second") and one.shows("for the first") for one in model.seen()]
    assert not any(both)


def reads_where_the_notice_says(request: Request) -> Call | None:
    if read_if_told(request.items) is None:
        return None
    notice = next(one for one in reversed(request.items) if NOTICE.search(one.text))
    server = "mcp__hoptell" if 'you are "second"' in notice.text else TOOLS
    return Call(f"{server}__read_inbox")


def test_with_a_server_beside_the_plugins_messages_for_either_wake_the_session(
    plugin: None, site: Site, model: Model, peer: Peer
) -> None:
    values = [f"HOPTELL_RELAY={site.relay_url}", f"HOPTELL_TOKEN={site.token}"]
    add = ["mcp", "add", "--scope", "user", "hoptell", "-e", *values, "HOPTELL_NAME=second", "--"]
    site.run("claude", *add, str(site.commands / "hoptell"), "mcp")
    model.rules.append(reads_where_the_notice_says)
    site.start("claude", "--permission-mode", "manual", "--allowedTools", TOOLS, "mcp__hoptell")
    for name in ("reader", "second"):
        online = eventually(lambda name=name: is_online(peer, name), timeout=20)
        assert online, (name, peer.peers())
    for round in range(2):
        for name in ("reader", "second"):
            assert woken_after(model, peer, f"for {name}, {round}", to=name) < WAKE_LIMIT
            time.sleep(1)


def test_peers_see_how_it_is_woken_and_the_session_knows_that_it_is_proven(
    claude: Pane, model: Model, peer: Peer
) -> None:
    assert eventually(lambda: peer.peers()["reader"].wake == "hook")
    since = model.count()
    claude.submit("mock: call list_peers {}")
    model.wait(was_told("proven"), since=since)


def test_nothing_is_left_when_the_session_ends(claude: Pane, site: Site) -> None:
    assert len(hoptell_processes(site.home)) == 2, hoptell_processes(site.home)
    claude.exit()
    assert eventually(lambda: not hoptell_processes(site.home), timeout=5)


def test_nothing_is_left_when_claude_code_is_killed(claude: Pane, site: Site) -> None:
    for pid in descendants():
        if Path(f"/proc/{pid}/comm").read_text().startswith("claude"):
            os.kill(pid, signal.SIGKILL)
    assert eventually(claude.ended)
    assert eventually(lambda: not hoptell_processes(site.home), timeout=5)


def test_without_the_plugin_printed_hooks_and_a_configured_server_do_the_same(
    site: Site, model: Model, peer: Peer
) -> None:
    hoptell = str(site.commands / "hoptell")
    settings = site.root / "hooks.json"
    settings.write_text(site.run(hoptell, "hooks"))
    variables = [f"HOPTELL_RELAY={site.relay_url}", f"HOPTELL_TOKEN={site.token}"]
    add = ["mcp", "add", "--scope", "user", "hoptell", "-e", *variables, "--"]
    site.run("claude", *add, hoptell, "mcp")
    site.start(
        "claude", "--settings", str(settings), "--allowedTools", "mcp__hoptell",
        HOPTELL_NAME="reader",
    )  # fmt: skip
    assert eventually(lambda: is_online(peer, "reader"))
    for text in ("first", "second"):
        assert woken_after(model, peer, text) < WAKE_LIMIT
        time.sleep(1)
