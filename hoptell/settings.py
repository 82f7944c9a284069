"""Settings: one frozen dataclass a role, from the environment and one file (README.md).

A variable comes from the environment, else from the settings file (env_file.py). An empty value
counts as unset. Secrets are masked in `repr`.
"""

import ipaddress
import os
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from hoptell.env_file import find_settings_file, read_settings_file
from hoptell.errors import ConfigurationError
from hoptell.folders import expanded, home_folder
from hoptell.names import EVERYONE, MAX_ROLES, NAME_RULE, is_name, roles_problem, split_roles

T = TypeVar("T")

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 7777
WAKE_MODES = ("hook", "channel", "codex", "tmux", "listener", "poll")
"""What HOPTELL_PUSH may say."""
MAX_RATE_SENDS = 1_000_000
MAX_RATE_SECONDS = 86_400
"""The most that HOPTELL_RATE may say: a day."""


@dataclass(frozen=True)
class Rate:
    """How often one peer name may send; `sends` 0 means without a limit."""

    sends: int = 30
    seconds: float = 10.0


@dataclass(frozen=True)
class RelaySettings:
    """What `hoptell relay` runs with."""

    host: str = DEFAULT_HOST
    """HOPTELL_HOST: the address that it listens on."""
    port: int = DEFAULT_PORT
    """HOPTELL_PORT: 0 takes any free one."""
    token: str | None = field(default=None, repr=False)
    """HOPTELL_TOKEN: the shared secret, or `sha256:` and its 64 hex digits."""
    members: Path | None = None
    """HOPTELL_MEMBERS: the members file."""
    rate: Rate = Rate()
    """HOPTELL_RATE: sends per seconds for one name, as in `30/10`; `0` for no limit."""
    journal: Path | None = None
    """HOPTELL_JOURNAL: SQLite file that keeps unconfirmed deliveries over a restart."""
    tls_cert: Path | None = None
    """HOPTELL_TLS_CERT: certificate chain, PEM."""
    tls_key: Path | None = None
    """HOPTELL_TLS_KEY: its private key, PEM."""


@dataclass(frozen=True)
class PeerSettings:
    """What everything on an agent's machine runs with."""

    relay: str
    """HOPTELL_RELAY: `ws://host:port` or `wss://…`; unset, the relay on this machine."""
    token: str | None = field(default=None, repr=False)
    """HOPTELL_TOKEN: the shared secret, or a member's own."""
    name: str | None = None
    """HOPTELL_NAME: the peer name; unset, `default_name()`."""
    roles: tuple[str, ...] = ()
    """HOPTELL_ROLES: comma-separated."""
    push: str | None = None
    """HOPTELL_PUSH: the wake mode; unset, the sidecar finds out."""
    home: Path = field(default_factory=lambda: _state_folder(None, os.environ))
    """HOPTELL_HOME: the folder for inboxes and state."""


def machine_name() -> str:
    """This machine's name as a valid start of a peer name, at most 40 characters.

    WSL shares its host's name with Windows, so it says that it is WSL.
    """
    name = platform.node().partition(".")[0]
    if "microsoft" in platform.release().lower():
        name += "-wsl"
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40] or "host"


def default_name() -> str:
    """The peer name of a process that was given none: `<machine>-<pid>`."""
    return f"{machine_name()}-{os.getpid()}"


def state_folder(environ: Mapping[str, str] | None = None) -> Path:
    """The folder for inboxes and state, whatever else may be wrong with the settings.

    Raises:
        ConfigurationError: HOPTELL_HOME cannot be used, or unset, there is no home folder.
    """
    values = Values.load(environ)
    return _state_folder(values.path("HOPTELL_HOME"), values.environ)


def usual_state_folder(environ: Mapping[str, str] | None = None) -> Path | None:
    """The same where HOPTELL_HOME does not say otherwise; None without a home folder."""
    home = home_folder(os.environ if environ is None else environ)
    return None if home is None else home / ".hoptell"


def relay_url(host: str, port: int, *, tls: bool = False) -> str:
    """The URL of a relay that listens on this host name or address."""
    scheme = "wss" if tls else "ws"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine itself, as far as the name alone tells."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def load_relay_settings(
    environ: Mapping[str, str] | None = None, **options: object
) -> RelaySettings:
    """Read the relay's settings; `options` (from the command line) win where not None.

    Raises:
        ConfigurationError: a file cannot be read, or a value is not what it must be.
    """
    values = Values.load(environ)
    found: dict[str, Any] = {
        "host": values.parse("HOPTELL_HOST", _host),
        "port": values.parse("HOPTELL_PORT", _port),
        "token": values.get("HOPTELL_TOKEN"),
        "members": values.path("HOPTELL_MEMBERS"),
        "rate": values.parse("HOPTELL_RATE", _rate),
        "journal": values.path("HOPTELL_JOURNAL"),
        "tls_cert": values.path("HOPTELL_TLS_CERT"),
        "tls_key": values.path("HOPTELL_TLS_KEY"),
    }
    found.update({key: value for key, value in options.items() if value is not None})
    settings = RelaySettings(**{key: value for key, value in found.items() if value is not None})
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise ConfigurationError("HOPTELL_TLS_CERT and HOPTELL_TLS_KEY go together", "set both")
    return settings


