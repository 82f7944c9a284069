"""`hoptell mcp`: what a person sees of it. What an agent sees is in test/sidecar/."""

import os
import pty
import subprocess
import sys
from pathlib import Path

from support.sidecar import COMMAND


def run(*arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        **options,  # type: ignore[call-overload]
    )


def test_its_help_has_examples() -> None:
    done = run("--help", stdin=subprocess.DEVNULL)
    assert done.returncode == 0
    assert "claude mcp add" in done.stdout and "codex mcp add" in done.stdout


def test_it_takes_no_arguments() -> None:
    done = run("alice", stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert done.stdout == "" and "Usage: hoptell mcp" in done.stderr


def test_its_help_does_not_load_the_mcp_library() -> None:
    code = (
        "import sys; from hoptell.cli import command_line;"
        "command_line.main(['mcp', '--help'], standalone_mode=False);"
        "sys.exit('mcp' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0


def test_without_a_client_it_ends_at_once_and_in_silence() -> None:
    done = run(stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_at_a_terminal_it_says_what_it_is_for(tmp_path: Path) -> None:
    terminal, its_end = pty.openpty()
    process = subprocess.Popen(
        COMMAND, stdin=its_end, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    os.close(its_end)
    try:
        assert process.stderr is not None
        assert "agents start this" in process.stderr.readline()
        os.write(terminal, b"\x04")  # Ctrl-D
        output, errors = process.communicate(timeout=10)
        assert (process.returncode, output, errors) == (0, "", "")
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
