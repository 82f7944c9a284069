"""Codex: its TOML file, since its own command does not know the time limit of tools."""

import shlex
from pathlib import Path
from typing import Any

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
        import tomllib

        file = self._file(machine)
        try:
            value = tomllib.loads(files.read(file) or "")
        except ValueError:
            return []
        entry = files.found_table(value, "mcp_servers").get(SERVER)
        return [] if entry is None else [Registration.read(file, entry)]

    def steps(self, machine: Machine, name: str | None) -> list[Step]:
        import tomllib

        import tomlkit

        file = self._file(machine)
        before = files.read(file)
        environment = variables(machine, name)
        fresh: dict[str, Any] = {
            "command": machine.command[0],
            "args": [*machine.command[1:], "mcp"],
            "tool_timeout_sec": LONGEST_CALL,
            "default_tools_approval_mode": "approve",
        }

        def edit(document: tomlkit.TOMLDocument) -> None:
            servers = document.get("mcp_servers")
            if servers is None:
                servers = document["mcp_servers"] = tomlkit.table(is_super_table=True)
            entry = servers.get(SERVER)
            is_new = entry is None
            if entry is None:
                entry = servers[SERVER] = tomlkit.table()
            for key, value in fresh.items():
                if key not in entry or (key in ("command", "args") and entry[key] != value):
                    entry[key] = value
            if "env" not in entry:
                entry["env"] = tomlkit.inline_table()
            wanted = {"HOPTELL_NAME": f"{machine.owner}-codex", **entry["env"], **environment}
            for key, value in wanted.items():
                if entry["env"].get(key) != value:
                    entry["env"][key] = value
            if is_new and list(document)[-1] != "mcp_servers":
                entry.add(tomlkit.nl())

        text = files.edited_toml(file, before, edit)
        if text == before:
            return []
        entry = dict(tomllib.loads(text)["mcp_servers"][SERVER])
        entry["env"] = {key: value for key, value in entry["env"].items() if key in SHOWN}
        shown = {"mcp_servers": {SERVER: {key: entry[key] for key in (*fresh, "env")}}}
        return [WriteFile(file, text, tomlkit.dumps(shown))]

    def problem(self, machine: Machine) -> str | None:
        return None

    def start(self, machine: Machine) -> str:
        name = next((found.name for found in self.registrations(machine)), None)
        override = f"mcp_servers.{SERVER}.env.HOPTELL_NAME={machine.owner}-codex-2"
        if name is None:
            return "codex"
        return (
            f"codex (it is {name}; start a second session as"
            f" {shlex.join(('codex', '-c', override))})"
        )

    def _file(self, machine: Machine) -> Path:
        home = codex_home(machine.environ)
        assert home is not None  # a machine has a home folder
        return home / "config.toml"