def load_peer_settings(environ: Mapping[str, str] | None = None, **options: object) -> PeerSettings:
    """Read a peer's settings; `options` win where not None.

    Raises:
        ConfigurationError: a file cannot be read, or a value is not what it must be.
    """
    values = Values.load(environ)
    found: dict[str, Any] = {
        "relay": values.parse("HOPTELL_RELAY", _checked_url) or _local_relay(values),
        "token": values.get("HOPTELL_TOKEN"),
        "name": values.parse("HOPTELL_NAME", _name),
        "roles": values.parse("HOPTELL_ROLES", _roles),
        "push": values.parse("HOPTELL_PUSH", _push),
        "home": values.path("HOPTELL_HOME"),
    }
    found.update({key: value for key, value in options.items() if value is not None})
    found["home"] = _state_folder(found["home"], values.environ)
    return PeerSettings(**{key: value for key, value in found.items() if value is not None})


@dataclass(frozen=True)
class Values:
    """The variables as found: environment first, then one file. Never printed."""

    environ: Mapping[str, str] = field(repr=False)
    file: Path | None
    """The settings file that was read, if one exists."""
    from_file: Mapping[str, str] = field(repr=False)

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> "Values":
        """Find and read the settings file.

        Raises:
            ConfigurationError: it cannot be read or understood.
        """
        environ = os.environ if environ is None else environ
        file = find_settings_file(environ)
        return cls(environ, file, {} if file is None else read_settings_file(file))

    def get(self, name: str) -> str | None:
        """The variable's text without surrounding white space; None where unset or empty."""
        for source in (self.environ, self.from_file):
            if value := source.get(name, "").strip():
                return value
        return None

    def parse(self, name: str, parser: Callable[[str], T]) -> T | None:
        """The variable's value, or None where it is unset.

        Raises:
            ConfigurationError: `parser` raised ValueError; its text says what is right. The
                sentence says where the variable was found, and never quotes its value.
        """
        value = self.get(name)
        if value is None:
            return None
        try:
            return parser(value)
        except ValueError as error:
            raise ConfigurationError(f"{self._where(name)}: {error}") from None

    def path(self, name: str) -> Path | None:
        """The variable's value as a path, `~` expanded; None where it is unset.

        Raises:
            ConfigurationError: it cannot be a path on this machine.
        """
        return self.parse(name, lambda text: expanded(text, self.environ))

    def _where(self, name: str) -> str:
        in_environ = self.environ.get(name, "").strip()
        return name if in_environ or self.file is None else f"{name} in {self.file}"


def _state_folder(configured: Path | None, environ: Mapping[str, str]) -> Path:
    if configured is None:
        usual = usual_state_folder(environ)
        if usual is None:
            raise ConfigurationError("there is no home folder", "set HOME or HOPTELL_HOME")
        return usual
    if not configured.is_absolute():
        # Each process would take another one, and messages would wait where nobody looks.
        raise ConfigurationError("HOPTELL_HOME must be a whole path, starting with / or ~")
    return configured


def _local_relay(values: Values) -> str:
    host = values.parse("HOPTELL_HOST", _host) or DEFAULT_HOST
    host = {"*": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    port = values.parse("HOPTELL_PORT", _port) or DEFAULT_PORT
    tls = all(values.get(name) for name in ("HOPTELL_TLS_CERT", "HOPTELL_TLS_KEY"))
    return relay_url(host, port, tls=tls)


def _host(text: str) -> str:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        if text != "*" and not re.fullmatch(r"[A-Za-z0-9_.-]+", text):
            raise ValueError(
                "it is an address such as 127.0.0.1 or ::1, or a host name, without brackets and"
                " without a port (which is HOPTELL_PORT)"
            ) from None
    return text


def _checked_url(text: str) -> str:
    # urlsplit's and its port's own ValueErrors may quote the URL.
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("ws", "wss") or not parts.hostname or port == 0:
        raise ValueError("a relay is ws://host:port or wss://host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("leave user and password out of the URL: the secret is HOPTELL_TOKEN")
    if parts.fragment or not text.isprintable() or " " in text:
        raise ValueError("a relay is ws://host:port or wss://host, without spaces or '#'")
    return text.rstrip("/") if parts.path in ("", "/") else text


def _port(text: str) -> int:
    if not re.fullmatch("[0-9]{1,5}", text) or int(text) > 65535:
        raise ValueError("a port is a whole number from 0 to 65535")
    return int(text)


def _rate(text: str) -> Rate:
    if text == "0":
        return Rate(sends=0)
    match = re.fullmatch(r"([0-9]{1,7})/([0-9]{1,5}(?:\.[0-9]{1,3})?)", text)
    rate = Rate(int(match[1]), float(match[2])) if match else Rate(0)
    if not (1 <= rate.sends <= MAX_RATE_SENDS and 0 < rate.seconds <= MAX_RATE_SECONDS):
        raise ValueError(
            f"a rate is sends/seconds, for example 30/10, with 1 to {MAX_RATE_SENDS} sends in up to"
            f" {MAX_RATE_SECONDS} seconds, or 0 for no limit"
        )
    return rate


def _name(text: str) -> str:
    if not is_name(text):
        raise ValueError(f"a peer name is {NAME_RULE}")
    return text


def _roles(text: str) -> tuple[str, ...]:
    roles = split_roles(text)
    if roles_problem(roles) is not None:
        raise ValueError(
            f"it is a list of up to {MAX_ROLES} roles with commas between them, and without"
            f" {EVERYONE!r}; a role is {NAME_RULE}"
        )
    return tuple(roles)


def _push(text: str) -> str:
    if text not in WAKE_MODES:
        raise ValueError(f"it is one of {', '.join(WAKE_MODES)}")
    return text
