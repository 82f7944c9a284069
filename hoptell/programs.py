"""The agents' programs on this machine: where they are, and by which names they know hoptell."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from hoptell.folders import home_folder

SERVER = "hoptell"
"""What agents call our MCP server in their configurations."""
PLUGIN = "hoptell"
"""Claude Code's plugin in this repository."""

USUAL_FOLDERS = ("~/.local/bin", "~/.claude/local", "/opt/homebrew/bin", "/usr/local/bin")
"""Where programs are that a desktop's short PATH does not have."""


def search_path(environ: Mapping[str, str], folders: Sequence[str]) -> str:
    """PATH, and `folders` after it, as far as each is an absolute one.

    Another stands for the current folder or a place below it, as an empty part does, and the
    programs there are those of the project that an agent works on.
    """
    home = home_folder(environ)
    usual = [str(home / f[2:]) if home and f.startswith("~/") else f for f in folders]
    parts = [*environ.get("PATH", "").split(os.pathsep), *usual]
    return os.pathsep.join(filter(os.path.isabs, parts))


def find_program(*names: str, environ: Mapping[str, str], folders: Sequence[str]) -> str | None:
    """The first of these programs that is on PATH or in one of `folders`: its absolute path."""
    path = search_path(environ, folders)
    return next((found for name in names if (found := shutil.which(name, path=path))), None)


def codex_home(environ: Mapping[str, str]) -> Path | None:
    """The folder of Codex's configuration and state; None without a home folder.

    CODEX_HOME is a path as it stands: Codex itself expands and strips nothing.
    """
    if configured := environ.get("CODEX_HOME"):
        return Path(configured)
    home = home_folder(environ)
    return None if home is None else home / ".codex"
