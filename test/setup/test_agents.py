"""Registering hoptell with each agent: shown first, done once, and nothing else changed."""

import dataclasses
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.agents import Computer

from hoptell.errors import ConfigurationError, HoptellError
from hoptell.setup import hooks
from hoptell.setup.agents import claude
from hoptell.setup.agents.agent import RunCommand, WriteFile, run_command
from hoptell.setup.agents.table import AGENTS
from hoptell.setup.machine import Machine, is_passing, own_command

HOPTELL = "/opt/h/bin/hoptell"
COMMAND = (HOPTELL, "mcp")
SECRET = "a-token-that-nobody-shows"


@pytest.fixture
def computer(tmp_path: Path) -> Computer:
    return Computer(tmp_path)


@pytest.fixture
def machine(computer: Computer) -> Machine:
    return here(computer)


def here(computer: Computer) -> Machine:
    found = Machine.here(computer.environ)
    return dataclasses.replace(found, command=(HOPTELL,), owner="sam", folders=())


def apply(key: str, machine: Machine, name: str | None = None) -> list[str]:
    """Carry the steps out; how they were shown."""
    steps = AGENTS[key].steps(machine, name)
    for step in steps:
        step.run()
    return [step.shown() for step in steps]


JSON_FILES = {
    "opencode": ".config/opencode/opencode.json",
    "gemini": ".gemini/settings.json",
    "cursor": ".cursor/mcp.json",
}


@pytest.mark.parametrize("key", AGENTS)
def test_an_agent_is_registered_once_with_an_absolute_command_and_no_token(
    computer: Computer, key: str
) -> None:
    computer.write_settings(token=SECRET)
    computer.install("claude", "agy")
    machine = here(computer)
    agent = AGENTS[key]
    assert agent.registrations(machine) == []
    shown = apply(key, machine)
    assert shown and HOPTELL in "".join(shown)
    (found,) = agent.registrations(machine)
    assert found.command in (COMMAND, ())
    assert agent.problem(machine) is None
    assert agent.steps(machine, None) == []
    settings = computer.home / ".config" / "hoptell" / ".env"
    for file in computer.home.rglob("*"):
        if file.is_file() and file != settings:
            assert SECRET not in file.read_text()
    assert SECRET not in "".join(shown)


@pytest.mark.parametrize("key", ["claude", *JSON_FILES, "codex"])
def test_a_command_that_moved_is_brought_up_to_date_and_what_the_user_added_stays(
    computer: Computer, machine: Machine, key: str
) -> None:
    computer.install("claude")
    apply(key, machine, "mine")
    moved = dataclasses.replace(machine, command=("/new/hoptell",))
    apply(key, moved)
    (found,) = AGENTS[key].registrations(moved)
    assert found.command == ("/new/hoptell", "mcp")
    assert found.environment["HOPTELL_NAME"] in ("mine", "${HOPTELL_NAME:-mine}")
    assert AGENTS[key].steps(moved, None) == []


@pytest.mark.parametrize("key", JSON_FILES)
def test_other_entries_of_a_json_file_stay(computer: Computer, machine: Machine, key: str) -> None:
    path = "mcp" if key == "opencode" else "mcpServers"
    before = {"theme": "dark", path: {"other": {"command": "x"}}, "last": [1, {"a": None}]}
    computer.write(JSON_FILES[key], before)
    apply(key, machine)
    after = computer.read(JSON_FILES[key])
    del after[path]["hoptell"]
    assert after == before and list(after) == list(before)
    backup = computer.home / (JSON_FILES[key] + ".before-hoptell")
    assert json.loads(backup.read_text()) == before
    assert backup.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("key", ["gemini", "cursor"])
def test_a_json_file_keeps_its_comments(computer: Computer, machine: Machine, key: str) -> None:
    before = '{\n  // mine\n  "a": 1.0, // one\n  "mcpServers": {}, /* none */\n}\n'
    file = computer.write(JSON_FILES[key], before)
    apply(key, machine)
    start, end = before.split("{}")
    assert file.read_text().startswith(start + "{\n    ") and file.read_text().endswith("}" + end)
    assert AGENTS[key].registrations(machine)[0].command == COMMAND
    assert AGENTS[key].steps(machine, None) == []


