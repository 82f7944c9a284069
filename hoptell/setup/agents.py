"""The agent programs that hoptell can be registered with: one description each.

A description tells whether the agent is here, what it has of hoptell already, and the steps
that register it: a command of the agent's own, or a change of its file. Steps are shown before
they are carried out, are none where all is done, keep whatever else is there, and never hold a
token: the sidecar finds it in hoptell's settings file by itself.

**Names.** Two sessions with one name replace each other, so a name stands in an agent's
configuration only where a session could not get it otherwise: Codex, Antigravity and Cursor
do not hand their environment on. The others are started as `HOPTELL_NAME=name agent`.
"""

import dataclasses
import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hoptell.errors import ConfigurationError, HoptellError
from hoptell.setup import files, hooks
from hoptell.setup.machine import Machine

SERVER = "hoptell"
PLUGIN = "hoptell@hoptell"
PLUGIN_RULE = f"mcp__plugin_hoptell_{SERVER}"
"""What Claude Code calls the tools of the plugin's server."""
COMMAND_TIMEOUT = 60.0
"""Seconds that an agent's own command may take to register something."""
LOOK_TIMEOUT = 5.0
"""The same, only to tell what is registered."""
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

    def shown(self) -> str:
        return f"run    {shlex.join(self.command)}"

    def run(self) -> str | None:
        run_command(self.command, self.environ, COMMAND_TIMEOUT)
        return None


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
        return None if backup is None else f"{self.file} as it was before is in {backup}"


class Agent(Protocol):
    """What has to be known of one agent program."""

    key: str
    """As in `hoptell init --apply KEY`."""
    title: str
    program: str
    """What a user types to start it."""

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


# Claude Code ----------------------------------------------------------------------------------


