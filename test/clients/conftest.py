"""The opt-in suite with the real agent programs: collected only if it is asked for by name."""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients.lab import (
    Site,
    descendants,
    end_descendants,
    enter_namespace,
    eventually,
    obstacle,
)
from clients.model import Model
from clients.peer import Peer

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    asked_for = any(
        Path(argument.partition("::")[0]).resolve().is_relative_to(HERE) for argument in config.args
    )
    return None if asked_for else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def namespace() -> None:
    """From here on this process and its children have nothing but loopback."""
    if reason := obstacle() or enter_namespace():
        pytest.skip(reason)


@pytest.fixture
def model(namespace: None) -> Iterator[Model]:
    with Model() as model:
        yield model


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: sockets below it have at most 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="ht-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


class Relay:
    """`hoptell relay` as a process, on one port for its life and the next one's."""

    def __init__(self, folder: Path) -> None:
        self.token = secrets.token_urlsafe(24)
        self.url = "ws://127.0.0.1:7777"
        self._home = folder / "relay"
        self._home.mkdir()
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        environment = {"PATH": os.environ["PATH"], "HOME": str(self._home)}
        command = [sys.executable, "-m", "hoptell", "relay", "--port", "7777"]
        with (self._home / "log").open("ab") as log:
            process = subprocess.Popen(
                command, env={**environment, "HOPTELL_TOKEN": self.token}, stderr=log
            )
        assert eventually(self._healthy), (self._home / "log").read_text()
        return process

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen("http://127.0.0.1:7777/healthz", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(5)

    def restart(self) -> None:
        self.stop()
        self.process = self._start()


@pytest.fixture
def relay(namespace: None, folder: Path) -> Iterator[Relay]:
    relay = Relay(folder)
    yield relay
    relay.stop()


@pytest.fixture
def peer(relay: Relay, folder: Path) -> Iterator[Peer]:
    """Another agent, played by the test: `tester`."""
    with Peer("tester", relay=relay.url, token=relay.token, home=folder / "peer") as peer:
        yield peer


@pytest.fixture
def site(namespace: None, model: Model, relay: Relay, folder: Path) -> Iterator[Site]:
    """Fresh homes for all three agents; whatever they started is ended afterwards."""
    commands = folder / "bin"
    commands.mkdir()
    (commands / "hoptell").symlink_to(Path(sys.executable).parent / "hoptell")
    before = set(descendants())
    site = Site(folder, model.url, relay.url, relay.token, commands)
    site.seed()
    yield site
    for pane in site.panes:  # pytest shows this if the test failed
        print(f"--- {pane.program}\n{pane.screen()}")
    end_descendants([pid for pid in descendants() if pid not in before])
