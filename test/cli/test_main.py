"""The `hoptell` command as a whole: exit codes, words, and what it does not load."""

import asyncio
import os
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.commands import COMMANDS as SAMPLES

import hoptell
from hoptell import cli

TEST = Path(__file__).resolve().parent.parent
WITH_SAMPLES = """
import sys
import hoptell.cli
from support.commands import COMMANDS
hoptell.cli.COMMANDS.clear()
hoptell.cli.COMMANDS.update(COMMANDS)
sys.argv[0] = "hoptell"
hoptell.cli.main()
"""
ENVIRON = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "PYTHONPATH": str(TEST),
    "PYTHONDONTWRITEBYTECODE": "1",
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `hoptell` with the sample commands, within this process."""
    monkeypatch.setattr(cli, "COMMANDS", SAMPLES)

    def run(*args: str) -> Result:
        return CliRunner().invoke(cli.command_line, args, prog_name="hoptell")

    return run


def process(*args: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Runs `hoptell` with the sample commands as a process of its own."""
    command = [sys.executable, "-c", WITH_SAMPLES, *args]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run(command, env=ENVIRON, text=True, timeout=30, **options)


# Failing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ["ConfigurationError", "InboxError", "RelayUnreachable"])
def test_an_error_is_one_line_on_standard_error_and_exit_code_1(run: Any, error: str) -> None:
    result = run("fail", error)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "hoptell: do this instead\n")


def test_an_error_that_quotes_control_characters_is_one_line_without_them(run: Any) -> None:
    result = run("fail", "ConfigurationError", "a\x1b[31m\nb\u202e")
    assert result.stderr == "hoptell: a<U+001B>[31m b<U+202E>\n"


def test_an_error_within_a_group_of_commands_is_told_the_same_way(run: Any) -> None:
    result = run("family", "add")
    assert (result.exit_code, result.stderr) == (1, "hoptell: choose another name\n")


def test_an_operating_system_error_names_the_file(run: Any) -> None:
    result = run("crash", "file")
    assert result.exit_code == 1
    assert result.stderr == "hoptell: /nowhere/at/all: No such file or directory\n"


@pytest.mark.parametrize(("kind", "name"), [("bug", "ValueError"), ("odd", "OSError")])
def test_a_bug_is_one_line_without_the_errors_text(
    run: Any, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    monkeypatch.setenv("HOPTELL_DEBUG", "")
    result = run("crash", kind)
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr.startswith(f"hoptell: this is a bug in hoptell: {name} at commands.py")
    assert result.stderr.count("\n") == 1
    assert "s3cret" not in result.stderr


def test_a_bug_shows_its_traceback_when_asked(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPTELL_DEBUG", "1")
    result = run("crash", "bug")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr and "ValueError: s3cret" in result.stderr
    assert "this is a bug in hoptell" in result.stderr.splitlines()[-1]


def test_a_commands_own_exit_code_is_kept(run: Any) -> None:
    result = run("crash", "exit")
    assert (result.exit_code, result.output) == (3, "")


# Wrong usage ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["gret"], "No such command 'gret'. Did you mean 'greet'?"),
        (["family", "ad"], "No such command 'ad'. Did you mean 'add'?"),
        (["greet", "--nam", "x"], "No such option '--nam'. Did you mean '--name'?"),
        (["--nonsense"], "No such option '--nonsense'."),
        (["zzz"], "No such command 'zzz'."),
        (["greet", "extra"], "Got unexpected extra argument (extra)"),
        (["fail"], "Missing argument 'KIND'."),
    ],
)
def test_wrong_usage_is_exit_code_2_and_says_what_was_meant(
    run: Any, args: list[str], words: str
) -> None:
    result = run(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith(f"Error: {words}\n")
    assert result.stderr.startswith("Usage: hoptell")
    assert "--help' for help." in result.stderr


def test_without_a_command_the_help_is_shown_and_the_usage_was_wrong(run: Any) -> None:
    result = run()
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Commands:\n  fail" in result.stderr


# Help and version -------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_lists_the_commands_in_their_order_with_examples(run: Any, option: str) -> None:
    result = run(option)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    listed = [line.split()[0] for line in lines if line.split()[1:3] == ["Line", "of"]]
    assert listed == list(SAMPLES)
    assert "Examples:" in result.stdout and "Exit codes: 0 done" in result.stdout


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_every_command_has_both_options_for_help(run: Any, option: str) -> None:
    result = run("greet", option)
    assert result.exit_code == 0 and "Usage: hoptell greet" in result.stdout


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_version(run: Any, option: str) -> None:
    result = run(option)
    assert (result.exit_code, result.stdout) == (0, f"hoptell {hoptell.__version__}\n")


def test_python_m_hoptell_is_the_same_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "hoptell", "--version"], capture_output=True, text=True, timeout=30
    )
    assert (result.returncode, result.stdout) == (0, f"hoptell {hoptell.__version__}\n")


