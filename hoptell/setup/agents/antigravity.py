"""Antigravity: by its own command."""

from hoptell.errors import HoptellError
from hoptell.programs import SERVER
from hoptell.setup.agents.agent import (
    Registration,
    RunCommand,
    Step,
    program,
    run_command,
    variables,
)
from hoptell.setup.machine import Machine

LOOK_TIMEOUT = 5.0
"""Seconds that its command may take to tell what is registered."""


class Antigravity:
    """How hoptell is registered with Antigravity."""

    key, title = "antigravity", "Antigravity"

    def is_here(self, machine: Machine) -> bool:
        return machine.find("agy") is not None

    def registrations(self, machine: Machine) -> list[Registration]:
        agy = machine.find("agy")
        if agy is None:
            return []
        try:
            listed = run_command((agy, "mcp", "list"), machine.environ, LOOK_TIMEOUT)
        except HoptellError:
            return []
        known = any(SERVER in line.replace(":", " ").split() for line in listed.splitlines())
        return [Registration("agy mcp list", (), {})] if known else []

    def steps(self, machine: Machine, name: str | None) -> list[Step]:
        agy = program(machine, "agy")
        if self.registrations(machine):
            return []
        wanted = variables(machine, name)
        words = [*machine.command, "mcp"]
        if wanted:  # its command takes none, so another one sets them
            words = ["/usr/bin/env", *map("=".join, wanted.items()), *words]
        return [RunCommand((agy, "mcp", "add", SERVER, *words), machine.environ)]

    def problem(self, machine: Machine) -> str | None:
        return None

    def start(self, machine: Machine) -> str:
        return f"HOPTELL_NAME={machine.owner}-{self.key} agy"
