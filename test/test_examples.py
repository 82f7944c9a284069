"""The configuration for other agents: each starts a sidecar as its agent would start it."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hoptell import __version__

REPOSITORY = Path(__file__).resolve().parent.parent
AGENTS = REPOSITORY / "examples" / "agents"
PLACE = "/path/to/hoptell"

Command = tuple[list[str], dict[str, str]]


def codex(text: str) -> Command:
    server = tomllib.loads(text)["mcp_servers"]["hoptell"]
    return [server["command"], *server["args"]], server["env"]


def opencode(text: str) -> Command:
    server = json.loads(text)["mcp"]["hoptell"]
    assert server["type"] == "local" and server["enabled"] is True
    return server["command"], server["environment"]


def common(text: str) -> Command:
    server = json.loads(text)["mcpServers"]["hoptell"]
    return [server["command"], *server["args"]], server["env"]


def antigravity(text: str) -> Command:
    *_, line = text.strip().splitlines()
    words = line.split()
    assert words[:4] == ["agy", "mcp", "add", "hoptell"]
    assert words[4] == "/usr/bin/env"
    key, _, value = words[5].partition("=")
    return words[6:], {key: value}


READERS: dict[str, Callable[[str], Command]] = {
    "codex.toml": codex,
    "opencode.json": opencode,
    "gemini-settings.json": common,
    "cursor-mcp.json": common,
    "project.mcp.json": common,
    "antigravity.sh": antigravity,
}


def test_every_example_is_tested_and_explained() -> None:
    files = {file.name for file in AGENTS.iterdir()} - {"README.md"}
    assert files == set(READERS)
    explained = (AGENTS / "README.md").read_text()
    assert all(f"({name})" in explained for name in files)


@pytest.mark.parametrize("name", READERS)
def test_the_example_starts_a_sidecar_in_an_environment_as_bare_as_codex_gives(
    name: str, tmp_path: Path
) -> None:
    text = (AGENTS / name).read_text()
    assert "TOKEN" not in text
    command, variables = READERS[name](text.replace(PLACE, hoptell(tmp_path)))
    variables = {key: value.replace("${HOPTELL_NAME:-}", "") for key, value in variables.items()}
    environment = {"HOME": str(tmp_path), "PATH": os.defpath, **variables}
    answer = handshake(command, environment)
    assert answer["serverInfo"] == {"name": "hoptell", "version": __version__}
    if given := variables.get("HOPTELL_NAME"):
        assert f'You are "{given}"' in answer["instructions"]


def hoptell(folder: Path) -> str:
    """The command, wherever the package is installed."""
    script = folder / "hoptell"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hoptell "$@"\n')
    script.chmod(0o755)
    return str(script)


def handshake(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    request = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "a test", "version": "0"},
        },
    }
    done = subprocess.run(
        command, input=json.dumps(request) + "\n", env=environment, cwd=REPOSITORY,
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[0])["result"]
    return answer


def test_this_repository_configures_the_same_server_as_its_plugin() -> None:
    # Claude Code reads the repository's .mcp.json as the plugin's too. One with the name of
    # the plugin's own server is replaced by that; any other would be a second sidecar.
    (name,) = json.loads((REPOSITORY / ".mcp.json").read_text())["mcpServers"]
    (of_plugin,) = json.loads((REPOSITORY / ".claude-plugin" / "plugin.json").read_text())[
        "mcpServers"
    ]
    assert name == of_plugin == "hoptell"


@pytest.mark.skipif(os.name != "posix", reason="the launcher is a shell script")
def test_the_configuration_of_this_repository_starts_a_sidecar(tmp_path: Path) -> None:
    server = json.loads((REPOSITORY / ".mcp.json").read_text())["mcpServers"]["hoptell"]
    command = [str(REPOSITORY / server["command"]), *server["args"]]
    hoptell(tmp_path)
    path = f"{tmp_path}{os.pathsep}{os.defpath}"
    answer = handshake(command, {"HOME": str(tmp_path), "PATH": path})
    assert answer["serverInfo"]["name"] == "hoptell"


def test_the_registry_entry_has_the_packages_version_and_real_settings() -> None:
    entry = json.loads((REPOSITORY / "server.json").read_text())
    (package,) = entry["packages"]
    assert entry["version"] == package["version"] == __version__
    assert package["identifier"] == "hoptell" and package["transport"] == {"type": "stdio"}
    assert len(entry["description"]) <= 100
    # The registry looks for this line in the package's description before it takes the entry.
    assert f"mcp-name: {entry['name']} " in (REPOSITORY / "README.md").read_text()
    documented = (REPOSITORY / "hoptell" / "settings.py").read_text()
    for variable in package["environmentVariables"]:
        assert f"{variable['name']}:" in documented
        assert variable.get("isSecret", False) is (variable["name"] == "HOPTELL_TOKEN")
