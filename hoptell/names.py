"""Peer names, roles and addresses: which strings are one, and whose they are.

Names double as file names and tmux session names, so the alphabet is small (docs/protocol.md).
"""

import re

MAX_NAME_LENGTH = 64
NAME_PATTERN = f"[A-Za-z0-9][A-Za-z0-9_-]{{0,{MAX_NAME_LENGTH - 1}}}"
MAX_ROLES = 16
EVERYONE = "all"
"""The role that every peer has and nobody may announce."""

NAME_RULE = (
    f"1 to {MAX_NAME_LENGTH} letters, digits, '-' or '_', starting with a letter or digit (for"
    " example alice-2)"
)

_is_name = re.compile(NAME_PATTERN, re.ASCII).fullmatch


def is_name(text: str) -> bool:
    """Tell whether `text` can be a peer name, a role or a member name."""
    return _is_name(text) is not None


def name_problem(name: str) -> str | None:
    """Say in one sentence why `name` cannot be a peer or member name; None if it can."""
    if is_name(name):
        return None
    return f"{_shown(name)} is not a name: use {NAME_RULE}"


def roles_problem(roles: list[str]) -> str | None:
    """Say in one sentence why a peer cannot announce `roles`; None if it can."""
    if len(roles) > MAX_ROLES:
        return f"a peer has at most {MAX_ROLES} roles, not {len(roles)}"
    for role in roles:
        if not is_name(role):
            return f"{_shown(role)} is not a role: use {NAME_RULE}"
        if role == EVERYONE:
            return f"the role {EVERYONE!r} is reserved: every peer has it already"
    return None


def split_roles(text: str) -> list[str]:
    """The roles in a list with commas between them, each once; `roles_problem` checks them."""
    return list(dict.fromkeys(role for part in text.split(",") if (role := part.strip())))


def address_problem(address: str) -> str | None:
    """Say in one sentence why nothing can be sent to `address`; None if it can."""
    if is_name(address.removeprefix("@")):
        return None
    return f"{_shown(address)} is not an address: use a peer name, @role or @{EVERYONE}"


def owns(member: str, name: str) -> bool:
    """Tell whether a member's token may use a peer name: `<member>` or `<member>-…`."""
    return name == member or name.startswith(f"{member}-")


def owner_problem(member: str, name: str) -> str | None:
    """Say in one sentence why a member's token may not use a peer name; None if it may."""
    if owns(member, name):
        return None
    return f"this is {member}'s token: the name must be {member} or start with {member}-"


def member_in(problem: str) -> str | None:
    """The member in an `owner_problem`. The wire has no other place that tells a client whose
    token it has."""
    found = re.match(f"this is ({NAME_PATTERN})'s token: ", problem, re.ASCII)
    return None if found is None else found[1]


def _shown(text: str) -> str:
    """Quote what somebody else wrote: short, and with nothing a terminal would obey."""
    return ascii(text if len(text) <= MAX_NAME_LENGTH + 2 else f"{text[:MAX_NAME_LENGTH]}...")
