"""What has to be known of an agent program, and what registering hoptell with it consists of."""

import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hoptell.errors import HoptellError
from hoptell.setup import files
from hoptell.setup.machine import Machine

COMMAND_TIMEOUT = 60.0
"""Seconds that an agent's own command may take to register something."""
SHOWN = ("HOPTELL_NAME", "HOPTELL_ENV", "HOPTELL_HOME")
"""Variables whose values are no secrets."""
LONGEST_CALL = 1600
"""Seconds that an agent should let a tool run: the longest wait is 1500."""


@dataclass(frozen=True)
class Registration:
    """hoptell in an agent's configuration."""

    where: str
    command: tuple[str, ...]
    """What the agent starts; empty where the agent does not tell."""
    environment: Mapping[str, str]
    enabled: bool = True

    @classmethod
    def read(cls, where: Path, entry: object) -> "Registration":
        """What an entry of a file says, in any of the agents' ways of saying it."""
        if not isinstance(entry, dict):
            return cls(str(where), (), {}, enabled=False)
        command, arguments = entry.get("command"), entry.get("args")
        words = [command] if isinstance(command, str) else command
        words = [part for found in (words, arguments) if isinstance(found, list) for part in found]
        environment = files.found_table(entry, "env") or files.found_table(entry, "environment")
        return cls(
            str(where),
            tuple(map(str, words)),
            {str(key): str(value) for key, value in environment.items()},
            enabled=entry.get("enabled", True) is not False and entry.get("disabled") is not True,
        )

    @property
    def name(self) -> str | None:
        """The peer name that it gives to the agent's sessions."""
        return self.environment.get("HOPTELL_NAME")

    def holds(self, variables: Mapping[str, str]) -> bool:
        """Whether it sets these variables."""
        return variables.items() <= self.environment.items()


def variables(machine: Machine, name: str | None) -> dict[str, str]:
    """What a registration has to set for the peer `name`."""
    return {**({"HOPTELL_NAME": name} if name else {}), **machine.pointers}


class Step(Protocol):
    """One thing to do for a registration."""

    def shown(self) -> str:
        """What `run` will do, as it is shown before."""
        ...

    def run(self) -> str | None:
        """Do it. Returns what to tell afterwards, such as where a backup is.

        Raises:
            HoptellError: it was not done.
        """
        ...


@dataclass(frozen=True)
class RunCommand:
    """Run one of the agent's own commands."""

    command: tuple[str, ...]
    environ: Mapping[str, str]
    changes: Path | None = None
    """The file that it changes, of which a copy is kept."""

    def shown(self) -> str:
        return f"run    {shlex.join(self.command)}"

    def run(self) -> str | None:
        backup = None
        if self.changes is not None and self.changes.is_file():
            try:
                backup = files.keep_copy(self.changes)
            except OSError as error:
                raise HoptellError(f"cannot copy {self.changes}: {error.strerror}") from None
        run_command(self.command, self.environ, COMMAND_TIMEOUT)
        return None if backup is None else _backup_note(self.changes, backup)


@dataclass(frozen=True)
class WriteFile:
    """Change one of the agent's files."""

    file: Path
    text: str
    entry: str
    """The part of it that is new."""

    def shown(self) -> str:
        indented = "".join(f"         {line}\n" for line in self.entry.splitlines())
        return (
            f"write  {self.file}, where this is added or brought up to date:\n{indented}".rstrip()
        )

    def run(self) -> str | None:
        backup = files.replace(self.file, self.text)
        return None if backup is None else _backup_note(self.file, backup)


def _backup_note(file: Path | None, backup: Path) -> str:
    return f"{file} as it was before is in {backup}"


class Agent(Protocol):
    """What has to be known of one agent program."""

    key: str
    """As in `hoptell init --apply KEY`."""
    title: str

    def is_here(self, machine: Machine) -> bool:
        """Whether it is installed."""
        ...

    def registrations(self, machine: Machine) -> list[Registration]:
        """Where hoptell is registered already, for this user."""
        ...

    def steps(self, machine: Machine, name: str | None) -> list[Step]:
        """What is left to do to register hoptell, as the peer `name` if one is given.

        Raises:
            HoptellError: it cannot be registered here; the sentence says what to do.
        """
        ...

    def problem(self, machine: Machine) -> str | None:
        """What is wrong with its waking although hoptell is registered; None if nothing is."""
        ...

    def start(self, machine: Machine) -> str:
        """How to start a session with a name."""
        ...


def program(machine: Machine, name: str) -> str:
    """Where an agent's own command is.

    Raises:
        HoptellError: it is not installed.
    """
    found = machine.find(name)
    if found is None:
        raise HoptellError(f"the command `{name}` is not installed, or not in PATH")
    return found


def run_command(command: tuple[str, ...], environ: Mapping[str, str], timeout: float) -> str:
    """Run another program to its end; what it printed.

    Raises:
        HoptellError: it cannot be started, fails, or takes too long.
    """
    shown = shlex.join((os.path.basename(command[0]), *command[1:3]))
    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HoptellError(
            f"`{shown}` did not end within {timeout:.0f} s", "try it yourself"
        ) from None
    except OSError as error:
        raise HoptellError(f"cannot run {command[0]}: {error.strerror}") from None
    said = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        reason = said.strip().splitlines()[-1:] or ["it gave no reason"]
        raise HoptellError(f"`{shown}` failed ({done.returncode}): {ascii(reason[0][:300])[1:-1]}")
    return said
