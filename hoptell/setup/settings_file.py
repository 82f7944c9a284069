"""hoptell's own settings file, made or changed: `hoptell init`.

The token comes from standard
input, goes into this file alone, and is shown by nothing here.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hoptell.env_file import (
    change_settings_file,
    create_token,
    find_settings_file,
    is_open_to_others,
    read_settings_file,
    settings_file_candidates,
)
from hoptell.errors import ConfigurationError
from hoptell.settings import Values
from hoptell.setup import files

KEPT = "its token and all else as they were"


@dataclass(frozen=True)
class Outcome:
    """What became of the settings file."""

    file: Path
    done: str
    """`made`, `changed` or `kept`."""
    what: str
    """In a few words, what it holds now."""


def make(environ: Mapping[str, str]) -> Outcome:
    """Make sure that there is a settings file with a token, and that nobody else can read it.

    A token in the environment alone is kept in the file, since agents may not hand the
    environment on.

    Raises:
        ConfigurationError: it cannot be done; or the file is for a relay elsewhere and has no
            token, so that a fresh one would be of no use.
    """
    prepare(environ)
    values = Values.load(environ)
    if values.from_file.get("HOPTELL_TOKEN", "").strip():
        assert values.file is not None
        done = "changed" if tighten(values.file) else "kept"
        return Outcome(values.file, done, KEPT)
    if environ.get("HOPTELL_TOKEN", "").strip():
        names = ("HOPTELL_RELAY", "HOPTELL_TOKEN")
        found = {name: value for name in names if (value := values.get(name))}
        file = place(environ)

        def change(before: Mapping[str, str]) -> Mapping[str, str]:
            return {} if before.get("HOPTELL_TOKEN", "").strip() else found

        if change_settings_file(file, change)["HOPTELL_TOKEN"] == found["HOPTELL_TOKEN"]:
            return Outcome(file, "made", "the token of your environment")
        return Outcome(file, "kept", KEPT)
    if values.get("HOPTELL_RELAY") is not None:
        raise ConfigurationError(
            "HOPTELL_RELAY names a relay that has its token already",
            "give it that one with `hoptell init --relay URL --token-stdin`, or unset"
            " HOPTELL_RELAY",
        )
    _, file = create_token(environ)
    tighten(file)
    return Outcome(file, "made", "a fresh token")


def join(
    environ: Mapping[str, str], relay: str, token: str, name: str | None, *, force: bool
) -> Outcome:
    """Keep another relay's address and token in the settings file; `name` too if given.

    Raises:
        ConfigurationError: it cannot be written; or it has another relay or token already and
            `force` is not given.
    """
    file = place(environ)
    existed = file.is_file()
    wanted = {"HOPTELL_RELAY": relay, "HOPTELL_TOKEN": token}
    if name is not None:
        wanted["HOPTELL_NAME"] = name
    missing: dict[str, str] = {}

    def change(before: Mapping[str, str]) -> Mapping[str, str]:
        if not force:
            _check(file, before, relay, token)
        found = {key: before.get(key, "").strip() for key in wanted}
        missing.update({key: value for key, value in wanted.items() if found[key] != value})
        if any(found[key] for key in missing):
            files.keep_copy(file)
        return missing

    change_settings_file(file, change)
    if not missing:
        return Outcome(file, "changed" if tighten(file) else "kept", f"{relay} and its token")
    return Outcome(file, "changed" if existed else "made", f"{relay} and its token")


def check(environ: Mapping[str, str], relay: str, token: str, *, force: bool) -> None:
    """Find out whether `join` may replace what the settings file has.

    Raises:
        ConfigurationError: it has another relay or token, and `force` is not given.
    """
    file = find_settings_file(environ)
    if file is not None and not force:
        _check(file, read_settings_file(file), relay, token)


def _check(file: Path, before: Mapping[str, str], relay: str, token: str) -> None:
    for key, value, what in (("RELAY", relay, "relay"), ("TOKEN", token, "token")):
        found = before.get(f"HOPTELL_{key}", "").strip()
        if found and found != value:
            raise ConfigurationError(
                f"{file} has another {what} already, and was left as it is",
                "add --force to replace it (the old file is kept beside it, as"
                f" *{files.BACKUP_SUFFIX})",
            )


def prepare(environ: Mapping[str, str]) -> None:
    """Make an empty file where `$HOPTELL_ENV` names one that is not there.

    Raises:
        ConfigurationError: it cannot be made.
    """
    if environ.get("HOPTELL_ENV", "").strip():
        (file,) = settings_file_candidates(environ)
        if not os.path.lexists(file):
            change_settings_file(file, lambda before: {})


def place(environ: Mapping[str, str]) -> Path:
    """The settings file that is in force, else where it goes.

    Raises:
        ConfigurationError: there is no home folder, or `$HOPTELL_ENV` names no file.
    """
    file = find_settings_file(environ) or next(iter(settings_file_candidates(environ)), None)
    if file is None:
        raise ConfigurationError(
            "there is no home folder to keep settings in", "set HOME, or HOPTELL_ENV"
        )
    return file


def tighten(file: Path) -> bool:
    """Let nobody but its owner read the file; True if others could.

    Raises:
        ConfigurationError: its mode cannot be changed.
    """
    try:
        if not is_open_to_others(file):
            return False
        file.chmod(0o600)
    except OSError as error:
        raise ConfigurationError(f"cannot change the mode of {file}: {error.strerror}") from None
    return True


def token_problem(token: str) -> str | None:
    """Say why what came on standard input is not a token; None if it can be one."""
    if not token:
        return "there was no token on standard input"
    if not token.isprintable() or not token.isascii() or " " in token:
        return "what came on standard input is not one token: give it alone, in one line"
    if token.startswith("sha256:"):
        return "this is a token's hash, which only the relay can use: give the token itself"
    return None
