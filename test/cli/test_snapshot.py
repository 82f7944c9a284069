"""`hoptell snapshot`: exactly which bytes were shown, and whether they still stand."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hoptell.cli import command_line
from hoptell.frames import MAX_TEXT_LENGTH


def snapshot(*arguments: object) -> Result:
    words = ["snapshot", *map(str, arguments)]
    return CliRunner().invoke(command_line, words, prog_name="hoptell")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "plan.md"
    file.write_bytes("# Plan é\n\n1. do it\n".encode())
    return file


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_file_is_printed_with_the_hash_of_its_exact_bytes(file: Path) -> None:
    result = snapshot(file)
    assert result.exit_code == 0
    assert result.stdout.startswith("[snapshot ")
    assert "File: plan.md, 20 bytes, 3 lines\n" in result.stdout
    assert f"SHA-256: {digest(file)}\n" in result.stdout
    assert "\n\n# Plan é\n\n1. do it\n[snapshot " in result.stdout


@pytest.mark.parametrize("data", [b"", b"a\r\nb\rc", b"\xef\xbb\xbfx\n", b"a\x00b", b"\n\n"])
def test_the_hash_is_that_of_the_bytes_however_they_are_shown(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    shown = snapshot(file).stdout
    assert digest(file) in shown
    assert not set(shown) & set("\r\x00\ufeff")
    assert snapshot("--check", digest(file), file).exit_code == 0


def test_check_tells_by_its_exit_code_whether_the_bytes_still_match(file: Path) -> None:
    before = digest(file)
    result = snapshot("--check", before, file)
    assert (result.exit_code, result.output) == (0, "")
    assert snapshot("--check", before.upper(), file).exit_code == 0
    file.write_bytes(file.read_bytes() + b" ")
    result = snapshot("--check", before, file)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (f"hoptell: {file} has changed: its SHA-256 is now {digest(file)}\n")


def test_check_takes_files_of_any_size_and_kind_of_bytes(file: Path) -> None:
    file.write_bytes(b"\xff\x00" * 1_000_000)
    assert snapshot("--check", digest(file), file).exit_code == 0


def test_it_works_where_the_system_has_no_way_to_open_without_waiting(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_NONBLOCK")  # as on Windows
    monkeypatch.delattr(os, "O_CLOEXEC", raising=False)
    assert snapshot("--check", digest(file), file).exit_code == 0


@pytest.mark.parametrize("given", ["12", "x" * 64, "", "a" * 65])
def test_a_hash_that_is_none_is_wrong_usage(file: Path, given: str) -> None:
    result = snapshot("--check", given, file)
    assert result.exit_code == 2
    assert "a SHA-256 is 64 hexadecimal digits" in result.stderr


def _one_line(result: Result) -> str:
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("hoptell: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.mark.parametrize("check", [[], ["--check", "a" * 64]])
def test_what_cannot_be_read_is_explained(tmp_path: Path, check: list[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "No such file" in _one_line(snapshot(*check, tmp_path / "none"))
    assert "is not a file: name a text file" in _one_line(snapshot(*check, tmp_path))
    assert "is not a file: name a text file" in _one_line(snapshot(*check, tmp_path / "pipe"))


def test_a_file_that_is_no_text_is_refused(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    assert "is not UTF-8 text" in _one_line(snapshot(file))


@pytest.mark.parametrize(
    "data",
    [
        b"x" * MAX_TEXT_LENGTH,
        b"x" * 5_000_000,
        ("\u202e" * (MAX_TEXT_LENGTH // 8)).encode(),
    ],
)
def test_a_file_that_does_not_fit_a_message_is_refused(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    assert "too large: framed it has more than the 100,000 characters" in _one_line(snapshot(file))


def test_the_largest_file_fits_a_message_with_its_frame(file: Path) -> None:
    file.write_bytes(b"x" * (MAX_TEXT_LENGTH - 500))
    result = snapshot(file)
    assert result.exit_code == 0
    assert len(result.stdout) <= MAX_TEXT_LENGTH


def test_a_file_that_quotes_its_own_end_stays_inside(file: Path) -> None:
    file.write_bytes(snapshot(file).stdout_bytes * 2)
    shown = snapshot(file).stdout
    frame_id = shown.split()[1]
    assert shown.count(f"[snapshot {frame_id} ends]\n") == 1
    assert shown.endswith(f"[snapshot {frame_id} ends]\n")


def test_output_is_utf_8_whatever_the_locale(file: Path) -> None:
    environ = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "hoptell", "snapshot", str(file)]
    done = subprocess.run(command, env=environ, capture_output=True, timeout=20)
    assert done.returncode == 0
    assert "# Plan é\n" in done.stdout.decode()
