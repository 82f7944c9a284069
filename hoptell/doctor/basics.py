"""Python, the system, and the settings: what is wrong before anything goes over the network."""

import importlib.metadata
import os
import platform
import re
import socket
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from hoptell import __version__
from hoptell.doctor.report import Line, failed
from hoptell.env_file import find_settings_file, is_open_to_others
from hoptell.errors import HoptellError
from hoptell.settings import PeerSettings, Values, load_peer_settings

OLDEST_PYTHON = (3, 11)
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*([^;]*)(?:;(.*))?")


def python() -> Iterator[Line]:
    """The interpreter and the packages."""
    version = platform.python_version()
    if sys.version_info < OLDEST_PYTHON:
        yield Line("python", "fail", f"this is Python {version}", "install Python 3.11 or newer")
        return
    try:
        requirements = importlib.metadata.requires("hoptell") or []
    except importlib.metadata.PackageNotFoundError:
        yield Line("python", "warn", f"Python {version}; hoptell {__version__} is not installed")
        return
    found, wrong = [], []
    for requirement in requirements:
        name, wanted, condition = _parsed(requirement)
        if "extra" in condition or "!= 'linux'" in condition.replace('"', "'"):
            continue
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{name} is missing")
            continue
        found.append(f"{name} {installed}")
        if not fits(installed, wanted):
            wrong.append(f"{name} is {installed} and not {wanted}")
    if wrong:
        yield Line("python", "fail", ", ".join(wrong), "install hoptell again, with its packages")
    else:
        yield Line("python", "ok", f"Python {version}, hoptell {__version__}, {', '.join(found)}")


def _parsed(requirement: str) -> tuple[str, str, str]:
    match = _REQUIREMENT.fullmatch(requirement.strip())
    assert match is not None, requirement
    return match[1], match[2].strip(), match[3] or ""


def fits(version: str, wanted: str) -> bool:
    """Whether a version is within `>=a,<b`, as far as numbers tell."""
    number = _numbers(version)
    for part in filter(None, wanted.split(",")):
        match = re.fullmatch(r"\s*(>=|<)\s*([0-9.]+)\s*", part)
        if match and (number >= _numbers(match[2])) != (match[1] == ">="):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in re.findall(r"\d+", version)]
    return tuple(numbers + [0] * (6 - len(numbers)))[:6]


def system() -> Iterator[Line]:
    """What is missing here, and which parts of hoptell that concerns."""
    missing = []
    try:
        import fcntl  # noqa: F401
    except ImportError:
        missing.append("no file locks (fcntl), so mcp, listen, hook and tmux do not work")
    if not hasattr(socket, "AF_UNIX"):
        missing.append("no Unix sockets, so Claude Code cannot be woken by its hook")
    if missing:
        on_windows = "use WSL" if os.name == "nt" else None
        yield Line("system", "warn", f"{platform.system()} has {'; '.join(missing)}", on_windows)
    else:
        yield Line("system", "ok", f"{platform.system()} {platform.release()}")


def settings(environ: Mapping[str, str]) -> tuple[PeerSettings | None, list[Line]]:
    """Where the settings come from, and the settings unless they are broken."""
    try:
        file = find_settings_file(environ)
        found = load_peer_settings(environ)
    except HoptellError as error:
        return None, [failed("settings", error)]
    if file is None:
        there = any(environ.get(f"HOPTELL_{name}", "").strip() for name in ("TOKEN", "RELAY"))
        said = "there is no settings file" + ("; the environment has settings" if there else "")
        lines = [Line("settings", "info", said, "`hoptell init` makes one")]
    else:
        lines = [_settings_file(file)]
    return found, [*lines, _token(environ, found)]


def _settings_file(file: Path) -> Line:
    try:
        status = file.stat()
    except OSError as error:
        return Line("settings", "fail", f"cannot look at {file} ({error.strerror})")
    mode = stat.S_IMODE(status.st_mode)
    if os.name == "posix" and status.st_uid not in (os.geteuid(), 0):
        return Line("settings", "warn", f"{file} belongs to another user", "make it yours")
    if is_open_to_others(file):
        return Line(
            "settings",
            "warn",
            f"others on this machine can read {file}, and the token in it (mode {mode:04o})",
            f"chmod 600 {file}",
        )
    return Line("settings", "ok", f"{file}, readable by you alone")


def _token(environ: Mapping[str, str], settings: PeerSettings) -> Line:
    source = source_of(environ, "HOPTELL_TOKEN")
    if settings.token is None:
        return Line(
            "token",
            "fail",
            "there is no token",
            "run `hoptell init` on the relay's machine, or on others `hoptell init --relay URL"
            " --token-stdin`",
        )
    if settings.token.startswith("sha256:"):
        return Line(
            "token",
            "fail",
            f"HOPTELL_TOKEN from {source} is a token's hash, which only the relay can use",
            "give this side the token itself",
        )
    if _is_hidden(environ):
        return Line(
            "token",
            "warn",
            f"HOPTELL_TOKEN from {source} is used, and not the different one in the settings file",
            "unset HOPTELL_TOKEN unless you mean it",
        )
    return Line("token", "ok", f"there is one, from {source}")


def _is_hidden(environ: Mapping[str, str]) -> bool:
    in_file = Values.load(environ).from_file.get("HOPTELL_TOKEN", "").strip()
    in_environ = environ.get("HOPTELL_TOKEN", "").strip()
    return bool(in_file and in_environ and in_file != in_environ)


def source_of(environ: Mapping[str, str], name: str) -> str:
    """Where a variable's value comes from, in words."""
    if environ.get(name, "").strip():
        return "the environment"
    values = Values.load(environ)
    return str(values.file) if values.from_file.get(name, "").strip() else "its default"