class Claude:
    """Claude Code: the plugin where it finds this hoptell, else server and hooks by path."""

    key, title, program = "claude", "Claude Code", "claude"

    def is_here(self, machine: Machine) -> bool:
        return machine.find("claude") is not None or self._folder(machine).is_dir()

    def registrations(self, machine: Machine) -> list[Registration]:
        found = []
        if self._has_plugin(machine):
            found.append(Registration(f"plugin {PLUGIN}", (), {}))
        entry = _dict(files.parse_json(files.read(self._state(machine)) or ""), "mcpServers")
        if SERVER in entry:
            found.append(_json_registration(self._state(machine), entry[SERVER]))
        return found

    def steps(self, machine: Machine, name: str | None) -> list[Step]:
        if self._has_plugin(machine):
            return self._settings_steps(machine, hooks_too=False)
        server = next(iter(self.registrations(machine)), None)
        root = plugin_root(machine)
        if server is None and root is not None and name is None:
            return [  # the settings first: the plugin's installation writes there too
                *self._settings_steps(machine, hooks_too=False),
                self._run(machine, "plugin", "marketplace", "add", str(root)),
                self._run(machine, "plugin", "install", PLUGIN),
            ]
        environment = _environment(machine, name and f"${{HOPTELL_NAME:-{name}}}")
        wanted = (*machine.command, "mcp")
        steps: list[Step] = []
        if server is None or server.command != wanted or not _holds(server, environment):
            if server is not None:
                if not server.environment.keys() <= set(SHOWN):  # they would come into `ps`
                    raise HoptellError(
                        f"hoptell has variables of its own in {server.where}: correct its command"
                        f" there yourself, to {shlex.join(wanted)}, or remove it"
                    )
                steps.append(self._run(machine, "mcp", "remove", "--scope", "user", SERVER))
                environment = {**server.environment, **environment}
            variables = [part for pair in environment.items() for part in ("-e", "=".join(pair))]
            add = ("mcp", "add", "--scope", "user", SERVER, *variables, "--", *wanted)
            steps.append(self._run(machine, *add))
        return steps + self._settings_steps(machine, hooks_too=True)

    def _settings_steps(self, machine: Machine, *, hooks_too: bool) -> list[Step]:
        """Allow hoptell's tools, or a woken session stops at a question; the plugin has hooks."""
        rule = f"mcp__{SERVER}" if hooks_too else PLUGIN_RULE
        file = self._settings_file(machine)
        before = files.read(file)
        entry = json.dumps(
            (
                hooks.settings(machine.command[0], [*machine.command[1:], "hook"])
                if hooks_too
                else {}
            )
            | {"permissions": {"allow": [rule]}}
        )

        def edit(settings: dict[str, Any]) -> None:
            _allow(settings, rule, file)
            if not hooks_too:
                return
            table = files.json_table(settings, file, "hooks")
            if not all(isinstance(groups, list) for groups in table.values()):
                raise ConfigurationError(f"'hooks' in {file} is not what it must be: correct it")
            hooks.merge(settings, machine.command)

        text = files.edited_json(file, before, edit, entry)
        if before is not None and json.loads(text) == files.parse_json(before):
            return []
        shown = f'"permissions": allow {rule}'
        if hooks_too:
            command = shlex.join((*machine.command, "hook"))
            shown += f'; "hooks": {", ".join(hooks.EVENTS)}: {command}'
        return [WriteFile(file, text, shown)]

    def problem(self, machine: Machine) -> str | None:
        settings = files.parse_json(files.read(self._settings_file(machine)) or "")
        if settings.get("disableAllHooks") is True:
            return (
                f"nothing wakes its sessions: {self._settings_file(machine)} has"
                " disableAllHooks, remove it"
            )
        count = len(self.registrations(machine))
        if count > 1:
            return (
                "it has both hoptell's plugin and a server of its own, which take the name from"
                " each other: run `claude mcp remove --scope user hoptell`"
            )
        missing = set(hooks.EVENTS) - set(hooks.events_with_ours(settings))
        if count and missing and not self._has_plugin(machine):
            return "nothing wakes its sessions, since its hooks are missing"
        return None

    def start(self, machine: Machine) -> str:
        for found in self.registrations(machine):
            if name := _name_of(found):
                name = name.removeprefix("${HOPTELL_NAME:-").removesuffix("}")
                return f"claude (it is {name}; start a second one as HOPTELL_NAME={name}-2 claude)"
        return f"HOPTELL_NAME={machine.owner}-claude claude"

    def _run(self, machine: Machine, *words: str) -> RunCommand:
        program = machine.find("claude")
        if program is None:
            raise HoptellError("the command `claude` is not installed, or not in PATH")
        return RunCommand((program, *words), machine.environ)

    def _has_plugin(self, machine: Machine) -> bool:
        settings = files.parse_json(files.read(self._settings_file(machine)) or "")
        return _dict(settings, "enabledPlugins").get(PLUGIN) is True

    def _folder(self, machine: Machine) -> Path:
        configured = machine.environ.get("CLAUDE_CONFIG_DIR", "").strip()
        return Path(configured) if configured else machine.home / ".claude"

    def _settings_file(self, machine: Machine) -> Path:
        return self._folder(machine) / "settings.json"

    def _state(self, machine: Machine) -> Path:
        configured = machine.environ.get("CLAUDE_CONFIG_DIR", "").strip()
        return (Path(configured) if configured else machine.home) / ".claude.json"


def plugin_root(machine: Machine) -> Path | None:
    """The folder of the plugin, if there is one here and it would start this very hoptell.

    Its launcher takes the `hoptell` on PATH or in the usual folders. Only the latter will be
    found from everywhere; and with none it would have to install one, which takes longer than
    a session waits for a server.
    """
    root = Path(__file__).resolve().parent.parent.parent
    if not (root / ".claude-plugin" / "marketplace.json").is_file() or machine.pointers:
        return None
    usual = dataclasses.replace(machine, environ={}).find("hoptell")
    same = usual is not None and os.path.realpath(usual) == os.path.realpath(machine.command[0])
    return root if same and len(machine.command) == 1 else None


# Codex ----------------------------------------------------------------------------------------


