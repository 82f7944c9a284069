"""`hoptell tmux` as a process, with a relay, in real tmux with hostile settings."""

import asyncio
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.relay import Client, RunningRelay, running_relay
from support.tmux import (
    HOSTILE_SETTINGS,
    Agent,
    Terminal,
    eventually,
    private_tmux,
    texts_in,
    wait_until,
)

from hoptell.settings import PeerSettings
from hoptell.tmux.pane import Pane, Tmux
from hoptell.tmux.session import (
    CODEX_TITLE,
    Request,
    agent_command,
    agent_environment,
    find_tmux,
    session_name,
)
from hoptell.tmux.status import Status, read_status, runs

TOKEN = "a-token-that-nobody-may-see"


def is_running(tmux: Tmux, name: str) -> bool:
    return tmux.has_session(session_name(name), exact=True)


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

    async def run(
        self,
        name: str,
        style: str = "claude",
        *options: str,
        agent: Agent | None = None,
        **environ: str,
    ) -> Agent:
        """Start a fake agent under that name, and wait until it is online."""
        agent = agent or Agent(self.folder, style)
        done = await self.hoptell("tmux", name, *options, "--", *agent.command, **environ)
        assert done.returncode == 0, done.stderr
        await asyncio.to_thread(agent.wait_ready)
        session = json.loads((self.home / "tmux" / name / "session.json").read_text())
        agent.pane = Pane(Tmux(), session["pane"], session["pid"])
        agent.session = session_name(name)
        await self.is_online(name)
        return agent

    async def kill_injector(self, name: str) -> None:
        """End it as nobody can prepare for."""
        status = self.status(name)
        os.kill(status.pid, signal.SIGKILL)
        await eventually(lambda: not runs(status.injector), "its end")

    async def reaches(self, name: str, state: str) -> None:
        """Wait until the injector says so of itself."""
        await eventually(lambda: self.status(name).state == state, state, 15)

    def windows(self, name: str) -> list[str]:
        windows = "list-windows", "-t", f"={session_name(name)}:", "-F", "#{window_name}"
        return Tmux().cmd(*windows).stdout

    def messages(self, name: str) -> list[Path]:
        """All that its inbox holds, claimed or not."""
        return list((self.home / "inbox" / name).rglob("*.json*"))

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
    assert done.stderr.count("\n") == 1 and "see it with `hoptell tmux bob`" in done.stderr
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
    nobody = await site.hoptell("tmux", "bob")
    assert nobody.returncode == 1 and "`hoptell tmux bob -- COMMAND`" in nobody.stderr
    usage = await site.hoptell("tmux", "bob", "--notice")
    assert usage.returncode == 2
    for done in (missing, without, old, token, nobody):
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
        await eventually(lambda: "see it with `hoptell tmux bob`" in terminal.output(), "the words")
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


async def test_an_agent_that_ends_at_once_is_reported_without_a_terminal_too(site: Site) -> None:
    script = "echo; echo no such model; exit 7"  # tmux adds a line of its own
    done = await site.hoptell("tmux", "bob", "--", "sh", "-c", script)
    assert done.returncode == 1 and "hoptell: sh ended with exit status 7" in done.stderr
    assert done.stderr.startswith("no such model\n") and not done.stdout
    done = await site.hoptell("tmux", "bob", "--", "true")
    assert (done.returncode, done.stdout, done.stderr) == (0, "bob has ended\n", "")
    done = await site.hoptell("tmux", "bob", "--", "sleep", "60")
    assert done.returncode == 0 and "bob runs in tmux" in done.stdout


