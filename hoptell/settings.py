"""Settings: one frozen dataclass a role, from the environment and one file (SPEC.md, 8).

A variable comes from the environment, else from the first of these files that exists:
`$HOPTELL_ENV`, `$XDG_CONFIG_HOME/hoptell/.env` (default `~/.config/hoptell/.env`), `.env`
in the root of a source checkout. Never from the current folder, which may belong to a
project that an agent works on. An empty value counts as unset. Secrets are masked in
`repr`, and no error quotes a file's contents.
"""

import io
import ipaddress
import os
import platform
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from hoptell import replacing
from hoptell.errors import ConfigurationError
from hoptell.names import EVERYONE, MAX_ROLES, NAME_RULE, is_name, roles_problem, split_roles

if TYPE_CHECKING:
    from dotenv.parser import Binding

T = TypeVar("T")

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 7777
FILE_HEAD = "# hoptell's settings (README.md lists them). Keep the token to yourself.\n"
"""The first line of a new settings file."""
MAX_FILE_LENGTH = 1024 * 1024
"""Characters of a settings file."""
WAKE_MODES = ("hook", "channel", "codex", "tmux", "listener", "poll")
"""What HOPTELL_PUSH may say (SPEC.md, 6)."""


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
        "host": values.get("HOPTELL_HOST"),
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
        return self.parse(name, lambda text: _expanded(text, self.environ))

    def _where(self, name: str) -> str:
        in_environ = self.environ.get(name, "").strip()
        return name if in_environ or self.file is None else f"{name} in {self.file}"


def settings_file_candidates(environ: Mapping[str, str]) -> list[Path]:
    """Where a settings file may be, in the order of preference.

    Raises:
        ConfigurationError: `$HOPTELL_ENV` cannot be a path on this machine.
    """
    if explicit := environ.get("HOPTELL_ENV", "").strip():
        try:
            return [_expanded(explicit, environ)]
        except ValueError as error:
            raise ConfigurationError(f"HOPTELL_ENV: {error}") from None
    candidates = []
    if (configurations := config_home(environ)) is not None:
        candidates.append(configurations / "hoptell" / ".env")
    root = Path(__file__).resolve().parent.parent
    if _is_checkout(root):
        candidates.append(root / ".env")
    return candidates


def find_settings_file(environ: Mapping[str, str]) -> Path | None:
    """The settings file that is in force.

    Raises:
        ConfigurationError: `$HOPTELL_ENV` names a file that is not there.
    """
    candidates = settings_file_candidates(environ)
    for file in candidates:
        if _may_be_file(file):
            return file
    if environ.get("HOPTELL_ENV", "").strip():
        raise ConfigurationError(
            f"HOPTELL_ENV names {candidates[0]}, which is not a readable file",
            "create it or unset HOPTELL_ENV",
        )
    return None


def read_settings_file(file: Path) -> dict[str, str]:
    """Read a settings file's variables.

    Raises:
        ConfigurationError: it cannot be read, or a line is not `NAME=value`; the sentence
            names the line but never quotes it.
    """
    return _values_in(_text_of(file), file)


def _text_of(file: Path) -> str:
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            text = stream.read(MAX_FILE_LENGTH + 1)
    except UnicodeDecodeError:
        raise ConfigurationError(f"{file} is not UTF-8 text", "save it as UTF-8") from None
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}") from None
    if len(text) > MAX_FILE_LENGTH:
        raise ConfigurationError(f"{file} is too large for a settings file", "name another")
    return text


def _values_in(text: str, file: Path) -> dict[str, str]:
    from dotenv.parser import parse_stream  # 4 ms that who has no such file need not wait

    values: dict[str, str] = {}
    for binding in parse_stream(io.StringIO(text, newline=None)):
        if binding.error or _has_no_value(binding):
            line = _line_of(binding)
            raise ConfigurationError(f"{file}, line {line}, is not NAME=value", "fix it")
        if binding.key is not None and binding.value is not None:
            values[binding.key] = _exact_value(binding)
    return values


def create_token(environ: Mapping[str, str] | None = None, **more: str) -> tuple[str, Path]:
    """Make a token and keep it, and `more` variables, in the settings file (mode 0600).

    An existing file keeps its other lines. A token that it has by now (another process was
    faster) is not replaced but returned, and then nothing is written.

    Returns: the token, and the file it is in.

    Raises:
        ConfigurationError: there is no place for the file, or it cannot be written.
    """
    environ = os.environ if environ is None else environ
    file = find_settings_file(environ) or next(iter(settings_file_candidates(environ)), None)
    if file is None:
        raise ConfigurationError(
            "there is no home folder to keep a token in", "set HOME, or HOPTELL_TOKEN yourself"
        )
    fresh = {"HOPTELL_TOKEN": secrets.token_urlsafe(32), **more}

    def change(before: Mapping[str, str]) -> Mapping[str, str]:
        return {} if before.get("HOPTELL_TOKEN", "").strip() else fresh

    return change_settings_file(file, change)["HOPTELL_TOKEN"].strip(), file


