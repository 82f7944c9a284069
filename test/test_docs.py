"""What is written about hoptell, held against what it is."""

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import typing
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from dataclasses import fields
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner

from hoptell import cli, frames, names
from hoptell.cli.init import AGENTS
from hoptell.relay.model import Limits
from hoptell.settings import WAKE_MODES, PeerSettings, Rate, RelaySettings

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
DOCS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    ROOT / "bench" / "README.md",
    ROOT / "test" / "clients" / "README.md",
]


def document(file: Path) -> str:
    return str(file.relative_to(ROOT))


QUICK_START = "## Two minutes: two shells"
FROM_ENVIRONMENT_ONLY = {"HOPTELL_ENV", "HOPTELL_DEBUG"}


def code_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next one of its level or a higher one."""
    level = heading.partition(" ")[0]
    found = re.search(
        rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{len(level)}}} |\Z)", text, re.MULTILINE | re.DOTALL
    )
    assert found is not None, f"there is no heading {heading!r}"
    return found[1]


def table(text: str) -> list[list[str]]:
    """The rows of all tables in `text`, without their heads."""
    rows = []
    for line in text.splitlines():
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line.strip("|"))
            rows.append([cell.strip() for cell in cells])
        elif rows and rows[-1] != []:
            rows.append([])
    bodies: list[list[str]] = []
    for before, row in zip([[], *rows], rows, strict=False):
        if row and not set("".join(row)) <= set("-: ") and before != []:
            bodies.append(row)
    return bodies


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Every command, with those of groups, under its full name."""

    def walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        yield name, command
        if isinstance(command, click.Group):
            context = click.Context(command)
            for sub in command.list_commands(context):
                found = command.get_command(context, sub)
                assert found is not None
                yield from walk(f"{name} {sub}", found)

    for name in cli.COMMANDS:
        found = cli.command_line.get_command(click.Context(cli.command_line), name)
        assert found is not None
        yield from walk(name, found)


COMMANDS = dict(all_commands())
SHOWN = {name: command for name, command in COMMANDS.items() if not command.hidden}


# README.md: the two commands at the top ------------------------------------------------------


def test_the_readme_begins_with_the_two_commands_that_do_everything() -> None:
    start, tests = code_blocks(README, "sh")[:2]
    assert start.strip().endswith("/hoptell relay")
    assert tests.strip().endswith("/pytest -q -n 4")
    for command in (start, tests):
        assert command.count("\n") == 1 and command.startswith("python3 -m venv .venv && ")
    assert README.index(tests) < README.index("\n## ")


def test_the_checks_run_the_readmes_command_for_the_tests() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert code_blocks(README, "sh")[1].strip() in script.splitlines()


def test_the_checks_run_the_four_commands_and_need_no_terminal() -> None:
    file = ROOT / ".ci" / "run"
    script = file.read_text(encoding="utf-8")
    assert os.access(file, os.X_OK)
    assert "set -euo pipefail" in script and "exec </dev/null" in script
    for command in ("ruff check", "ruff format --check", "mypy", "pytest -q"):
        assert f".venv/bin/{command}" in script
    subprocess.run(["bash", "-n", file], check=True, timeout=10)


def test_contributing_lists_the_four_commands_and_no_more() -> None:
    (block,) = code_blocks((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), "sh")
    assert block.split("\n") == [
        ".venv/bin/ruff format",
        ".venv/bin/ruff check",
        ".venv/bin/mypy",
        ".venv/bin/pytest",
        "",
    ]


# README.md: commands, options, variables, numbers --------------------------------------------


def readme_usages() -> dict[str, str]:
    """The table of commands: name of each command, and how it is used."""
    usages = {}
    for row in table(section(README, "## Commands")):
        used = row[0].replace("\\|", "|")
        match = re.match(r"`hoptell ([a-z]+)", used)
        assert match is not None, used
        usages[match[1]] = used
    return usages


