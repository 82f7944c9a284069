"""Codex: its TOML file, since its own command does not know the time limit of tools."""

import shlex
from pathlib import Path
from typing import Any

from hoptell.errors import ConfigurationError
from hoptell.programs import SERVER, codex_home
from hoptell.setup import files
from hoptell.setup.agents.agent import (
    LONGEST_CALL,
    SHOWN,
    Registration,
    Step,
    WriteFile,
    variables,
)
from hoptell.setup.machine import Machine


class Codex:
    """How hoptell is registered with Codex."""

    key, title = "codex", "Codex"

    def is_here(self, machine: Machine) -> bool:
        return machine.find("codex") is not None or self._file(machine).is_file()

    def registrations(self, machine: Machine) -> list[Registration]:
        file = self._file(machine)
        value = files.parse_toml(files.read(file) or "")
        entry = files.found_table(value, "mcp_servers").get(SERVER)
        return [] if entry is None else [Registration.read(file, entry)]

    def steps(self, machine: Machine, name: str | None) -> list[Step]:
        import tomlkit
        from tomlkit.items import InlineTable

        file = self._file(machine)
        before = files.read(file)
        environment = variables(machine, name)
        fresh: dict[str, Any] = {
            "command": machine.command[0],
            "args": [*machine.command[1:], "mcp"],
            "tool_timeout_sec": LONGEST_CALL,
            "default_tools_approval_mode": "approve",
        }
        usual = {"HOPTELL_NAME": f"{machine.owner}-codex"}

        def edit(document: tomlkit.TOMLDocument) -> None:
            servers = document.get("mcp_servers")
            if servers is None:
                servers = document["mcp_servers"] = tomlkit.table(is_super_table=True)
            _check(servers, "mcp_servers", file)
            entry = servers.get(SERVER)
            is_new = entry is None
            is_inline = isinstance(servers, InlineTable)
            if entry is None:
                servers[SERVER] = tomlkit.inline_table() if is_inline else tomlkit.table()
                entry = servers[SERVER]
            _check(entry, f"mcp_servers.{SERVER}", file)
            for key, value in fresh.items():
                if key not in entry or (key in ("command", "args") and entry[key] != value):
                    entry[key] = value
            if not entry.get("enabled", True):
                entry["enabled"] = True
            if "env" not in entry:
                entry["env"] = tomlkit.inline_table()
            _check(entry["env"], f"mcp_servers.{SERVER}.env", file)
            for key, value in {**usual, **entry["env"], **environment}.items():
                if entry["env"].get(key) != value:
                    entry["env"][key] = value
            if is_new and not is_inline and list(document)[-1] != "mcp_servers":
                entry.add(tomlkit.nl())

        by_hand = f"mcp_servers.{SERVER} = {_inline({**fresh, 'env': {**usual, **environment}})}"
        text = files.edited_toml(file, before, edit, by_hand)
        if text == before:
            return []
        entry = files.parse_toml(text)["mcp_servers"][SERVER]
        entry["env"] = {key: value for key, value in entry["env"].items() if key in SHOWN}
        shown = {key: entry[key] for key in (*fresh, "enabled", "env") if key in entry}
        return [WriteFile(file, text, tomlkit.dumps({"mcp_servers": {SERVER: shown}}))]

    def problem(self, machine: Machine) -> str | None:
        return None

    def start(self, machine: Machine) -> str:
        name = next((found.name for found in self.registrations(machine)), None)
        if name is None:
            name = f"{machine.owner}-codex"
        override = f"mcp_servers.{SERVER}.env.HOPTELL_NAME={name}-2"
        return (
            f"codex (it is {name}; start a second session as"
            f" {shlex.join(('codex', '-c', override))})"
        )

    def _file(self, machine: Machine) -> Path:
        home = codex_home(machine.environ)
        assert home is not None  # a machine has a home folder
        return home / "config.toml"


def _check(value: object, key: str, file: Path) -> None:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{key!r} in {file} is not a table", "correct it first")


def _inline(value: dict[str, Any]) -> str:
    """A table in one line, as TOML has it."""
    import tomlkit

    table = tomlkit.inline_table()
    table.update(value)
    return table.as_string()
