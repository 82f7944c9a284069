"""`hoptell init`: the settings file, and hoptell in the agents' configurations.

The token comes from standard input (or is made here), goes into the settings file, and is
never put on a command line or written into another program's file. Only `--show-token` shows it.
"""

import asyncio
import dataclasses
import os
import shlex
import sys
from urllib.parse import urlsplit

import click

from hoptell import frames
from hoptell.errors import HoptellError, LoginRefused
from hoptell.names import member_in, name_problem
from hoptell.settings import PeerSettings, Values, is_loopback, load_peer_settings
from hoptell.setup import settings_file
from hoptell.setup.agents.agent import Agent
from hoptell.setup.agents.table import AGENTS
from hoptell.setup.machine import Machine, is_passing

LOGIN_TIMEOUT = 10.0
ANSWER_TIMEOUT = 2.0
MAX_TOKEN_BYTES = 4096

EPILOG = """\b
Examples:
  hoptell init
      make the settings file, and say what to run next
  hoptell init --relay wss://relay.example --token-stdin < token
      join a relay elsewhere
  hoptell init --apply claude
      register hoptell with Claude Code, after showing how
  hoptell init --show-token | ssh HOST hoptell init --relay URL --token-stdin
      give another machine this one's token

It may be run again at any time: what is done already stays as it is."""


