"""`hoptell init`: the settings file, joining a relay, and what it says to run next."""

import json
import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.agents import Computer
from support.relay import TOKEN, RelayProcess, relay_process

from hoptell import cli
from hoptell.cli import init
from hoptell.env_file import read_settings_file
from hoptell.relay.credentials import add_member
from hoptell.setup.agents.table import AGENTS

CERTIFICATES = Path(__file__).parent.parent / "support" / "certificates"
OTHER_TOKEN = "another-token-than-the-relays"


@pytest.fixture
def computer(tmp_path: Path) -> Computer:
    return Computer(tmp_path)


@pytest.fixture
def run(computer: Computer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `hoptell init` on the test's computer; no output ever holds a token."""
    monkeypatch.setattr("hoptell.setup.machine.USUAL_FOLDERS", ())

    def run(*args: str, input: str = "") -> Result:
        runner = CliRunner(env=computer.environ)
        result = runner.invoke(cli.command_line, ["init", *args], input=input)
        for secret in (TOKEN, OTHER_TOKEN, *tokens(computer)):
            assert secret not in result.output
        return result

    return run


def settings_file(computer: Computer) -> Path:
    return computer.home / ".config" / "hoptell" / ".env"


def tokens(computer: Computer) -> list[str]:
    file = settings_file(computer)
    return [read_settings_file(file)["HOPTELL_TOKEN"]] if file.exists() else []


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """One relay for all, with a shared token and the member alice."""
    folder = tmp_path_factory.mktemp("relay")
    token = add_member(folder / "members.json", "alice")
    with relay_process(folder, "--members", str(folder / "members.json")) as relay:
        relay.environment["ALICE"] = token
        yield relay


# On one machine -------------------------------------------------------------------------------


def test_it_makes_the_settings_once_and_says_what_to_run(run: Any, computer: Computer) -> None:
    first = run()
    assert first.exit_code == 0, first.output
    file = settings_file(computer)
    assert f"Made {file} (for you alone to read): a fresh token." in first.output
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    content = file.read_text()
    again = run()
    assert again.exit_code == 0 and f"Kept {file}" in again.output
    assert file.read_text() == content


def test_what_it_says_to_run_are_commands_that_exist(run: Any, computer: Computer) -> None:
    computer.install("claude", "codex", "opencode", "gemini", "agy", "cursor", "tmux")
    output = run().output
    for line in re.findall(r"^  (\S*hoptell .+)$", output, re.M):
        words = shlex.split(line)
        assert words[1] in cli.COMMANDS
        if "/" in words[0]:
            assert os.access(words[0], os.X_OK)
    for key in AGENTS:
        assert f" init --apply {key}\n" in output
    assert "tmux NAME" in output and "doctor" in output


def test_the_command_for_another_machine_hands_the_token_over_unseen(
    run: Any, computer: Computer
) -> None:
    output = run().output
    ((line, join),) = re.findall(r"^  (\S.+) \| ssh MACHINE (.+)$", output, re.M)
    environ = {**computer.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(line, shell=True, env=environ, capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == tokens(computer)[0]
    assert shlex.split(shlex.split(join)[0])[:3] == ["hoptell", "init", "--relay"]


@pytest.mark.parametrize(
    "line", ["export HOPTELL_TOKEN={}", "HOPTELL_TOKEN='{}'", ' HOPTELL_TOKEN = "{}" # mine']
)
def test_the_token_is_shown_as_the_commands_read_it(computer: Computer, line: str) -> None:
    computer.write(".config/hoptell/.env", f"HOPTELL_NAME=x\n{line.format(TOKEN)}\n")
    shown = CliRunner(env=computer.environ).invoke(cli.command_line, ["init", "--show-token"])
    assert (shown.exit_code, shown.output) == (0, f"{TOKEN}\n")


@pytest.mark.parametrize("token", [None, "sha256:" + 64 * "a"])
def test_a_token_that_is_not_there_is_not_shown(
    run: Any, computer: Computer, token: str | None
) -> None:
    if token is not None:
        computer.write_settings(token=token)
    result = run("--show-token")
    assert result.exit_code == 1 and result.stdout == "" and "token" in result.stderr
    assert token is not None or not settings_file(computer).exists()


@pytest.mark.parametrize(
    ("relay", "shown"),
    [
        ("ws://localhost", "ws://ADDRESS"),
        ("ws://127.0.0.2:80/way", "ws://ADDRESS:80/way"),
        ("wss://localhost:7777", "wss://ADDRESS:7777"),
        ("wss://[::1]", "wss://ADDRESS"),
        ("wss://relay.example:1/?a=b&c", "wss://relay.example:1/?a=b&c"),
    ],
)
def test_other_machines_are_told_the_same_way_to_the_relay(
    run: Any, computer: Computer, monkeypatch: pytest.MonkeyPatch, relay: str, shown: str
) -> None:
    monkeypatch.setattr("hoptell.cli.init._address", lambda: "ADDRESS")
    computer.write_settings(token=TOKEN, relay=relay)
    (line,) = re.findall(r"^  (hoptell init --relay .+)$", run().output, re.M)
    assert shlex.split(line) == ["hoptell", "init", "--relay", shown, "--token-stdin"]


def test_with_no_agent_and_no_tmux_it_says_how_to_add_any(run: Any) -> None:
    output = run().output
    assert "No agent was found here" in output and "hoptell mcp" in output
    assert "tmux NAME" not in output


def test_a_relay_on_another_port_is_told_to_other_machines(run: Any, computer: Computer) -> None:
    computer.environ["HOPTELL_PORT"] = "7999"
    assert re.search(r"init --relay ws://\S+:7999 --token-stdin", run().output)


def test_a_relay_that_runs_is_not_to_be_started(
    run: Any, computer: Computer, relay: RelayProcess
) -> None:
    computer.write_settings(token=TOKEN)
    computer.environ["HOPTELL_PORT"] = "9"
    assert "Start the relay" in run().output
    computer.environ["HOPTELL_PORT"] = str(relay.port)
    output = run().output
    assert f"The relay at {relay.url} is running." in output and "tart the relay" not in output


def test_a_relay_of_somebody_else_does_not_count(
    run: Any, computer: Computer, relay: RelayProcess
) -> None:
    computer.environ["HOPTELL_PORT"] = str(relay.port)
    output = run().output
    assert f"The relay at {relay.url} does not know this token" in output
    assert f"\n  HOPTELL_PORT={relay.port + 1}\n" in output and " relay\n" in output
    assert "is running" not in output
    computer.environ["HOPTELL_RELAY"] = relay.url
    output = run().output
    assert "it is of no use here: " in output and "HOPTELL_PORT=" not in output


def test_a_relay_with_a_certificate_is_reached_and_told_by_tls(
    run: Any, computer: Computer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = str(CERTIFICATES / "good.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "authority.pem"))
    tls = {"HOPTELL_TLS_CERT": certificate, "HOPTELL_TLS_KEY": certificate}
    (tmp_path / "relay").mkdir()
    with relay_process(tmp_path / "relay", **tls) as relay:
        computer.write_settings(
            token=TOKEN, port=str(relay.port), tls_cert=certificate, tls_key=certificate
        )
        output = run().output
        assert f"The relay at wss://127.0.0.1:{relay.port} is running." in output
        assert re.search(rf"hoptell init --relay wss://\S+:{relay.port} --token-stdin", output)
        runner = CliRunner(env=computer.environ)
        assert runner.invoke(cli.command_line, ["list"]).exit_code == 0
        found = json.loads(runner.invoke(cli.command_line, ["doctor", "--json"]).stdout)["checks"]
        assert not [one for one in found if one["status"] == "fail"]


def test_who_joined_through_a_tunnel_is_not_told_to_run_a_relay(
    run: Any, relay: RelayProcess
) -> None:
    output = run("--relay", relay.url, "--token-stdin", input=TOKEN).output
    assert "Start the relay" not in output and "Another machine" not in output


def test_the_address_for_others_goes_where_the_commands_here_find_it(
    run: Any, computer: Computer
) -> None:
    (line,) = re.findall(r"^  (HOPTELL_HOST=\S+)$", run().output, re.M)
    with settings_file(computer).open("a") as file:
        file.write(line + "\n")
    output = run().output
    assert "HOPTELL_HOST" not in output
    assert f"init --relay ws://{line.partition('=')[2]}:7777 --token-stdin" in output


# Joining --------------------------------------------------------------------------------------


def test_joining_logs_in_and_then_keeps_address_and_token(
    run: Any, computer: Computer, relay: RelayProcess
) -> None:
    result = run("--relay", relay.url, "--token-stdin", input=f"{TOKEN}\n")
    assert result.exit_code == 0, result.output
    assert f"The relay at {relay.url} lets this machine in." in result.output
    file = settings_file(computer)
    assert read_settings_file(file) == {"HOPTELL_RELAY": relay.url, "HOPTELL_TOKEN": TOKEN}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = run("--relay", relay.url, "--token-stdin", input=TOKEN)
    assert again.exit_code == 0 and f"Kept {file}" in again.output
    assert run("--relay", relay.url).exit_code == 0  # with the token that it has


def test_a_members_token_makes_the_members_name_the_default(
    run: Any, computer: Computer, relay: RelayProcess
) -> None:
    token = relay.environment["ALICE"]
    result = run("--relay", relay.url, "--token-stdin", input=token)
    assert result.exit_code == 0, result.output
    assert "Sessions without a name of their own are alice" in result.output
    assert read_settings_file(settings_file(computer))["HOPTELL_NAME"] == "alice"


def test_a_member_may_choose_another_name_of_its_own(
    run: Any, computer: Computer, relay: RelayProcess
) -> None:
    token = relay.environment["ALICE"]
    result = run("--relay", relay.url, "--token-stdin", "--name", "alice-mac", input=token)
    assert result.exit_code == 0, result.output
    assert read_settings_file(settings_file(computer))["HOPTELL_NAME"] == "alice-mac"
    refused = run("--relay", relay.url, "--token-stdin", "--name", "bob", "--force", input=token)
    assert refused.exit_code == 1 and "this is alice's token" in refused.output
    assert read_settings_file(settings_file(computer))["HOPTELL_NAME"] == "alice-mac"


def test_a_wrong_token_or_a_dead_relay_changes_nothing_and_is_one_line(
    run: Any, computer: Computer, relay: RelayProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init, "LOGIN_TIMEOUT", 2.0)  # a dead relay might come back
    for url, token, words in [
        (relay.url, OTHER_TOKEN, "the relay does not know this token"),
        ("ws://127.0.0.1:9", TOKEN, "no relay answers at ws://127.0.0.1:9"),
        ("http://x", TOKEN, "a relay is ws://host:port"),
    ]:
        result = run("--relay", url, "--token-stdin", input=token)
        assert result.exit_code == 1 and result.stdout == ""
        assert words in result.stderr and result.stderr.count("\n") == 1
        assert not settings_file(computer).exists()


def test_settings_of_another_relay_are_replaced_only_by_force(
    run: Any, computer: Computer, relay: RelayProcess
) -> None:
    file = computer.write_settings(token=OTHER_TOKEN, roles="a")
    result = run("--relay", relay.url, "--token-stdin", input=TOKEN)
    assert result.exit_code == 1 and "add --force to replace it" in result.stderr
    assert read_settings_file(file)["HOPTELL_TOKEN"] == OTHER_TOKEN
    assert run("--relay", relay.url, "--token-stdin", "--force", input=TOKEN).exit_code == 0
    assert read_settings_file(file) == {
        "HOPTELL_TOKEN": TOKEN,
        "HOPTELL_ROLES": "a",
        "HOPTELL_RELAY": relay.url,
    }


@pytest.mark.parametrize("token", ["", "two words", "sha256:" + 64 * "a"])
def test_what_is_no_token_is_refused_before_anything_is_asked(
    run: Any, computer: Computer, token: str
) -> None:
    result = run("--relay", "ws://127.0.0.1:9", "--token-stdin", input=token)
    assert result.exit_code == 1 and "token" in result.stderr
    assert not settings_file(computer).exists()


def test_without_a_token_joining_says_how_to_give_one(run: Any) -> None:
    result = run("--relay", "ws://127.0.0.1:9")
    assert result.exit_code == 1 and "add --token-stdin" in result.stderr


@pytest.mark.parametrize(
    "args",
    [["--token-stdin"], ["--name", "x"], ["--apply", "emacs"], ["--name", "a b"]]
    + [["--relay", ""], ["--relay", " ", "--apply", "codex"]]
    + [["--show-token", "--force"], ["--show-token", "--relay", "ws://x"]],
)
def test_options_that_make_no_sense_are_wrong_usage(
    run: Any, computer: Computer, args: list[str]
) -> None:
    assert run(*args).exit_code == 2
    assert not settings_file(computer).exists()


# Agents ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", AGENTS)
def test_applying_shows_and_does_it_once(run: Any, computer: Computer, key: str) -> None:
    computer.install("claude", "codex", "opencode", "gemini", "agy", "cursor")
    first = run("--apply", key)
    assert first.exit_code == 0, first.output
    title = AGENTS[key].title
    assert f"To register hoptell with {title}:\n  " in first.output
    assert f"Done: {title} has hoptell." in first.output
    files = {file: file.read_bytes() for file in computer.home.rglob("*") if file.is_file()}
    again = run("--apply", key)
    assert f"{title} has hoptell already: there is nothing to do." in again.output
    calls = computer.home / "calls"
    assert {f: f.read_bytes() for f in files if f != calls} == {
        f: content for f, content in files.items() if f != calls
    }


def test_the_first_change_says_where_the_file_is_as_it_was(run: Any, computer: Computer) -> None:
    computer.write(".codex/config.toml", "a = 1\n")
    backup = computer.home / ".codex" / "config.toml.before-hoptell"
    assert f"as it was before is in {backup}" in run("--apply", "codex").output
    assert backup.read_text() == "a = 1\n"


def test_an_agent_that_is_not_here_is_one_line(run: Any) -> None:
    result = run("--apply", "claude")
    assert result.exit_code == 1
    assert result.stderr == "hoptell: the command `claude` is not installed, or not in PATH\n"


def test_a_hoptell_from_a_cache_is_not_registered(
    run: Any, computer: Computer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = "/c/uv/archive-v0/x/bin/hoptell"
    monkeypatch.setattr("hoptell.setup.machine.own_command", lambda: (cached,))
    result = run("--apply", "codex")
    assert result.exit_code == 1 and "uv tool install ." in result.stderr
    assert not (computer.home / ".codex").exists()


def test_as_a_process_it_reads_the_token_from_a_pipe_alone(
    computer: Computer, relay: RelayProcess
) -> None:
    computer.environ["PATH"] += os.pathsep + os.environ["PATH"]
    command = [sys.executable, "-m", "hoptell", "init", "--relay", relay.url, "--token-stdin"]
    done = subprocess.run(
        command, env=computer.environ, input=TOKEN, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert read_settings_file(settings_file(computer))["HOPTELL_TOKEN"] == TOKEN
