"""`hoptell relay`: settings and options in, a relay that runs until it is stopped."""

import logging
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import click

from hoptell.cli.options import FilePath
from hoptell.errors import ConfigurationError
from hoptell.settings import DEFAULT_HOST, DEFAULT_PORT, RelaySettings

EPILOG = """\b
Examples:
  hoptell relay
      for this machine only, on port 7777
  hoptell members add alice --file members.json
  hoptell relay --host 192.168.1.10 --members members.json
      for other machines too, each member with a token of its own

On its first start without any settings it makes a token in the settings file, where the
other commands on this machine find it. For other machines set HOPTELL_TOKEN or --members
first.

A --host or --port that is to stay belongs into the settings file, as HOPTELL_HOST or
HOPTELL_PORT: the other commands on this machine look there for the relay's address.

Signals: SIGTERM and SIGINT stop it, SIGHUP makes it read the members file and the TLS
certificate again. HTTP on the same port: GET /healthz answers "ok", GET /metrics has numbers
for Prometheus."""


@click.command("relay", epilog=EPILOG)
@click.option("--host", metavar="IP", help=f"Where to listen; default {DEFAULT_HOST}.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help=f"Default {DEFAULT_PORT}; 0 takes any free one.",
)
@click.option(
    "--members",
    type=FilePath(),
    metavar="FILE",
    help="Members with tokens of their own; see `hoptell members`.",
)
@click.option(
    "--journal",
    type=FilePath(),
    metavar="FILE",
    help="Keep unconfirmed messages in this SQLite file, over a restart or crash.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How the lines on standard error look.",
)
def relay_command(
    host: str | None,
    port: int | None,
    members: Path | None,
    journal: Path | None,
    log_format: str,
) -> None:
    """Run the relay: the one process that takes messages from agent to agent."""
    from hoptell.env_file import create_token
    from hoptell.relay import daemon, listening
    from hoptell.relay.credentials import Credentials
    from hoptell.relay.log import EventLog, LoggingHandler, open_output
    from hoptell.settings import load_relay_settings

    settings = load_relay_settings(host=host or None, port=port, members=members, journal=journal)
    credentials = None
    if settings.token is not None or settings.members is not None:
        credentials = Credentials.load(settings)
    elif not listening.is_loopback(settings.host):
        raise ConfigurationError(
            f"others can reach a relay on {settings.host}: set HOPTELL_TOKEN to at least 16 random"
            " characters first, or make a members file with `hoptell members add`"
        )
    sockets = listening.listen(settings.host, settings.port)
    made_in = None
    if credentials is None:
        # Not before the port is ours: a second relay must not change the token of the first.
        token, made_in = create_token(None, **_way_to(host, port))
        credentials = Credentials.load(replace(settings, token=token))
    # Closed from the start, its number may be a client's connection by now.
    output = open_output(-1 if sys.__stderr__ is None else sys.__stderr__.fileno())
    log = EventLog(output.write, "json" if log_format == "json" else "text")
    logging.basicConfig(handlers=[LoggingHandler(log)], level=logging.WARNING, force=True)
    if made_in is not None:
        log.note("token", f"in {made_in}, where the other commands on this machine find it")
    elif (missing := _unfindable(settings)) is not None:
        log.note("address", missing)
    if (exposed := _exposed_token()) is not None:
        log.note("settings", exposed)
    try:
        daemon.run(settings, credentials, log, sockets)
    finally:
        output.close(wait=0.3)


def _unfindable(settings: RelaySettings) -> str | None:
    """What to say where options lead the relay away from where the commands here look."""
    from hoptell.settings import Values, load_relay_settings

    if Values.load().get("HOPTELL_RELAY") is not None:
        return None
    usual = load_relay_settings()
    missing = []
    if settings.host not in (usual.host, "*", "0.0.0.0", "::"):
        missing.append(f"HOPTELL_HOST={settings.host}")
    if settings.port not in (usual.port, 0):
        missing.append(f"HOPTELL_PORT={settings.port}")
    if not missing:
        return None
    return (
        f"the other commands on this machine look for the relay on {usual.host}, port"
        f" {usual.port}: for them to find this one, put {' and '.join(missing)} into the settings"
        " file"
    )


def _exposed_token() -> str | None:
    """What to say where others on this machine can read the token in the settings file."""
    from hoptell.env_file import is_open_to_others
    from hoptell.settings import Values

    values = Values.load()
    token = values.from_file.get("HOPTELL_TOKEN", "").strip()
    if values.file is None or not token or token.startswith("sha256:"):
        return None
    try:
        if not is_open_to_others(values.file):
            return None
    except OSError:
        return None
    return (
        f"others on this machine can read {values.file}, and the token in it: chmod 600"
        f" {shlex.quote(str(values.file))}"
    )


def _way_to(host: str | None, port: int | None) -> dict[str, str]:
    """What the other commands need to know to find a relay that is not at its usual place."""
    way = {}
    if host and host != DEFAULT_HOST:
        way["HOPTELL_HOST"] = host
    if port and port != DEFAULT_PORT:
        way["HOPTELL_PORT"] = str(port)
    return way
