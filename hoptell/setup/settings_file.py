"""hoptell's own settings file, made or changed line by line: `hoptell init`.

Lines that are not replaced stay as they are, comments included. The token comes from standard
input, goes into this file alone, and is shown by nothing here.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from dotenv.parser import parse_stream

from hoptell.errors import ConfigurationError
from hoptell.settings import (
    FILE_HEAD,
    Values,
    create_token,
    find_settings_file,
    quoted,
    read_settings_file,
    settings_file_candidates,
)
from hoptell.setup import files


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
        return Outcome(values.file, done, "its token and all else as they were")
    if environ.get("HOPTELL_TOKEN", "").strip():
        names = ("HOPTELL_RELAY", "HOPTELL_TOKEN")
        found = {name: value for name in names if (value := values.get(name))}
        file = place(environ)
        write(file, found)
        return Outcome(file, "made", "the token of your environment")
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
    check(environ, relay, token, force=force)
    file = place(environ)
    before = {} if not file.is_file() else read_settings_file(file)
    wanted = {"HOPTELL_RELAY": relay, "HOPTELL_TOKEN": token}
    if name is not None:
        wanted["HOPTELL_NAME"] = name
    missing = {key: value for key, value in wanted.items() if before.get(key, "").strip() != value}
    if not missing:
        return Outcome(file, "changed" if tighten(file) else "kept", f"{relay} and its token")
    existed = file.is_file()
    write(file, missing)
    return Outcome(file, "changed" if existed else "made", f"{relay} and its token")


def check(environ: Mapping[str, str], relay: str, token: str, *, force: bool) -> None:
    """Find out whether `join` may replace what the settings file has.

    Raises:
        ConfigurationError: it has another relay or token, and `force` is not given.
    """
    file = find_settings_file(environ)
    if file is None or force:
        return
    before = read_settings_file(file)
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
            files.replace(file, "")


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


def write(file: Path, values: Mapping[str, str]) -> None:
    """Set variables in a settings file, readable by its owner alone; other lines stay.

    Raises:
        ConfigurationError: it cannot be written, or a value cannot be kept in it.
    """
    before = files.read(file)
    text = with_values(before or "", values)
    files.replace(file, text, mode=0o600)
    written = read_settings_file(file)
    if any(written.get(name) != value for name, value in values.items()):
        raise ConfigurationError(f"{file} does not read as it was written", "correct it by hand")


def with_values(text: str, values: Mapping[str, str]) -> str:
    """A settings file's text after `values` were set in it."""
    left = dict(values)
    parts = []
    for binding in parse_stream(StringIO(text)):
        original = binding.original.string
        if binding.key not in values or binding.error:
            parts.append(original)
            continue
        blank = original[: len(original) - len(original.lstrip())]
        if binding.key in left:
            export = "export " if original.lstrip().startswith("export ") else ""
            parts.append(f"{blank}{export}{binding.key}={quoted(left.pop(binding.key))}\n")
        else:
            parts.append(blank)  # it stood there twice, and the last one counted
    result = "".join(parts) or FILE_HEAD
    if left and not result.endswith("\n"):
        result += "\n"
    return result + "".join(f"{name}={quoted(value)}\n" for name, value in left.items())


def tighten(file: Path) -> bool:
    """Let nobody but its owner read the file; True if others could.

    Raises:
        ConfigurationError: its mode cannot be changed.
    """
    try:
        if os.name != "posix" or not stat.S_IMODE(file.stat().st_mode) & 0o077:
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
