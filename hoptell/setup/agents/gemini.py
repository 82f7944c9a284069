"""Gemini CLI: a JSON file."""

from pathlib import Path
from typing import Any

from hoptell.setup.agents.agent import LONGEST_CALL
from hoptell.setup.agents.json_file import JsonAgent
from hoptell.setup.machine import Machine


class Gemini(JsonAgent):
    """Gemini CLI removes variables named like a secret, but hands on the others."""

    key = program = "gemini"
    title = "Gemini CLI"

    def candidates(self, machine: Machine) -> list[Path]:
        return [machine.home / ".gemini" / "settings.json"]

    def entry(self, command: tuple[str, ...], environment: dict[str, str]) -> dict[str, Any]:
        return {**super().entry(command, environment), "timeout": LONGEST_CALL * 1000}
