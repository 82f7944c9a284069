"""Commands that end in every way that a command can end in, for the tests of the group."""

import asyncio
import os
import sys
from pathlib import Path

import click

from hoptell.errors import ConfigurationError, InboxError, RelayUnreachable

COMMANDS = {
    name: (f"support.commands:{name}", f"Line of {name}.")
    for name in ("fail", "greet", "crash", "hang", "flood", "late", "family")
}
ERRORS = {error.__name__: error for error in (ConfigurationError, InboxError, RelayUnreachable)}


@click.command()
@click.argument("kind")
@click.argument("words", default="do this instead")
def fail(kind: str, words: str) -> None:
    raise ERRORS[kind](words)


@click.command()
@click.option("--name", default="world")
def greet(name: str) -> None:
    """Greet somebody.

    Example: hoptell greet --name bob
    """
    click.echo(f"hello {name}")


@click.command()
@click.argument("kind")
def crash(kind: str) -> None:
    match kind:
        case "bug":
            raise ValueError("s3cret")
        case "file":
            Path("/nowhere/at/all").read_text()
        case "errno":
            raise OSError(28, "No space left on device")
        case "odd":
            raise OSError("s3cret")
        case "interrupt":
            raise KeyboardInterrupt
        case "exit":
            sys.exit(3)


@click.command()
def hang() -> None:
    async def wait() -> None:
        click.echo("ready")
        await asyncio.Event().wait()

    asyncio.run(wait())


@click.command()
def flood() -> None:
    while True:
        click.echo("x" * 10_000)


@click.command()
def late() -> None:
    """Like a program that finds out about its closed standard output only at the end."""
    print("x", end="")
    os.close(os.open(os.devnull, os.O_RDONLY))


@click.group()
def family() -> None:
    """A group within the group."""


@family.command("add")
def family_add() -> None:
    raise ConfigurationError("choose another name")