def test_the_readme_lists_every_command() -> None:
    assert readme_usages().keys() == {name for name in SHOWN if " " not in name}


@pytest.mark.parametrize("command", [name for name in SHOWN if " " not in name])
def test_the_readme_lists_exactly_the_options_of_a_command(command: str) -> None:
    usage = readme_usages()[command]
    options = set()
    for name, found in COMMANDS.items():
        if name == command or name.startswith(f"{command} "):
            for parameter in found.params:
                if isinstance(parameter, click.Option) and not parameter.hidden:
                    options.update(o for o in parameter.opts if o.startswith("--"))
            assert name.rpartition(" ")[2] in usage
    assert set(re.findall(r"--[a-z-]+", usage.partition("-- COMMAND")[0])) == options


def known_variables() -> set[str]:
    return FROM_ENVIRONMENT_ONLY | {
        f"HOPTELL_{field.name.upper()}"
        for role in (RelaySettings, PeerSettings)
        for field in fields(role)
    }


def test_the_readme_explains_every_variable_and_no_other() -> None:
    rows = table(section(README, "## Settings"))
    assert {name for row in rows for name in re.findall(r"HOPTELL_\w+", row[0])} == (
        known_variables()
    )


@pytest.mark.parametrize("file", DOCS, ids=document)
def test_no_document_names_a_variable_that_does_not_exist(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    named = set(re.findall(r"\bHOPTELL_[A-Z_]+\b", text)) - {
        "_HOPTELL_COMPLETE",
        "HOPTELL_CLIENTS_LAB",
    }
    assert named <= known_variables()


def test_the_code_reads_no_variable_that_is_not_explained() -> None:
    for file in (ROOT / "hoptell").rglob("*.py"):
        named = set(re.findall(r"\bHOPTELL_[A-Z_]+[A-Z]\b", file.read_text(encoding="utf-8")))
        assert named <= known_variables(), file


@pytest.mark.parametrize("file", DOCS, ids=document)
def test_every_command_line_in_a_document_is_one(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    inline = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
    lines = [line for block in code_blocks(text, "sh") for line in block.splitlines()]
    for line in inline + lines:
        for words in re.findall(r"(?:^|[ /])hoptell ([a-z]\S*(?: [a-z]+)?)", line):
            name, _, sub = words.partition(" ")
            assert name in COMMANDS, line
            if isinstance(COMMANDS[name], click.Group) and sub:
                assert f"{name} {sub}" in COMMANDS, line


@pytest.mark.parametrize("file", DOCS, ids=document)
def test_every_link_within_the_project_leads_somewhere(file: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", file.read_text(encoding="utf-8")):
        assert re.match(r"https?://", target) or (file.parent / target).exists(), target


@pytest.mark.parametrize("file", DOCS, ids=document)
def test_every_json_in_a_document_can_be_read(file: Path) -> None:
    for block in code_blocks(file.read_text(encoding="utf-8"), "json"):
        json.loads(block)


def test_the_readme_names_only_wake_modes_that_there_are() -> None:
    rows = table(section(README, "### How an agent hears of a message"))
    assert {row[0].strip("`") for row in rows} <= set(WAKE_MODES)


def test_the_readme_has_every_agent_that_init_registers() -> None:
    rows = [row for row in table(section(README, "## Your agents")) if len(row) == 4]
    assert [row[1].strip("`") for row in rows if row[1]] == list(AGENTS)


def test_the_readme_shows_the_recording_before_anything_to_do() -> None:
    assert README.index("](docs/two-agents.svg)") < README.index("**Start it.**")
    assert "scripted" in README.partition("**Start it.**")[0]


def test_what_security_claims_is_shown_by_tests_that_are_there() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = table(section(text, "## What hoptell protects against"))
    assert len(rows) > 5
    for row in rows:
        assert re.search(r"\]\(test/", row[2]), row[0]


def test_the_readmes_numbers_are_the_codes() -> None:
    limits, rate = Limits(), Rate()
    text = section(README, "## What you can rely on")
    for number in (
        f"{frames.MAX_TEXT_LENGTH:,} characters",
        f"{limits.queued_per_peer} messages wait",
        f"{limits.queued:,} (or {limits.queued_bytes >> 20} MiB)",
        f"{rate.sends} messages in any {rate.seconds:g} seconds",
    ):
        assert number in text, number


def test_the_messages_that_the_readme_explains_are_what_hoptell_says() -> None:
    source = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "hoptell").rglob("*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # a sentence in several lines
    explained = table(section(README, "## When it does not work"))
    quoted = [words for row in explained for words in re.findall(r"`([^`]+)`", row[0])]
    assert len(quoted) > 5
    for words in quoted:
        for fragment in re.split(r" ?(?:…|\b7777\b) ?", words):
            assert fragment in source, words


def test_all_variables_in_a_test_environment_are_gone() -> None:
    """See conftest.py: the settings of whoever runs the tests are out of reach."""
    assert not [name for name in os.environ if name.startswith("HOPTELL_")]


# README.md: what a newcomer types ------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def shell(line: str, environ: dict[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command line in a shell of its own, ended at the end."""
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", f"exec {line}", env=environ, stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def test_the_quick_start_works_word_for_word(tmp_path: Path) -> None:
    wait, send = (block.strip() for block in code_blocks(section(README, QUICK_START), "sh"))
    environ = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "HOPTELL_PORT": str(free_port()),  # the only difference: 7777 may be in use here
    }
    async with asyncio.timeout(30), shell("hoptell relay", environ) as relay:
        assert relay.stderr is not None
        while b"listening" not in await relay.stderr.readline():
            pass
        async with shell(wait.replace("HOPTELL_NAME", "env HOPTELL_NAME"), environ) as waiting:
            while b"connected name=bob" not in await relay.stderr.readline():
                pass
            async with shell(send, environ) as sending:
                sent, problem = await sending.communicate()
            assert (sending.returncode, problem) == (0, b"")
            assert sent.startswith(b"delivered to bob (reference ")
            received, _ = await waiting.communicate()
            assert waiting.returncode == 0
            assert b"\nhello\n" in received and b"From: " in received
        relay.terminate()
        assert await relay.wait() == 0
    token_file = tmp_path / ".config" / "hoptell" / ".env"
    assert token_file.stat().st_mode & 0o777 == 0o600
    (token,) = re.findall(r"HOPTELL_TOKEN=(\S+)", token_file.read_text(encoding="utf-8"))
    assert token.encode() not in sent + received


# --help --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_help_of_every_command_works_and_shows_an_example(command: str) -> None:
    result = CliRunner().invoke(cli.command_line, [*command.split(), "--help"], prog_name="hoptell")
    assert result.exit_code == 0, result.output
    assert f"Usage: hoptell {command}" in result.output
    if not COMMANDS[command].hidden:
        assert re.search(rf"Examples?:\s[\s\S]*hoptell {command}\b", result.output)
        for line in result.output.splitlines():
            assert len(line) <= 80, line


@pytest.mark.parametrize("command", sorted(SHOWN))
def test_every_command_and_every_option_is_explained(command: str) -> None:
    assert SHOWN[command].help
    for parameter in SHOWN[command].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


def test_the_line_of_a_command_ends_like_a_sentence_and_fits() -> None:
    for name, (_, line) in cli.COMMANDS.items():
        assert bool(line) == (name in SHOWN)
        assert len(line) <= 60 and (not line or line.endswith("."))


def test_python_m_hoptell_help_is_the_same_as_the_commands() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "hoptell", "--help"], capture_output=True, text=True, timeout=30
    )
    assert result.stdout.startswith("Usage: hoptell [OPTIONS] COMMAND")


