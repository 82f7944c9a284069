"""Agents that `hoptell init --apply` registered are woken: what a newcomer does, and no more."""

import pytest
from clients.lab import Site, eventually, hoptell_processes
from clients.model import Model
from clients.peer import Peer
from clients.waking import is_online, was_told, woken_after


@pytest.fixture
def joined(site: Site, peer: Peer) -> Site:
    site.run("hoptell", "init", "--relay", site.relay_url, "--token-stdin", input=f"{site.token}\n")
    return site


def test_claude_code_is_woken(joined: Site, model: Model, peer: Peer) -> None:
    said = joined.run("hoptell", "init", "--apply", "claude")
    assert "Done: Claude Code has hoptell." in said
    assert "nothing to do" in joined.run("hoptell", "init", "--apply", "claude")
    pane = joined.start("claude", "--permission-mode", "manual", HOPTELL_NAME="reader")
    assert eventually(lambda: is_online(peer, "reader")), hoptell_processes(joined.home)
    assert woken_after(model, peer, "text-number-1") < 2
    assert woken_after(model, peer, "text-number-2") < 2
    found = joined.run("hoptell", "doctor")
    assert "ok    agents claude" in found and "wake mode hook (proven)" in found
    pane.submit(f"mock: shell touch {joined.work / 'mine'}")
    assert pane.shows("Do you want to proceed?")  # nothing but hoptell's tools is allowed


def test_codex_is_woken(joined: Site, model: Model, peer: Peer) -> None:
    joined.run("hoptell", "init", "--apply", "codex", "--name", "reader")
    assert "nothing to do" in joined.run("hoptell", "init", "--apply", "codex")
    pane = joined.start("codex")
    assert eventually(lambda: is_online(peer, "reader"), timeout=20), pane.screen()
    since = model.count()
    pane.submit("mock: call list_peers {}")
    assert eventually(lambda: any(map(was_told("tester"), model.seen(since))), timeout=20)
    assert eventually(pane.idle)
    assert woken_after(model, peer, "text-number-1") < 2
    found = joined.run("hoptell", "doctor")
    assert "ok    agents codex" in found and "wake mode codex (proven)" in found
    pane.submit(f"mock: shell touch {joined.work / 'mine'}")
    assert pane.shows("Would you like to run")


def test_opencode_has_the_server(joined: Site, peer: Peer) -> None:
    joined.run("hoptell", "init", "--apply", "opencode")
    assert "nothing to do" in joined.run("hoptell", "init", "--apply", "opencode")
    assert "hoptell" in joined.run("opencode", "mcp", "list")
    joined.start("opencode", HOPTELL_NAME="reader")
    assert eventually(lambda: is_online(peer, "reader"), timeout=20)
