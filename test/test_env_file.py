"""The settings file: what its lines mean, what is said if it is wrong, and changing it."""

import fcntl
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoptell.env_file import change_settings_file, create_token, read_settings_file
from hoptell.errors import ConfigurationError
from hoptell.settings import load_peer_settings, load_relay_settings

SECRET = "s3cret-value-of-the-file"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty home."""
    home = tmp_path / "home"
    home.mkdir()
    return {"HOME": str(home)}


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def read(tmp_path: Path, text: str) -> dict[str, str]:
    return read_settings_file(write(tmp_path / "settings.env", text))


def refused(environ: Mapping[str, str]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        create_token(environ)
    return str(caught.value)


# A file that cannot be used ---------------------------------------------------------------


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "settings.env"
    file.touch()
    os.truncate(file, 1 << 36)
    with pytest.raises(ConfigurationError, match="too large"):
        read_settings_file(file)


def test_a_file_that_is_not_text_is_an_error_that_does_not_quote_it(tmp_path: Path) -> None:
    file = tmp_path / "settings.env"
    file.write_bytes(f"HOPTELL_TOKEN={SECRET}\n".encode() + b"\xff\xfe")
    with pytest.raises(ConfigurationError) as caught:
        read_settings_file(file)
    assert str(caught.value) == f"{file} is not UTF-8 text: save it as UTF-8"
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f'A=1\nHOPTELL_TOKEN="{SECRET}', 2),
        (f"\n\n  \nHOPTELL_TOKEN='{SECRET}\nB=2", 4),
        (f"# comment\n{SECRET}", 2),
        (f"A=1\r\n\r\nHOPTELL_TOKEN: {SECRET}\r\n", 3),
        (f"HOPTELL_TOKEN {SECRET}", 1),
        (f"={SECRET}", 1),
        (f'A="x"{SECRET}', 1),
        (f"A='{SECRET}\\'", 1),
    ],
)
def test_a_line_that_is_no_setting_is_named_but_not_quoted(
    tmp_path: Path, text: str, line: int
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text)
    file = tmp_path / "settings.env"
    assert str(caught.value) == f"{file}, line {line}, is not NAME=value: fix it"


# What a line means ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=plain", "plain"),
        ("A = spaces around ", "spaces around"),
        ("export A=shell", "shell"),
        ("A=", ""),
        ("A=x # comment", "x"),
        ("A=x#no-comment", "x#no-comment"),
        ("A='x' # comment", "x"),
        ('A="a # b"', "a # b"),
        (r'A="say \"hi\""', 'say "hi"'),
        (r'A="back\\slash"', "back\\slash"),
        (r'A="two\nlines"', "two\nlines"),
        (r'A="C:\temp\new\x"', "C:\\temp\new\\x"),
        (r'A="\\n"', r"\n"),
        (r'A="\t\r\a\'"', r"\t\r\a\'"),
        ('A="two\nlines"', "two\nlines"),
        (r"A='C:\temp\new'", r"C:\temp\new"),
        (r"A='a\\b'", r"a\\b"),
        (r"A='\n\"'", r"\n\""),
        ("A='say \"hi\"'", 'say "hi"'),
        (r"A=C:\temp", r"C:\temp"),
        ("A=$HOME", "$HOME"),
        ('A="${HOME}/x"', "${HOME}/x"),
        ("A=`id`", "`id`"),
        ("A=a=b==", "a=b=="),
        ("A=ünïcode", "ünïcode"),
        ("A=1\nA=2", "2"),
        ("\ufeffA=byte order mark", "byte order mark"),
        ("# A=0\n\nA=1\r\n# A=2", "1"),
        ("  A=indented", "indented"),
        ("A='export B=2'", "export B=2"),
    ],
)
def test_a_line_means_what_the_readme_says(tmp_path: Path, line: str, value: str) -> None:
    assert read(tmp_path, line) == {"A": value}


def test_export_without_a_value_sets_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, "A=1\nexport A\nB=2") == {"A": "1", "B": "2"}


ALPHABET = st.characters(exclude_categories=["Cs"], exclude_characters="\r\0")


@given(st.text(ALPHABET))
def test_any_value_can_be_written_in_double_quotes(
    tmp_path_factory: pytest.TempPathFactory, value: str
) -> None:
    quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    file = tmp_path_factory.mktemp("settings") / "env"
    assert read_settings_file(write(file, f'A="{quoted}"\nB=2\n')) == {"A": value, "B": "2"}


@given(st.text(ALPHABET.filter(lambda letter: letter not in "'\\")))
def test_what_is_in_single_quotes_is_taken_literally(
    tmp_path_factory: pytest.TempPathFactory, value: str
) -> None:
    file = tmp_path_factory.mktemp("settings") / "env"
    assert read_settings_file(write(file, f"A='{value}'\nB=2\n")) == {"A": value, "B": "2"}


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_settings_or_an_error_that_does_not_quote_it(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    file = tmp_path_factory.mktemp("settings") / "env"
    try:
        read_settings_file(write(file, text))
    except ConfigurationError as error:
        assert re.fullmatch(
            rf"{re.escape(str(file))}, line \d+, is not NAME=value: fix it", str(error)
        )


# Changing it -------------------------------------------------------------------------------


def mode_of(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_a_new_token_is_kept_in_a_private_file_of_the_home_folder(environ: dict[str, str]) -> None:
    token, file = create_token(environ)
    assert file == Path(environ["HOME"]) / ".config/hoptell/.env"
    assert len(token) >= 32
    assert (mode_of(file), mode_of(file.parent)) == (0o600, 0o700)
    assert load_relay_settings(environ).token == token == load_peer_settings(environ).token


def test_two_new_tokens_differ(environ: dict[str, str], tmp_path: Path) -> None:
    first, _ = create_token(environ)
    second, _ = create_token({"HOME": str(tmp_path / "other")})
    assert first != second


@pytest.mark.parametrize("before", ["# mine\nHOPTELL_NAME=bob\n", "HOPTELL_NAME=bob", "\ufeff"])
def test_an_existing_file_keeps_its_lines_and_becomes_private(
    environ: dict[str, str], before: str
) -> None:
    file = write(Path(environ["HOME"]) / ".config/hoptell/.env", before)
    file.chmod(0o644)
    token, where = create_token(environ, HOPTELL_RELAY="ws://h:1")
    assert where == file and mode_of(file) == 0o600
    assert file.read_text(encoding="utf-8").startswith(before.removeprefix("\ufeff"))
    found = load_peer_settings(environ)
    assert (found.token, found.relay) == (token, "ws://h:1")
    assert found.name == ("bob" if "bob" in before else None)


def test_an_empty_token_in_the_file_is_replaced(environ: dict[str, str]) -> None:
    write(Path(environ["HOME"]) / ".config/hoptell/.env", "HOPTELL_TOKEN=\n")
    token, _ = create_token(environ)
    assert load_relay_settings(environ).token == token


def test_a_token_goes_to_the_explicit_file(environ: dict[str, str], tmp_path: Path) -> None:
    file = write(tmp_path / "mine.env", "")
    _, where = create_token(environ | {"HOPTELL_ENV": str(file)})
    assert where == file


def test_a_token_that_another_process_made_meanwhile_is_taken(environ: dict[str, str]) -> None:
    token, file = create_token(environ)
    text = file.read_text(encoding="utf-8")
    assert create_token(environ) == (token, file)
    assert file.read_text(encoding="utf-8") == text


def test_processes_that_start_together_agree_on_one_token(environ: dict[str, str]) -> None:
    program = "import hoptell.env_file; print(hoptell.env_file.create_token()[0])"
    processes = [
        subprocess.Popen([sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    tokens = {process.communicate(timeout=30)[0] for process in processes}
    assert len(tokens) == 1 and tokens != {b""}


def test_who_waits_to_change_a_file_that_is_replaced_changes_the_new_one_alone(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(environ["HOME"]) / ".config/hoptell/.env"
    asked, lock = threading.Event(), fcntl.flock
    seen: list[Mapping[str, str]] = []

    def ask(handle: int, how: int) -> None:
        if threading.current_thread() is second:
            asked.set()
        lock(handle, how)

    def write_first(before: Mapping[str, str]) -> Mapping[str, str]:
        second.start()
        assert asked.wait(10) and not seen
        return {"HOPTELL_TOKEN": "of-the-first"}

    def look(before: Mapping[str, str]) -> Mapping[str, str]:
        with file.open() as stream, pytest.raises(BlockingIOError):
            lock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        seen.append(before)
        return {}

    second = threading.Thread(target=change_settings_file, args=(file, look))
    monkeypatch.setattr(fcntl, "flock", ask)
    change_settings_file(file, write_first)
    second.join(10)
    assert seen == [{"HOPTELL_TOKEN": "of-the-first"}]


def test_a_change_keeps_line_ends_and_is_refused_where_a_value_would_not_be_read_again(
    environ: dict[str, str],
) -> None:
    file = Path(environ["HOME"]) / "settings"
    file.write_bytes(b"# mine\r\nA=1\r\n")
    assert change_settings_file(file, lambda before: {"B": "x y"}) == {"A": "1", "B": "x y"}
    assert file.read_bytes() == b'# mine\r\nA=1\r\nB="x y"\n'
    with pytest.raises(ConfigurationError, match="cannot keep such values"):
        change_settings_file(file, lambda before: {"B": "\r\n"})
    assert change_settings_file(file, lambda before: {}) == {"A": "1", "B": "x y"}


def test_a_folder_that_cannot_be_made_is_an_error(environ: dict[str, str]) -> None:
    write(Path(environ["HOME"]) / ".config", "a file where a folder should be")
    assert re.match(r"cannot write .*\.env: ", refused(environ))


def test_what_is_no_file_keeps_its_mode(environ: dict[str, str]) -> None:
    file = Path(environ["HOME"]) / ".config/hoptell/.env"
    file.parent.mkdir(parents=True)
    file.symlink_to(os.devnull)
    before = os.stat(os.devnull).st_mode
    assert "is not a regular file" in refused(environ)
    assert os.stat(os.devnull).st_mode == before