async def test_a_closed_standard_input_is_no_terminal(site: Site) -> None:
    agent = Agent(site.folder)
    words = shlex.join([sys.executable, "-m", "hoptell", "tmux", "bob", "--", *agent.command])
    done = await asyncio.to_thread(
        subprocess.run, ["sh", "-c", f"{words} <&-"], env=site.environ, capture_output=True,
        text=True, timeout=20,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    await site.is_online("bob")


async def test_an_agent_with_another_name_is_served_as_the_kind_that_it_is(site: Site) -> None:
    agent = Agent(site.folder, program="my-own")
    await site.run("bob", "claude", "--kind", "claude", agent=agent)
    await site.send("bob", "hello")
    await agent.gets(1)
    refused = await site.hoptell("tmux", "bob", "--kind", "claude")
    assert refused.returncode == 2


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


async def test_a_member_who_is_removed_and_restored_is_online_again(
    tmux_environ: dict[str, str], tmp_path: Path
) -> None:
    tokens = {"bob": "a-token-that-comes-and-goes", "watcher": TOKEN}
    members = tmp_path / "members.json"

    def write(*kept: str) -> None:
        members.write_text(json.dumps({name: tokens[name] for name in kept}))
        members.chmod(0o600)

    write("bob", "watcher")
    async with running_relay(token="", members=members) as relay:
        relay.token = TOKEN
        site = Site(relay, tmux_environ, tmp_path)
        site.environ["HOPTELL_TOKEN"] = tokens["bob"]
        await site.run("bob")
        write("watcher")
        relay.server.reload()
        await eventually(lambda: not site.status("bob").connected, "the refusal to show")
        write("bob", "watcher")
        relay.server.reload()
        await site.is_online("bob")
        await eventually(lambda: site.status("bob").connected, "it to say so")


# A session that is found again ------------------------------------------------------------


async def test_an_agent_that_has_lost_its_injector_gets_a_new_one(site: Site) -> None:
    agent = await site.run("bob", "claude", "--roles", "backend", "--notice")
    await site.kill_injector("bob")
    await site.is_online("bob", False)
    assert (await site.send("bob", "meanwhile"))["state"] == "queued"
    refused = await site.hoptell("tmux", "bob", "--", "sleep", "60")
    assert refused.returncode == 1 and "`hoptell tmux bob`" in refused.stderr
    done = await site.hoptell("tmux", "bob")
    assert done.returncode == 0 and "now a new injector does" in done.stdout
    await site.is_online("bob")
    assert (await site.peers())["bob"]["roles"] == ["backend"]
    [prompt] = await agent.gets(1)
    assert prompt.startswith("[hoptell: 1 message waits")
    agent.tell("exit")
    await eventually(lambda: not is_running(Tmux(), "bob"), "the session to end")
    assert not agent.harm


async def test_an_agent_that_has_an_injector_keeps_it(site: Site) -> None:
    await site.run("bob")
    before = site.status("bob")
    done = await asyncio.gather(*(site.hoptell("tmux", "bob") for _ in range(3)))
    assert all(one.returncode == 0 and "injector" not in one.stdout for one in done)
    assert all("see it with `hoptell tmux bob`" in one.stdout for one in done)
    assert len(site.windows("bob")) == 2 and site.status("bob").pid == before.pid
    await site.kill_injector("bob")
    await asyncio.gather(*(site.hoptell("tmux", "bob") for _ in range(3)))
    await site.is_online("bob")
    await eventually(lambda: len(site.windows("bob")) == 2, "one injector", 20)


@pytest.mark.parametrize("style", ["claude", "codex"])
async def test_a_kill_between_paste_and_enter_neither_loses_nor_doubles(
    site: Site, style: str
) -> None:
    agent = await site.run("bob", style)
    agent.tell("ask-after-paste 0")
    await site.send("bob", "hello")
    await site.reaches("bob", "typed, not submitted: the agent asks something")
    await site.kill_injector("bob")
    agent.tell("close")
    assert agent.pane.mark().done == "pasted" and len(site.messages("bob")) == 1
    assert (await site.hoptell("tmux", "bob")).returncode == 0
    [prompt] = await agent.gets(1, timeout=15)
    await eventually(lambda: not site.messages("bob"), "the message to be settled")
    assert texts_in(prompt) == ["hello"] and agent.submitted == [prompt]
    assert not agent.harm


async def test_a_kill_between_enter_and_its_proof_neither_loses_nor_doubles(site: Site) -> None:
    agent = await site.run("bob")
    agent.tell("ask-after-enter")
    await site.send("bob", "hello")
    await site.reaches("bob", "submitted, not seen yet: the agent asks something")
    await site.kill_injector("bob")
    agent.tell("close")
    assert agent.pane.mark().done == "entered" and len(site.messages("bob")) == 1
    await site.send("bob", "and more")
    assert (await site.hoptell("tmux", "bob")).returncode == 0
    prompts = await agent.gets(2, timeout=15)
    await eventually(lambda: not site.messages("bob"), "the messages to be settled")
    assert [text for one in prompts for text in texts_in(one)] == ["hello", "and more"]
    assert not agent.harm


async def test_what_took_the_agents_place_while_nobody_watched_gets_nothing(site: Site) -> None:
    shell = f"cd {site.folder}; AGENT; AGENT; exec bash --norc -i"
    agent = await site.run("bob", agent=Agent(site.folder, shell=shell))
    await eventually(lambda: site.status("bob").agent, "the agent to be recognized", 8)
    await site.kill_injector("bob")
    agent.tell("exit")
    await eventually(lambda: len(agent.events("ready")) == 2, "another agent in the pane")
    await site.send("bob", "touch pwned")
    done = await site.hoptell("tmux", "bob")
    assert done.returncode == 0 and "injector" not in done.stdout
    assert len(site.windows("bob")) == 1 and not (await site.peers())["bob"]["online"]
    assert not agent.submitted


async def test_another_tmux_server_neither_shows_the_agent_nor_starts_a_second_one(
    site: Site,
) -> None:
    agent = await site.run("bob")
    with private_tmux() as other:
        subprocess.run(["tmux", "new-session", "-d", "sleep 60"], env=other, check=True)
        there = {"TMUX_TMPDIR": other["TMUX_TMPDIR"]}
        shown = await site.hoptell("tmux", "bob", **there)
        assert shown.returncode == 1 and "is in no pane of this tmux server" in shown.stderr
        second = await site.hoptell("tmux", "bob", "--", "sleep", "60", **there)
        assert second.returncode == 1 and "bob runs already" in second.stderr
    await site.send("bob", "hello")
    await agent.gets(1)


@pytest.mark.parametrize(
    ("command", "state"),
    [
        (["kill-session", "-t", "=hoptell-bob"], "the agent has ended"),
        (["kill-server"], "the agent has ended"),
        (["kill-window", "-t", "=hoptell-bob:hoptell"], "stopped"),
    ],
    ids=["session", "server", "window"],
)
async def test_an_injector_whose_window_is_killed_leaves_its_last_word_and_no_secret(
    site: Site, command: list[str], state: str
) -> None:
    agent = await site.run("bob")
    subprocess.run(["tmux", *command], env=site.environ, check=True)
    await eventually(lambda: not runs(site.status("bob").injector), "its end")
    status = site.status("bob")
    assert (status.state, status.connected) == (state, False) and status.ended_at
    agent_runs_on = state == "stopped"  # and its sidecar may need the settings
    assert agent.pane.alive() is agent_runs_on
    folder = site.home / "tmux" / "bob"
    assert (folder / "settings.env").exists() is agent_runs_on
    assert not list(folder.glob("launch-*"))


async def test_of_two_that_are_started_at_once_one_runs_and_is_left_alone(site: Site) -> None:
    agents = [Agent(site.folder), Agent(site.folder)]
    done = await asyncio.gather(
        *(site.hoptell("tmux", "bob", "--", *agent.command) for agent in agents)
    )
    assert sorted(one.returncode for one in done) == [0, 1]
    assert all("bob runs already" in one.stderr for one in done if one.returncode)
    await site.is_online("bob")
    [agent] = [agent for agent, one in zip(agents, done, strict=True) if not one.returncode]
    await asyncio.to_thread(agent.wait_ready)
    await site.send("bob", "hello")
    await agent.gets(1)
    assert sum(len(agent.events("ready")) for agent in agents) == 1


async def test_what_a_killed_injector_and_its_agent_leave_behind_is_in_nobodys_way(
    site: Site,
) -> None:
    agent = await site.run("bob")
    await site.kill_injector("bob")
    os.kill(agent.pane.pid, signal.SIGKILL)
    await eventually(lambda: not agent.pane.alive(), "the agent's end")
    gone = await site.hoptell("tmux", "bob")
    assert gone.returncode == 1 and "no agent runs as bob here" in gone.stderr
    again = await site.run("bob")
    await site.send("bob", "hello")
    await again.gets(1)


async def test_a_session_of_somebody_else_is_left_alone(site: Site) -> None:
    subprocess.run(
        ["tmux", "new-session", "-d", "-s", "hoptell-bob", "sleep 60",
         ";", "set-option", "-g", "destroy-unattached", "off"],
        env=site.environ, check=True,
    )  # fmt: skip
    for words in (["--", "sleep", "60"], []):
        done = await site.hoptell("tmux", "bob", *words)
        assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert len(site.windows("bob")) == 1
    assert not (site.home / "tmux" / "bob" / "settings.env").exists()


async def test_a_pane_that_its_user_respawned_is_not_closed(site: Site) -> None:
    agent = await site.run("bob")
    Tmux().cmd("respawn-pane", "-k", "-t", agent.pane.id, "sleep", "60")
    await eventually(lambda: site.status("bob").ended_at, "the injector's end")
    await eventually(lambda: len(site.windows("bob")) == 1, "its window to close")
    assert agent.pane.mark().done == ""


async def test_a_tmux_server_that_is_killed_takes_all_along_and_is_in_nobodys_way(
    site: Site,
) -> None:
    agent = await site.run("bob")
    agent.tell("busy")
    await site.send("bob", "hello")
    subprocess.run(["tmux", "kill-server"], env=site.environ, check=True)
    await site.is_online("bob", False)
    await eventually(lambda: not agent.pane.alive(), "the agent's end")
    again = await site.run("bob")
    assert "hello" in (await again.gets(1))[0]


# The user's hooks -------------------------------------------------------------------------

HOOKS = [
    "set -g destroy-unattached off\nset-hook -g after-new-session 'rename-session \"my #{pid}\"'",
    "set-hook -g after-new-session 'split-window -h ; rename-window mine ; select-pane -t +1'",
    "set-hook -g after-new-session 'display-message -p $0 ; kill-pane -t %99'",
    "set-hook -g session-created 'new-window -n mine'\n"
    "set-hook -g after-new-window 'split-window ; rename-window x ; display-message -p %9'",
]


@pytest.mark.parametrize("hooks", HOOKS, ids=["rename", "split", "print", "windows"])
async def test_hooks_on_new_sessions_and_windows_are_no_hindrance(
    tmp_path: Path, hooks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with private_tmux(f"{HOSTILE_SETTINGS}\n{hooks}\n") as environ:
        monkeypatch.setenv("TMUX_TMPDIR", environ["TMUX_TMPDIR"])
        monkeypatch.delenv("TMUX", raising=False)
        async with running_relay(token=TOKEN) as relay:
            site = Site(relay, environ, tmp_path)
            agent = await site.run("bob")
            await site.send("bob", "hello")
            assert texts_in((await agent.gets(1))[0]) == ["hello"]
            await site.kill_injector("bob")
            again = await site.hoptell("tmux", "bob")
            assert again.returncode == 0, again.stderr
            await site.send("bob", "again")
            assert texts_in((await agent.gets(2, timeout=15))[1]) == ["again"]
            agent.tell("exit")
            await site.is_online("bob", False)
            assert not agent.harm


async def test_a_session_that_tmux_ends_at_once_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = "set-hook -g after-new-session 'rename-session mine'"  # and destroy-unattached
    with private_tmux(f"{HOSTILE_SETTINGS}\n{hook}\n") as environ:
        monkeypatch.setenv("TMUX_TMPDIR", environ["TMUX_TMPDIR"])
        async with running_relay(token=TOKEN) as relay:
            site = Site(relay, environ, tmp_path)
            done = await site.hoptell("tmux", "bob", "--", "sleep", "60")
            assert done.returncode == 1 and done.stderr.count("\n") == 1
            assert "hooks" in done.stderr and "destroy-unattached" in done.stderr
            assert Tmux().cmd("list-sessions").stdout == []
            assert [file.name for file in (site.home / "tmux" / "bob").iterdir()] == ["lock"]


# What the agent is given ------------------------------------------------------------------


def request(tmp_path: Path, *command: str, **environ: str) -> Request:
    settings = PeerSettings("ws://127.0.0.1:1", TOKEN, home=tmp_path / "state")
    return Request("bob", command, settings, environ, str(tmp_path))


def test_codex_is_told_where_its_sidecar_finds_the_settings_if_it_has_one(tmp_path: Path) -> None:
    import tomllib

    file = tmp_path / 'a "quoted" folder' / "settings.env"
    asked = request(tmp_path, "/opt/bin/codex", "resume", "--last", HOME=str(tmp_path))
    title = ["-c", CODEX_TITLE]
    assert agent_command(asked, file) == ["/opt/bin/codex", *title, "resume", "--last"]
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "config.toml").write_text('[mcp_servers.hoptell]\ncommand = "hoptell"\n')
    program, _, _, option, override, *rest = agent_command(asked, file)
    assert (program, option, rest) == ("/opt/bin/codex", "-c", ["resume", "--last"])
    assert "run-state" in tomllib.loads(CODEX_TITLE)["tui"]["terminal_title"]
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