class Codex:
    """Codex: its TOML file, since its own command does not know the time limit of tools."""

    key, title, program = "codex", "Codex", "codex"

    def is_here(self, machine: Machine) -> bool:
        return machine.find("codex") is not None or self._file(machine).is_file()

    def registrations(self, machine: Machine) -> list[Registration]:
        import tomllib

        file = self._file(machine)
        try:
            value = tomllib.loads(files.read(file) or "")
        except ValueError:
            return []
        entry = _dict(value, "mcp_servers").get(SERVER)
        return [] if entry is None else [_json_registration(file, entry)]

    def steps(self, machine: Machine, name: str | None) -> list[Step]:
        import tomllib

        import tomlkit

        file = self._file(machine)
        before = files.read(file)
        environment = _environment(machine, name)
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
            variables = {"HOPTELL_NAME": f"{machine.owner}-codex", **entry["env"], **environment}
            for key, value in variables.items():
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
        name = next((_name_of(found) for found in self.registrations(machine)), None)
        override = f"mcp_servers.hoptell.env.HOPTELL_NAME={machine.owner}-codex-2"
        if name is None:
            return "codex"
        return (
            f"codex (it is {name}; start a second session as"
            f" {shlex.join(('codex', '-c', override))})"
        )

    def _file(self, machine: Machine) -> Path:
        configured = machine.environ.get("CODEX_HOME", "").strip()
        return (Path(configured) if configured else machine.home / ".codex") / "config.toml"


# Agents with a JSON file ----------------------------------------------------------------------


class JsonAgent:
    """An agent that reads servers from a JSON file of its own."""

    key: str
    title: str
    program: str
    programs: tuple[str, ...] = ()
    path: tuple[str, ...] = ("mcpServers",)
    """Where in the file the servers stand."""
    named = False
    """Whether the name has to stand in the file."""

    def folder(self, machine: Machine) -> Path:
        """Where its configuration is."""
        raise NotImplementedError

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
            entry = files.parse_json(files.read(file) or "")
            for key in (*self.path, SERVER):
                entry = _dict(entry, key)
            if entry:
                found.append(_json_registration(file, entry))
        return found

    def steps(self, machine: Machine, name: str | None) -> list[Step]:
        wanted = (*machine.command, "mcp")
        found = self.registrations(machine)
        if name is None and self.named:
            name = next((n for one in found if (n := _name_of(one))), f"{machine.owner}-{self.key}")
        environment = _environment(machine, name)
        for one in found:
            if one.command == wanted and _holds(one, environment) and one.enabled:
                return []
        file = self._file_to_change(machine, found)
        before = files.read(file)
        fresh = self.entry(wanted, environment)
        shown = json.dumps({self.path[0]: {SERVER: fresh}}, ensure_ascii=False)

        def edit(value: dict[str, Any]) -> None:
            servers = files.json_table(value, file, *self.path)
            entry = servers.setdefault(SERVER, {})
            if not isinstance(entry, dict):
                entry = servers[SERVER] = {}
            for key, new in fresh.items():
                old = entry.get(key)
                entry[key] = {**old, **new} if isinstance(old, dict) else new

        return [WriteFile(file, files.edited_json(file, before, edit, shown), shown)]

    def _file_to_change(self, machine: Machine, found: list[Registration]) -> Path:
        if found:
            return Path(found[0].where)
        return self.candidates(machine)[0]

    def problem(self, machine: Machine) -> str | None:
        return None

    def start(self, machine: Machine) -> str:
        if self.named:
            name = next((_name_of(found) for found in self.registrations(machine)), None)
            return f"{self.program} (it is {name or f'{machine.owner}-{self.key}'})"
        return f"HOPTELL_NAME={machine.owner}-{self.key} {self.program}"


class OpenCode(JsonAgent):
    """opencode reads opencode.json and opencode.jsonc: the first is changed, since the second
    may have comments."""

    key = program = "opencode"
    title = "opencode"
    path = ("mcp",)

    def candidates(self, machine: Machine) -> list[Path]:
        folder = machine.config_home() / "opencode"
        return [folder / "opencode.json", folder / "opencode.jsonc"]

    def entry(self, command: tuple[str, ...], environment: dict[str, str]) -> dict[str, Any]:
        return {
            "type": "local",
            "command": list(command),
            "environment": environment,
            "enabled": True,
        }


