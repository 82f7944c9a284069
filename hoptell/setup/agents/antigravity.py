"""Antigravity: by its own command."""

import shlex

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
SETTER = "/usr/bin/env"
"""Sets the variables, since `agy mcp add` takes none."""


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
        lines = (line for line in listed.splitlines() if SERVER in line.replace(":", " ").split())
        return [_registration(line) for line in lines][:1]

    def steps(self, machine: Machine, name: str | None) -> list[Step]:
        agy = program(machine, "agy")
        found = next(iter(self.registrations(machine)), None)
        usual = found.name if found and found.name else f"{machine.owner}-{self.key}"
        wanted = variables(machine, name or usual)
        command = (*machine.command, "mcp")
        if found is None:
            words = (SETTER, *map("=".join, wanted.items()), *command)
            return [RunCommand((agy, "mcp", "add", SERVER, *words), machine.environ)]
        if found.command == command and found.holds(wanted):
            return []
        if not found.command and name is None:  # its list does not tell
            return []
        raise HoptellError(
            "Antigravity has hoptell already, and its command cannot change that",
            f"remove the server {SERVER} there, and run this again",
        )

    def problem(self, machine: Machine) -> str | None:
        return None

    def start(self, machine: Machine) -> str:
        found = next(iter(self.registrations(machine)), None)
        if found is not None and found.name is None:
            return "agy"
        return f"agy (it is {found.name if found else f'{machine.owner}-{self.key}'})"


def _registration(line: str) -> Registration:
    """What a line of the list says: `hoptell: /usr/bin/env NAME=value /path/to/hoptell mcp`."""
    try:
        words = shlex.split(line)
    except ValueError:
        words = []
    starts = [index for index, word in enumerate(words) if word.startswith("/")]
    words = words[starts[0] :] if starts and "mcp" in words[starts[0] :] else []
    environment = {}
    if words and words[0] == SETTER:
        words = words[1:]
        while words and "=" in words[0]:
            key, _, value = words.pop(0).partition("=")
            environment[key] = value
    words = words[: words.index("mcp") + 1] if words else []
    return Registration("agy mcp list", tuple(words), environment)
