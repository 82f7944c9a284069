"""What the doctor says: lines, and their two forms. Pure.

As text, a line each: `ok`, `info`, `warn` or `FAIL`, the check, what is so, and what to do.
As JSON (docs/doctor.md holds the contract; names and shape stay as they are):

    {"version": "0.1.0", "ok": false, "checks": [
      {"check": "login", "about": null, "status": "fail", "message": "…", "fix": "…"}]}

No secret gets out: whatever a check says, the token is struck out of it here, and what other
machines and programs have written is shown without control characters.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from hoptell.errors import HoptellError

Status = Literal["ok", "info", "warn", "fail"]

CHECKS = {
    "python": "the Python that runs this, hoptell, and the packages that it needs",
    "system": "what of the operating system hoptell's parts need, and what is missing",
    "settings": "the settings file and who can read it",
    "token": "whether there is a token, and where it comes from",
    "relay": "the relay's address, and where it comes from",
    "dns": "whether the relay's host name is found",
    "tcp": "whether something accepts connections there",
    "tls": "the certificate: whether it is accepted, and until when",
    "health": "whether what answers there is a relay",
    "clock": "how far this machine's clock is from the relay's",
    "login": "whether the relay takes the token and the name",
    "name": "the peer name, and whether a session has it now",
    "wake": "what HOPTELL_PUSH asks for, and whether it can work here",
    "sidecars": "each session of an agent that runs here, and how it is woken",
    "hooks": "each listener that wakes a Claude Code session",
    "inbox": "each inbox: who can read it, what waits, is shown now, was announced and is unread",
    "tmux": "whether tmux is here, and new enough",
    "injectors": "each agent under hoptell tmux: what it does, and why it does not type",
    "tmux-environment": "settings that have leaked into every new pane",
    "agents": "each agent program found here, and whether hoptell is registered with it",
}
"""Every check and what it looks at, in the order in which they are made."""


@dataclass(frozen=True)
class Line:
    """One finding."""

    check: str
    status: Status
    message: str
    """What is so, without a full stop."""
    fix: str | None = None
    """What to do about it."""
    about: str | None = None
    """Which one, where a check looks at several: a peer, an agent."""


def is_ok(lines: Iterable[Line]) -> bool:
    """Whether nothing has failed."""
    return all(line.status != "fail" for line in lines)


def as_text(lines: Iterable[Line], secrets: Iterable[str] = ()) -> str:
    """The lines as a person reads them."""
    secrets = tuple(secrets)
    return "\n".join(_shown(_text(line), secrets) for line in lines)


def _text(line: Line) -> str:
    status = "FAIL" if line.status == "fail" else line.status
    subject = line.check if line.about is None else f"{line.check} {line.about}"
    return f"{status:<4}  {subject}: {line.message}" + (f": {line.fix}" if line.fix else "")


def as_json(lines: Iterable[Line], version: str, secrets: Iterable[str] = ()) -> str:
    """The lines as a program reads them."""
    lines, secrets = tuple(lines), tuple(secrets)
    checks = [
        {
            "check": line.check,
            "about": line.about and _shown(line.about, secrets),
            "status": line.status,
            "message": _shown(line.message, secrets),
            "fix": line.fix and _shown(line.fix, secrets),
        }
        for line in lines
    ]
    value = {"version": version, "ok": is_ok(lines), "checks": checks}
    return json.dumps(value, indent=2, ensure_ascii=False)


def _shown(text: str, secrets: tuple[str, ...]) -> str:
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return "".join(c if c.isprintable() else " " for c in text)


def span(seconds: float) -> str:
    """A length of time in words: `12 s`, `3 min`, `5 h`, `2 days`."""
    seconds = max(0.0, seconds)
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86_400:.0f} days"


def failed(check: str, error: HoptellError) -> Line:
    """What it means for a check that it met this error."""
    return Line(check, "fail", error.problem, error.fix)
