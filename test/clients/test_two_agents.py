"""The product in one scene: Claude Code asks Codex, and both wake up for each other.

Run it with -s to watch: pytest test/clients/test_two_agents.py -s
"""

import json
import time

from clients.lab import Site, eventually
from clients.model import Action, Call, Model, Request, Say
from clients.peer import Peer
from clients.test_claude import plugin as plugin  # a fixture
from clients.test_claude import start as start_claude
from clients.test_codex import configure
from clients.test_codex import start as start_codex
from clients.waking import was_told

QUESTION = "Which port does the relay listen on by default?"
ANSWER = "It listens on port 7777."


def codex_answers(request: Request) -> Action | None:
    """Codex, once it has read the question, answers it; the reference is in what it read."""
    last = request.items[-1]
    if request.api != "responses" or last.kind != "result" or QUESTION not in last.text:
        return None
    words = last.text.replace('"', " ").replace("=", " ").split()
    reference = next(word.strip(".,:)(") for word in words if word.count("-") == 4)
    return Call("send_message", {"to": "claude", "message": ANSWER, "reply_to": reference})


def claude_reports(request: Request) -> Action | None:
    """Claude Code, once it has read the answer, tells its user."""
    last = request.items[-1]
    if request.api == "anthropic" and last.kind == "result" and ANSWER in last.text:
        return Say(f"Codex says: {ANSWER}")
    return None


def test_claude_code_asks_codex_and_both_wake_for_each_other(
    site: Site, model: Model, peer: Peer, plugin: None
) -> None:
    model.rules += [codex_answers, claude_reports]
    configure(site)
    claude = start_claude(site, peer, "claude", HOPTELL_NAME="claude")
    codex = start_codex(site, model, peer)
    story(0.0, "Claude Code and Codex sit idle, each in its terminal")

    since, began_at = model.count(), time.monotonic()
    message = json.dumps({"to": "codex", "message": QUESTION})
    claude.submit(f"mock: call send_message {message}")

    def happened(what: str, api: str, text: str) -> None:
        told = was_told(text)
        request = model.wait(lambda one: one.api == api and told(one), since=since)
        story(request.at - began_at, what)

    happened("Claude Code has sent its question", "anthropic", "codex")
    happened("Codex woke up and has read it", "responses", QUESTION)
    happened("Claude Code woke up and has read the answer", "anthropic", ANSWER)
    assert claude.shows(f"Codex says: {ANSWER}")
    assert eventually(codex.idle)
    for api, text in (("responses", QUESTION), ("anthropic", ANSWER)):
        shown = [item for item in model.seen(api=api)[-1].items if item.kind == "result"]
        assert sum(item.text.count(text) for item in shown) == 1


def story(seconds: float, what: str) -> None:
    print(f"{seconds:6.2f} s  {what}")