def change_settings_file(
    file: Path, change: Callable[[Mapping[str, str]], Mapping[str, str]]
) -> dict[str, str]:
    """Set variables in a settings file, which only its owner can read then; other lines stay.

    The file is made where there is none. `change` gets the variables that it has, and returns
    those to set; if there are none, nothing is written. Meanwhile no other process changes it:
    whoever writes a settings file does it here.

    Returns: the variables that it has now.

    Raises:
        ConfigurationError: it cannot be read or written, or a value cannot be kept in it.
    """
    target = Path(os.path.realpath(file))
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(target):
            text = _text_of(target)
            before = _values_in(text, file)
            wanted = change(before)
            if not wanted:
                return before
            text = _with_values(text, wanted)
            after = _values_in(text, file)
            if not wanted.items() <= after.items():
                raise ConfigurationError(f"{file} cannot keep such values", "set them by hand")
            replacing.replace(target, text.encode(), mode=replacing.PRIVATE)
            return after
    except OSError as error:
        raise ConfigurationError(f"cannot write {file}: {error.strerror}") from None


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Be the only one who changes a settings file; it is made where there is none."""
    try:
        import fcntl
    except ImportError:  # Windows
        file.touch(replacing.PRIVATE)
        yield
        return
    while True:
        handle = os.open(file, os.O_RDONLY | os.O_CREAT | os.O_NONBLOCK, replacing.PRIVATE)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise ConfigurationError(f"{file} is not a regular file", "remove it")
            with suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_at(handle, file):
                yield
                return
        finally:
            os.close(handle)


def _is_at(handle: int, file: Path) -> bool:
    """Whether an open file is still the one there, and was not replaced while we waited."""
    try:
        return os.path.samestat(os.fstat(handle), file.stat())
    except FileNotFoundError:
        return False


def _with_values(text: str, values: Mapping[str, str]) -> str:
    """A settings file's text after `values` were set in it."""
    from dotenv.parser import parse_stream

    left = dict(values)
    parts = []
    for binding in parse_stream(io.StringIO(text)):
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


_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_.~+/=:@,-]+", re.ASCII)
_QUOTED_VALUE = re.compile(
    r"""[^=]*=\s*(?:'(?P<single>(?:\\.|[^'\\])*)'|"(?P<double>(?:\\.|[^"\\])*)")""", re.DOTALL
)
_DOUBLE_QUOTE_ESCAPES = {r"\"": '"', r"\\": "\\", r"\n": "\n"}


def quoted(value: str) -> str:
    """A value as a settings file has it, so that reading gives exactly this."""
    if _PLAIN_VALUE.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _exact_value(binding: "Binding") -> str:
    # python-dotenv decodes escapes within single quotes too, and more of them within double
    # quotes (a Windows path "C:\temp" would get a tab): SPEC.md has only \" \\ and \n.
    match = _QUOTED_VALUE.match(binding.original.string)
    if match is None:
        return binding.value or ""
    if (single := match["single"]) is not None:
        return single
    return re.sub(
        r"\\.",
        lambda escape: _DOUBLE_QUOTE_ESCAPES.get(escape[0], escape[0]),
        match["double"],
        flags=re.DOTALL,
    )


def _has_no_value(binding: "Binding") -> bool:
    # `export NAME` by itself is fine for a shell that reads the same file.
    bare = binding.key is not None and binding.value is None
    return bare and not binding.original.string.lstrip().startswith("export ")


def _line_of(binding: "Binding") -> int:
    # A binding starts with the empty lines above it.
    text = binding.original.string
    blank = text[: len(text) - len(text.lstrip())]
    return binding.original.line + blank.count("\n")


def _may_be_file(file: Path) -> bool:
    """Whether `file` is a regular file, or something that only reading it can tell."""
    try:
        return stat.S_ISREG(file.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _is_checkout(root: Path) -> bool:
    """Whether `root` is hoptell's own source tree, not a project that it is installed into."""
    try:
        return '\nname = "hoptell"\n' in (root / "pyproject.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


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
    host = values.get("HOPTELL_HOST") or DEFAULT_HOST
    host = {"*": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    port = values.parse("HOPTELL_PORT", _port) or DEFAULT_PORT
    return relay_url(host, port)


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


def _expanded(text: str, environ: Mapping[str, str]) -> Path:
    if "\0" in text:
        raise ValueError("a path cannot contain a NUL character")
    home = home_folder(environ)
    if home is not None and (text == "~" or text.startswith("~/")):
        return home / text[2:]
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("there is no such home folder: write the whole path") from None


def _rate(text: str) -> Rate:
    if text == "0":
        return Rate(sends=0)
    sends, _, seconds = text.partition("/")
    try:
        rate = Rate(int(sends), float(seconds))
    except ValueError:
        rate = Rate(-1, -1)
    if rate.sends < 1 or not 0 < rate.seconds <= 86_400:
        raise ValueError("a rate is sends/seconds, for example 30/10, or 0 for no limit")
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
