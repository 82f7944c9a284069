"""`hoptell members`: who has a token of their own."""

import hashlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hoptell.cli import command_line


@pytest.fixture(autouse=True)
def no_settings_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "settings").touch()
    monkeypatch.setenv("HOPTELL_ENV", str(tmp_path / "settings"))
    monkeypatch.delenv("HOPTELL_MEMBERS", raising=False)


def members(*arguments: str) -> Result:
    return CliRunner().invoke(command_line, ["members", *arguments])


def test_add_prints_the_token_once_and_stores_its_hash(tmp_path: Path) -> None:
    file = tmp_path / "members.json"
    result = members("add", "alice", "--file", str(file))
    token = result.stdout.strip()
    assert result.exit_code == 0 and len(token) >= 32 and token not in result.stderr
    digest = hashlib.sha256(token.encode()).hexdigest()
    assert json.loads(file.read_text()) == {"alice": f"sha256:{digest}"}
    assert "not shown again" in result.stderr and "SIGHUP" in result.stderr


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    result = members("add", "alice", "--file", str(tmp_path / "typo" / "members.json"))
    assert result.exit_code == 1 and result.stdout == ""
    assert f"there is no folder {tmp_path / 'typo'} for a members file" in result.stderr
    assert not (tmp_path / "typo").exists()


def test_list_prints_names_only(tmp_path: Path) -> None:
    file = tmp_path / "members.json"
    for name in ("zoe", "bob"):
        members("add", name, "--file", str(file))
    result = members("list", "--file", str(file))
    assert result.stdout == "bob\nzoe\n" and result.stderr == ""


def test_remove_takes_a_member_out(tmp_path: Path) -> None:
    file = tmp_path / "members.json"
    for name in ("zoe", "bob"):
        members("add", name, "--file", str(file))
    result = members("remove", "bob", "--file", str(file))
    assert result.exit_code == 0 and result.stdout == ""
    assert list(json.loads(file.read_text())) == ["zoe"]


def test_the_file_is_that_of_the_settings_unless_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "members.json"
    monkeypatch.setenv("HOPTELL_MEMBERS", str(file))
    assert members("add", "alice").exit_code == 0
    assert members("list").stdout == "alice\n"
    (tmp_path / "settings").write_text(f"HOPTELL_MEMBERS={file}\n")
    monkeypatch.delenv("HOPTELL_MEMBERS")
    assert members("list").stdout == "alice\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["add", "bob"], "bob is a member already"),
        (["add", "bob-2"], "bob and bob-2 overlap"),
        (["add", "no name"], "is not a name"),
        (["remove", "alice"], "no member of that name"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    file = tmp_path / "members.json"
    members("add", "bob", "--file", str(file))
    result = members(*arguments, "--file", str(file))
    assert result.exit_code == 1 and result.stdout == ""
    assert sentence in result.stderr and result.stderr.count("\n") == 1


def test_without_a_file_it_says_how_to_name_one() -> None:
    result = members("list")
    assert result.exit_code == 1 and "--file FILE, or set HOPTELL_MEMBERS" in result.stderr


def test_wrong_usage_is_2() -> None:
    assert members("add").exit_code == 2
    assert members("rename", "a").exit_code == 2


@pytest.mark.parametrize("command", [[], ["add"], ["list"], ["remove"]])
def test_help_has_an_example(command: list[str]) -> None:
    result = members(*command, "--help")
    assert result.exit_code == 0 and "hoptell members " in result.stdout.partition("\n")[2]