@pytest.mark.parametrize("key", ["gemini", "cursor"])
def test_a_file_that_is_no_json_is_left_alone_and_the_entry_is_told(
    computer: Computer, machine: Machine, key: str
) -> None:
    file = computer.write(JSON_FILES[key], '{"a": 1')
    with pytest.raises(ConfigurationError, match="stays as it is: add this to it") as caught:
        AGENTS[key].steps(machine, None)
    assert json.loads(str(caught.value).partition("yourself: ")[2])["mcpServers"]["hoptell"]
    assert file.read_text() == '{"a": 1'


def test_opencodes_file_with_comments_is_left_alone_and_the_other_one_used(
    computer: Computer, machine: Machine
) -> None:
    with_comments = computer.write(".config/opencode/opencode.jsonc", '{"mcp": {}, // mine\n}')
    apply("opencode", machine)
    assert with_comments.read_text() == '{"mcp": {}, // mine\n}'
    entry = computer.read(JSON_FILES["opencode"])["mcp"]["hoptell"]
    assert entry == {
        "type": "local",
        "command": list(COMMAND),
        "environment": {},
        "enabled": True,
    }


def test_hoptell_in_opencodes_file_with_comments_is_found(
    computer: Computer, machine: Machine
) -> None:
    entry = f'{{"mcp": {{"hoptell": {{"command": {json.dumps(COMMAND)}, // c\n}}}}}}'
    computer.write(".config/opencode/opencode.jsonc", entry)
    assert AGENTS["opencode"].steps(machine, None) == []


@pytest.mark.parametrize(
    ("key", "off"),
    [
        ("opencode", {"enabled": False}),
        ("gemini", {"disabled": True}),
        ("cursor", {"disabled": True}),
    ],
)
def test_a_registration_that_was_switched_off_is_switched_on(
    computer: Computer, machine: Machine, key: str, off: dict[str, bool]
) -> None:
    path = "mcp" if key == "opencode" else "mcpServers"
    apply(key, machine)
    value = computer.read(JSON_FILES[key])
    value[path]["hoptell"] |= off
    computer.write(JSON_FILES[key], value)
    (shown,) = apply(key, machine)
    assert "switched on" in shown
    (found,) = AGENTS[key].registrations(machine)
    assert found.enabled and AGENTS[key].steps(machine, None) == []


def test_codex_is_switched_on_too(computer: Computer, machine: Machine) -> None:
    apply("codex", machine)
    file = computer.home / ".codex" / "config.toml"
    file.write_text(file.read_text() + "enabled = false\n")
    assert not AGENTS["codex"].registrations(machine)[0].enabled
    (shown,) = apply("codex", machine)
    assert "enabled = true" in shown
    assert AGENTS["codex"].registrations(machine)[0].enabled
    assert AGENTS["codex"].steps(machine, None) == []


@pytest.mark.parametrize("key", ["opencode", "gemini", "cursor"])
def test_a_file_with_comments_that_has_it_all_is_enough(
    computer: Computer, machine: Machine, key: str
) -> None:
    apply(key, machine)
    file = computer.home / JSON_FILES[key]
    text = "// mine\n" + file.read_text()
    file.write_text(text)
    assert AGENTS[key].steps(machine, None) == [] and file.read_text() == text


# Codex ----------------------------------------------------------------------------------------


def test_codex_keeps_its_comments_and_what_the_user_chose(
    computer: Computer, machine: Machine
) -> None:
    before = (
        'model = "x"  # the good one\n\n[mcp_servers.hoptell]  # ours\ncommand = "/old"\n'
        "tool_timeout_sec = 60 # short\n[mcp_servers.hoptell.env]\n"
        f'HOPTELL_NAME = "carol"\nHOPTELL_TOKEN = "{SECRET}"\n\n[tui]\na = 1\n'
    )
    file = computer.write(".codex/config.toml", before)
    (shown,) = apply("codex", machine)
    after = file.read_text()
    for comment in ("# the good one", "# ours", "# short"):
        assert comment in after
    value = tomllib.loads(after)
    assert value["tui"] == {"a": 1} and value["model"] == "x"
    server = value["mcp_servers"]["hoptell"]
    assert (server["command"], server["args"]) == (HOPTELL, ["mcp"])
    assert server["tool_timeout_sec"] == 60
    assert server["env"]["HOPTELL_NAME"] == "carol"
    assert SECRET not in shown and "carol" in shown


