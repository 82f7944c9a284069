"""The suite's own ground: the programs run, reach the mock model, and can reach nothing else."""

import socket

import pytest
from clients.lab import Site
from clients.model import Model

APIS = {"claude": "anthropic", "codex": "responses", "opencode": "chat"}


@pytest.mark.parametrize("program", APIS)
def test_an_interactive_session_shows_its_prompt_to_the_model_and_its_answer_to_the_user(
    site: Site, model: Model, program: str
) -> None:
    pane = site.start(program)
    since = model.count()
    pane.submit("mock: say an answer of the mock")
    request = model.wait(lambda one: one.shows("an answer of the mock") > 0, since=since)
    assert request.api == APIS[program]
    assert pane.shows("an answer of the mock")


def test_there_is_nothing_but_loopback(site: Site) -> None:
    assert [name for _, name in socket.if_nameindex()] == ["lo"]
    assert site.run("cat", "/proc/net/dev").count(":") == 1
