"""Which tokens open the relay: one shared token, a members file, or both (README.md).

A members file is a JSON object of member names and tokens, each the secret itself or
`sha256:` and the 64 hex digits of its hash:

    {"alice": "sha256:2bb80d53…", "bob": "a-plain-secret-of-16-or-more"}

Only hashes are kept once a token was read, and a presented token is compared with every one
of them in constant time, so neither the answer's time nor a crash dump gives a token away.
Everything that would make the relay weaker than its operator believes is refused at the
start, with the fix in the sentence: guessable tokens, placeholders, a file that others can
read, two members that could claim the same name. No error quotes the file's text; a member
is named only where its name is too short to be a token that was put on the wrong side.

The functions that edit a members file replace it in one step (mode 0600, same owner), so a
relay that reloads it meanwhile sees the old file or the new one.
"""

import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from hoptell import replacing
from hoptell.errors import ConfigurationError
from hoptell.names import NAME_RULE, is_name, name_problem, owns
from hoptell.relay.model import Credential
from hoptell.settings import RelaySettings

MIN_TOKEN_LENGTH = 16
HASH_PREFIX = "sha256:"
PLACEHOLDERS = ("change-me", "changeme", "replace")
"""How the tokens of example files start, in any case of letters."""

MAX_FILE_BYTES = 16 * 1024 * 1024
"""Of a members file: far more than a relay has names for, and no trouble to read."""

NEW_TOKEN = (
    f"use at least {MIN_TOKEN_LENGTH} random characters, for example from `openssl rand -hex 32`"
)

_is_hash = re.compile(r"[0-9a-f]{64}", re.IGNORECASE | re.ASCII).fullmatch


class Credentials:
    """Every token that the relay lets in, as hashes.

    Raises:
        ConfigurationError: two of them have the same secret, so that it would depend on the
            order whose connection it opens.
    """

    def __init__(self, credentials: Iterable[Credential]) -> None:
        self._all = tuple(credentials)
        by_secret: dict[str, Credential] = {}
        for credential in self._all:
            other = by_secret.setdefault(credential.fingerprint, credential)
            if other is not credential:
                raise ConfigurationError(
                    f"{_whose(other)} and {_whose(credential)} have the same token: give each its"
                    " own"
                )

    @classmethod
    def load(cls, settings: RelaySettings, *, allow_no_members: bool = False) -> "Credentials":
        """Read the shared token and the members file of these settings.

        Args:
            allow_no_members: take a members file without any. A relay that starts so lets
                nobody in, which is a mistake; one that reloads it has revoked the last member.

        Raises:
            ConfigurationError: there is none, or one of them is unfit; the sentence has the fix.
        """
        found: list[Credential] = []
        if settings.token is not None:
            found.append(Credential(None, _fingerprint(settings.token, "HOPTELL_TOKEN")))
        if settings.members is not None:
            members = _read_credentials(settings.members)
            if not members and not allow_no_members:
                raise ConfigurationError(
                    f"{settings.members} has no members: add one with `hoptell members add NAME`,"
                    " or start the relay without this file"
                )
            found += members
        if settings.token is None and settings.members is None:
            raise ConfigurationError(
                "the relay has no token: set HOPTELL_TOKEN, or HOPTELL_MEMBERS to a members file"
            )
        return cls(found)

    def find(self, token: str) -> Credential | None:
        """The credential that `token` is the secret of; takes the same time for every token."""
        presented = _hash(token)
        found = None
        for credential in self._all:
            if hmac.compare_digest(presented, credential.fingerprint):
                found = credential
        return found

    def all(self) -> frozenset[Credential]:
        """All of them, to tell which connections are still welcome."""
        return frozenset(self._all)


# Editing a members file ---------------------------------------------------------------------


def add_member(file: Path, name: str) -> str:
    """Add a member with a new token, of which the file keeps only the hash.

    Makes the file where there is none.

    Returns: the token; there is no other way to see it again.

    Raises:
        ConfigurationError: the name is unfit, taken, or overlaps with another member's, or
            the file cannot be read or written. The file is as it was.
    """
    if problem := name_problem(name):
        raise ConfigurationError(problem)
    token = secrets.token_urlsafe(32)
    with _editing(file) as members:
        for other in members:
            if other == name:
                raise ConfigurationError(
                    f"{name} is a member already: for a new token, remove it and add it again"
                )
            if _overlap(name, other):
                raise ConfigurationError(_overlap_problem(*sorted((name, other), key=len)))
        members[name] = HASH_PREFIX + _hash(token)
    return token


