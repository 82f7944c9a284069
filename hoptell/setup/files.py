"""Changing files that belong to somebody else: other programs, and the person who wrote them.

Each change is one atomic replacement, through a link to the file that it names, with the owner
and mode that it had. It leaves a copy of how the file was before, readable by its owner alone.
Comments and layout stay. What cannot be changed without loss is refused, with what to add by hand.
"""

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hoptell import replacing
from hoptell.errors import ConfigurationError
from hoptell.setup import json_text

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

BACKUP_SUFFIX = ".before-hoptell"


def read(file: Path) -> str | None:
    """The file's text; None where there is no such file.

    Raises:
        ConfigurationError: it cannot be read.
    """
    try:
        return file.read_bytes().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{file} is not UTF-8 text", "save it as UTF-8") from None
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}") from None


def replace(file: Path, text: str) -> Path | None:
    """Write `text` as the file's content, all of it or nothing.

    Returns: the copy of how it was before, if it was there.

    Raises:
        ConfigurationError: it cannot be written; it is as before.
    """
    target = Path(os.path.realpath(file))
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        backup = keep_copy(target) if target.exists() else None
        replacing.replace(target, text.encode())
    except OSError as error:
        raise ConfigurationError(f"cannot write {file}: {error.strerror}") from None
    return backup


def keep_copy(file: Path) -> Path:
    """Copy a file as it is now; copies that are there stay, and the new one gets a number.

    Returns: the copy.

    Raises:
        OSError: it cannot be copied.
    """
    target = Path(os.path.realpath(file))
    data, status = target.read_bytes(), target.stat()
    for number in itertools.count(1):
        ending = BACKUP_SUFFIX if number == 1 else f"{BACKUP_SUFFIX}-{number}"
        backup = target.with_name(target.name + ending)
        try:
            replacing.create(backup, data, like=status)
        except FileExistsError:
            continue
        return backup
    raise AssertionError("numbers do not end")


# JSON ---------------------------------------------------------------------------------------


def edited_json(
    file: Path, text: str | None, edit: Callable[[dict[str, Any]], None], by_hand: str
) -> str:
    """The text of a JSON file after `edit` changed its object in place.

    All but the changed places stays as it is written. `by_hand`: what the change comes to, for
    the one who has to make it.

    Raises:
        ConfigurationError: it is not JSON, or something in it would be lost.
    """
    if text is None or not text.strip():
        value: dict[str, Any] = {}
        edit(value)
        return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    wanted = json_text.parse(text)
    edit(wanted)
    try:
        return json_text.changed(text, wanted)
    except ValueError:
        raise ConfigurationError(
            f"{file} cannot be changed without risk to what is there, so it stays as it is",
            f"add this to it yourself: {by_hand}",
        ) from None


def json_table(value: dict[str, Any], file: Path, *path: str) -> dict[str, Any]:
    """The object at `path` within `value`, made where it is missing.

    Raises:
        ConfigurationError: something else stands there.
    """
    for key in path:
        value = value.setdefault(key, {})
        if not isinstance(value, dict):
            raise ConfigurationError(f"{key!r} in {file} is not an object", "correct it first")
    return value


def found_table(value: object, *path: str) -> dict[str, Any]:
    """The object at `path` within `value`; an empty one where none stands there."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


# TOML ---------------------------------------------------------------------------------------


def parse_toml(text: str) -> dict[str, Any]:
    """Read a TOML file's text; empty if it is none."""
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return {}


def edited_toml(
    file: Path, text: str | None, edit: Callable[["TOMLDocument"], None], by_hand: str
) -> str:
    """The text of a TOML file after `edit` changed its document in place.

    `by_hand`: what the change comes to, for the one who has to make it.

    Raises:
        ConfigurationError: it is not TOML, or cannot be changed so.
    """
    import tomlkit
    from tomlkit.exceptions import ParseError

    try:
        document = tomlkit.parse(text or "")
    except (ParseError, ValueError, RecursionError) as error:
        where = f", line {error.line}" if isinstance(error, ParseError) else ""
        raise ConfigurationError(
            f"{file}{where} cannot be understood", "correct it first"
        ) from None
    try:
        edit(document)
        edited = tomlkit.dumps(document)
        kept = parse_toml(edited) == document.unwrap()
    except ConfigurationError:
        raise
    except Exception:  # the library has its own ways of saying no, and bugs
        kept = False
    if not kept:
        raise ConfigurationError(
            f"{file} cannot be changed without risk to what is there, so it stays as it is",
            f"add this to it yourself, above its first [table]: {by_hand}",
        ) from None
    return edited