# docs/commands.md ----------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["", *sorted(SHOWN)])
def test_the_commands_page_is_what_help_prints(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    (block,) = code_blocks(section(page, f"## hoptell {command}".rstrip()), "")
    monkeypatch.setenv("COLUMNS", "80")
    cli.command_line.main([*command.split(), "--help"], "hoptell", standalone_mode=False)
    assert block == capsys.readouterr().out, "run python docs/commands.py"


def test_the_commands_page_has_every_command_in_the_order_of_the_help() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    found = re.findall(r"^## hoptell ?(.*)$", page, re.MULTILINE)
    assert found == ["", *SHOWN]


# Shell completion ----------------------------------------------------------------------------


def completions(*words: str) -> list[str]:
    """What bash offers for the last of these words, set up as the documents say."""
    (setup,) = code_blocks((ROOT / "docs" / "commands.md").read_text(encoding="utf-8"), "sh")
    script = (
        f'{setup}COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _hoptell_completion hoptell'
        " && printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    environ = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": "/nowhere"}
    done = subprocess.run(
        ["bash", "-c", script, "bash", "hoptell", *words],
        env=environ, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def bash_is_too_old() -> bool:
    """As on macOS, whose bash is of 2007; click wants 4.4."""
    try:
        version = subprocess.run(
            ["bash", "-c", 'echo "${BASH_VERSINFO[*]:0:2}"'],
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except OSError:
        return True
    return tuple(map(int, version.stdout.split())) < (4, 4)


@pytest.mark.skipif(bash_is_too_old(), reason="click's completion wants bash 4.4")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["se"], {"send"}),
        (["ho"], {"hooks"}),  # not `hook`, which programs call
        (["members", "re"], {"remove"}),
        (["send", "--re"], {"--reply-to"}),
        (["init", "--apply", "c"], {"claude", "codex", "cursor"}),
        ([""], set(name for name in SHOWN if " " not in name)),
    ],
)
def test_bash_completes_commands_and_options(words: list[str], expected: set[str]) -> None:
    assert set(completions(*words)) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_hoptell_prints_a_completion_script_for_each_shell(shell: str) -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "hoptell"],
        env={"PATH": os.environ["PATH"], "_HOPTELL_COMPLETE": f"{shell}_source"},
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert f"_HOPTELL_COMPLETE={shell}_complete" in done.stdout