class Gemini(JsonAgent):
    """Gemini CLI removes variables named like a secret, but hands on the others."""

    key = program = "gemini"
    title = "Gemini CLI"

    def candidates(self, machine: Machine) -> list[Path]:
        return [machine.home / ".gemini" / "settings.json"]

    def entry(self, command: tuple[str, ...], environment: dict[str, str]) -> dict[str, Any]:
        return {**super().entry(command, environment), "timeout": LONGEST_CALL * 1000}


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


# Antigravity ----------------------------------------------------------------------------------


class Antigravity:
    """Antigravity, by its own command."""

    key, title, program = "antigravity", "Antigravity", "agy"

    def is_here(self, machine: Machine) -> bool:
        return machine.find("agy") is not None

    def registrations(self, machine: Machine) -> list[Registration]:
        program = machine.find("agy")
        if program is None:
            return []
        try:
            listed = run_command((program, "mcp", "list"), machine.environ, LOOK_TIMEOUT)
        except HoptellError:
            return []
        known = any(SERVER in line.replace(":", " ").split() for line in listed.splitlines())
        return [Registration("agy mcp list", (), {})] if known else []

    def steps(self, machine: Machine, name: str | None) -> list[Step]:
        program = machine.find("agy")
        if program is None:
            raise HoptellError("the command `agy` is not installed, or not in PATH")
        if self.registrations(machine):
            return []
        variables = _environment(machine, name)
        words = [*machine.command, "mcp"]
        if variables:  # its command takes none, so another one sets them
            words = ["/usr/bin/env", *map("=".join, variables.items()), *words]
        return [RunCommand((program, "mcp", "add", SERVER, *words), machine.environ)]

    def problem(self, machine: Machine) -> str | None:
        return None

    def start(self, machine: Machine) -> str:
        return f"HOPTELL_NAME={machine.owner}-{self.key} agy"


AGENTS: dict[str, Agent] = {
    agent.key: agent for agent in (Claude(), Codex(), OpenCode(), Gemini(), Antigravity(), Cursor())
}


# What they share ------------------------------------------------------------------------------


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
            f"`{shown}` did not end within {timeout:.0f} s: try it yourself"
        ) from None
    except OSError as error:
        raise HoptellError(f"cannot run {command[0]}: {error.strerror}") from None
    said = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        reason = said.strip().splitlines()[-1:] or ["it gave no reason"]
        raise HoptellError(f"`{shown}` failed ({done.returncode}): {ascii(reason[0][:300])[1:-1]}")
    return said


def _environment(machine: Machine, name: str | None) -> dict[str, str]:
    return {**({"HOPTELL_NAME": name} if name else {}), **machine.pointers}


def _json_registration(where: Path, entry: object) -> Registration:
    """What an entry says, in any of the agents' ways of saying it."""
    if not isinstance(entry, dict):
        return Registration(str(where), (), {}, enabled=False)
    command, arguments = entry.get("command"), entry.get("args")
    words = [command] if isinstance(command, str) else command
    words = [*(words if isinstance(words, list) else []), *(arguments or [])]
    environment = entry.get("env") or entry.get("environment") or {}
    return Registration(
        str(where),
        tuple(map(str, words)),
        {str(key): str(value) for key, value in _dict({"": environment}, "").items()},
        enabled=entry.get("enabled", True) is not False and entry.get("disabled") is not True,
    )


def _name_of(registration: Registration) -> str | None:
    return registration.environment.get("HOPTELL_NAME")


def _holds(registration: Registration, environment: Mapping[str, str]) -> bool:
    return environment.items() <= registration.environment.items()


def _allow(settings: dict[str, Any], rule: str, file: Path) -> None:
    """Let Claude Code use these tools without asking, unless somebody decided about them."""
    permissions = files.json_table(settings, file, "permissions")
    decided = [permissions.get(kind) for kind in ("allow", "ask", "deny")]
    if any(isinstance(rules, list) and rule in rules for rules in decided):
        return
    allowed = permissions.setdefault("allow", [])
    if not isinstance(allowed, list):
        raise ConfigurationError(f"'permissions' in {file} is not what it must be: correct it")
    allowed.append(rule)


def _dict(value: object, key: str) -> dict[str, Any]:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}
