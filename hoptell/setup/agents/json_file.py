"""Agents that read their servers from a JSON file of their own."""

import json
from pathlib import Path
from typing import Any

from hoptell.programs import SERVER
from hoptell.setup import files, json_text
from hoptell.setup.agents.agent import Registration, Step, WriteFile, variables
from hoptell.setup.machine import Machine


class JsonAgent:
    """An agent that reads servers from a JSON file of its own."""

    key: str
    title: str
    program: str
    """What a user types to start it."""
    programs: tuple[str, ...] = ()
    path: tuple[str, ...] = ("mcpServers",)
    """Where in the file the servers stand."""
    named = False
    """Whether the name has to stand in the file."""

    def candidates(self, machine: Machine) -> list[Path]:
        """Its files, all of which it reads; the first is made where none is there."""
        raise NotImplementedError

    def entry(self, command: tuple[str, ...], environment: dict[str, str]) -> dict[str, Any]:
        """How the file says what to start."""
        return {"command": command[0], "args": list(command[1:]), "env": environment}

    def is_here(self, machine: Machine) -> bool:
        installed = machine.find(*(self.programs or (self.program,))) is not None
        return installed or any(file.is_file() for file in self.candidates(machine))

    def registrations(self, machine: Machine) -> list[Registration]:
        found = []
        for file in self.candidates(machine):
            value = json_text.parse(files.read(file) or "")
            if entry := files.found_table(value, *self.path, SERVER):
                found.append(Registration.read(file, entry))
        return found

    def steps(self, machine: Machine, name: str | None) -> list[Step]:
        wanted = (*machine.command, "mcp")
        found = self.registrations(machine)
        if name is None and self.named:
            name = next((one.name for one in found if one.name), f"{machine.owner}-{self.key}")
        environment = variables(machine, name)
        for one in found:
            if one.command == wanted and one.holds(environment) and one.enabled:
                return []
        file = Path(found[0].where) if found else self.candidates(machine)[0]
        before = files.read(file)
        fresh = self.entry(wanted, environment)
        shown = json.dumps({self.path[0]: {SERVER: fresh}}, ensure_ascii=False)
        by_hand = shown
        if any(not one.enabled for one in found):
            shown += "\nand it is switched on"
            by_hand += ", and switch it on"

        def edit(value: dict[str, Any]) -> None:
            servers = files.json_table(value, file, *self.path)
            entry = servers.setdefault(SERVER, {})
            if not isinstance(entry, dict):
                entry = servers[SERVER] = {}
            for key, new in fresh.items():
                old = entry.get(key)
                entry[key] = {**old, **new} if isinstance(old, dict) else new
            for key, what in (("enabled", True), ("disabled", False)):
                if entry.get(key, what) is not what:
                    entry[key] = what

        text = files.edited_json(file, before, edit, by_hand)
        return [] if text == before else [WriteFile(file, text, shown)]

    def problem(self, machine: Machine) -> str | None:
        return None

    def start(self, machine: Machine) -> str:
        name = next((found.name for found in self.registrations(machine)), None)
        if name is None and not self.named:
            return f"HOPTELL_NAME={machine.owner}-{self.key} {self.program}"
        return f"{self.program} (it is {name or f'{machine.owner}-{self.key}'})"