# docs/protocol.md ----------------------------------------------------------------------------

CLIENT_FRAMES = typing.get_args(frames.ClientFrame)
RELAY_FRAMES = typing.get_args(frames.RelayFrame)
FRAMES = {frame.__struct_config__.tag: frame for frame in (*CLIENT_FRAMES, *RELAY_FRAMES)}


def documented_fields(text: str) -> dict[str, bool]:
    """The first table of a section: the name of each field, and whether it is optional."""
    first = text.partition("\nEach of")[0]
    return {row[0].strip("`"): "optional" in row[1] for row in table(first)}


def wire_fields(struct: type[msgspec.Struct]) -> dict[str, bool]:
    return {field.encode_name: not field.required for field in msgspec.structs.fields(struct)}


def test_the_protocol_document_has_every_frame_and_no_other() -> None:
    for heading, expected in (
        ("## From client to relay", CLIENT_FRAMES),
        ("## From relay to client", RELAY_FRAMES),
    ):
        documented = re.findall(r"^### `(\w+)`$", section(PROTOCOL, heading), re.MULTILINE)
        assert documented == [frame.__struct_config__.tag for frame in expected]


@pytest.mark.parametrize("type", FRAMES)
def test_the_protocol_document_has_every_field_of_a_frame_and_no_other(type: str) -> None:
    documented = documented_fields(section(PROTOCOL, f"### `{type}`"))
    assert documented == wire_fields(FRAMES[type])


