"""`hoptell members`: edit the file that gives people and teams their own tokens."""

from pathlib import Path

import click

from hoptell.cli.options import FilePath
from hoptell.errors import ConfigurationError

_file = click.option(
    "--file",
    type=FilePath(),
    metavar="FILE",
    help="The members file; default $HOPTELL_MEMBERS.",
)


@click.group("members")
def members_group() -> None:
    """Give people and teams their own tokens.

    A member may use the peer name NAME and every name that starts with NAME-. The relay reads
    the file when it starts (`hoptell relay --members FILE`) and again on SIGHUP.

    \b
    Examples:
      hoptell members add alice --file members.json
      hoptell members list --file members.json
      hoptell members remove alice --file members.json
      kill -HUP <pid of the relay>
    """


@members_group.command("add", short_help="Add a member, and print its new token.")
@click.argument("name")
@_file
def add_command(name: str, file: Path | None) -> None:
    """Add a member, and print its new token: this once, the file keeps only a hash.

    Example: hoptell members add alice --file members.json
    """
    from hoptell.relay.credentials import add_member

    file = _members_file(file)
    click.echo(add_member(file, name))
    click.echo(
        f"This is the token of {name}, who joins with it by `hoptell init --relay URL"
        " --token-stdin`, or sets it as HOPTELL_TOKEN. It is not shown again."
        f" {_reload(file)}",
        err=True,
    )


@members_group.command("list")
@_file
def list_command(file: Path | None) -> None:
    """Print the members' names.

    Example: hoptell members list --file members.json
    """
    from hoptell.relay.credentials import list_members

    for name in list_members(_members_file(file)):
        click.echo(name)


@members_group.command("remove", short_help="Remove a member.")
@click.argument("name")
@_file
def remove_command(name: str, file: Path | None) -> None:
    """Remove a member; the relay closes its connections on the next SIGHUP.

    Example: hoptell members remove alice --file members.json
    """
    from hoptell.relay.credentials import remove_member

    file = _members_file(file)
    remove_member(file, name)
    click.echo(f"Removed {name}. {_reload(file)}", err=True)


def _reload(file: Path) -> str:
    return f"A relay that runs with {file} takes it over on SIGHUP."


def _members_file(file: Path | None) -> Path:
    from hoptell.settings import load_relay_settings

    file = file or load_relay_settings().members
    if file is None:
        raise ConfigurationError("which members file? Give --file FILE, or set HOPTELL_MEMBERS")
    return file
