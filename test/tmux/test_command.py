"""`hoptell tmux` as a process, with a relay, in real tmux with hostile settings."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.relay import Client, RunningRelay, running_relay
from support.tmux import Agent, Terminal, eventually, private_tmux, wait_until

from hoptell.settings import PeerSettings
from hoptell.tmux.pane import Pane, Tmux
from hoptell.tmux.session import (
    Request,
    agent_command,
    agent_environment,
    find_tmux,
    is_running,
    session_name,
)
from hoptell.tmux.status import Status, read_status

TOKEN = "a-token-that-nobody-may-see"


class Site:
    """A relay, a private tmux, and what `hoptell tmux` needs to know of them."""

    def __init__(self, relay: RunningRelay, environ: dict[str, str], folder: Path) -> None:
        self.relay = relay
        self.folder = folder
        self.home = folder / "state"
        self.environ = environ | {
            "HOPTELL_RELAY": relay.url,
            "HOPTELL_TOKEN": TOKEN,
            "HOPTELL_HOME": str(self.home),
        }

    async def hoptell(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run `hoptell` without a terminal."""
        return await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "hoptell", *words],
            env=self.environ | environ, cwd=self.folder, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=20,
        )  # fmt: skip

    async def run(self, name: str, style: str = "claude", *options: str, **environ: str) -> Agent:
        """Start a fake agent under that name, and wait until it is online."""
        agent = Agent(self.folder, style)
        done = await self.hoptell("tmux", name, *options, "--", *agent.command, **environ)
        assert done.returncode == 0, done.stderr
        await asyncio.to_thread(agent.wait_ready)
        session = json.loads((self.home / "tmux" / name / "session.json").read_text())
        agent.pane = Pane(Tmux(), session["pane"], session["pid"])
        agent.session = session_name(name)
        await self.is_online(name)
        return agent

    def status(self, name: str) -> Status:
        status = read_status(self.home / "tmux" / name)
        assert status is not None
        return status

    async def peers(self) -> dict[str, dict[str, Any]]:
        watcher: Client = await self.relay.login("watcher", TOKEN, mode="send")
        answer = await watcher.ask(type="list", id=1)
        await watcher.close()
        return {peer["name"]: peer for peer in answer["peers"]}

    async def is_online(self, name: str, online: bool = True) -> None:
        async with asyncio.timeout(8):
            while (await self.peers()).get(name, {}).get("online", False) is not online:
                await asyncio.sleep(0.05)

    async def send(self, to: str, text: str, sender: str = "alice") -> dict[str, Any]:
        client = await self.relay.login(sender, TOKEN, mode="send")
        return await client.ask(type="send", id=1, to=to, text=text)


@pytest.fixture
async def site(tmux_environ: dict[str, str], tmp_path: Path) -> AsyncIterator[Site]:
    async with running_relay(token=TOKEN) as relay:
        yield Site(relay, tmux_environ, tmp_path)


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
async def test_an_agent_is_online_from_launch_to_end_and_gets_its_messages(
    site: Site, locale: str
) -> None:
    agent = await site.run("bob", "codex", "--roles", "backend,review", LC_ALL=locale)
    peer = (await site.peers())["bob"]
    assert peer["roles"] == ["backend", "review"] and peer["wake"] == "tmux"
    assert (await site.send("bob", "grüße\nzwei"))["state"] == "delivered"
    [prompt] = await agent.gets(1)
    assert "\n\ngrüße\nzwei\n" in prompt
    agent.tell("exit")
    await site.is_online("bob", False)
    await eventually(lambda: not is_running(Tmux(), "bob"), "the session to end")
    assert site.status("bob").ended_at is not None
    settings_file = site.home / "tmux" / "bob" / "settings.env"
    await eventually(lambda: not settings_file.exists(), "the token to go")
    assert (await site.send("bob", "later"))["state"] == "queued"
    assert not agent.harm


async def test_no_secret_is_in_any_command_line_or_in_tmuxs_environment(site: Site) -> None:
    agent = await site.run("bob", OTHER_VARIABLE="from the caller")
    server = Tmux().cmd("display-message", "-p", "#{pid}").stdout[0]
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert TOKEN.encode() not in line.read_bytes()
        except OSError:
            continue
    assert TOKEN.encode() not in Path(f"/proc/{server}/environ").read_bytes()
    for scope in (["-g"], ["-t", "=hoptell-bob:"]):
        assert TOKEN not in str(Tmux().cmd("show-environment", *scope).stdout)
    [ready] = agent.events("ready")
    assert TOKEN not in json.dumps(ready["environ"])
    assert ready["environ"]["OTHER_VARIABLE"] == "from the caller"
    settings_file = Path(ready["environ"]["HOPTELL_ENV"])
    assert TOKEN in settings_file.read_text()
    for path in [settings_file.parent, *settings_file.parent.iterdir()]:
        assert path.stat().st_mode & 0o077 == 0, path
    assert not list(settings_file.parent.glob("launch-*"))