def test_the_protocol_document_has_every_field_of_a_peer() -> None:
    text = section(PROTOCOL, "### `peers`").partition("\nEach of")[2]
    documented = {row[0].strip("`"): "optional" in row[1] for row in table(text)}
    assert documented == wire_fields(frames.PeerInfo)


@pytest.mark.parametrize("type", FRAMES)
def test_the_examples_of_a_frame_are_such_frames(type: str) -> None:
    examples = code_blocks(section(PROTOCOL, f"### `{type}`"), "json")
    assert examples
    for example in examples:
        decode = (
            frames.decode_client_frame
            if FRAMES[type] in CLIENT_FRAMES
            else frames.decode_relay_frame
        )
        frame = decode(example)
        assert isinstance(frame, FRAMES[type])
        unknown = json.loads(example).keys() - wire_fields(FRAMES[type]).keys()
        assert unknown == {"type"}


def test_the_protocol_document_has_every_state_of_an_acknowledgement() -> None:
    text = section(PROTOCOL, "### `ack`")
    for state in typing.get_args(frames.AckState):
        assert f"`{state}`" in text


def test_the_protocol_document_has_every_close_code() -> None:
    ours = {
        value: value in frames.CLOSES_FOR_GOOD
        for name, value in vars(frames).items()
        if name.startswith("CLOSE_")
    }
    documented = {
        int(row[0]): row[2] == "no"
        for row in table(section(PROTOCOL, "## Close codes"))
        if int(row[0]) >= 4000
    }
    assert documented == ours


def test_the_protocol_document_has_every_limit() -> None:
    limits, rate = Limits(), Rate()
    documented = dict(table(section(PROTOCOL, "## Limits")))
    assert documented == {
        "first frame within": f"{limits.hello_wait:g} s",
        "frame before login": f"{frames.MAX_HELLO_BYTES >> 10} KiB",
        "frame after login": f"{frames.MAX_FRAME_BYTES >> 20} MiB",
        "text": f"{frames.MAX_TEXT_LENGTH:,} characters",
        "key": f"{frames.MAX_KEY_LENGTH} characters",
        "keys that the relay remembers at once": (
            f"{limits.keys:,}; past that the oldest goes early"
        ),
        "ttl": f"{frames.MAX_TTL:,} s",
        "roles of a peer": f"{names.MAX_ROLES}",
        "sends by one peer name, over all its connections": (
            f"{rate.sends} in any {rate.seconds:g} s, unless the operator set another rate;"
            " refused ones count, `list` does not"
        ),
        "names that the relay knows at once": f"{limits.known_names:,}",
    }


def test_the_protocol_documents_rules_have_the_codes_numbers() -> None:
    limits = Limits()
    delivery = section(PROTOCOL, "## Delivery")
    assert f"At most {limits.in_flight} deliveries are in flight" in delivery
    assert f"at most {limits.queued_per_peer} for one peer" in delivery
    assert f"{limits.queued:,} messages or {limits.queued_bytes >> 20} MiB" in delivery
    assert f"`{names.NAME_PATTERN}`" in PROTOCOL
    assert f"not confirmed within {limits.ack_wait:g} s" in section(PROTOCOL, "### `ack`")
    send = section(PROTOCOL, "### `send`")
    assert f"within {limits.key_lifetime / 60:g} minutes" in send
    assert f"at most {limits.repeats} at once" in send
    peers = section(PROTOCOL, "### `peers`")
    assert f"empty for {limits.forget_after / 3600:g} hours" in peers
    assert f"transient, for {limits.forget_transient_after / 60:g} minutes" in peers


def test_the_documents_name_every_limit_of_the_relay() -> None:
    """A limit that is added to the code has to be written down, here and there."""
    assert {field.name for field in fields(Limits)} == {
        "in_flight",
        "queued_per_peer",
        "queued",
        "queued_bytes",
        "ack_wait",
        "hello_wait",
        "key_lifetime",
        "keys",
        "repeats",
        "known_names",
        "forget_after",
        "forget_transient_after",
    }
