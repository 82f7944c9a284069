"""The settings file: where it is, what a line of it means, and changing it (README.md).

It is the first of these that exists: `$HOPTELL_ENV`, `$XDG_CONFIG_HOME/hoptell/.env` (default
`~/.config/hoptell/.env`), `.env` in the root of a source checkout. Never one in the current
folder, which may belong to a project that an agent works on. No error quotes its contents.
"""

import io
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hoptell import replacing
from hoptell.errors import ConfigurationError
from hoptell.folders import config_home, expanded

if TYPE_CHECKING:
    from dotenv.parser import Binding

FILE_HEAD = "# hoptell's settings (README.md lists them). Keep the token to yourself.\n"
"""The first line of a new settings file."""
MAX_FILE_LENGTH = 1024 * 1024
"""Characters of a settings file."""


def settings_file_candidates(environ: Mapping[str, str]) -> list[Path]:
    """Where a settings file may be, in the order of preference.

    Raises:
        ConfigurationError: `$HOPTELL_ENV` cannot be a path on this machine.
    """
    if explicit := environ.get("HOPTELL_ENV", "").strip():
        try:
            return [expanded(explicit, environ)]
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


def is_open_to_others(file: Path) -> bool:
    """Whether other users of this machine may read a settings file, as far as its mode tells.

    Raises:
        OSError: it cannot be looked at.
    """
    return os.name == "posix" and bool(stat.S_IMODE(file.stat().st_mode) & 0o077)


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
    # quotes (a Windows path "C:\temp" would get a tab): ours has only \" \\ and \n.
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