def _name(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and (problem := name_problem(value)):
        raise click.BadParameter(problem)
    return value


def _relay(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    # As from an unset variable of a script; without it, init would make a relay's token here.
    if value is not None and not value.strip():
        raise click.BadParameter("this is empty: give the relay's address")
    return value


@click.command("init", epilog=EPILOG)
@click.option(
    "--relay",
    metavar="URL",
    callback=_relay,
    help="Join the relay at ws://host:7777 or wss://host.",
)
@click.option("--token-stdin", is_flag=True, help="Read its token, or yours, from standard input.")
@click.option(
    "--apply",
    "agent",
    type=click.Choice(list(AGENTS)),
    help="Register hoptell with this agent.",
)
@click.option(
    "--name",
    metavar="NAME",
    callback=_name,
    help="With --apply, the agent's peer name; with --relay, this machine's.",
)
@click.option("--force", is_flag=True, help="Replace another relay or token in the settings.")
@click.option(
    "--show-token", is_flag=True, help="Only print this machine's token, to give it to another."
)
def init_command(
    relay: str | None,
    token_stdin: bool,
    agent: str | None,
    name: str | None,
    force: bool,
    show_token: bool,
) -> None:
    """Make the settings file, and say what to run next.

    Without options it makes a fresh token for a relay on this machine. With --relay it joins
    one that exists: it logs in before it writes anything. Either way the file is
    ~/.config/hoptell/.env (or $HOPTELL_ENV), for you alone to read, and its other lines stay.
    """
    if show_token:
        if relay or token_stdin or agent or name or force:
            raise click.UsageError("--show-token goes alone")
        _show_token()
        return
    if token_stdin and relay is None:
        raise click.UsageError("--token-stdin goes with --relay URL")
    if name is not None and relay is None and agent is None:
        raise click.UsageError("--name goes with --apply or --relay")
    joined = relay is not None
    if relay is not None:
        _join(relay, _token() if token_stdin else None, None if agent else name, force)
    else:
        _make()
    if agent is not None:
        _apply(agent, name)
    else:
        _say_what_next(joined)


# The settings file ----------------------------------------------------------------------------


def _make() -> None:
    outcome = settings_file.make(os.environ)
    _say_outcome(outcome)
    if os.environ.get("HOPTELL_TOKEN", "").strip() and outcome.done == "kept":
        _say("Mind that HOPTELL_TOKEN in your environment wins over it.")


def _join(relay: str, token: str | None, name: str | None, force: bool) -> None:
    environ = {**os.environ, "HOPTELL_RELAY": relay}
    if token is not None:
        environ["HOPTELL_TOKEN"] = token
    if name is not None:
        environ["HOPTELL_NAME"] = name
    settings_file.prepare(os.environ)
    settings = load_peer_settings(environ)
    if settings.token is None:
        raise HoptellError(
            "joining a relay takes its token", "add --token-stdin, and give it on standard input"
        )
    settings_file.check(os.environ, settings.relay, settings.token, force=force)
    name = _checked(settings, name)
    outcome = settings_file.join(os.environ, settings.relay, settings.token, name, force=force)
    _say(f"The relay at {_shown(settings.relay)} lets this machine in.")
    _say_outcome(outcome)
    if name is not None:
        _say(f"Sessions without a name of their own are {name}, one at a time.")


def _checked(settings: PeerSettings, name: str | None) -> str | None:
    """Log in, and return the name that the settings need: a member's token allows only some.

    Raises:
        HoptellError: the relay cannot be reached, or does not let us in.
    """
    problem = _login_problem(settings)
    if isinstance(problem, LoginRefused) and settings.name is None:
        if (member := member_in(problem.said)) is not None:
            name = member
            problem = _login_problem(dataclasses.replace(settings, name=name))
    if problem is not None:
        raise HoptellError(f"not joined, and nothing was changed: {problem}")
    return name


def _login_problem(settings: PeerSettings) -> HoptellError | None:
    try:
        asyncio.run(_log_in(settings))
    except HoptellError as error:
        return error
    return None


async def _log_in(settings: PeerSettings) -> None:
    from hoptell.client import RelayClient, check_name
    from hoptell.settings import default_name

    name = check_name(settings.name or default_name())
    async with RelayClient(settings, name=name, mode="send", roles=[]) as client:
        await client.wait_connected(LOGIN_TIMEOUT)


def _token() -> str:
    if sys.stdin is None:
        raise HoptellError("standard input is closed", "give the token there")
    if sys.stdin.isatty():
        token = click.prompt("Token", hide_input=True, err=True, default="", show_default=False)
    else:
        token = sys.stdin.buffer.read(MAX_TOKEN_BYTES).decode(errors="replace")
    token = str(token).strip()
    if problem := settings_file.token_problem(token):
        raise HoptellError(problem)
    return token


def _show_token() -> None:
    token = load_peer_settings().token
    if token is None:
        raise HoptellError("there is no token", "`hoptell init` makes one")
    if token.startswith("sha256:"):
        raise HoptellError(
            "HOPTELL_TOKEN is a token's hash, which only the relay can use",
            "take the token from where it was made",
        )
    _say(token)


# Agents ---------------------------------------------------------------------------------------


def _apply(key: str, name: str | None) -> None:
    machine, agent = Machine.here(), AGENTS[key]
    if is_passing(machine.command):
        raise HoptellError(
            "this hoptell runs from a cache, which the agent could not rely on",
            "install it first, for example with `uv tool install .` in its source tree",
        )
    steps = agent.steps(machine, name)
    if not steps:
        _say(f"{agent.title} has hoptell already: there is nothing to do.")
        _say_start(agent, machine)
        return
    _say(f"To register hoptell with {agent.title}:")
    for step in steps:
        _say("  " + step.shown())
    for step in steps:
        if note := step.run():
            _say(note)
    if not agent.registrations(machine):
        raise HoptellError(f"{agent.title} does not show hoptell", "see `hoptell doctor`")
    _say(f"Done: {agent.title} has hoptell.")
    if (problem := agent.problem(machine)) is not None:
        _say(f"But {problem}.")
    _say_start(agent, machine)


def _say_start(agent: Agent, machine: Machine) -> None:
    _say(f"Start it anew, in a project: {agent.start(machine)}")


# What next ------------------------------------------------------------------------------------


def _say_what_next(joined: bool) -> None:
    machine = Machine.here()
    settings = load_peer_settings()
    hoptell = shlex.join(machine.command)
    if not joined and _is_ours(settings):
        _say_whether_it_runs(settings, hoptell)
    here = [agent for agent in AGENTS.values() if agent.is_here(machine)]
    for agent in here:
        _say_agent(agent, machine, hoptell)
    if not here:
        _say("\nNo agent was found here. Any that speaks MCP can start this over stdio:")
        _say(f"  {hoptell} mcp")
    if machine.find("tmux"):
        _say("\nAn agent in a terminal, so that messages are typed into its prompt:")
        _say(f"  {hoptell} tmux NAME -- COMMAND")
    if not (joined and _is_here(settings)):  # then it may be a tunnel's end, of use only here
        _say_how_to_join(settings, hoptell)
    _say(f"\nIf something does not work:\n  {hoptell} doctor")


def _say_whether_it_runs(settings: PeerSettings, hoptell: str) -> None:
    if not _answers(settings.relay):
        _say(f"\nStart the relay, and leave it running:\n  {hoptell} relay")
        return
    address = _shown(settings.relay)
    problem = _login_problem(settings)
    if problem is None:
        _say(f"\nThe relay at {address} is running.")
    elif _is_stranger(problem) and Values.load().get("HOPTELL_RELAY") is None:
        port = (urlsplit(settings.relay).port or 0) % 65535 + 1
        _say(f"\nThe relay at {address} does not know this token: it is another user's, or runs")
        _say("with other settings. Stop it; or, to have one of your own beside it, add")
        _say(f"  HOPTELL_PORT={port}")
        _say(f"to {settings_file.place(os.environ)}. Then start yours, and leave it running:")
        _say(f"  {hoptell} relay")
    else:
        _say(f"\nSomething answers at {address}, but it is of no use here: {problem}")


def _is_stranger(problem: HoptellError) -> bool:
    return isinstance(problem, LoginRefused) and problem.code == frames.CLOSE_BAD_TOKEN


def _say_agent(agent: Agent, machine: Machine, hoptell: str) -> None:
    try:
        steps = agent.steps(machine, None)
    except HoptellError as error:
        _say(f"\n{agent.title}: {error}")
        return
    if not steps:
        _say(f"\n{agent.title} has hoptell already. A session:\n  {agent.start(machine)}")
        return
    _say(f"\n{agent.title}, registered with one command:\n  {hoptell} init --apply {agent.key}")
    _say("which will")
    for step in steps:
        _say("  " + step.shown())
    _say(f"then a session:\n  {agent.start(machine)}")


def _say_how_to_join(settings: PeerSettings, hoptell: str) -> None:
    from hoptell.settings import load_relay_settings

    url, file = settings.relay, settings_file.place(os.environ)
    _say("\nAnother machine, with hoptell installed there, joins with this command on it:")
    if _is_here(settings):
        url = _with_host(url, _address())
    join = f"hoptell init --relay {shlex.quote(url)} --token-stdin"
    _say(f"  {join}")
    if _is_here(settings) and url.startswith("wss:"):
        _say("(with the name that the relay's certificate is for, if it is not for this address)")
    _say("and this from here gives it the token without showing it:")
    _say(f"  {hoptell} init --show-token | ssh MACHINE {shlex.quote(join)}")
    if is_loopback(load_relay_settings().host) and _is_here(settings):
        _say("for which the relay has to listen where the machine can reach it: stop it, add")
        _say(f"  HOPTELL_HOST={_address()}")
        _say(f"to {file}, where the commands on this machine find it too, and start it again.")


def _with_host(url: str, host: str) -> str:
    """The relay's URL as other machines have to write it; its scheme, port and path stay."""
    parts = urlsplit(url)
    port = "" if parts.port is None else f":{parts.port}"
    return parts._replace(netloc=f"{host}{port}").geturl()


def _is_ours(settings: PeerSettings) -> bool:
    """Whether the relay is on this machine, as far as the settings tell."""
    return _is_here(settings) or Values.load().get("HOPTELL_RELAY") is None


def _answers(url: str) -> bool:
    """Whether anything accepts connections at an address of this machine."""
    import socket

    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "wss" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), ANSWER_TIMEOUT).close()
    except (OSError, UnicodeError):
        return False
    return True


def _is_here(settings: PeerSettings) -> bool:
    return is_loopback(urlsplit(settings.relay).hostname or "")


def _address() -> str:
    """This machine's address on its network; nothing is sent to find it."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "ADDRESS"


def _say_outcome(outcome: settings_file.Outcome) -> None:
    how = {"made": "Made", "changed": "Changed", "kept": "Kept"}[outcome.done]
    _say(f"{how} {outcome.file} (for you alone to read): {outcome.what}.")


def _shown(url: str) -> str:
    from hoptell.explain import shown_address

    return shown_address(url)


def _say(text: str) -> None:
    click.echo(text)
