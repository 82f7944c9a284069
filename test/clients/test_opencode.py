"""opencode, configured by the example: the tools work, and the listener wakes what it can."""

import json
import subprocess
from collections.abc import Iterator

import pytest
from clients.lab import REPOSITORY, Pane, Site, eventually, hoptell_processes, write
from clients.model import Model
from clients.peer import Peer
from clients.waking import is_online, was_told


@pytest.fixture
def opencode(site: Site, peer: Peer) -> Iterator[Pane]:
    example = (REPOSITORY / "examples" / "agents" / "opencode.json").read_text()
    example = example.replace("/path/to/hoptell", str(site.commands / "hoptell"))
    file = site.home / ".config" / "opencode" / "opencode.json"
    config = json.loads(file.read_text())
    config["mcp"] = json.loads(example)["mcp"]
    config["permission"] = {"bash": "allow"}
    file.write_text(json.dumps(config))
    settings = f"HOPTELL_RELAY={site.relay_url}\nHOPTELL_TOKEN={site.token}\n"
    write(site.home / ".config" / "hoptell" / ".env", settings)
    pane = site.start("opencode")
    assert eventually(lambda: is_online(peer, "opencode"), timeout=20)
    yield pane


def test_its_tools_list_send_wait_and_read(opencode: Pane, model: Model, peer: Peer) -> None:
    since = model.count()
    opencode.submit("mock: call list_peers {}")
    model.wait(was_told("tester"), since=since)
    arguments = json.dumps({"to": "tester", "message": "hello from opencode"})
    opencode.submit(f"mock: call send_message {arguments}")
    (message,) = peer.wait(1)
    assert (message.sender, message.text) == ("opencode", "hello from opencode")
    model.wait(was_told("Delivered to tester"), since=since)
    peer.send("opencode", "read me", reply_to=message.message_id)
    since = model.count()
    opencode.submit("mock: call read_inbox {}")
    assert model.wait(was_told("read me"), since=since).shows("read me") == 1


def test_wait_for_message_ends_with_the_message(opencode: Pane, model: Model, peer: Peer) -> None:
    since = model.count()
    opencode.submit('mock: call wait_for_message {"timeout_seconds": 40}')
    model.wait(lambda one: one.shows("wait_for_message") > 0, since=since)
    peer.send("opencode", "you waited for this")
    model.wait(was_told("you waited for this"), since=since)


def test_the_instructions_give_a_listener_that_prints_what_arrives(
    opencode: Pane, site: Site, model: Model, peer: Peer
) -> None:
    since = model.count()
    opencode.submit("mock: say hello")
    request = model.wait(lambda one: one.shows("mock: say hello") > 0, since=since)
    shown = json.dumps(request.body)
    assert " -P -m hoptell listen opencode" in shown
    command = shown[: shown.index(" -P -m hoptell listen opencode")].rpartition(" ")[2]
    listener = subprocess.Popen(
        [command.lstrip('"'), "-P", "-m", "hoptell", "listen", "opencode", "30"],
        env=site.environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert eventually(lambda: any("listen" in one for one in hoptell_processes(site.home)))
    peer.send("opencode", "for the listener")
    printed, _ = listener.communicate(timeout=10)
    assert listener.returncode == 0
    assert printed.count("for the listener") == 1
