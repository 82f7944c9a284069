"""Claude Code: the plugin where it finds this hoptell, else server and hooks by path."""

import dataclasses
import json
import os
import shlex
from pathlib import Path
from typing import Any

from hoptell.errors import ConfigurationError, HoptellError
from hoptell.programs import PLUGIN, SERVER
from hoptell.setup import files, hooks, json_text
from hoptell.setup.agents.agent import (
    SHOWN,
    Registration,
    RunCommand,
    Step,
    WriteFile,
    program,
    variables,
)
from hoptell.setup.machine import Machine

INSTALLED = f"{PLUGIN}@hoptell"
"""The plugin as Claude Code's settings name it: with its marketplace."""
PLUGIN_RULE = f"mcp__plugin_{PLUGIN}_{SERVER}"
"""What Claude Code calls the tools of the plugin's server."""


class Claude:
    """How hoptell is registered with Claude Code."""

    key, title = "claude", "Claude Code"

    def is_here(self, machine: Machine) -> bool:
        return machine.find("claude") is not None or self._folder(machine).is_dir()

    def registrations(self, machine: Machine) -> list[Registration]:
        found = []
        if self._has_plugin(machine):
            found.append(Registration(f"plugin {INSTALLED}", (), {}))
        file = self._state(machine)
        servers = files.found_table(json_text.parse(files.read(file) or ""), "mcpServers")
        if SERVER in servers:
            found.append(Registration.read(file, servers[SERVER]))
        return found

    def steps(self, machine: Machine, name: str | None) -> list[Step]:
        if self._has_plugin(machine):
            return self._settings_steps(machine, hooks_too=False)
        server = next(iter(self.registrations(machine)), None)
        root = plugin_root(machine)
        if server is None and root is not None and name is None:
            add = ("plugin", "marketplace", "add", str(root))
            return [  # the settings first: the plugin's installation writes there too
                *self._settings_steps(machine, hooks_too=False),
                self._run(machine, *add, changes=self._settings_file(machine)),
                self._run(machine, "plugin", "install", INSTALLED),
            ]
        environment = variables(machine, name and f"${{HOPTELL_NAME:-{name}}}")
        wanted = (*machine.command, "mcp")
        steps: list[Step] = []
        state = self._state(machine)
        as_wanted = server is not None and server.command == wanted and server.enabled
        if server is None or not as_wanted or not server.holds(environment):
            if server is not None:
                if not server.environment.keys() <= set(SHOWN):  # they would come into `ps`
                    raise HoptellError(
                        f"hoptell has variables of its own in {server.where}",
                        f"correct its command there yourself, to {shlex.join(wanted)}, or remove"
                        " it",
                    )
                remove = ("mcp", "remove", "--scope", "user", SERVER)
                steps.append(self._run(machine, *remove, changes=state))
                environment = {**server.environment, **environment}
            options = [part for pair in environment.items() for part in ("-e", "=".join(pair))]
            new = ("mcp", "add", "--scope", "user", SERVER, *options, "--", *wanted)
            steps.append(self._run(machine, *new, changes=None if steps else state))
        return steps + self._settings_steps(machine, hooks_too=True)

    def _settings_steps(self, machine: Machine, *, hooks_too: bool) -> list[Step]:
        """Allow hoptell's tools, or a woken session stops at a question; the plugin has hooks."""
        rule = f"mcp__{SERVER}" if hooks_too else PLUGIN_RULE
        file = self._settings_file(machine)
        before = files.read(file)
        hook = machine.command[0], [*machine.command[1:], "hook"]
        entry = json.dumps(
            (hooks.wanted(*hook) if hooks_too else {}) | {"permissions": {"allow": [rule]}}
        )

        def edit(settings: dict[str, Any]) -> None:
            _allow(settings, rule, file)
            if not hooks_too:
                return
            table = files.json_table(settings, file, "hooks")
            if not all(isinstance(groups, list) for groups in table.values()):
                raise ConfigurationError(f"'hooks' in {file} is not what it must be", "correct it")
            hooks.merge(settings, *hook)

        text = files.edited_json(file, before, edit, entry)
        if text == before:
            return []
        shown = f'"permissions": allow {rule}'
        if hooks_too:
            command = shlex.join((*machine.command, "hook"))
            shown += f'; "hooks": {", ".join(hooks.EVENTS)}: {command}'
        return [WriteFile(file, text, shown)]

    def problem(self, machine: Machine) -> str | None:
        settings = json_text.parse(files.read(self._settings_file(machine)) or "")
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
            if (name := found.name) is not None:
                if not name.startswith("${HOPTELL_NAME:-"):
                    return f"claude (it is {name})"
                name = name.removeprefix("${HOPTELL_NAME:-").removesuffix("}")
                return f"claude (it is {name}; start a second one as HOPTELL_NAME={name}-2 claude)"
        return f"HOPTELL_NAME={machine.owner}-claude claude"

    def _run(self, machine: Machine, *words: str, changes: Path | None = None) -> RunCommand:
        return RunCommand((program(machine, "claude"), *words), machine.environ, changes)

    def _has_plugin(self, machine: Machine) -> bool:
        settings = json_text.parse(files.read(self._settings_file(machine)) or "")
        return files.found_table(settings, "enabledPlugins").get(INSTALLED) is True

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
    root = Path(__file__).resolve().parent.parent.parent.parent
    if not (root / ".claude-plugin" / "marketplace.json").is_file() or machine.pointers:
        return None
    usual = dataclasses.replace(machine, environ={"HOME": str(machine.home)}).find("hoptell")
    same = usual is not None and os.path.realpath(usual) == os.path.realpath(machine.command[0])
    return root if same and len(machine.command) == 1 else None


def _allow(settings: dict[str, Any], rule: str, file: Path) -> None:
    """Let Claude Code use these tools without asking, unless somebody decided about them."""
    permissions = files.json_table(settings, file, "permissions")
    decided = [permissions.get(kind) for kind in ("allow", "ask", "deny")]
    if any(isinstance(rules, list) and rule in rules for rules in decided):
        return
    allowed = permissions.setdefault("allow", [])
    if not isinstance(allowed, list):
        raise ConfigurationError(f"'permissions' in {file} is not what it must be", "correct it")
    allowed.append(rule)
