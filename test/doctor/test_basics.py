"""Python, the system and the settings, as the doctor sees them."""

import importlib.metadata
import os
from pathlib import Path

import pytest
from support.agents import Computer
from support.doctor import Findings
from support.relay import TOKEN

from hoptell.doctor import basics, examine
from hoptell.doctor.report import Line

OTHER = "another-token-than-that"


@pytest.fixture
def computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Computer:
    monkeypatch.setattr("hoptell.setup.machine.USUAL_FOLDERS", ())
    return Computer(tmp_path)


def test_python_and_the_packages_are_told_with_their_versions() -> None:
    (line,) = basics.python()
    assert line.status == "ok"
    for package in ("websockets", "mcp", "click"):
        assert f"{package} {importlib.metadata.version(package)}" in line.message


@pytest.mark.parametrize(
    ("requirements", "message"),
    [
        (["no-such-package>=1"], "no-such-package is missing"),
        (["click>=99,<100"], "and not >=99,<100"),
        (["click<8"], "and not <8"),
    ],
)
def test_packages_that_do_not_fit_fail(
    monkeypatch: pytest.MonkeyPatch, requirements: list[str], message: str
) -> None:
    requirements = [*requirements, "nothing>=1; extra == 'dev'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requirements)
    (line,) = basics.python()
    assert line.status == "fail" and message in line.message and "nothing" not in line.message


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("8.5.1", ">=8.5,<9", True),
        ("9.0", ">=8.5,<9", False),
        ("8.10", ">=8.5,<9", True),
        ("8.4.9", ">=8.5", False),
        ("1.0", "", True),
    ],
)
def test_versions_are_compared_as_numbers(version: str, wanted: str, fits: bool) -> None:
    assert basics.fits(version, wanted) is fits


def test_a_python_that_is_too_old_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(basics, "OLDEST_PYTHON", (99, 0))
    (line,) = basics.python()
    assert line.status == "fail" and line.fix == "install Python 3.11 or newer"


def test_no_settings_and_no_token_say_how_to_make_them(computer: Computer) -> None:
    findings = Findings(computer.environ)
    assert findings["settings"]["status"] == "info"
    assert findings["token"]["status"] == "fail" and "hoptell init" in findings["token"]["fix"]


@pytest.mark.parametrize(("mode", "status"), [(0o600, "ok"), (0o644, "warn"), (0o640, "warn")])
def test_a_settings_file_that_others_can_read_is_a_warning(
    computer: Computer, mode: int, status: str
) -> None:
    file = computer.write_settings(token=TOKEN, relay="ws://127.0.0.1:9", mode=mode)
    entry = Findings(computer.environ, secrets=(TOKEN,))["settings"]
    assert entry["status"] == status
    if status == "warn":
        assert entry["fix"] == f"chmod 600 {file}" and f"{mode:04o}" in entry["message"]


def test_a_token_in_the_environment_that_hides_the_files_is_a_warning(computer: Computer) -> None:
    computer.write_settings(token=TOKEN, relay="ws://127.0.0.1:9")
    environ = computer.environ | {"HOPTELL_TOKEN": OTHER}
    assert Findings(environ, secrets=(TOKEN,))["token"]["status"] == "warn"
    assert Findings(environ | {"HOPTELL_TOKEN": TOKEN})["token"]["status"] == "ok"


def test_a_hash_in_the_place_of_the_token_fails(computer: Computer) -> None:
    computer.write_settings(token="sha256:" + 64 * "a", relay="ws://127.0.0.1:9")
    findings = Findings(computer.environ)
    assert "token" in findings.failed and "hash" in findings["token"]["message"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("HOPTELL_TOKEN", "line 1, is not NAME=value"),
        ("HOPTELL_PUSH=shout", "HOPTELL_PUSH in {file}: it is one of hook, channel, codex"),
        ("HOPTELL_NAME=a b", "HOPTELL_NAME in {file}: a peer name is 1 to 64 letters"),
    ],
)
def test_settings_that_are_wrong_fail_and_nothing_else_is_tried(
    computer: Computer, content: str, words: str
) -> None:
    file = computer.home / ".config" / "hoptell" / ".env"
    computer.write(".config/hoptell/.env", content + "\n").chmod(0o600)
    findings = Findings(computer.environ)
    assert findings.failed == {"settings"}
    entry = findings["settings"]
    assert words.format(file=file) in entry["message"]
    assert entry["fix"] == ("fix it" if "line 1" in words else None)
    assert findings["agents"]["message"] == "not tried, since settings failed"


def test_an_explicit_settings_file_that_is_not_there_fails(computer: Computer) -> None:
    findings = Findings(computer.environ | {"HOPTELL_ENV": "/no/where"})
    assert findings.failed == {"settings"}
    assert "HOPTELL_ENV names /no/where" in findings["settings"]["message"]


def test_a_check_that_breaks_is_a_line_and_ends_nothing(
    computer: Computer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> list[Line]:
        raise ValueError(TOKEN)

    def denied() -> list[Line]:
        raise PermissionError(13, "Permission denied", "/x")

    monkeypatch.setattr(basics, "python", broken)
    monkeypatch.setattr(basics, "system", denied)
    findings = Findings(computer.environ, secrets=(TOKEN,))
    assert findings["python"]["message"] == "this check itself failed (ValueError): report it"
    assert findings["system"]["message"] == "/x: Permission denied"
    assert findings["agents"]["status"] == "info"


def test_a_disk_that_hangs_is_a_line(computer: Computer, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    over = threading.Event()
    monkeypatch.setattr(examine, "LOCAL_TIMEOUT", 0.2)
    monkeypatch.setattr(basics, "system", lambda: [over.wait(20)])
    try:
        findings = Findings(computer.environ)
    finally:
        over.set()
    assert "the disk hangs" in findings["system"]["message"]


def test_what_other_users_own_is_told(computer: Computer, monkeypatch: pytest.MonkeyPatch) -> None:
    computer.write_settings(token=TOKEN, relay="ws://127.0.0.1:9")
    owner = os.stat(computer.home / ".config" / "hoptell" / ".env").st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    entry = Findings(computer.environ)["settings"]
    expected = "belongs to another user" if owner else "readable by you alone"
    assert expected in entry["message"]
