"""Settings: where they come from, what they may be, what is said if they are wrong."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from hoptell import env_file, settings
from hoptell.env_file import (
    create_token,
    find_settings_file,
    read_settings_file,
    settings_file_candidates,
)
from hoptell.errors import ConfigurationError
from hoptell.names import is_name
from hoptell.settings import (
    PeerSettings,
    Rate,
    RelaySettings,
    Values,
    default_name,
    load_peer_settings,
    load_relay_settings,
    machine_name,
    state_folder,
    usual_state_folder,
)

ROOT = Path(__file__).resolve().parent.parent
SECRET = "s3cret-value-of-the-file"


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment with an empty home, away from the source checkout."""
    installed = tmp_path / "site-packages" / "hoptell"
    installed.mkdir(parents=True)
    monkeypatch.setattr(env_file, "__file__", str(installed / "env_file.py"))
    home = tmp_path / "home"
    home.mkdir()
    return {"HOME": str(home)}


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def token_from(environ: Mapping[str, str]) -> str | None:
    return load_peer_settings(environ).token


# Which file -------------------------------------------------------------------------------


def test_without_any_settings_everything_has_its_default(environ: dict[str, str]) -> None:
    assert load_relay_settings(environ) == RelaySettings(
        host="127.0.0.1",
        port=7777,
        token=None,
        members=None,
        rate=Rate(30, 10),
        journal=None,
        tls_cert=None,
        tls_key=None,
    )
    assert load_peer_settings(environ) == PeerSettings(
        relay="ws://127.0.0.1:7777",
        token=None,
        name=None,
        roles=(),
        push=None,
        home=Path(environ["HOME"]) / ".hoptell",
    )


def test_the_file_in_the_home_folder_is_read(environ: dict[str, str]) -> None:
    write(Path(environ["HOME"]) / ".config/hoptell/.env", "HOPTELL_TOKEN=of-the-home")
    assert token_from(environ) == "of-the-home"


def test_xdg_config_home_comes_instead_of_the_home_folders_config(
    environ: dict[str, str], tmp_path: Path
) -> None:
    write(Path(environ["HOME"]) / ".config/hoptell/.env", "HOPTELL_TOKEN=of-the-home")
    write(tmp_path / "xdg/hoptell/.env", "HOPTELL_TOKEN=of-xdg")
    assert token_from(environ | {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}) == "of-xdg"
    assert token_from(environ | {"XDG_CONFIG_HOME": ""}) == "of-the-home"


def test_a_relative_xdg_config_home_is_ignored(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "project/conf/hoptell/.env", "HOPTELL_TOKEN=of-a-project")
    monkeypatch.chdir(tmp_path / "project")
    assert token_from(environ | {"XDG_CONFIG_HOME": "conf"}) is None


def test_hoptell_env_comes_before_every_other_file(environ: dict[str, str], tmp_path: Path) -> None:
    write(Path(environ["HOME"]) / ".config/hoptell/.env", "HOPTELL_TOKEN=of-the-home")
    file = write(tmp_path / "mine.env", "HOPTELL_NAME=bob")
    found = load_peer_settings(environ | {"HOPTELL_ENV": str(file)})
    assert found.name == "bob"
    assert found.token is None, "one file is read, not several"