def test_codex_gets_a_name_since_its_servers_do_not_see_the_shells(machine: Machine) -> None:
    apply("codex", machine)
    (found,) = AGENTS["codex"].registrations(machine)
    assert found.environment == {"HOPTELL_NAME": "sam-codex"}
    assert "sam-codex-2" in AGENTS["codex"].start(machine)


def test_codexs_file_that_is_broken_stays_as_it_is(computer: Computer, machine: Machine) -> None:
    file = computer.write(".codex/config.toml", "a = = 1\n")
    with pytest.raises(ConfigurationError, match="config.toml, line 1 cannot be understood"):
        AGENTS["codex"].steps(machine, None)
    assert file.read_text() == "a = = 1\n"
    assert AGENTS["codex"].registrations(machine) == []


@pytest.mark.parametrize(
    "text",
    [
        "mcp_servers = {}\n",
        'mcp_servers = {other = {command = "x"}}\n[tui]\na = 1\n',
        'mcp_servers.other.command = "x"\n',
        'mcp_servers = {hoptell = {command = "x"}}\n',
        '[mcp_servers]\nhoptell = {command = "x", env = {A = "b"}}\n',
        'mcp_servers.hoptell.command = "x"\n[mcp_servers.other]\ncommand = "y"\n',
        '[mcp_servers.other]\ncommand = "y"\n[tui]\n[mcp_servers.third]\ncommand = "y"\n',
    ],
)
def test_codexs_servers_may_be_written_in_any_way(
    computer: Computer, machine: Machine, text: str
) -> None:
    file = computer.write(".codex/config.toml", text)
    try:
        apply("codex", machine)
    except ConfigurationError as error:
        assert "add this to it yourself" in str(error) and file.read_text() == text
        return
    before, after = tomllib.loads(text), tomllib.loads(file.read_text())
    (found,) = AGENTS["codex"].registrations(machine)
    assert found.command == COMMAND and found.name == "sam-codex"
    before["mcp_servers"].pop("hoptell", None)
    del after["mcp_servers"]["hoptell"]
    assert after == before
    assert AGENTS["codex"].steps(machine, None) == []


