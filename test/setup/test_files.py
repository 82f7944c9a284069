"""Changing other programs' files: nothing of theirs is lost, and there is a way back."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from hoptell.errors import ConfigurationError
from hoptell.setup import files


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_each_change_leaves_a_private_copy_of_how_the_file_was(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("mine")
    file.chmod(0o644)
    first = files.replace(file, "second")
    file.write_text("second, and more of mine")
    second = files.replace(file, "third")
    assert first == tmp_path / "config.before-hoptell"
    assert second == tmp_path / "config.before-hoptell-2"
    assert (file.read_text(), first.read_text()) == ("third", "mine")
    assert second.read_text() == "second, and more of mine"
    assert (mode(file), mode(first), mode(second)) == (0o644, 0o600, 0o600)
    assert len(os.listdir(tmp_path)) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root edits other users' files")
def test_what_root_changes_stays_its_owners(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("mine")
    file.chmod(0o640)
    os.chown(file, 12345, 54321)
    backup = files.replace(file, "new")
    assert backup is not None
    for one, private in ((file, 0o640), (backup, 0o600)):
        assert (one.stat().st_uid, one.stat().st_gid, mode(one)) == (12345, 54321, private)


def test_a_new_file_is_private_and_has_no_copy(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "er" / "config"
    assert files.replace(file, "text") is None
    assert mode(file) == 0o600
    assert mode(file.parent) & 0o077 == 0


def test_a_link_stays_one_and_what_it_names_is_changed(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    target = tmp_path / "dotfiles" / "config"
    target.write_text("old")
    link = tmp_path / "config"
    link.symlink_to(target)
    files.replace(link, "new")
    assert link.is_symlink() and target.read_text() == "new"


def test_a_change_that_fails_leaves_the_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config"
    file.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ConfigurationError, match="cannot write .*config: No space left"):
        files.replace(file, "new")
    assert file.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["config", "config.before-hoptell"]


def add_server(value: dict[str, Any]) -> None:
    value.setdefault("servers", {})["hoptell"] = 1


@pytest.mark.parametrize("indent", ["\t", "    ", "  "])
def test_json_keeps_its_order_indentation_and_letters(tmp_path: Path, indent: str) -> None:
    before = f'{{\n{indent}"z": "über",\n{indent}"a": 1.0\n}}'
    after = files.edited_json(tmp_path / "f", before, add_server, "…")
    expected = json.dumps(
        {"z": "über", "a": 1.0, "servers": {"hoptell": 1}}, indent=indent, ensure_ascii=False
    )
    assert after == expected


@pytest.mark.parametrize("text", ["[1]", "{", "[" * 100_000, "// mine", '{"a" 1}', "{} x", "{]}"])
def test_what_is_no_json_is_refused_with_what_to_add(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match="add this to it yourself: THE ENTRY"):
        files.edited_json(tmp_path / "f", text, add_server, "THE ENTRY")


@pytest.mark.parametrize("text", [None, "", " \n"])
def test_a_missing_or_empty_file_becomes_an_object(tmp_path: Path, text: str | None) -> None:
    after = files.edited_json(tmp_path / "f", text, add_server, "…")
    assert json.loads(after) == {"servers": {"hoptell": 1}} and after.endswith("}\n")


def test_something_else_in_the_way_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'servers' in .*f is not an object"):
        files.json_table({"servers": 1}, tmp_path / "f", "servers", "x")


def test_toml_keeps_comments_and_what_is_broken_is_named_with_its_line(tmp_path: Path) -> None:
    text = "# mine\na = 1 # one\n"
    after = files.edited_toml(tmp_path / "f", text, lambda d: d.update(b=2), "…")
    assert after == f"{text}b = 2\n"
    with pytest.raises(ConfigurationError, match="f, line 2 cannot be understood"):
        files.edited_toml(tmp_path / "f", "a = 1\nb = = 2\n", lambda d: None, "…")


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), RuntimeError("x")])
def test_toml_that_cannot_be_changed_stays_and_the_entry_is_told(
    tmp_path: Path, error: Exception
) -> None:
    def edit(_: object) -> None:
        raise error

    with pytest.raises(ConfigurationError, match="stays as it is: add this .*: THE ENTRY"):
        files.edited_toml(tmp_path / "f", "a = 1\n", edit, "THE ENTRY")