async def test_a_tmux_server_that_runs_already_does_not_decide_the_settings(site: Site) -> None:
    subprocess.run(
        ["tmux", "new-session", "-d", "-s", "before", "sleep 60",
         ";", "set-option", "-g", "destroy-unattached", "off"],
        env=site.environ | {"HOPTELL_RELAY": "ws://127.0.0.1:1", "WHERE": "server"}, check=True,
    )  # fmt: skip
    agent = await site.run("bob", WHERE="caller")
    assert agent.events("ready")[0]["environ"]["WHERE"] == "caller"
    await site.send("bob", "hello")
    await agent.gets(1)


async def test_a_name_that_begins_like_another_is_another(site: Site) -> None:
    one, two = await asyncio.gather(site.run("alice"), site.run("alice-2"))
    one.tell("exit")
    await site.is_online("alice", False)
    await eventually(lambda: not is_running(Tmux(), "alice"), "alice's session to end")
    assert is_running(Tmux(), "alice-2")
    assert (await site.send("alice", "hello", "carol"))["state"] == "queued"
    assert (await site.send("alice-2", "hello", "carol"))["state"] == "delivered"
    assert "hello" in (await two.gets(1))[0]
    again = await site.run("alice")
    await again.gets(1)


async def test_a_name_in_use_is_refused_and_left_alone(site: Site) -> None:
    agent = await site.run("bob")
    done = await site.hoptell("tmux", "bob", "--", "sleep", "60")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "tmux attach -t =hoptell-bob" in done.stderr
    await site.send("bob", "still there?")
    await agent.gets(1)


@pytest.mark.parametrize("name", ["my.agent", "a:b", "=x", "", "-x y", "ü"])
async def test_a_name_that_is_none_is_refused(site: Site, name: str) -> None:
    done = await site.hoptell("tmux", "--", name, "sleep", "60")
    assert done.returncode == 2 and "name" in done.stderr and "Traceback" not in done.stderr


async def test_what_is_missing_is_said_in_one_sentence(site: Site, tmp_path: Path) -> None:
    missing = await site.hoptell("tmux", "bob", "--", "no-such-agent")
    assert missing.returncode == 1 and "no-such-agent" in missing.stderr
    commands = tmp_path / "commands"
    commands.mkdir()
    (commands / "sleep").symlink_to(shutil.which("sleep") or "")
    without = await site.hoptell("tmux", "bob", "--", "sleep", "60", PATH=str(commands))
    assert without.returncode == 1 and "install tmux 3.2 or newer" in without.stderr
    (commands / "tmux").write_text("#!/bin/sh\necho tmux 3.1c\n")
    (commands / "tmux").chmod(0o755)
    old = await site.hoptell("tmux", "bob", "--", "sleep", "60", PATH=str(commands))
    assert old.returncode == 1 and "3.2 or newer" in old.stderr
    token = await site.hoptell("tmux", "bob", "--", "sleep", "60", HOPTELL_TOKEN="")
    assert token.returncode == 1 and "there is no token" in token.stderr
    usage = await site.hoptell("tmux", "bob")
    assert usage.returncode == 2
    for done in (missing, without, old, token):
        assert done.stderr.count("\n") == 1 and done.stderr.startswith("hoptell: ")
    assert not is_running(Tmux(), "bob")


async def test_a_detach_leaves_the_agent_online(site: Site) -> None:
    agent = Agent(site.folder)
    command = [sys.executable, "-m", "hoptell", "tmux", "bob", "--", *agent.command]
    terminal = Terminal(site.environ, command)
    try:
        await asyncio.to_thread(agent.wait_ready)
        await site.is_online("bob")
        await eventually(lambda: Tmux().cmd("list-clients").stdout, "the client")
        terminal.press("\x01d")  # the prefix of these settings
        await eventually(lambda: "tmux attach -t =hoptell-bob" in terminal.output(), "the words")
        assert await asyncio.to_thread(terminal.exit_code) == 0
    finally:
        terminal.close()
    await site.is_online("bob")
    await site.send("bob", "hello")
    await agent.gets(1)


async def test_an_agent_that_fails_is_reported_with_its_last_words(site: Site) -> None:
    script = "echo; echo; echo no such model; exit 7"  # tmux adds a line of its own
    command = [sys.executable, "-m", "hoptell", "tmux", "bob", "--", "sh", "-c", script]
    terminal = Terminal(site.environ, command)
    try:
        assert await asyncio.to_thread(terminal.exit_code) == 1, terminal.output()
        assert "no such model" in terminal.output()
        assert "hoptell: sh ended with exit status 7" in terminal.output()
    finally:
        terminal.close()


