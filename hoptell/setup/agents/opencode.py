"""opencode: a JSON file."""

from pathlib import Path
from typing import Any

from hoptell.setup.agents.json_file import JsonAgent
from hoptell.setup.machine import Machine


class OpenCode(JsonAgent):
    """opencode reads opencode.json and opencode.jsonc: the first is changed, since the second
    may have comments."""

    key = program = "opencode"
    title = "opencode"
    path = ("mcp",)

    def candidates(self, machine: Machine) -> list[Path]:
        folder = machine.configurations / "opencode"
        return [folder / "opencode.json", folder / "opencode.jsonc"]

    def entry(self, command: tuple[str, ...], environment: dict[str, str]) -> dict[str, Any]:
        return {
            "type": "local",
            "command": list(command),
            "environment": environment,
            "enabled": True,
        }
