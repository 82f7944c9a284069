import pytest
from support.tmux import tmux_environ

from hoptell.tmux import pane

__all__ = ["tmux_environ"]


@pytest.fixture(autouse=True)
def fake_agents_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pane, "SETTLE_WAIT", 0.0)
