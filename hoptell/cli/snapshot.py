"""`hoptell snapshot`: a text file framed with the hash of its exact bytes, for a review.

Whoever reviews what was sent can say which bytes that was, and whoever sent it can see whether
they are still the same.
"""

import hashlib
import os
import re
import stat
import sys
from io import BufferedReader
from pathlib import Path

import click

from hoptell.cli.options import FilePath
from hoptell.errors import HoptellError
from hoptell.frames import MAX_TEXT_LENGTH
from hoptell.render import render_file

_MAX_BYTES = 4 * MAX_TEXT_LENGTH


def _digest(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and re.fullmatch(r"[0-9a-fA-F]{64}", value) is None:
        raise click.BadParameter("a SHA-256 is 64 hexadecimal digits")
    return None if value is None else value.lower()


@click.command(
    epilog="""\b
Examples:
  hoptell snapshot plan.md                         print it in its frame
  hoptell snapshot plan.md | hoptell send bob -    have bob review it
  hoptell snapshot --check 3a7b…e1 plan.md         is it still what bob saw?

Exit codes: 0 done, or the bytes still match; 1 they do not, or it failed; 2 wrong usage."""
)
@click.option(
    "--check", metavar="SHA256", callback=_digest, help="Only tell whether FILE still has this."
)
@click.argument("file", type=FilePath())
def snapshot_command(file: Path, check: str | None) -> None:
    """Print the text file FILE in a frame with the SHA-256 of its exact bytes.

    Control characters and others that cannot be seen are shown by their number. The whole fits
    one message.
    """
    if check is None:
        _print_snapshot(file)
    elif (digest := _hash(file)) != check:
        raise HoptellError(f"{file} has changed: its SHA-256 is now {digest}")


def _print_snapshot(file: Path) -> None:
    with _open(file) as stream:
        data = _read(file, stream)
    if len(data) > _MAX_BYTES:
        raise _too_large(file)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise HoptellError(
            f"{file} is not UTF-8 text", "a snapshot shows text files only"
        ) from None
    shown = render_file(file.name, text, digest=hashlib.sha256(data).hexdigest(), size=len(data))
    if len(shown) > MAX_TEXT_LENGTH:
        raise _too_large(file)
    # Bytes, since this is UTF-8 whatever this machine's locale says.
    sys.stdout.buffer.write(shown.encode())
    sys.stdout.buffer.flush()


def _hash(file: Path) -> str:
    with _open(file) as stream:
        try:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise _unreadable(file, error) from None


def _open(file: Path) -> BufferedReader:
    try:
        # Without waiting for somebody to write into a pipe.
        handle = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return open(handle, "rb")
        os.close(handle)
    except OSError as error:
        raise _unreadable(file, error) from None
    except ValueError:
        raise HoptellError(f"{file} is not a file name") from None
    raise HoptellError(f"{file} is not a file", "name a text file")


def _read(file: Path, stream: BufferedReader) -> bytes:
    try:
        return stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(file, error) from None


def _unreadable(file: Path, error: OSError) -> HoptellError:
    return HoptellError(f"cannot read {file}: {error.strerror}")


def _too_large(file: Path) -> HoptellError:
    return HoptellError(
        f"{file} is too large: framed it has more than the {MAX_TEXT_LENGTH:,} characters of a"
        " message, so send its path or a part of it"
    )