@pytest.mark.parametrize("shadow", ["click.py", "msgspec/__init__.py", "asyncio.py"])
def test_python_m_hoptell_runs_nothing_of_the_project_in_the_current_folder(
    tmp_path: Path, shadow: str
) -> None:
    module = tmp_path / shadow
    module.parent.mkdir(exist_ok=True)
    module.write_text("raise SystemExit('this belongs to the project')\n")
    environ = ENVIRON | {"PYTHONPATH": str(Path(hoptell.__file__).parent.parent)}
    result = subprocess.run(
        [sys.executable, "-m", "hoptell", "list"], cwd=tmp_path, env=environ,
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("hoptell: there is no token")


# The process: signals and pipes -----------------------------------------------------------


async def test_ctrl_c_ends_a_command_with_130_and_no_words() -> None:
    command = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WITH_SAMPLES, "hang", env=ENVIRON, stdout=PIPE, stderr=PIPE
    )
    async with asyncio.timeout(20):
        assert command.stdout is not None
        assert await command.stdout.readline() == b"ready\n"
        command.send_signal(signal.SIGINT)
        assert await command.communicate() == (b"", b"")
        assert command.returncode == 130


def test_an_interrupt_within_a_command_is_130_without_words(run: Any) -> None:
    result = run("crash", "interrupt")
    assert (result.exit_code, result.output) == (130, "")


@pytest.mark.parametrize("command", ["greet", "late", "flood", "--help"])
def test_a_reader_that_is_gone_ends_a_command_without_words(command: str) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        result = process(command, stdout=write)
    finally:
        os.close(write)
    assert (result.returncode, result.stderr) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
@pytest.mark.parametrize("command", ["greet", "late", "flood", "--help"])
def test_output_that_cannot_be_written_is_a_failure_of_one_line(command: str) -> None:
    with open("/dev/full", "w") as full:
        result = process(command, stdout=full)
    assert (result.returncode, result.stderr) == (1, "hoptell: No space left on device\n")


@pytest.mark.parametrize("command", ["greet", "late"])
def test_output_to_a_closed_descriptor_is_a_failure_of_one_line(command: str) -> None:
    result = process(command, stdout=None, preexec_fn=lambda: os.close(1))
    assert (result.returncode, result.stderr) == (1, "hoptell: Bad file descriptor\n")


def test_a_failure_is_not_told_twice_when_the_output_is_broken_too() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        result = process("fail", "InboxError", stdout=write)
    finally:
        os.close(write)
    assert (result.returncode, result.stderr) == (1, "hoptell: do this instead\n")


# What is loaded ---------------------------------------------------------------------------


def loaded_by(*args: str) -> set[str]:
    """The modules that a process has loaded once `hoptell ARGS` is done."""
    program = (
        "import sys, hoptell.cli\n"
        "try: hoptell.cli.main()\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, *args], capture_output=True, text=True, timeout=30
    )
    return set(result.stderr.split())


def test_the_help_loads_none_of_the_commands_and_nothing_heavy() -> None:
    loaded = loaded_by("--help")
    assert "hoptell.cli" in loaded
    own = {name for name in loaded if name.startswith("hoptell")}
    assert own == {"hoptell", "hoptell.cli", "hoptell.errors"}
    assert not loaded & {"asyncio", "websockets", "mcp", "msgspec", "pydantic", "dotenv"}


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_every_command_of_the_table_is_there_and_shows_its_help(command: str) -> None:
    result = CliRunner().invoke(cli.command_line, [command, "--help"], prog_name="hoptell")
    assert result.exit_code == 0, result.output
    assert f"Usage: hoptell {command}" in result.stdout


def test_a_command_group_of_another_name_takes_the_short_help_option_too() -> None:
    # click has a command keep the help option of the group that asked it first: a group without
    # -h would take it away from the real one, in whichever order the tests ran.
    result = CliRunner().invoke(cli.CommandLine("another"), ["-h"])
    assert result.exit_code == 0 and "-h, --help" in result.output


@pytest.mark.parametrize("command", sorted(cli.COMMANDS.keys() - {"mcp"}))
def test_no_command_but_mcp_loads_the_mcp_library(command: str) -> None:
    assert not loaded_by(command, "--help") & {"mcp", "mcp_types", "pydantic", "starlette"}