def list_members(file: Path) -> list[str]:
    """The members' names, sorted.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    return sorted(_read(file))


def remove_member(file: Path, name: str) -> None:
    """Take a member out of the file; the relay closes its connections when it reloads.

    Raises:
        ConfigurationError: there is no such member, or the file cannot be read or written.
            The file is as it was.
    """
    if not file.exists():
        raise ConfigurationError(f"there is no members file {file}")
    with _editing(file) as members:
        if name not in members:
            raise ConfigurationError(f"{file} has no member of that name")
        del members[name]


@contextlib.contextmanager
def _editing(file: Path) -> Iterator[dict[str, Any]]:
    """The members, to be changed; written back unless the block raises."""
    file = Path(os.path.realpath(file))  # replace what a symlink points to, not the symlink
    if not file.parent.is_dir():  # more likely a typing error than a place for tokens
        raise ConfigurationError(
            f"there is no folder {file.parent} for a members file", "make it, or correct the name"
        )
    try:
        with _locked(file.parent):
            members = _read(file) if file.exists() else {}
            yield members
            text = json.dumps(members, indent=2, ensure_ascii=False) + "\n"
            replacing.replace(file, text.encode(), mode=replacing.PRIVATE)
    except OSError as error:
        raise ConfigurationError(f"cannot write {file}: {error.strerror}") from None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep two edits from overwriting each other; nothing is left behind by it."""
    if os.name != "posix":
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


# Reading ------------------------------------------------------------------------------------


def _read_credentials(file: Path) -> list[Credential]:
    """The members of a file that a relay is to trust.

    Raises:
        ConfigurationError: see the module's docstring.
    """
    found = []
    for position, (name, token) in enumerate(_read(file, private=True).items(), start=1):
        label = f"{file}, member {name}" if _may_show(name) else f"{file}, entry {position}"
        if not is_name(name):
            raise ConfigurationError(f"{label}: a member's name is {NAME_RULE}")
        if not isinstance(token, str):
            raise ConfigurationError(f"{label}: the token must be a string in quotes")
        found.append(Credential(name, _fingerprint(token, label)))
    # '-' sorts before everything else in a name, so `alice-…` follows `alice` directly.
    for name, other in pairwise(sorted(credential.member or "" for credential in found)):
        if _overlap(name, other):
            raise ConfigurationError(f"{file}: {_overlap_problem(name, other)}")
    return found


def _read(file: Path, *, private: bool = False) -> dict[str, Any]:
    """The file's JSON object as it is.

    Raises:
        ConfigurationError: it cannot be read, is not a JSON object, or has a name twice; with
            `private` also where others can read it.
    """
    try:
        # O_NONBLOCK: a named pipe must not hold up the relay.
        handle = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(handle, "rb") as stream:
            mode = os.fstat(handle).st_mode
            if not stat.S_ISREG(mode):
                raise ConfigurationError(f"{file} is not a file: name a members file")
            if private and os.name == "posix" and mode & 0o077:
                raise ConfigurationError(
                    f"other users can read or change {file} (mode {mode & 0o777:04o}): run"
                    f" `chmod 600 {file}`, and replace its tokens if others have used this machine"
                )
            content = stream.read(MAX_FILE_BYTES + 1)
            if len(content) > MAX_FILE_BYTES:
                raise ConfigurationError(f"{file} is too large for a members file: name another")
    except FileNotFoundError:
        raise ConfigurationError(
            f"there is no members file {file}: make one with `hoptell members add NAME --file"
            f" {file}`"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}") from None
    try:
        members = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_without_duplicates)
    except _Duplicate as duplicate:
        raise ConfigurationError(
            f"{file}: a name stands there twice (entry {duplicate.position}): remove one"
        ) from None
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise ConfigurationError(
            f'{file} is not valid JSON{where}: it must be like {{"alice": "sha256:…"}}'
        ) from None
    if not isinstance(members, dict):
        raise ConfigurationError(
            f'{file} must be one JSON object of names and tokens, like {{"alice": "sha256:…"}}'
        )
    return members


class _Duplicate(Exception):
    def __init__(self, position: int) -> None:
        self.position = position


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for position, (name, value) in enumerate(pairs, start=1):
        if name in found:
            raise _Duplicate(position)
        found[name] = value
    return found


def _fingerprint(token: str, label: str) -> str:
    """The hash of a configured token.

    Raises:
        ConfigurationError: it is unfit; the sentence starts with `label`.
    """
    # In any case of letters: as a secret, a hash that a file shows would open the relay.
    if token.lower().startswith(HASH_PREFIX):
        digest = token[len(HASH_PREFIX) :]
        if not _is_hash(digest):
            raise ConfigurationError(
                f"{label}: sha256: must be followed by the 64 hex digits of the token's hash"
            )
        return digest.lower()
    if token.lower().startswith(PLACEHOLDERS):
        raise ConfigurationError(f"{label}: the token is still a placeholder: {NEW_TOKEN}")
    if len(token) < MIN_TOKEN_LENGTH:
        raise ConfigurationError(
            f"{label}: the token has fewer than {MIN_TOKEN_LENGTH} characters: {NEW_TOKEN}"
        )
    if token != token.strip():
        raise ConfigurationError(f"{label}: the token starts or ends with white space: remove it")
    return _hash(token)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _overlap(name: str, other: str) -> bool:
    return owns(name, other) or owns(other, name)


def _overlap_problem(name: str, other: str) -> str:
    return (
        f"the members {name} and {other} overlap: {name} owns every name that starts with"
        f" '{name}-', so rename one of them"
    )


def _may_show(name: str) -> bool:
    # Name and token may have been swapped. What is too short for a token is no secret.
    return is_name(name) and len(name) < MIN_TOKEN_LENGTH


def _whose(credential: Credential) -> str:
    return "HOPTELL_TOKEN" if credential.member is None else f"the member {credential.member}"