async def test_within_tmux_the_client_is_switched(site: Site) -> None:
    agent = Agent(site.folder)
    subprocess.run(
        ["tmux", "new-session", "-d", "-s", "mine", "sh",
         ";", "set-option", "-g", "destroy-unattached", "off"],
        env=site.environ, check=True,
    )  # fmt: skip
    terminal = Terminal(site.environ, ["tmux", "attach-session", "-t", "=mine"])
    try:
        await eventually(lambda: Tmux().cmd("list-clients").stdout, "the client")
        words = [sys.executable, "-m", "hoptell", "tmux", "bob", "--", *agent.command]
        script = site.folder / "start"
        exports = "".join(
            f"export {name}='{value}'\n"
            for name, value in site.environ.items()
            if name.startswith("HOPTELL_")
        )
        script.write_text(exports + " ".join(words) + "\n")
        terminal.press(f". {script}\r")
        shown = "list-clients", "-F", "#{session_name}"
        await eventually(lambda: Tmux().cmd(*shown).stdout == ["hoptell-bob"], "the switch", 8)
        await site.is_online("bob")
    finally:
        terminal.close()


async def test_commands_in_the_pane_speak_for_the_same_peer_and_evict_nobody(site: Site) -> None:
    agent = await site.run("bob", "codex", "--notice")
    alice = await site.relay.login("alice", TOKEN)
    inside = agent.events("ready")[0]["environ"]
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "hoptell", "send", "alice", "from the pane"],
        env=inside, capture_output=True, text=True,
    )  # fmt: skip
    message = await alice.receive_type("message")
    assert (message["from"], message["text"]) == ("bob", "from the pane"), done.stderr
    await alice.got(message)
    await site.send("bob", "for the pane", "carol")
    [notice] = await agent.gets(1)
    assert notice.startswith("[hoptell: 1 message waits for you, from carol")
    assert "for the pane" not in notice
    command = notice.partition("run: ")[2]
    done = await asyncio.to_thread(
        subprocess.run, command, shell=True, env=inside, capture_output=True, text=True
    )
    assert "for the pane" in done.stdout, done.stderr
    assert (await site.peers())["bob"]["online"]


async def test_the_injectors_window_says_what_it_does_and_ends_with_sigterm(site: Site) -> None:
    agent = await site.run("bob")
    agent.tell("ask")
    await site.send("bob", "hello")
    window = "=hoptell-bob:hoptell"
    await eventually(
        lambda: (
            "asks something" in "\n".join(Tmux().cmd("capture-pane", "-p", "-t", window).stdout)
        ),
        "the reason in the window",
    )
    status = site.status("bob")
    assert (status.state, status.waiting) == ("the agent asks something", 1)
    os.kill(status.pid, 15)
    await site.is_online("bob", False)
    assert agent.pane.alive()
    await eventually(lambda: site.status("bob").state == "stopped", "the last word")
    assert (site.home / "tmux" / "bob" / "settings.env").exists()  # its sidecar may need it
    assert len(list((site.home / "inbox" / "bob").glob("*.json"))) == 1


async def test_no_relay_delays_neither_the_agent_nor_what_waits_in_the_inbox(
    site: Site,
) -> None:
    agent = await site.run("bob")
    agent.tell("busy")
    await site.send("bob", "hello")
    await site.relay.server.stop()
    await eventually(lambda: not site.status("bob").connected, "the loss to show")
    assert site.status("bob").problem
    agent.tell("idle")
    await agent.gets(1)


# What the agent is given ------------------------------------------------------------------


def request(tmp_path: Path, *command: str, **environ: str) -> Request:
    settings = PeerSettings("ws://127.0.0.1:1", TOKEN, home=tmp_path / "state")
    return Request("bob", command, settings, environ, str(tmp_path))


def test_codex_is_told_where_its_sidecar_finds_the_settings_if_it_has_one(tmp_path: Path) -> None:
    import tomllib

    file = tmp_path / 'a "quoted" folder' / "settings.env"
    asked = request(tmp_path, "/opt/bin/codex", "resume", "--last", HOME=str(tmp_path))
    assert agent_command(asked, file) == ["/opt/bin/codex", "resume", "--last"]
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "config.toml").write_text('[mcp_servers.hoptell]\ncommand = "hoptell"\n')
    program, option, override, *rest = agent_command(asked, file)
    assert (program, option, rest) == ("/opt/bin/codex", "-c", ["resume", "--last"])
    given = tomllib.loads(override)["mcp_servers"]["hoptell"]["env"]
    assert given["HOPTELL_ENV"] == str(file) and given["HOPTELL_PUSH"] == "tmux"
    assert TOKEN not in override


def test_an_agents_environment_has_none_of_the_callers_settings(tmp_path: Path) -> None:
    asked = request(tmp_path, "claude", HOPTELL_TOKEN=TOKEN, HOPTELL_ROLES="x", EDITOR="vi")
    environ = agent_environment(asked, tmp_path / "settings.env")
    assert environ["EDITOR"] == "vi"
    assert sorted(name for name in environ if name.startswith("HOPTELL_")) == [
        "HOPTELL_ENV",
        "HOPTELL_HOME",
        "HOPTELL_NAME",
        "HOPTELL_PUSH",
    ]
    assert TOKEN not in environ.values()


def test_tmux_is_found_in_the_callers_path() -> None:
    with private_tmux() as environ:
        assert Path(str(find_tmux(environ).tmux_bin)).name == "tmux"


def test_nothing_is_waited_for_that_is_there() -> None:
    assert wait_until(lambda: True, "nothing")