def test_a_source_checkouts_own_file_comes_last(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "checkout"
    write(checkout / "pyproject.toml", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    write(checkout / ".env", "HOPTELL_TOKEN=of-the-checkout")
    monkeypatch.setattr(env_file, "__file__", str(checkout / "hoptell" / "env_file.py"))
    assert token_from(environ) == "of-the-checkout"
    write(Path(environ["HOME"]) / ".config/hoptell/.env", "HOPTELL_TOKEN=of-the-home")
    assert token_from(environ) == "of-the-home"


def test_a_project_that_hoptell_is_installed_into_is_no_checkout(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    write(project / "pyproject.toml", '[project]\nname = "other"\n')
    write(project / ".env", "HOPTELL_TOKEN=of-the-project")
    monkeypatch.setattr(env_file, "__file__", str(project / "hoptell" / "env_file.py"))
    assert token_from(environ) is None


def test_the_current_folders_file_is_never_read(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "project/.env", "HOPTELL_TOKEN=of-a-project")
    write(tmp_path / "project/hoptell/.env", "HOPTELL_TOKEN=of-a-project")
    monkeypatch.chdir(tmp_path / "project")
    assert token_from(environ) is None


def test_the_environment_comes_before_the_file(environ: dict[str, str], tmp_path: Path) -> None:
    file = write(tmp_path / "mine.env", "HOPTELL_TOKEN=of-the-file\nHOPTELL_NAME=bob")
    found = load_peer_settings(
        environ | {"HOPTELL_ENV": str(file), "HOPTELL_TOKEN": "of-the-environment"}
    )
    assert (found.token, found.name) == ("of-the-environment", "bob")


def test_an_option_comes_before_the_environment(environ: dict[str, str]) -> None:
    environ = environ | {"HOPTELL_PORT": "1", "HOPTELL_NAME": "bob"}
    assert load_relay_settings(environ, port=2).port == 2
    assert load_relay_settings(environ, port=None).port == 1
    assert load_peer_settings(environ, name="al").name == "al"


@pytest.mark.parametrize("empty", ["", " ", "\t"])
def test_an_empty_value_counts_as_unset(
    environ: dict[str, str], tmp_path: Path, empty: str
) -> None:
    file = write(tmp_path / "mine.env", "HOPTELL_TOKEN=of-the-file\nHOPTELL_PORT=\nHOPTELL_HOME=''")
    environ = environ | {"HOPTELL_ENV": str(file), "HOPTELL_TOKEN": empty, "HOPTELL_RELAY": empty}
    found = load_peer_settings(environ)
    assert found.token == "of-the-file"
    assert found.relay == "ws://127.0.0.1:7777"
    assert found.home == Path(environ["HOME"]) / ".hoptell"
    assert load_relay_settings(environ).port == 7777


def test_an_empty_hoptell_env_counts_as_unset(environ: dict[str, str]) -> None:
    write(Path(environ["HOME"]) / ".config/hoptell/.env", "HOPTELL_TOKEN=of-the-home")
    assert token_from(environ | {"HOPTELL_ENV": " "}) == "of-the-home"


def test_a_tilde_in_hoptell_env_is_the_home_folder(environ: dict[str, str]) -> None:
    write(Path(environ["HOME"]) / "my.env", "HOPTELL_TOKEN=of-mine")
    assert token_from(environ | {"HOPTELL_ENV": "~/my.env"}) == "of-mine"


# A file that cannot be used ---------------------------------------------------------------


def test_an_explicit_file_that_is_not_there_is_an_error(
    environ: dict[str, str], tmp_path: Path
) -> None:
    environ["HOPTELL_ENV"] = str(tmp_path / "missing.env")
    with pytest.raises(ConfigurationError, match=r"missing\.env, which is not a readable file"):
        load_peer_settings(environ)


def test_an_explicit_folder_is_an_error(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not a readable file"):
        load_relay_settings(environ | {"HOPTELL_ENV": str(tmp_path)})


def test_an_explicit_file_of_an_unknown_user_is_an_error(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="HOPTELL_ENV: there is no such home folder"):
        load_peer_settings(environ | {"HOPTELL_ENV": "~nobody-of-this-name/x.env"})


def not_permitted(*arguments: object, **options: object) -> Any:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize("explicit", [True, False])
def test_a_file_that_may_not_be_read_is_an_error_that_says_so(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, explicit: bool
) -> None:
    file = write(Path(environ["HOME"]) / ".config/hoptell/.env", f"HOPTELL_TOKEN={SECRET}")
    monkeypatch.setattr(Path, "open", not_permitted)  # root may read everything
    if explicit:
        environ["HOPTELL_ENV"] = str(file)
    with pytest.raises(ConfigurationError) as caught:
        load_peer_settings(environ)
    assert str(caught.value) == f"cannot read {file}: Permission denied"


def test_a_file_in_a_folder_that_may_not_be_entered_is_not_taken_for_missing(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "stat", not_permitted)
    monkeypatch.setattr(Path, "open", not_permitted)
    with pytest.raises(ConfigurationError, match=r"cannot read .*\.env: Permission denied"):
        load_peer_settings(environ)


# What a variable may be -------------------------------------------------------------------


def refused(load: Callable[..., object], environ: Mapping[str, str]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(environ)
    assert caught.value.__cause__ is None
    return str(caught.value)


def test_every_variable_of_a_peer_arrives(environ: dict[str, str]) -> None:
    found = load_peer_settings(
        environ
        | {
            "HOPTELL_RELAY": "wss://relay.example/",
            "HOPTELL_TOKEN": " secret ",
            "HOPTELL_NAME": "bob",
            "HOPTELL_ROLES": "dev, reviewer,,dev",
            "HOPTELL_PUSH": "poll",
            "HOPTELL_HOME": "~/state",
        }
    )
    assert found == PeerSettings(
        relay="wss://relay.example",
        token="secret",
        name="bob",
        roles=("dev", "reviewer"),
        push="poll",
        home=Path(environ["HOME"]) / "state",
    )


def test_every_variable_of_the_relay_arrives(environ: dict[str, str]) -> None:
    found = load_relay_settings(
        environ
        | {
            "HOPTELL_HOST": "::",
            "HOPTELL_PORT": "0",
            "HOPTELL_TOKEN": "secret",
            "HOPTELL_MEMBERS": "/etc/members.json",
            "HOPTELL_RATE": "5/0.5",
            "HOPTELL_JOURNAL": "~/journal.db",
            "HOPTELL_TLS_CERT": "/etc/cert.pem",
            "HOPTELL_TLS_KEY": "/etc/key.pem",
        }
    )
    assert found == RelaySettings(
        host="::",
        port=0,
        token="secret",
        members=Path("/etc/members.json"),
        rate=Rate(5, 0.5),
        journal=Path(environ["HOME"]) / "journal.db",
        tls_cert=Path("/etc/cert.pem"),
        tls_key=Path("/etc/key.pem"),
    )


@pytest.mark.parametrize(
    ("host", "port", "relay"),
    [
        ("", "", "ws://127.0.0.1:7777"),
        ("", "8000", "ws://127.0.0.1:8000"),
        ("0.0.0.0", "", "ws://127.0.0.1:7777"),
        ("*", "", "ws://127.0.0.1:7777"),
        ("::", "", "ws://[::1]:7777"),
        ("::1", "8000", "ws://[::1]:8000"),
        ("192.168.1.2", "8000", "ws://192.168.1.2:8000"),
        ("localhost", "0", "ws://localhost:7777"),
    ],
)
def test_without_a_url_the_relay_is_the_one_that_this_machine_would_run(
    environ: dict[str, str], host: str, port: str, relay: str
) -> None:
    found = load_peer_settings(environ | {"HOPTELL_HOST": host, "HOPTELL_PORT": port})
    assert found.relay == relay


def test_the_relay_that_this_machine_would_run_with_a_certificate_is_reached_by_tls(
    environ: dict[str, str], tmp_path: Path
) -> None:
    file = write(tmp_path / "file", "HOPTELL_TLS_CERT=/c.pem\nHOPTELL_TLS_KEY=/k.pem\n")
    environ |= {"HOPTELL_ENV": str(file)}
    assert load_peer_settings(environ).relay == "wss://127.0.0.1:7777"
    assert load_peer_settings(environ | {"HOPTELL_RELAY": "ws://h"}).relay == "ws://h"


@pytest.mark.parametrize("load", [load_peer_settings, load_relay_settings])
@pytest.mark.parametrize(
    "host", ["[::1]", "127.0.0.1:80", "user@h", "ws://h", "a b", "h/x", "::1:x", "h#", "h℀"]
)
def test_a_host_is_an_address_or_a_name_alone(
    environ: dict[str, str], load: Callable[..., object], host: str
) -> None:
    assert refused(load, environ | {"HOPTELL_HOST": host}) == (
        "HOPTELL_HOST: it is an address such as 127.0.0.1 or ::1, or a host name, without brackets"
        " and without a port (which is HOPTELL_PORT)"
    )


@pytest.mark.parametrize(
    "host", ["*", "0.0.0.0", "::", "fe80::1%eth0", "my-host_1.example", "localhost"]
)
def test_what_a_relay_can_listen_on_is_taken(environ: dict[str, str], host: str) -> None:
    assert load_relay_settings(environ | {"HOPTELL_HOST": host}).host == host
    assert load_peer_settings(environ | {"HOPTELL_HOST": host}).relay.startswith("ws://")


@pytest.mark.parametrize(
    "url",
    ["ws://h:7777", "wss://h", "ws://[::1]:7777", "wss://h/some/path", "ws://h:7777/?a=b"],
)
def test_a_websocket_url_is_taken_as_it_is(environ: dict[str, str], url: str) -> None:
    assert load_peer_settings(environ | {"HOPTELL_RELAY": url}).relay == url


@pytest.mark.parametrize(
    "url",
    [
        "h:7777",
        "h",
        "http://h:7777",
        "https://h",
        "ws:h",
        "ws://",
        "ws://:7777",
        "ws://h:0",
        "ws://h:99999",
        "ws://h:port",
        "ws://[::1",
        "ws://user:s3cret@[::1",
        "ws://user:s3cret@h:x",
        "ws://user:s3cret@h:7777",
        "ws://s3cret@h:7777",
        "ws://user:s3cret@h\N{DOUBLE QUESTION MARK}",
        "ws://a b:7777",
        "ws://h:7777/#s3cret",
        "ws://h:7777/\x1b[2J",
    ],
)
def test_any_other_relay_is_refused_without_quoting_it(environ: dict[str, str], url: str) -> None:
    sentence = refused(load_peer_settings, environ | {"HOPTELL_RELAY": url})
    assert sentence.startswith("HOPTELL_RELAY: ") and sentence.isprintable()
    assert "ws://host:port or wss://host" in sentence or "HOPTELL_TOKEN" in sentence
    assert "s3cret" not in sentence


@pytest.mark.parametrize("port", ["-1", "65536", "7777.0", "http", "٧", "1 2", "9" * 5000])
def test_a_port_is_a_number_up_to_65535(environ: dict[str, str], port: str) -> None:
    for load in (load_relay_settings, load_peer_settings):
        sentence = refused(load, environ | {"HOPTELL_PORT": port})
        assert sentence == "HOPTELL_PORT: a port is a whole number from 0 to 65535"


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("0", Rate(0)),
        ("30/10", Rate(30, 10)),
        ("1/0.1", Rate(1, 0.1)),
        ("1000000/86400", Rate(1_000_000, 86_400)),
    ],
)
def test_a_rate_is_sends_per_seconds_or_0_for_none(
    environ: dict[str, str], text: str, rate: Rate
) -> None:
    assert load_relay_settings(environ | {"HOPTELL_RATE": text}).rate == rate


@pytest.mark.parametrize(
    "text",
    ["30", "30/", "/10", "30/0", "0/10", "-1/10", "30/-1", "1.5/10", "a/b", "30/10/5", "30/nan"]
    + ["30/inf", "30/99999", "30/86401", "1000001/10", "99999999999999999999/10"]
    + ["٣٠/10", "1_000/10", "30/1e3", "30/1_0", "+30/10", "30 /10", "00", "30/.5"],
)
def test_any_other_rate_is_refused(environ: dict[str, str], text: str) -> None:
    sentence = refused(load_relay_settings, environ | {"HOPTELL_RATE": text})
    assert sentence == (
        "HOPTELL_RATE: a rate is sends/seconds, for example 30/10, with 1 to 1000000 sends in up to"
        " 86400 seconds, or 0 for no limit"
    )


@pytest.mark.parametrize("name", ["-x", "a b", "ä", "a" * 65, "../x", "@all"])
def test_a_wrong_name_is_refused_with_the_rule(environ: dict[str, str], name: str) -> None:
    sentence = refused(load_peer_settings, environ | {"HOPTELL_NAME": name})
    assert sentence.startswith("HOPTELL_NAME: a peer name is 1 to 64 letters, digits,")


@pytest.mark.parametrize("roles", ["a b", "all", "dev;ops", ",".join(f"r{n}" for n in range(17))])
def test_wrong_roles_are_refused_with_the_rule(environ: dict[str, str], roles: str) -> None:
    sentence = refused(load_peer_settings, environ | {"HOPTELL_ROLES": roles})
    assert sentence.startswith("HOPTELL_ROLES: it is a list of up to 16 roles with commas")


@pytest.mark.parametrize("mode", settings.WAKE_MODES)
def test_every_wake_mode_may_be_asked_for(environ: dict[str, str], mode: str) -> None:
    assert load_peer_settings(environ | {"HOPTELL_PUSH": mode}).push == mode


def test_another_wake_mode_is_refused_with_those_there_are(environ: dict[str, str]) -> None:
    sentence = refused(load_peer_settings, environ | {"HOPTELL_PUSH": "email"})
    assert sentence == ("HOPTELL_PUSH: it is one of hook, channel, codex, tmux, listener, poll")


def test_a_relative_state_folder_is_refused_because_each_process_would_have_its_own(
    environ: dict[str, str],
) -> None:
    sentence = refused(load_peer_settings, environ | {"HOPTELL_HOME": "state"})
    assert sentence == "HOPTELL_HOME must be a whole path, starting with / or ~"


def test_a_path_with_a_nul_character_is_refused(environ: dict[str, str], tmp_path: Path) -> None:
    file = write(tmp_path / "mine.env", "HOPTELL_MEMBERS=/a\0b")
    sentence = refused(load_relay_settings, environ | {"HOPTELL_ENV": str(file)})
    assert sentence == f"HOPTELL_MEMBERS in {file}: a path cannot contain a NUL character"


@pytest.mark.parametrize("given", ["HOPTELL_TLS_CERT", "HOPTELL_TLS_KEY"])
def test_a_certificate_and_its_key_go_together(environ: dict[str, str], given: str) -> None:
    sentence = refused(load_relay_settings, environ | {given: "/etc/x.pem"})
    assert sentence == "HOPTELL_TLS_CERT and HOPTELL_TLS_KEY go together: set both"


def test_a_wrong_value_of_the_file_is_blamed_on_the_file_and_not_quoted(
    environ: dict[str, str], tmp_path: Path
) -> None:
    for variable in ("HOPTELL_RELAY", "HOPTELL_NAME", "HOPTELL_ROLES", "HOPTELL_PUSH"):
        file = write(tmp_path / "mine.env", f"{variable}=-{SECRET}")
        sentence = refused(load_peer_settings, environ | {"HOPTELL_ENV": str(file)})
        assert sentence.startswith(f"{variable} in {file}: ") and SECRET not in sentence
    for variable in ("HOPTELL_PORT", "HOPTELL_RATE"):
        file = write(tmp_path / "mine.env", f"{variable}={SECRET}")
        sentence = refused(load_relay_settings, environ | {"HOPTELL_ENV": str(file)})
        assert sentence.startswith(f"{variable} in {file}: ") and SECRET not in sentence


# A user id without a home folder, as in some containers -------------------------------------


@pytest.fixture
def homeless(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    return {}


def test_without_a_home_folder_a_relay_runs_from_the_environment(homeless: dict[str, str]) -> None:
    assert settings_file_candidates(homeless) == []
    assert load_relay_settings(homeless | {"HOPTELL_TOKEN": "x"}).token == "x"


def test_without_a_home_folder_a_peer_is_asked_for_one(
    homeless: dict[str, str], tmp_path: Path
) -> None:
    sentence = refused(load_peer_settings, homeless)
    assert sentence == "there is no home folder: set HOME or HOPTELL_HOME"
    assert load_peer_settings(homeless | {"HOPTELL_HOME": str(tmp_path)}).home == tmp_path


def test_the_state_folder_is_known_while_other_settings_are_broken(
    homeless: dict[str, str], tmp_path: Path
) -> None:
    broken = homeless | {"HOPTELL_PORT": "x", "HOPTELL_HOME": str(tmp_path)}
    assert state_folder(broken) == tmp_path
    assert refused(state_folder, homeless).startswith("there is no home folder")
    assert usual_state_folder(homeless) is None
    assert usual_state_folder({"HOME": "/h"}) == Path("/h/.hoptell")


def test_without_a_home_folder_no_token_is_made(homeless: dict[str, str]) -> None:
    assert refused(create_token, homeless).startswith("there is no home folder to keep a token in")


# Secrets, names, and what is written about them -------------------------------------------


def test_settings_can_be_printed_without_their_secrets(
    environ: dict[str, str], tmp_path: Path
) -> None:
    file = write(tmp_path / "mine.env", f"HOPTELL_TOKEN={SECRET}")
    environ = environ | {"HOPTELL_ENV": str(file)}
    for shown in (load_relay_settings(environ), load_peer_settings(environ), Values.load(environ)):
        assert SECRET not in repr(shown)
        assert SECRET not in f"{shown} {[shown]}"


def test_settings_cannot_be_changed(environ: dict[str, str]) -> None:
    with pytest.raises(AttributeError):
        load_relay_settings(environ).port = 1  # type: ignore[misc]


def test_a_name_by_default_is_the_machine_and_the_process() -> None:
    assert is_name(default_name())
    assert default_name() == f"{machine_name()}-{os.getpid()}"


@pytest.mark.parametrize(
    ("node", "release", "name"),
    [
        ("box", "6.1.0", "box"),
        ("box.example.org", "6.1.0", "box"),
        ("My PC_ä!", "6.1.0", "My-PC"),
        ("", "6.1.0", "host"),
        ("---", "6.1.0", "host"),
        ("x" * 300, "6.1.0", "x" * 40),
        ("box", "5.15.0-microsoft-standard-WSL2", "box-wsl"),
    ],
)
def test_any_machine_name_becomes_a_valid_one(
    monkeypatch: pytest.MonkeyPatch, node: str, release: str, name: str
) -> None:
    monkeypatch.setattr(settings.platform, "node", lambda: node)
    monkeypatch.setattr(settings.platform, "release", lambda: release)
    assert machine_name() == name
    assert is_name(default_name())


def documented_variables() -> set[str]:
    """The variable that the line under each field names, and the one of `$HOPTELL_ENV`."""
    source = Path(settings.__file__).read_text(encoding="utf-8")
    return set(re.findall(r'^    """(HOPTELL_[A-Z_]+): ', source, re.MULTILINE))


def test_every_field_names_its_variable() -> None:
    shared = {field.name for field in fields(RelaySettings)} & {
        field.name for field in fields(PeerSettings)
    }
    assert shared == {"token"}
    expected = {
        f"HOPTELL_{field.name.upper()}"
        for role in (RelaySettings, PeerSettings)
        for field in fields(role)
    }
    assert documented_variables() == expected


def test_the_example_file_has_every_variable_once_and_sets_none() -> None:
    example = ROOT / ".env.example"
    assert set(read_settings_file(example)) == documented_variables()
    assert set(read_settings_file(example).values()) == {""}
    names = re.findall(r"^(HOPTELL_[A-Z_]+)=", example.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(names) == len(set(names))


def test_the_example_file_can_be_used_as_it_is(environ: dict[str, str]) -> None:
    environ["HOPTELL_ENV"] = str(ROOT / ".env.example")
    assert find_settings_file(environ) == ROOT / ".env.example"
    assert load_relay_settings(environ) == RelaySettings()
    assert load_peer_settings(environ).relay == "ws://127.0.0.1:7777"
