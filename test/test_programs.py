"""The agents' programs: never one of the project that an agent works on."""

import os
from pathlib import Path

import pytest

from hoptell.programs import USUAL_FOLDERS, codex_home, find_program, search_path


def program(file: Path) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return str(file)


def test_the_first_name_that_is_there_is_found_on_path_and_then_in_the_other_folders(
    tmp_path: Path,
) -> None:
    environ = {"HOME": str(tmp_path), "PATH": f"/nonexistent{os.pathsep}{tmp_path / 'bin'}"}
    folders = ("~/usual", str(tmp_path / "last"))

    def find(*names: str) -> str | None:
        return find_program(*names, environ=environ, folders=folders)

    assert find("codex", "cursor") is None
    last = program(tmp_path / "last" / "cursor")
    assert find("codex", "cursor") == last
    usual = program(tmp_path / "usual" / "codex")
    assert find("codex", "cursor") == usual
    first = program(tmp_path / "bin" / "codex")
    assert find("codex", "cursor") == first


@pytest.mark.parametrize("path", [None, "", ":/nonexistent", "/nonexistent:", "/a::/b", ".", "bin"])
def test_a_program_of_the_current_folder_is_never_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | None
) -> None:
    program(tmp_path / "codex")
    program(tmp_path / "bin" / "codex")
    monkeypatch.chdir(tmp_path)
    environ = {"HOME": str(tmp_path / "home")} | ({} if path is None else {"PATH": path})
    assert find_program("codex", environ=environ, folders=("~/usual",)) is None
    assert all(map(os.path.isabs, search_path(environ, ("~/usual",)).split(os.pathsep)))


def test_without_a_home_folder_the_folders_in_it_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hoptell.programs.home_folder", lambda environ: None)
    assert "~" not in search_path({"PATH": "/x"}, USUAL_FOLDERS)
    assert codex_home({}) is None
    assert codex_home({"CODEX_HOME": "/elsewhere"}) == Path("/elsewhere")


def test_codexs_home_is_what_codex_takes_for_it() -> None:
    assert codex_home({"HOME": "/h"}) == codex_home({"HOME": "/h", "CODEX_HOME": ""})
    assert codex_home({"HOME": "/h"}) == Path("/h/.codex")
    assert codex_home({"HOME": "/h", "CODEX_HOME": "/x/codex "}) == Path("/x/codex ")