def test_what_cannot_be_added_to_codexs_file_is_told_as_toml(
    computer: Computer, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a bug of the library")

    monkeypatch.setattr("tomlkit.dumps", broken)
    computer.write(".codex/config.toml", "a = 1\n")
    with pytest.raises(ConfigurationError, match="stays as it is") as caught:
        AGENTS["codex"].steps(machine, None)
    entry = tomllib.loads(str(caught.value).partition("[table]: ")[2])["mcp_servers"]["hoptell"]
    assert (entry["command"], entry["args"]) == (HOPTELL, ["mcp"])
    assert entry["env"] == {"HOPTELL_NAME": "sam-codex"}


@pytest.mark.parametrize("arguments", [5, "mcp", None])
def test_an_entry_that_makes_no_sense_is_not_a_crash(
    computer: Computer, machine: Machine, arguments: Any
) -> None:
    entry = {"command": HOPTELL, "args": arguments}
    computer.write(".gemini/settings.json", {"mcpServers": {"hoptell": entry}})
    (found,) = AGENTS["gemini"].registrations(machine)
    assert found.command == (HOPTELL,)


@pytest.mark.parametrize(
    "text",
    [
        "mcp_servers = 1\n",
        "[mcp_servers]\nhoptell = 1\n",
        "[mcp_servers.hoptell]\nenv = 1\n",
        "[[mcp_servers]]\na = 1\n",
    ],
)
def test_codexs_file_with_something_else_in_the_way_is_not_a_crash(
    computer: Computer, machine: Machine, text: str
) -> None:
    file = computer.write(".codex/config.toml", text)
    with pytest.raises(ConfigurationError):
        AGENTS["codex"].steps(machine, None)
    assert file.read_text() == text


# Claude Code ----------------------------------------------------------------------------------


def test_claude_code_gets_a_server_and_the_hooks_that_wake_it(
    computer: Computer, machine: Machine
) -> None:
    computer.install("claude")
    mine = {"hooks": [{"type": "command", "command": "say done"}]}
    computer.write(".claude/settings.json", {"theme": "dark", "hooks": {"Stop": [mine]}})
    apply("claude", machine)
    assert computer.calls() == [
        ["claude", "mcp", "add", "--scope", "user", "hoptell", "--", HOPTELL, "mcp"]
    ]
    after = computer.read(".claude/settings.json")
    assert after["theme"] == "dark" and after["hooks"]["Stop"][0] == mine
    expected = hooks.wanted(HOPTELL, ["hook"])["hooks"]
    assert after["hooks"]["Stop"][1:] == expected.pop("Stop")
    assert {event: after["hooks"][event] for event in expected} == expected


def test_hooks_of_an_older_place_are_changed_and_not_added_again(
    computer: Computer, machine: Machine
) -> None:
    computer.install("claude")
    old = hooks.wanted("/old/python", ["-m", "hoptell", "hook"])
    computer.write(".claude/settings.json", old)
    apply("claude", machine)
    after = computer.read(".claude/settings.json")
    assert after["hooks"] == hooks.wanted(HOPTELL, ["hook"])["hooks"]


def test_claude_codes_settings_as_told_are_enough(computer: Computer, machine: Machine) -> None:
    computer.install("claude")
    file = computer.write(".claude/settings.json", "no json // mine\n")
    with pytest.raises(ConfigurationError, match="add this to it yourself: ") as caught:
        AGENTS["claude"].steps(machine, None)
    file.write_text(str(caught.value).partition("yourself: ")[2] + " // mine\n")
    before = file.read_text()
    apply("claude", machine)
    assert AGENTS["claude"].registrations(machine) and file.read_text() == before


def test_claude_codes_state_is_copied_before_its_command_changes_it(
    computer: Computer, machine: Machine
) -> None:
    computer.install("claude")
    before = {"mcpServers": {"hoptell": {"command": "/old", "args": ["mcp"]}}, "mine": 1}
    computer.write(".claude.json", before)
    notes = [step.run() or "" for step in AGENTS["claude"].steps(machine, None)]
    assert computer.read(".claude.json.before-hoptell") == before
    assert f"{computer.home}/.claude.json.before-hoptell" in notes[0]
    assert len(list(computer.home.glob(".claude.json.before-hoptell*"))) == 1


@pytest.mark.parametrize("plugin", [False, True])
def test_a_woken_claude_code_may_use_hoptells_tools_without_a_question(
    computer: Computer, machine: Machine, plugin: bool
) -> None:
    computer.install("claude")
    mine = {"permissions": {"allow": ["Bash(ls:*)"], "defaultMode": "plan"}}
    computer.write(".claude/settings.json", mine | {"enabledPlugins": {"hoptell@hoptell": plugin}})
    shown = apply("claude", machine)
    rule = "mcp__plugin_hoptell_hoptell" if plugin else "mcp__hoptell"
    assert f'"permissions": allow {rule}' in shown[-1]
    permissions = computer.read(".claude/settings.json")["permissions"]
    assert permissions == {"allow": ["Bash(ls:*)", rule], "defaultMode": "plan"}
    assert AGENTS["claude"].steps(machine, None) == []


@pytest.mark.parametrize("kind", ["ask", "deny"])
def test_what_somebody_decided_about_hoptells_tools_stays(
    computer: Computer, machine: Machine, kind: str
) -> None:
    computer.install("claude")
    computer.write(".claude/settings.json", {"permissions": {kind: ["mcp__hoptell"]}})
    apply("claude", machine)
    permissions = computer.read(".claude/settings.json")["permissions"]
    assert permissions == {kind: ["mcp__hoptell"]}


def test_codex_may_use_hoptells_tools_and_no_others_without_a_question(
    computer: Computer, machine: Machine
) -> None:
    mine = 'approval_policy = "untrusted"\n\n[mcp_servers.other]\ncommand = "x"\n'
    computer.write(".codex/config.toml", mine)
    (shown,) = apply("codex", machine)
    assert 'default_tools_approval_mode = "approve"' in shown
    after = tomllib.loads((computer.home / ".codex" / "config.toml").read_text())
    assert after["mcp_servers"].pop("hoptell")["default_tools_approval_mode"] == "approve"
    assert after == tomllib.loads(mine)


def test_what_somebody_decided_about_hoptells_tools_in_codex_stays(
    computer: Computer, machine: Machine
) -> None:
    mine = '[mcp_servers.hoptell]\ncommand = "x"\ndefault_tools_approval_mode = "prompt"\n'
    computer.write(".codex/config.toml", mine)
    apply("codex", machine)
    after = tomllib.loads((computer.home / ".codex" / "config.toml").read_text())
    assert after["mcp_servers"]["hoptell"]["default_tools_approval_mode"] == "prompt"


def test_a_name_for_claude_code_gives_way_to_that_of_the_session(
    computer: Computer, machine: Machine
) -> None:
    computer.install("claude")
    apply("claude", machine, "carol")
    (found,) = AGENTS["claude"].registrations(machine)
    assert found.environment == {"HOPTELL_NAME": "${HOPTELL_NAME:-carol}"}
    assert AGENTS["claude"].start(machine).startswith("claude (it is carol;")


def test_with_the_plugin_nothing_is_added_to_it(computer: Computer, machine: Machine) -> None:
    computer.install("claude")
    allowed = {"permissions": {"allow": ["mcp__plugin_hoptell_hoptell"]}}
    computer.write(".claude/settings.json", allowed | {"enabledPlugins": {"hoptell@hoptell": True}})
    assert AGENTS["claude"].steps(machine, None) == []
    assert AGENTS["claude"].problem(machine) is None


def test_the_plugin_is_used_where_its_launcher_finds_this_hoptell(computer: Computer) -> None:
    computer.install("claude")
    script = computer.write(".local/bin/hoptell", "#!/bin/sh\n")
    script.chmod(0o755)
    machine = dataclasses.replace(here(computer), command=(str(script),), folders=("~/.local/bin",))
    apply("claude", machine)
    root = Path(claude.__file__).resolve().parent.parent.parent.parent
    assert computer.calls() == [
        ["claude", "plugin", "marketplace", "add", str(root)],
        ["claude", "plugin", "install", "hoptell@hoptell"],
    ]
    assert AGENTS["claude"].steps(machine, None) == []
    elsewhere = dataclasses.replace(machine, command=(HOPTELL,))
    assert claude.plugin_root(elsewhere) is None
    pointed = dataclasses.replace(machine, pointers={"HOPTELL_ENV": "/x"})
    assert claude.plugin_root(pointed) is None


def test_plugin_and_server_together_are_a_problem(computer: Computer, machine: Machine) -> None:
    computer.install("claude")
    apply("claude", machine)
    settings = computer.read(".claude/settings.json")
    computer.write(".claude/settings.json", settings | {"enabledPlugins": {claude.INSTALLED: True}})
    assert "take the name from each other" in (AGENTS["claude"].problem(machine) or "")


@pytest.mark.parametrize(
    ("settings", "words"),
    [({}, "hooks are missing"), ({"disableAllHooks": True}, "disableAllHooks")],
)
def test_what_keeps_claude_code_asleep_is_said(
    computer: Computer, machine: Machine, settings: Any, words: str
) -> None:
    computer.install("claude")
    apply("claude", machine)
    computer.write(".claude/settings.json", settings)
    assert words in (AGENTS["claude"].problem(machine) or "")


def test_a_server_with_secrets_in_its_variables_is_not_moved_over_a_command_line(
    computer: Computer, machine: Machine
) -> None:
    computer.install("claude")
    entry = {"command": "/old", "args": ["mcp"], "env": {"HOPTELL_TOKEN": SECRET}}
    computer.write(".claude.json", {"mcpServers": {"hoptell": entry}})
    with pytest.raises(HoptellError, match="variables of its own") as caught:
        AGENTS["claude"].steps(machine, None)
    assert SECRET not in str(caught.value) and computer.calls() == []


@pytest.mark.parametrize("key", ["claude", "antigravity"])
def test_an_agent_whose_command_is_missing_is_one_sentence(machine: Machine, key: str) -> None:
    with pytest.raises(HoptellError, match="is not installed, or not in PATH"):
        AGENTS[key].steps(machine, None)


def test_claude_codes_own_folder_may_be_elsewhere(computer: Computer) -> None:
    computer.install("claude")
    computer.environ["CLAUDE_CONFIG_DIR"] = f"{computer.home}/claude"
    machine = here(computer)
    AGENTS["claude"].steps(machine, None)[-1].run()
    assert hooks.EVENTS[0] in computer.read("claude/settings.json")["hooks"]


@pytest.mark.parametrize("key", AGENTS)
def test_how_to_start_it_says_the_name_that_it_has(computer: Computer, key: str) -> None:
    computer.install("claude", "agy")
    machine = here(computer)
    apply(key, machine, "zoe")
    start = AGENTS[key].start(machine)
    assert "it is zoe" in start and "sam" not in start
    if "second" in start:
        assert "HOPTELL_NAME=zoe-2" in start


def test_a_name_in_claude_codes_own_file_is_not_said_to_give_way(
    computer: Computer, machine: Machine
) -> None:
    entry = {"command": HOPTELL, "args": ["mcp"], "env": {"HOPTELL_NAME": "zoe"}}
    computer.write(".claude.json", {"mcpServers": {"hoptell": entry}})
    assert AGENTS["claude"].start(machine) == "claude (it is zoe)"


def test_antigravity_has_its_name_in_its_configuration_and_another_is_refused(
    computer: Computer, machine: Machine
) -> None:
    computer.install("agy")
    assert AGENTS["antigravity"].start(machine) == "agy (it is sam-antigravity)"
    apply("antigravity", machine)
    (found,) = AGENTS["antigravity"].registrations(machine)
    assert found.command == COMMAND and found.name == "sam-antigravity"
    moved = dataclasses.replace(machine, command=("/new/hoptell",))
    for other, name in ((machine, "zoe"), (moved, None)):
        with pytest.raises(HoptellError, match="remove the server hoptell there"):
            AGENTS["antigravity"].steps(other, name)


@pytest.mark.parametrize("line", ["hoptell", "hoptell: 'x", "  hoptell  (stdio)  connected"])
def test_antigravitys_list_may_tell_no_command(
    computer: Computer, machine: Machine, line: str
) -> None:
    computer.install("agy")
    computer.write("agy", line + "\n")
    assert AGENTS["antigravity"].registrations(machine)
    assert AGENTS["antigravity"].steps(machine, None) == []
    assert AGENTS["antigravity"].start(machine) == "agy"
    with pytest.raises(HoptellError, match="remove the server hoptell there"):
        AGENTS["antigravity"].steps(machine, "zoe")


# What they share ------------------------------------------------------------------------------


@pytest.mark.parametrize("key", AGENTS)
def test_settings_that_are_elsewhere_are_pointed_to(computer: Computer, key: str) -> None:
    computer.install("claude", "agy")
    file = computer.write("elsewhere/settings", f"HOPTELL_TOKEN={SECRET}\n")
    computer.environ |= {"HOPTELL_ENV": str(file), "HOPTELL_HOME": f"{computer.home}/state"}
    machine = here(computer)
    shown = "".join(apply(key, machine))
    assert str(file) in shown and f"{computer.home}/state" in shown and SECRET not in shown
    assert AGENTS[key].steps(machine, None) == []


def test_which_agents_are_here(computer: Computer, machine: Machine) -> None:
    assert not [agent.key for agent in AGENTS.values() if agent.is_here(machine)]
    computer.install("claude", "codex", "opencode", "gemini", "agy", "cursor-agent")
    assert [agent.key for agent in AGENTS.values() if agent.is_here(machine)] == list(AGENTS)


def test_a_command_of_an_agent_that_fails_or_hangs_is_one_sentence(computer: Computer) -> None:
    computer.install("bad", script="#!/bin/sh\necho first\necho 'no\033[31m way' >&2\nexit 3\n")
    computer.install("slow", script="#!/bin/sh\nexec /bin/sleep 60\n")
    bad, slow = (str(computer.bin / name) for name in ("bad", "slow"))
    with pytest.raises(HoptellError, match=r"`bad mcp add` failed \(3\): no\\x1b\[31m way"):
        run_command((bad, "mcp", "add", "x"), computer.environ, 10)
    with pytest.raises(HoptellError, match="`slow` did not end within 0 s"):
        run_command((slow,), computer.environ, 0.1)
    with pytest.raises(HoptellError, match="cannot run /no/where: No such file"):
        run_command(("/no/where",), computer.environ, 1)


def test_steps_say_what_they_will_do(tmp_path: Path) -> None:
    assert RunCommand(("/x/claude", "mcp", "a b"), {}).shown() == "run    /x/claude mcp 'a b'"
    shown = WriteFile(tmp_path / "f", "all of it", "the new part").shown()
    assert shown.startswith(f"write  {tmp_path / 'f'}, where") and "the new part" in shown
    assert "all of it" not in shown


# The machine ----------------------------------------------------------------------------------


def test_the_own_command_is_absolute_and_works_in_a_project_of_the_same_name(
    tmp_path: Path,
) -> None:
    (tmp_path / "hoptell").mkdir()
    (tmp_path / "hoptell" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    command = own_command()
    assert os.path.isabs(command[0])
    done = subprocess.run(
        [*command, "--version"], cwd=tmp_path, capture_output=True, text=True, timeout=30
    )
    assert done.stdout.startswith("hoptell, version ") or done.stdout.startswith("hoptell ")


def test_without_a_script_the_interpreter_is_named_and_keeps_the_folder_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3-that-is-not-there")
    monkeypatch.setattr(Path, "is_file", lambda self: False)
    assert own_command() == ("/usr/bin/python3-that-is-not-there", "-P", "-m", "hoptell")


@pytest.mark.parametrize(
    ("folder", "passing"),
    [
        ("/home/u/.cache/uv/archive-v0/x", True),
        ("/home/u/.local/share/pipx/.cache/0123456789abcde", True),
        ("/home/u/.local/pipx/.cache/0123456789abcde", True),
        ("/home/u/.cache/pipx/0123456789abcde", True),
        ("/Users/u/Library/Caches/pipx/0123456789abcde", True),
        ("/home/u/.local/share/pipx/venvs/hoptell", False),
        ("/home/u/.local", False),
    ],
)
def test_a_hoptell_in_a_cache_is_known_as_such(folder: str, passing: bool) -> None:
    assert is_passing((f"{folder}/bin/hoptell",)) is passing


@pytest.mark.parametrize(
    ("variables", "owner"),
    [
        ({"LOGNAME": "Sam Ple"}, "sam-ple"),
        ({"HOPTELL_NAME": "alice", "LOGNAME": "sam"}, "alice"),
    ],
)
def test_names_begin_with_the_member_or_the_user(
    computer: Computer,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    owner: str,
) -> None:
    monkeypatch.setenv("LOGNAME", variables["LOGNAME"])
    assert Machine.here(computer.environ | variables).owner == owner


def test_every_agents_module_is_in_the_table() -> None:
    folder = Path(claude.__file__).parent
    modules = {file.stem for file in folder.glob("*.py")}
    assert modules - {"__init__", "agent", "json_file", "table"} == set(AGENTS)
    for key, agent in AGENTS.items():
        assert type(agent).__module__ == f"hoptell.setup.agents.{key}"
