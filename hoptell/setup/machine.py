"""What there is to set up here: whose machine, which hoptell, and where programs are."""

import getpass
import itertools
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hoptell.errors import ConfigurationError
from hoptell.folders import config_home, home_folder
from hoptell.programs import USUAL_FOLDERS, find_program
from hoptell.settings import Values, machine_name


@dataclass(frozen=True)
class Machine:
    """The user's machine, as far as other programs have to be told of it."""

    environ: Mapping[str, str] = field(repr=False)
    home: Path
    configurations: Path
    """The folder of the user's configurations, usually `~/.config`."""
    command: tuple[str, ...]
    """How to run this hoptell: absolute, whatever PATH and current folder are."""
    pointers: Mapping[str, str]
    """The variables with which a process that gets no other finds the same settings. Paths."""
    owner: str
    """A good start for the peer names of this user's agents."""
    folders: tuple[str, ...] = ()
    """Where to look for programs besides PATH."""

    @classmethod
    def here(cls, environ: Mapping[str, str] | None = None) -> "Machine":
        """This machine.

        Raises:
            ConfigurationError: there is no home folder, or the settings file cannot be read.
        """
        environ = os.environ if environ is None else environ
        home, configurations = home_folder(environ), config_home(environ)
        if home is None or configurations is None:
            raise ConfigurationError("there is no home folder", "set HOME")
        return cls(
            environ,
            home,
            configurations,
            own_command(),
            _pointers(environ),
            _owner(environ),
            USUAL_FOLDERS,
        )

    def find(self, *programs: str) -> str | None:
        """The first of these programs that is installed."""
        return find_program(*programs, environ=self.environ, folders=self.folders)


def own_command() -> tuple[str, ...]:
    """How another program starts this hoptell, from any folder.

    The installed script, since `python -m` would prefer a folder of that name in a project;
    else `-P`, which keeps Python from looking there.
    """
    python = Path(os.path.abspath(sys.executable))
    script = python.with_name("hoptell.exe" if os.name == "nt" else "hoptell")
    return (str(script),) if script.is_file() else (str(python), "-P", "-m", "hoptell")


def is_passing(command: tuple[str, ...]) -> bool:
    """Whether this hoptell is in a cache that is cleaned now and then, by `uvx` or `pipx run`."""
    parts = Path(command[0]).parts
    if any(part.startswith(("archive-v", "builds-v")) for part in parts):
        return True
    return any(
        before == "pipx"
        and part in ("cache", ".cache")
        or before in ("cache", ".cache", "Caches")
        and part == "pipx"
        for before, part in itertools.pairwise(parts)
    )


def _pointers(environ: Mapping[str, str]) -> dict[str, str]:
    values = Values.load(environ)
    pointers = {}
    custom = any(environ.get(name, "").strip() for name in ("HOPTELL_ENV", "XDG_CONFIG_HOME"))
    if custom and values.file is not None:
        pointers["HOPTELL_ENV"] = str(values.file.absolute())
    if environ.get("HOPTELL_HOME", "").strip():
        pointers["HOPTELL_HOME"] = str(values.path("HOPTELL_HOME"))
    return pointers


def _owner(environ: Mapping[str, str]) -> str:
    if name := Values.load(environ).get("HOPTELL_NAME"):
        return name
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a user id without a name; not POSIX
        user = ""
    cleaned = re.sub(r"[^A-Za-z0-9]+", "-", user).strip("-").lower()[:30]
    return cleaned or machine_name()
