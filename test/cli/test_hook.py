"""`hoptell hook` and `hoptell hooks`: what reaches Claude Code, and that nothing else does."""

import json
import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from hoptell.cli import command_line
from hoptell.setup import hooks

REPOSITORY = Path(__file__).resolve().parent.parent.parent


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "hoptell", *arguments], stdin=subprocess.DEVNULL,
        env={"PATH": os.defpath, **environment}, capture_output=True, text=True, timeout=20,
    )  # fmt: skip


def test_the_printed_settings_run_this_python_by_its_absolute_path() -> None:
    printed = json.loads(run("hooks").stdout)
    assert list(printed) == ["hooks"]
    for event in ("SessionStart", "UserPromptSubmit", "Stop", "StopFailure"):
        ((entry,),) = (group["hooks"] for group in printed["hooks"][event])
        assert entry["command"] == os.path.abspath(sys.executable)
        assert entry["args"] == ["-P", "-m", "hoptell", "hook"]
        assert entry["asyncRewake"] is True


def test_the_plugin_has_the_same_hooks_as_are_printed() -> None:
    of_plugin = json.loads((REPOSITORY / "hooks" / "hooks.json").read_text())["hooks"]
    launcher = "${CLAUDE_PLUGIN_ROOT}/.claude-plugin/launch.sh"
    expected = hooks.wanted(launcher, ["hook"])["hooks"]
    assert of_plugin == expected


def test_claude_code_can_keep_a_listener_for_its_whole_timeout() -> None:
    assert hooks.TIMEOUT * 1000 < 2**31


def test_no_failure_ends_in_the_code_that_wakes_the_session(tmp_path: Path) -> None:
    broken = tmp_path / "settings"
    broken.write_text("this is not a setting\n")
    outside = run("hook", HOME=str(tmp_path))
    unreadable = run("hook", HOME=str(tmp_path), CLAUDECODE="1", HOPTELL_ENV=str(broken))
    for done in (outside, unreadable):
        assert done.returncode == 1
        assert done.stderr.startswith("hoptell: ") and done.stderr.count("\n") == 1


def test_a_state_folder_that_cannot_be_used_is_one_line_and_no_wake_up(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    home = str(tmp_path / "home")
    done = run("hook", HOME=str(tmp_path), CLAUDECODE="1", HOPTELL_HOME=home)
    assert done.returncode == 1
    assert done.stderr == f"hoptell: {home} is not a folder: move it away (see HOPTELL_HOME)\n"


def test_the_hook_loads_neither_the_mcp_library_nor_websockets_nor_asyncio() -> None:
    code = (
        "import sys; from hoptell.cli import hook; from hoptell.sidecar import hook;"
        "print([m for m in ('mcp', 'websockets', 'asyncio', 'watchdog') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_the_commands_are_in_the_help() -> None:
    shown = CliRunner().invoke(command_line, ["hooks", "--help"])
    assert shown.exit_code == 0 and "claude --settings" in shown.output
