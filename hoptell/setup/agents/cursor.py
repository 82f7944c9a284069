"""Cursor: a JSON file."""

from pathlib import Path

from hoptell.setup.agents.json_file import JsonAgent
from hoptell.setup.machine import Machine


class Cursor(JsonAgent):
    """Cursor, started from a desktop, has no environment of a shell to hand on."""

    key = program = "cursor"
    title = "Cursor"
    programs = ("cursor", "cursor-agent")
    named = True

    def candidates(self, machine: Machine) -> list[Path]:
        return [machine.home / ".cursor" / "mcp.json"]

    def is_here(self, machine: Machine) -> bool:
        return super().is_here(machine) or (machine.home / ".cursor").is_dir()
