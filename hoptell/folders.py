"""The user's home folder, and paths that begin there."""

from collections.abc import Mapping
from pathlib import Path


def home_folder(environ: Mapping[str, str]) -> Path | None:
    """The user's home folder, if there is one."""
    if home := environ.get("HOME", "").strip():
        return Path(home)
    try:
        return Path.home()
    except RuntimeError:  # a user id without a name, as in some containers
        return None


def config_home(environ: Mapping[str, str]) -> Path | None:
    """The folder of the user's configurations, usually `~/.config`, if there is one."""
    # Relative, it would be within the current folder; the XDG specification ignores it too.
    configured = Path(environ.get("XDG_CONFIG_HOME", "").strip())
    if configured.is_absolute():
        return configured
    home = home_folder(environ)
    return None if home is None else home / ".config"


def expanded(text: str, environ: Mapping[str, str]) -> Path:
    """A path as a person writes it, with `~` for a home folder.

    Raises:
        ValueError: it cannot be a path on this machine; the text says why.
    """
    if "\0" in text:
        raise ValueError("a path cannot contain a NUL character")
    home = home_folder(environ)
    if home is not None and (text == "~" or text.startswith("~/")):
        return home / text[2:]
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("there is no such home folder: write the whole path") from None
