"""hoptell's own settings file: changed line by line, for its owner alone."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest

from hoptell.env_file import create_token, read_settings_file
from hoptell.errors import ConfigurationError
from hoptell.setup import settings_file

TOKEN = "a-token-for-tests-only"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}


def the_file(environ: dict[str, str]) -> Path:
    return Path(environ["HOME"], ".config", "hoptell", ".env")


def written(environ: dict[str, str], text: str, mode: int = 0o600) -> Path:
    file = the_file(environ)
    file.parent.mkdir(parents=True)
    file.write_text(text)
    file.chmod(mode)
    return file


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_a_fresh_token_is_made_once(environ: dict[str, str]) -> None:
    first = settings_file.make(environ)
    content = first.file.read_text()
    assert first.done == "made" and first.file == the_file(environ) and mode(first.file) == 0o600
    assert len(read_settings_file(first.file)["HOPTELL_TOKEN"]) >= 43
    assert settings_file.make(environ).done == "kept"
    assert first.file.read_text() == content


def test_an_explicit_file_that_is_not_there_is_made(environ: dict[str, str]) -> None:
    environ["HOPTELL_ENV"] = f"{environ['HOME']}/mine/settings"
    outcome = settings_file.make(environ)
    assert str(outcome.file) == environ["HOPTELL_ENV"] and mode(outcome.file) == 0o600
    assert "HOPTELL_TOKEN" in read_settings_file(outcome.file)


def test_a_file_that_others_can_read_is_tightened(environ: dict[str, str]) -> None:
    file = written(environ, f"HOPTELL_TOKEN={TOKEN}\n", 0o644)
    assert settings_file.make(environ).done == "changed"
    assert mode(file) == 0o600


def test_the_environments_token_is_kept_and_not_replaced_by_a_fresh_one(
    environ: dict[str, str],
) -> None:
    environ |= {"HOPTELL_TOKEN": TOKEN, "HOPTELL_RELAY": "ws://far:1"}
    outcome = settings_file.make(environ)
    assert read_settings_file(outcome.file) == {
        "HOPTELL_RELAY": "ws://far:1",
        "HOPTELL_TOKEN": TOKEN,
    }


def test_no_fresh_token_is_made_for_a_relay_elsewhere(environ: dict[str, str]) -> None:
    file = written(environ, "HOPTELL_RELAY=ws://far:1\n")
    with pytest.raises(ConfigurationError, match="init --relay URL --token-stdin"):
        settings_file.make(environ)
    assert file.read_text() == "HOPTELL_RELAY=ws://far:1\n"


def test_joining_keeps_every_other_line(environ: dict[str, str]) -> None:
    file = written(
        environ,
        "# mine\nexport HOPTELL_TOKEN=\n\nHOPTELL_ROLES=a,b # c\nHOPTELL_TOKEN=\nOTHER='x'",
        0o644,
    )
    outcome = settings_file.join(environ, "ws://far:1", TOKEN, None, force=False)
    assert outcome.done == "changed" and mode(file) == 0o600
    assert file.read_text() == (
        f"# mine\nexport HOPTELL_TOKEN={TOKEN}\n\nHOPTELL_ROLES=a,b # c\nOTHER='x'\n"
        "HOPTELL_RELAY=ws://far:1\n"
    )
    before = file.stat().st_mtime_ns
    again = settings_file.join(environ, "ws://far:1", TOKEN, None, force=False)
    assert again.done == "kept" and file.stat().st_mtime_ns == before


@pytest.mark.parametrize("line", ["HOPTELL_TOKEN=another-token-than-that", "HOPTELL_RELAY=ws://x"])
def test_another_relay_or_token_is_replaced_only_by_force_and_kept_beside(
    environ: dict[str, str], line: str
) -> None:
    file = written(environ, line + "\n")
    with pytest.raises(ConfigurationError, match="add --force to replace it") as caught:
        settings_file.join(environ, "ws://far:1", TOKEN, None, force=False)
    assert file.read_text() == line + "\n"
    assert "another-token" not in str(caught.value) and TOKEN not in str(caught.value)
    settings_file.join(environ, "ws://far:1", TOKEN, None, force=True)
    assert read_settings_file(file)["HOPTELL_TOKEN"] == TOKEN
    backup = file.with_name(".env.before-hoptell")
    assert backup.read_text() == line + "\n" and mode(backup) == 0o600


def test_each_replacement_by_force_keeps_the_file_before_it(environ: dict[str, str]) -> None:
    for number in range(3):
        settings_file.join(environ, f"ws://far:{number + 1}", TOKEN, None, force=True)
    for number, ending in ((1, ""), (2, "-2")):
        backup = the_file(environ).with_name(f".env.before-hoptell{ending}")
        assert read_settings_file(backup)["HOPTELL_RELAY"] == f"ws://far:{number}"
        assert mode(backup) == 0o600
    settings_file.join(environ, "ws://far:3", TOKEN, "bob", force=True)
    assert read_settings_file(backup)["HOPTELL_RELAY"] == "ws://far:2", "nothing was replaced"


def test_a_token_that_another_process_makes_meanwhile_is_not_replaced(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def place(environ: Mapping[str, str]) -> Path:
        token, file = create_token(environ)
        made.append(token)
        return file

    monkeypatch.setattr(settings_file, "place", place)
    with pytest.raises(ConfigurationError, match="has another token already"):
        settings_file.join(environ, "ws://far:1", TOKEN, None, force=False)
    the_file(environ).unlink()
    outcome = settings_file.make({**environ, "HOPTELL_TOKEN": TOKEN})
    assert outcome.done == "kept"
    assert read_settings_file(outcome.file) == {"HOPTELL_TOKEN": made[-1]}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root edits other users' files")
def test_a_file_that_root_changes_stays_its_owners(environ: dict[str, str]) -> None:
    file = written(environ, "HOPTELL_ROLES=a\n")
    os.chown(file, 12345, 12345)
    create_token(environ)
    settings_file.join(environ, "ws://far:1", TOKEN, None, force=True)
    for one in (file, file.with_name(".env.before-hoptell")):
        assert (one.stat().st_uid, one.stat().st_gid, mode(one)) == (12345, 12345, 0o600)


@pytest.mark.parametrize(
    "token", ["pl+ain/=", 'q"uo\\te', "ha#sh", "do$llar", "'quotes'", '"quotes"', "back`"]
)
def test_any_token_is_read_as_it_was_written(environ: dict[str, str], token: str) -> None:
    outcome = settings_file.join(environ, "ws://far:1", token, None, force=False)
    assert read_settings_file(outcome.file)["HOPTELL_TOKEN"] == token


@pytest.mark.parametrize("token", ["", "two words", "a\nb", "sha256:" + 64 * "0", "ünicode"])
def test_what_is_no_token_is_said_without_quoting_it(token: str) -> None:
    problem = settings_file.token_problem(token)
    assert problem is not None and (not token or token not in problem)


def test_without_a_home_folder_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hoptell.folders.home_folder", lambda environ: None)
    monkeypatch.setattr("hoptell.env_file._is_checkout", lambda root: False)
    with pytest.raises(ConfigurationError, match="no home folder"):
        settings_file.make({})
